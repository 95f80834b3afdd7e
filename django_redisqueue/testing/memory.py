"""A queue in memory: what a transport keeps of the jobs that were sent to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..clock import real_ms
from ..codec import decode_payload, dumps, loads
from ..exceptions import JobFailed, JobNotFound
from ..gatherdata import GatherData, GatherPlan
from ..jobdata import JobData, NewJob, decode_job
from ..jobs import Job
from ..lookup import JobQuery
from ..ports import standing_in
from ..registry import lookup
from ..states import Status
from ..store.replies import Claimed
from ..submit import waiting_jobs
from .gathers import MemoryGathers
from .hashes import OF_A_RUN, hash_of, set_fields, settle
from .running import Running
from .waiting import Hash, check_parents, results_of_parents, tell_waiting

RUNS = 1000  # more than a drain may need for what it found; then jobs enqueue without end
DUE = frozenset({Status.QUEUED, Status.RETRYING})  # nobody waits for the delay of a retry


class InMemoryQueue:
    """The jobs of a test. ``jobs`` are handles to them in the order of their arrival."""

    def __init__(self, *, inline: bool = False, raises: bool = False) -> None:
        self._hashes: dict[str, Hash] = {}
        self._inline = inline
        self._raises = raises
        self._running: Running | None = None
        self._gathers = MemoryGathers(self._put, lambda job_id: self._hashes[job_id]["status"])

    @property
    def jobs(self) -> list[Job]:
        """Every job that was sent, as it stands now."""
        return [Job(job_id, data=self.job(job_id)) for job_id in self._hashes]

    def drain(self, *, scheduled: bool = True) -> list[Job]:
        """Run what is kept, and what that enqueues in turn; what ran, in the order of its end.

        Larger priorities first. Attempts follow each other at once. ``scheduled``: also what is not
        due yet. Raises AssertionError when there is no end to it.
        """
        statuses = DUE | {Status.SCHEDULED} if scheduled else DUE
        ended: list[str] = []
        runs = RUNS + 10 * len(self._hashes)
        for _ in range(runs):
            job_id = self._next(statuses)
            if job_id is None:
                return [Job(job_id, data=self.job(job_id)) for job_id in ended]
            with standing_in(self):  # also behind the end of capture_jobs()
                self._run(job_id)
            if self.job(job_id).status.is_final:
                ended.append(job_id)
        raise AssertionError(
            f"{runs} runs and no end: jobs that enqueue each other? A job that schedules its "
            "own successor is left alone by drain(scheduled=False)"
        )

    def assert_enqueued(
        self,
        task: Any,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue_name: str | None = None,
        count: int | None = None,
    ) -> list[Job]:
        """Fail unless jobs like this were enqueued, and return them.

        ``task``: an object or a registered name. What is not given matches everything; ``count``
        None means at least one.
        """
        wanted = {
            "args": None if args is None else loads(dumps(list(args))),
            "kwargs": None if kwargs is None else loads(dumps(dict(kwargs))),
            "queue_name": queue_name,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        name = _name(task)
        found = [
            job
            for job in self.jobs
            if job.task_name == name
            and all(self._fact(job, attribute) == value for attribute, value in given.items())
        ]
        if len(found) == count or (count is None and found):
            return found
        like = "".join(
            f", {attribute}={tuple(value) if attribute == 'args' else value!r}"
            for attribute, value in given.items()
        )
        much = "at least 1 job" if count is None else f"{count} job{'' if count == 1 else 's'}"
        raise AssertionError(
            f"expected {much} of {name}{like}; {len(found)} found.{self._listing()}"
        )

    def _fact(self, job: Job, attribute: str) -> object:
        if attribute == "queue_name":
            return job.queue_name
        # A job shows its arguments redacted; a test may ask for the real ones.
        args, kwargs = decode_payload(self._hashes[job.id]["payload"])
        return args if attribute == "args" else kwargs

    def _listing(self) -> str:
        lines = [_line(job.data) for job in self.jobs] or ["nothing"]
        text = "\nEnqueued:" + "".join(f"\n  {line}" for line in lines)
        waiting = waiting_jobs()
        if waiting:
            lines = [_line(decode_job(new.id, hash_of(new))) for new in waiting]
            text += "\nWaiting for a commit (see captureOnCommitCallbacks):"
            text += "".join(f"\n  {line}" for line in lines)
        return text

    # --- what stands in for Redis (ports.Transport) -----------------------------------------------

    def send(self, jobs: Sequence[NewJob]) -> None:
        """Keep the jobs; run them when that is asked for."""
        for new in jobs:
            self._put(new)
        self._run_inline()

    def _put(self, new: NewJob) -> None:
        check_parents(new, self._hashes)
        self._hashes.setdefault(new.id, hash_of(new))
        tell_waiting(self._hashes)

    def _run_inline(self) -> None:
        if self._inline and self._running is None:
            self.drain(scheduled=False)

    def gather(self, plan: GatherPlan) -> int:
        """Codes of gather.lua."""
        code = self._gathers.start(plan)
        self._run_inline()
        return code

    def gather_data(self, key: str) -> GatherData | None:
        """A gather, or None."""
        return self._gathers.data(key)

    def gather_results(self, key: str) -> Mapping[str, str]:
        """The results of a gather as JSON, by listener."""
        return self._gathers.results(key)

    def key_of(self, job_id: str) -> str | None:
        """The key of the gather that a job belongs to, or None."""
        return self._gathers.key_of(job_id)

    def job(self, job_id: str) -> JobData:
        """One job. Raises JobNotFound."""
        if job_id not in self._hashes:
            raise JobNotFound(f"no job {job_id} was enqueued in this test")
        return decode_job(job_id, self._hashes[job_id])

    def find(self, query: JobQuery) -> list[JobData]:
        """The newest jobs that match."""
        found = [job.data for job in self.jobs[::-1] if query.matches(job.data)]
        return found[: query.limit]

    def parent_results(self, job_id: str) -> dict[str, Any]:
        """What the jobs that a job waited for returned, by their ids."""
        return results_of_parents(self._hashes[job_id], self._hashes)

    def cancel(self, ids: Sequence[str]) -> list[int]:
        """Codes of cancel.lua."""
        codes = [self._cancel(job_id) for job_id in ids]
        tell_waiting(self._hashes)
        return codes

    def requeue(self, ids: Sequence[str]) -> list[int]:
        """Codes of requeue.lua."""
        return [self._requeue(job_id) for job_id in ids]

    def _cancel(self, job_id: str) -> int:
        found = self._hashes.get(job_id)
        if found is None:
            return -1
        status = Status(found["status"])
        if status.is_final:
            return 0
        found["cancel_ms"] = str(real_ms())
        if status is Status.PROCESSING and self._running is not None:
            self._running.mark_cancelled()
            return 2
        set_fields(found, status=Status.CANCELLED, finished_ms=real_ms())
        self._gathers.job_ended(job_id, Status.CANCELLED, "")
        return 1

    def _requeue(self, job_id: str) -> int:
        found = self._hashes.get(job_id)
        if found is None:
            return -1
        if found["status"] not in (Status.FAILED, Status.CANCELLED):
            return 0
        for name in OF_A_RUN:
            found.pop(name, None)
        back = Status.WAITING if found.get("waits") else Status.QUEUED
        set_fields(found, status=back, generation=int(found.get("generation", 0)) + 1)
        self._run_inline()
        return 1

    # --- running ----------------------------------------------------------------------------------

    def _next(self, statuses: frozenset[Status]) -> str | None:
        ready = [job_id for job_id, found in self._hashes.items() if found["status"] in statuses]
        # max() returns the first of equals: the oldest.
        return max(ready, key=lambda job_id: self.job(job_id).priority, default=None)

    def _run(self, job_id: str) -> None:
        found, data = self._hashes[job_id], self.job(job_id)
        set_fields(
            found,
            status=Status.PROCESSING,
            child="test",
            lease=data.lease + 1,
            started_ms=real_ms(),
        )
        claimed = Claimed(
            job_id, data.queue, data.task, found["payload"], data.lease + 1, data.attempts, 0,
            found.get("options", ""), 1,
        )  # fmt: skip
        outer, self._running = (
            self._running,
            Running(claimed, lambda text: set_fields(found, progress=text)),
        )
        try:
            ruling = self._running.run()
            error = self._running.error
        finally:
            self._running = outer
        settle(found, ruling, data.attempts)
        if Status(found["status"]).is_final:
            self._gathers.job_ended(job_id, found["status"], found.get("result", ""))
        tell_waiting(self._hashes)
        if self._raises and found["status"] == Status.FAILED:
            raise JobFailed(
                f"job {job_id} of {data.task} is failed: {self.job(job_id).error}"
            ) from error


def _name(task: Any) -> str:
    """The registered name of a task of ours, of one of Django's, or of a name or alias."""
    name = task if isinstance(task, str) else getattr(task, "module_path", None) or task.name
    known = lookup(name)
    return str(name if known is None else known.name)


def _line(job: JobData) -> str:
    arguments = [repr(value) for value in job.args]
    arguments += [f"{name}={value!r}" for name, value in job.kwargs.items()]
    return f"{job.task}({', '.join(arguments)}) on {job.queue}, {job.status.value}"
