"""The jobs of a test by what they wait for, so that a test with thousands of jobs need not look at
all of them for each that runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from ..core.statuses import Status

POSTPONED = frozenset({Status.SCHEDULED, Status.RETRYING})


class JobHash(dict[str, str]):
    """A job's fields, which change as the Lua scripts change those in Redis. ``waits`` has ids,
    where Redis has their number. The index follows the hash once it is in one."""

    index: JobHashes | None = None
    job_id = ""

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        if self.index is not None:
            self.index.note(self)

    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)
        if self.index is not None:
            self.index.note(self)


class JobHashes(dict[str, JobHash]):
    """All jobs by id, in the order in which they arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.has_lanes = False  #: whether any job has limits, shares or a chunk
        self.with_parents: dict[str, None] = {}  #: ids of jobs whose parents have not all ended
        self._statuses: dict[str, str] = {}
        self._ids: dict[str, dict[str, None]] = {status: {} for status in Status}
        self._places: dict[str, int] = {}
        self._due: list[tuple[int, str]] = []  # a heap, with entries that no longer apply
        self._queued: dict[str, None] = {}
        self._changed: dict[str, None] = {}

    def __setitem__(self, job_id: str, found: JobHash) -> None:
        super().__setitem__(job_id, found)
        self._places.setdefault(job_id, len(self._places))
        self.has_lanes = self.has_lanes or "lane" in found
        found.index, found.job_id = self, job_id
        self.note(found)

    def update(self, jobs: Mapping[str, JobHash]) -> None:  # type: ignore[override]
        for job_id, found in jobs.items():
            self[job_id] = found

    def note(self, found: JobHash) -> None:
        """Follow a change of a job."""
        job_id, status = found.job_id, found["status"]
        before = self._statuses.get(job_id)
        if status != before:
            if before is not None:
                del self._ids[before][job_id]
            self._ids[status][job_id] = self._changed[job_id] = None
            self._statuses[job_id] = status
            if status == Status.QUEUED:
                self._queued[job_id] = None
        if found.get("waits"):
            self.with_parents[job_id] = None
        else:
            self.with_parents.pop(job_id, None)
        if status in POSTPONED and "due_ms" in found:
            heappush(self._due, (int(found["due_ms"]), job_id))

    def with_status(self, *statuses: Status) -> list[str]:
        """The ids of these jobs, in the order in which they arrived."""
        return self._sorted(job_id for status in statuses for job_id in self._ids[status])

    def first_due_ms(self) -> float:
        """When the first scheduled or retrying job is due."""
        while self._due:
            due_ms, job_id = self._due[0]
            found = self[job_id]
            if found["status"] in POSTPONED and found.get("due_ms") == str(due_ms):
                return due_ms
            heappop(self._due)
        return math.inf

    def take_due(self, now_ms: int) -> Iterator[JobHash]:
        """The jobs that are due. The caller changes the status of each."""
        while self.first_due_ms() <= now_ms:
            yield self[heappop(self._due)[1]]

    def take_queued(self) -> list[str]:
        """The ids of jobs that were queued since the last call, in the order of their arrival."""
        queued, self._queued = self._queued, {}
        return self._sorted(one for one in queued if self._statuses[one] == Status.QUEUED)

    def take_changed(self) -> list[str]:
        """The ids of jobs whose status changed since the last call, in the order of their
        arrival."""
        changed, self._changed = self._changed, {}
        return self._sorted(changed)

    def _sorted(self, ids: Iterable[str]) -> list[str]:
        return sorted(ids, key=self._places.__getitem__)


class ReadyJobs:
    """The ids of jobs that may run: largest priority first, then in the order in which they were
    added."""

    def __init__(self, hashes: JobHashes) -> None:
        self._hashes = hashes
        self._ids: dict[int, dict[str, None]] = {}  # by priority

    def __iter__(self) -> Iterator[str]:
        return (job_id for one in sorted(self._ids, reverse=True) for job_id in self._ids[one])

    def add(self, job_id: str) -> None:
        """Add a job at the end, unless it is there."""
        self._ids.setdefault(int(self._hashes[job_id]["priority"]), {}).setdefault(job_id)

    def discard(self, job_id: str) -> None:
        self._ids.get(int(self._hashes[job_id]["priority"]), {}).pop(job_id, None)

    def keep(self, wanted: Iterable[str]) -> None:
        """Keep only these, and add those that are missing."""
        keeps = dict.fromkeys(wanted)
        for ids in self._ids.values():
            for job_id in [one for one in ids if one not in keeps]:
                del ids[job_id]
        for job_id in keeps:
            self.add(job_id)
