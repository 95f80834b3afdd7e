"""Unfinished jobs by what the index sets say of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..conf import Settings
from ..jobdata import JobData
from ..link import Link
from ..lookup import JobQuery
from ..parsing import whole
from .reader import Reader
from .reads import PAGE, Broken, Reads

LOOK = 10_000  # ids that are looked at; of more, which ones is left to Redis
STEP = 500  # ids a command: well under a millisecond of Redis's time
_MADE = re.compile(r"[a-z]+_(\d+)_")  # when an id was made, in ms


class Finder(Reader):
    """The lookup, on one link."""

    def __init__(self, link: Link, settings: Settings | None = None) -> None:
        super().__init__(link, settings)
        self._reads = Reads(link, settings)

    def find(self, entries: Sequence[str], query: JobQuery) -> list[JobData]:
        """The newest jobs that are in all of these index sets and match the query.

        Costs a command for each 500 ids of the smallest set, up to 10,000 of them, and one for each
        job that is read: 100 at a time, the newest first, until there are enough.
        """
        found: list[JobData] = []
        ids = sorted(self._ids([self.keys.index(entry) for entry in entries]), key=_age)[::-1]
        for at in range(0, len(ids), PAGE):
            jobs = self._reads.jobs(ids[at : at + PAGE])
            # One that has ended meanwhile, or whose hash is gone, is left out.
            found += [job for job in jobs if not isinstance(job, Broken) and query.matches(job)]
            if len(found) >= query.limit:
                break
        return found[: query.limit]

    def _ids(self, keys: Sequence[str]) -> set[str]:
        sizes = self.link.pipeline([("SCARD", key) for key in keys])
        smallest, *others = sorted(keys, key=dict(zip(keys, sizes, strict=True)).__getitem__)
        found: set[str] = set()
        for some in self._steps(smallest):
            found.update(self._in_all(some, others))
            if len(found) >= LOOK:
                break
        return found

    def _steps(self, key: str) -> Iterator[list[str]]:
        cursor = "0"
        for _ in range(LOOK // STEP):
            cursor, ids = self.link.call("SSCAN", key, cursor, "COUNT", STEP)
            yield ids
            if cursor == "0":
                return

    def _in_all(self, ids: Sequence[str], keys: Sequence[str]) -> list[str]:
        if not ids or not keys:
            return list(ids)
        replies = self.link.pipeline([("SMISMEMBER", key, *ids) for key in keys])
        return [job_id for job_id, *there in zip(ids, *replies, strict=True) if all(there)]


def _age(job_id: str) -> tuple[int, int, str]:
    """Orders ids by when they were made, a workflow's jobs by their numbers."""
    made, number = _MADE.match(job_id), job_id.rpartition(".")[2]
    return (whole(made[1]) if made else None) or 0, whole(number) or 0, job_id
