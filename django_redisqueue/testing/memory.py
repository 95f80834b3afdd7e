"""A queue in memory: takes the jobs that would go to Redis, and runs them when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..clock import real_ms
from ..exceptions import JobFailed
from ..flowdata import FlowData, Push
from ..gatherdata import GatherData, GatherPlan
from ..jobdata import NewJob
from ..jobs import Job
from ..ports import standing_in
from ..states import JobReason, Status
from ..store.replies import Claimed
from .flows import MemoryFlows
from .gathers import MemoryGathers
from .hashes import OF_A_RUN, hash_of, set_fields, settle
from .keeping import KeptJobs
from .running import Running
from .waiting import check_parents, results_of_parents, tell_waiting

RUNS = 1000  # more than a drain may need for what it found; then jobs enqueue without end
DUE = frozenset({Status.QUEUED, Status.RETRYING})  # nobody waits for the delay of a retry


class InMemoryQueue(KeptJobs):
    """The jobs of a test. ``jobs`` are handles to them in the order of their arrival."""

    def __init__(self, *, inline: bool = False, raises: bool = False) -> None:
        super().__init__()
        self._inline = inline
        self._raises = raises
        self._running: Running | None = None
        self._line: dict[str, None] = {}  # those that are ready to run
        self._gathers = MemoryGathers(self._put, lambda job_id: self._hashes[job_id]["status"])
        self._flows = MemoryFlows(self._hashes, self._put, self._cancel)

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
            if self._flows.holds_back(job_id):
                continue
            with standing_in(self):  # also behind the end of capture_jobs()
                self._run(job_id)
            if self.job(job_id).status.is_final:
                ended.append(job_id)
        raise AssertionError(
            f"{runs} runs and no end: jobs that enqueue each other? A job that schedules its "
            "own successor is left alone by drain(scheduled=False)"
        )

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

    def push(self, push: Push) -> int:
        """Codes of push.lua."""
        code = self._flows.push(push)
        self._run_inline()
        return code

    def workflow(self, flow_id: str) -> FlowData | None:
        """A workflow and its counts, or None."""
        return self._flows.data(flow_id)

    def steer(self, flow_id: str, order: str) -> int:
        """Codes of steer.lua."""
        code = self._flows.steer(flow_id, order)
        self._go_on()
        self._run_inline()
        return code

    def parent_results(self, job_id: str) -> dict[str, Any]:
        """What the jobs that a job waited for returned, by their ids."""
        return results_of_parents(self._hashes[job_id], self._hashes)

    def cancel(self, ids: Sequence[str]) -> list[int]:
        """Codes of cancel.lua."""
        codes = [self._cancel(job_id) for job_id in ids]
        self._run_inline()
        return codes

    def requeue(self, ids: Sequence[str]) -> list[int]:
        """Codes of requeue.lua."""
        codes = [self._requeue(job_id) for job_id in ids]
        self._run_inline()
        return codes

    def _cancel(self, job_id: str, reason: JobReason = JobReason.NONE) -> int:
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
        set_fields(found, status=Status.CANCELLED, reason=reason, finished_ms=real_ms())
        self._ended(job_id)
        return 1

    def _requeue(self, job_id: str) -> int:
        found = self._hashes.get(job_id)
        if found is None:
            return -1
        if found["status"] not in (Status.FAILED, Status.CANCELLED):
            return 0
        if "refuses" in found:
            return int(found["refuses"])
        for name in OF_A_RUN:
            found.pop(name, None)
        back = Status.WAITING if found.get("waits") else Status.QUEUED
        set_fields(found, status=back, generation=int(found.get("generation", 0)) + 1)
        self._flows.revive(job_id)
        self._go_on()
        return 1

    def _ended(self, job_id: str) -> None:
        """What conclude.lua does: tell those whom the end of a job concerns."""
        found = self._hashes[job_id]
        self._gathers.job_ended(job_id, found["status"], found.get("result", ""))
        self._flows.job_ended(job_id)
        self._go_on()

    def _go_on(self) -> None:
        tell_waiting(self._hashes)
        self._flows.go_on()

    # --- running ----------------------------------------------------------------------------------

    def _next(self, statuses: frozenset[Status]) -> str | None:
        jobs = self._hashes
        ready = dict.fromkeys(job_id for job_id in jobs if jobs[job_id]["status"] in statuses)
        # Who was ready at the last look stays in front of who has come to be since.
        self._line = {job_id: None for job_id in self._line if job_id in ready} | ready
        # max() returns the first of equals.
        return max(self._line, key=lambda job_id: int(jobs[job_id]["priority"]), default=None)

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
            Running(
                claimed,
                self.parent_results(job_id),
                lambda text: set_fields(found, progress=text),
            ),
        )
        try:
            ruling = self._running.run()
            error = self._running.error
        finally:
            self._running = outer
        settle(found, ruling, data.attempts)
        if Status(found["status"]).is_final:
            self._ended(job_id)
        if self._raises and found["status"] == Status.FAILED:
            raise JobFailed(
                f"job {job_id} of {data.task} is failed: {self.job(job_id).error}"
            ) from error
