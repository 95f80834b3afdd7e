"""Unique keys: which there are, and which job has each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.formatting import printable
from ..core.parsing import clock_ms, pairs, score_ms
from ..core.policies import UniqueKey
from .base import CommandBase, QueryBase
from .reads import Entry, Read, Strict, query, run

PAGE = 100  # keys a page at the most


class UniqueCommands(CommandBase):
    """Commands, on one connection."""

    def release_unique(self, key: str) -> str:
        """Free a key; the id of the job that had it, or ''. That job goes on."""
        return self._run("release_unique", key)


class UniqueQueries(QueryBase):
    """Queries, on one connection. Each costs two round trips, however many keys there are."""

    @query
    def count(self) -> Read[int]:
        """How many keys are taken. Some may be free already: those of jobs that are gone."""
        found: int
        [found] = yield Strict([("ZCARD", self.keys.uniques)])
        return found

    def page(self, start: int = 0, count: int = PAGE) -> list[UniqueKey]:
        """Up to ``count`` keys, the oldest first, without those whose time is over."""
        last = start + min(count, PAGE) - 1
        found = self.connection.call("ZRANGE", self.keys.uniques, start, last, "WITHSCORES")
        return self._read({key: score_ms(score) for key, score in pairs(found).items()})

    def first(self, count: int) -> list[UniqueKey]:
        """``page`` from the first key on, for any ``count``."""
        pages = (self.page(at, min(PAGE, count - at)) for at in range(0, count, PAGE))
        return [key for page in pages for key in page]

    @query
    def described(self, page: Sequence[Entry]) -> Read[dict[Entry, UniqueKey]]:
        """The keys of a page, without those whose time is over. Two round trips."""
        found = yield from self._described({key: score_ms(score) for key, score in page})
        by_key = {one.key: one for one in found}
        names = {entry: printable(entry.member) for entry in page}
        return {entry: by_key[name] for entry, name in names.items() if name in by_key}

    @query
    def find(self, key: str) -> Read[UniqueKey | None]:
        """The job that has a key, or None. Three round trips."""
        [taken] = yield Strict([("ZSCORE", self.keys.uniques, key)])
        found = yield from self._described({key: score_ms(taken) if taken is not None else 0})
        return found[0] if found else None

    def held_by(self, job_id: str, unique: str) -> list[UniqueKey]:
        """The keys that a job has, of those in its field ``unique``."""
        found = self._read(dict.fromkeys(unique.split()[::4][:PAGE], 0))
        return [one for one in found if one.job_id == job_id]

    def _read(self, taken: Mapping[str, int]) -> list[UniqueKey]:
        return run(self.connection, self._described(taken))

    def _described(self, taken: Mapping[str, int]) -> Read[list[UniqueKey]]:
        """These keys, given with the instants in ms at which they were taken."""
        if not taken:
            return []
        owners, ends = yield Strict(
            [
                ("MGET", *map(self.keys.unique, taken)),
                ("ZMSCORE", self.keys.unique_lifetimes, *taken),
            ]
        )
        ids = [owner.partition(" ")[0] if owner else "" for owner in owners]
        asked = (("HMGET", self.keys.job(one), "status", "task") for one in ids)
        clock, *jobs = yield [("TIME",), *asked]
        now_ms, found = clock_ms(clock), []
        for (key, taken_ms), job_id, end, job in zip(taken.items(), ids, ends, jobs, strict=True):
            until_ms = None if end is None else score_ms(end)
            status, task = job or (None, None)
            if job_id and (until_ms is None or until_ms > now_ms):
                key, job_id = printable(key), printable(job_id)
                status, task = printable(status or ""), printable(task or "")
                found.append(UniqueKey(key, job_id, status, task, taken_ms, until_ms))
        return found

    def aliases(self, ids: Sequence[str]) -> dict[str, str]:
        """The ids among these that lead to another job, because their own job was a duplicate;
        with that job."""
        found = self._each([("HGET", self.keys.job(job_id), "alias") for job_id in ids])
        return {job_id: owner for job_id, owner in zip(ids, found, strict=True) if owner}

    def statuses(self, ids: Sequence[str]) -> dict[str, str]:
        """The statuses of jobs by id, '' for those that Redis does not have."""
        found = self._each([("HGET", self.keys.job(job_id), "status") for job_id in ids])
        return {job_id: status or "" for job_id, status in zip(ids, found, strict=True)}

    def conflict(self, job_id: str) -> tuple[str, str]:
        """A unique key of a job that another job has, and that job's id; or two empty strings."""
        text: str = self._each([("HGET", self.keys.job(job_id), "unique")])[0] or ""
        for found in self._read(dict.fromkeys(text.split()[::4], 0)):
            if found.job_id != job_id:
                return found.key, found.job_id
        return "", ""
