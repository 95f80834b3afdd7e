"""Unique keys in memory, decided as unique.lua and duplicates.lua decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..core.job_data import NewJob
from ..core.policies import UniqueKey
from ..core.statuses import JobReason, Status
from .expectations import CapturedJobs
from .hashes import JobHash, hold, release, set_fields
from .runs import InMemorySteps

LASTING = frozenset({"for", "once"})
REPLACING = frozenset({"replace", "keep_last"})
OF_AN_ATTEMPT = ("attempts", "delays", "error", "first_ms", "started_ms", "ran", "child")


class _Spec(NamedTuple):
    """One key of a job, as core/policies.py encodes it."""

    key: str
    mode: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class _Owner:
    job_id: str
    taken_ms: int
    mark: str = ""  # of the body that an Idempotency-Key came with
    until_ms: int | None = None


class InMemoryUnique:
    """The unique keys of a test."""

    def __init__(self, jobs: CapturedJobs, steps: InMemorySteps) -> None:
        self._jobs = jobs
        self._steps = steps
        self._owners: dict[str, _Owner] = {}
        self._aliases: dict[str, str] = {}

    def resolve(self, job_id: str) -> str:
        """The job that an id leads to: its own, or the one that it duplicates."""
        return self._aliases.get(job_id, job_id)

    def admit(self, new: NewJob) -> bool:
        """Whether the job is to be created; else its ``owner`` is the job that has its key."""
        if new.id in self._aliases:
            new.owner = self._aliases[new.id]
            return False
        found = self._conflict(new.id, new.unique)
        if found is None:
            return True
        spec, owner = found
        if spec.mode in REPLACING:
            if _is_under_way(self._jobs.hashes[owner.job_id]):
                return True
            self._replace(self._jobs.hashes[owner.job_id], spec, new)
        for other in _specs(new.unique):
            if other.mode == "once" and other.key != spec.key:
                self._give(other, owner.job_id)
        self._aliases[new.id] = new.owner = owner.job_id
        new.differs = spec.mode == "once" and owner.mark != spec.second
        return False

    def take(self, job_id: str, unique: str) -> None:
        """Give its keys to a job; under keep_last it may have to wait."""
        for spec in _specs(unique):
            before = self._holder(spec.key)
            if spec.mode == "keep_last" and before is not None and before.job_id != job_id:
                job = self._jobs.hashes[job_id]
                job["before"] = before.job_id
                hold(job)
            self._give(spec, job_id)

    def conflict(self, job_id: str, unique: str) -> tuple[str, str] | None:
        """The first key that another job has, and that job's id."""
        found = self._conflict(job_id, unique)
        return None if found is None else (found[0].key, found[1].job_id)

    def page(self, start: int, count: int) -> list[UniqueKey]:
        """A page of the keys that are taken, oldest first."""
        held = [(key, owner) for key in self._owners if (owner := self._holder(key)) is not None]
        held.sort(key=lambda pair: (pair[1].taken_ms, pair[0]))
        jobs = self._jobs.hashes
        return [
            UniqueKey(
                key, owner.job_id, jobs[owner.job_id]["status"], jobs[owner.job_id]["task"],
                owner.taken_ms, owner.until_ms,
            )
            for key, owner in held[start : start + count]
        ]  # fmt: skip

    def release(self, key: str) -> str:
        """Free a key; the job that had it, or ''."""
        owner = self._holder(key)
        self._owners.pop(key, None)
        return "" if owner is None else owner.job_id

    def ended(self, job_id: str) -> None:
        """Free the keys of a job that has ended, and release the jobs that wait for its end."""
        job = self._jobs.hashes[job_id]
        for spec in _specs(job.get("unique", "")):
            owner = self._owners.get(spec.key)
            lasts = spec.mode == "for" and job["status"] != Status.CANCELLED
            if owner is not None and owner.job_id == job_id and not lasts and spec.mode != "once":
                before = self._jobs.hashes.get(job.get("before", ""))
                if before is not None and not Status(before["status"]).is_final:
                    self._owners[spec.key] = _Owner(job["before"], owner.taken_ms)
                else:
                    del self._owners[spec.key]
        for other in self._jobs.hashes.values():
            waits = other["status"] == Status.WAITING and other.get("before") == job_id
            if waits and not other.get("waits"):
                release(other, self._jobs.now_ms())

    def supersede(self, job_id: str) -> None:
        """Cancel a job that would run again, if a newer one has its key."""
        job = self._jobs.hashes[job_id]
        if job["status"] not in (Status.RETRYING, Status.QUEUED, Status.SCHEDULED):
            return
        for spec in _specs(job.get("unique", "")):
            owner = self._holder(spec.key) if spec.mode == "replace" else None
            if owner is not None and owner.job_id != job_id:
                set_fields(
                    job, status=Status.CANCELLED, reason=JobReason.SUPERSEDED,
                    finished_ms=self._jobs.now_ms(),
                )  # fmt: skip

    def _conflict(self, job_id: str, unique: str) -> tuple[_Spec, _Owner] | None:
        for spec in _specs(unique):
            owner = self._holder(spec.key)
            if owner is None or owner.job_id == job_id:
                continue
            is_over = Status(self._jobs.hashes[owner.job_id]["status"]).is_final
            if not (spec.mode in REPLACING and is_over):
                return spec, owner
        return None

    def _holder(self, key: str) -> _Owner | None:
        owner = self._owners.get(key)
        if owner is None:
            return None
        if owner.until_ms is not None:
            return owner if owner.until_ms > self._jobs.now_ms() else None
        job = self._jobs.hashes[owner.job_id]
        if Status(job["status"]).is_final:
            return None
        has_started = _is_under_way(job) or int(job.get("attempts", 0)) > 0
        modes = {spec.mode for spec in _specs(job.get("unique", "")) if spec.key == key}
        return None if has_started and "until_started" in modes else owner

    def _give(self, spec: _Spec, job_id: str) -> None:
        now_ms = self._jobs.now_ms()
        until_ms = now_ms + int(spec.first) if spec.mode in LASTING else None
        self._owners[spec.key] = _Owner(job_id, now_ms, spec.second, until_ms)

    def _replace(self, job: JobHash, spec: _Spec, new: NewJob) -> None:
        now_ms, due_ms = self._jobs.now_ms(), int(job.get("due_ms", 0))
        job["payload"] = new.payload
        job.pop("options", None)
        if new.options:
            job["options"] = new.options
        if job["status"] != Status.QUEUED and "lane" in job and new.lane:
            job["lane"] = new.lane
        if job["status"] == Status.RETRYING:
            for name in OF_AN_ATTEMPT:
                job.pop(name, None)
            set_fields(job, window_ms=now_ms, status=Status.SCHEDULED)
            self._steps.forget(self._owners[spec.key].job_id)
        if job["status"] == Status.SCHEDULED:
            if spec.mode == "replace":
                begun_ms = int(job.get("window_ms", job["enqueued_ms"]))
                due_ms = min(now_ms + int(spec.first), begun_ms + int(spec.second))
            set_fields(job, due_ms=due_ms)


def _is_under_way(job: JobHash) -> bool:
    """Whether it runs, or is parked in the middle of a run."""
    return job["status"] == Status.PROCESSING or "waits_for" in job


def _specs(unique: str) -> Iterator[_Spec]:
    words = unique.split()
    return (_Spec(*words[at : at + 4]) for at in range(0, len(words), 4))
