"""``InMemoryQueue``: a transport that keeps jobs in memory, and runs them when asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from ..broker.replies import ClaimedJob, OutcomeKind, RequeueReply
from ..client.jobs import Job
from ..client.transport import check_pushed
from ..core.clock import Deadline, to_ms
from ..core.job_data import JobData, NewJob, decode_job
from ..core.policies import decode_lane
from ..core.ports import use_transport
from ..core.records import GatherPlan, Push
from ..core.statuses import JobReason, OnConflict, Status
from ..exceptions import InvalidOption, JobFailed, JobNotFound, short_repr
from ..worker.child.retry_policy import Resolution
from .expectations import CapturedJobs
from .hashes import (
    OF_A_RUN,
    apply_resolution,
    check_parents,
    new_hash,
    parent_results_of,
    release_dependants,
    set_fields,
)
from .index import POSTPONED, JobHash, ReadyJobs
from .policies import InMemoryLanes, InMemoryPauses, InMemoryUnique
from .runs import ChunkRun, InlineRun, InMemorySteps, committed, in_waiting_chunks, is_chunk_task
from .schedules import InMemorySchedules
from .workflows import InMemoryGathers, InMemoryWorkflows

EXTRA_RUNS = 1000  # that a drain allows in addition to ten for each job it found
STEPS = 10_000  # of the clock that a travel allows
QUEUED = frozenset({Status.QUEUED})
Answer = TypeVar("Answer")


class InMemoryQueue(CapturedJobs):
    """The jobs of a test; ``jobs`` are their handles, in the order in which they arrived."""

    def __init__(self, *, inline: bool = False, raises: bool = False) -> None:
        super().__init__()
        self._inline = inline
        self._raises = raises
        self._running: InlineRun | ChunkRun | None = None
        self._ready = ReadyJobs(self.hashes)
        self._ready_statuses: frozenset[Status] | None = None  # for which it is up to date
        self._steps = InMemorySteps(self)
        self._lanes = InMemoryLanes(self)
        self._pauses = InMemoryPauses()
        self._unique = InMemoryUnique(self, self._steps)
        self._gathers = InMemoryGathers(self)
        self._workflows = InMemoryWorkflows(self, self._unique)
        self._schedules = InMemorySchedules(self)
        # Queries of the Transport protocol that one part answers alone.
        self.gather = self._gathers.data
        self.gather_results = self._gathers.results
        self.gather_key = self._gathers.key_of
        self.workflow = self._workflows.data
        self.unique_keys = self._unique.page
        self.release_unique = self._unique.release
        self.is_paused = self._pauses.is_paused
        self.pauses = self._pauses.pauses

    def drain(self, *, scheduled: bool = True) -> list[Job]:
        """Run the captured jobs and those that they enqueue; returns them in the order in which
        they ended.

        Larger priorities run first, and retries at once. ``scheduled``: also run jobs that are not
        yet due. Raises AssertionError if it would never end.
        """
        statuses = QUEUED | POSTPONED if scheduled else QUEUED | {Status.RETRYING}
        return self._drain(statuses, by_rate=not scheduled)

    def run_due(self) -> list[Job]:
        """``drain``, but retries and chunks also wait until they are due: see ``travel``."""
        return self._drain(QUEUED, by_rate=True)

    def travel(
        self, by: timedelta | None = None, /, *, periodic: bool = True, **parts: float
    ) -> None:
        """Move the clock forward: ``travel(hours=1)``, ``travel(timedelta(days=2))``.

        Scheduled, retrying and periodic jobs become due on the way, in order. They are queued then;
        ``run_inline`` runs them, each at its time. Without ``periodic``, no schedule fires. Only
        the clock of the jobs moves, not Python's.
        """
        target_ms = self.now_ms() + _to_travel_ms(by, parts)
        if periodic:
            self._schedules.refresh()
        for _ in range(STEPS):
            scheduled_ms = self._schedules.first_due_ms() if periodic else math.inf
            due_ms = min(self.hashes.first_due_ms(), scheduled_ms, self._first_allowed_ms())
            if due_ms > target_ms:
                self.move_clock_to(target_ms)
                self._schedules.skip_due()
                self._run_inline()
                return
            self.move_clock_to(int(due_ms))
            if due_ms == scheduled_ms:
                self._schedules.fire_due()
            self._queue_due()
            self._run_inline()
        raise AssertionError(
            f"travel: jobs are due at more than {STEPS} instants; travel less far, or with "
            "periodic=False"
        )

    def _drain(self, statuses: frozenset[Status], *, by_rate: bool) -> list[Job]:
        ended: list[str] = []
        runs = EXTRA_RUNS + 10 * len(self.hashes)
        for _ in range(runs):
            self._queue_due()
            job_id = self._next(statuses, by_rate=by_rate)
            if job_id is None:
                return [Job(job_id, data=self.job(job_id)) for job_id in ended]
            if self._workflows.hold_back(job_id):
                continue
            with use_transport(self):  # also after the end of capture_jobs()
                ran = self._run(job_id, by_rate=by_rate)
            ended += [job_id for job_id in ran if self.job(job_id).status.is_final]
        assert job_id is not None
        raise AssertionError(
            f"no end after {runs} runs, the last of {self.job(job_id).task}: does a job always "
            "raise RateLimited, or do jobs enqueue each other? drain(scheduled=False) does not run "
            "jobs that schedule their own successors"
        )

    # The Transport protocol; the codes are those of the Lua scripts.

    in_memory = True

    def check(self) -> None:
        """Jobs can always be sent."""

    def enqueue(self, jobs: Sequence[NewJob]) -> None:
        for new in jobs:
            if self.put(new):
                self._resolve_conflict(new)
        self._run_inline()

    def put(self, new: NewJob) -> bool:
        new.after = " ".join(map(self._unique.resolve, new.after.split()))
        check_parents(new, self.hashes)
        now_ms = self.now_ms()
        is_new = new.id not in self.hashes and self._unique.admit(new)
        if is_new:
            self.hashes[new.id] = new_hash(new, now_ms)
            self._unique.take(new.id, new.unique)
            self._note_ready()  # a callback is queued before the followers of the job that ended
        release_dependants(self.hashes, now_ms)
        return is_new

    def _resolve_conflict(self, new: NewJob) -> None:
        """``on_conflict``, which only jobs of ``enqueue`` obey: no runs of schedules, callbacks or
        listeners."""
        if rivals := self._lanes.rivals_of(new):
            discards = decode_lane(new.lane).on_conflict is OnConflict.DISCARD
            self.cancel_job(new.id if discards else rivals[0], JobReason.CONFLICT)

    def _note_ready(self) -> None:
        """Jobs that are queued now stay ahead of those that will be. As in Redis, a cancelled job
        without a lane or a priority keeps its place until the next job is chosen, and gets it back
        if it is requeued."""
        for job_id in self.hashes.take_queued():
            self._ready.add(job_id)

    def _run_inline(self) -> None:
        self._note_ready()
        if self._inline and self._running is None:
            self.drain(scheduled=False)

    def _then_run(self, answer: Answer) -> Answer:
        self._run_inline()
        return answer

    def start_gather(self, plan: GatherPlan) -> int:
        return self._then_run(self._gathers.start(plan))

    def push_workflow(self, push: Push) -> None:
        check_pushed(self._workflows.push(push), push.workflow_id)
        self._run_inline()

    def push_workflows(self, pushes: Iterable[Push]) -> Iterator[str]:
        for push in pushes:
            self.push_workflow(push)
            yield push.workflow_id

    def control_workflow(self, workflow_id: str, command: str) -> int:
        code = self._workflows.control(workflow_id, command)
        self._advance()
        return self._then_run(code)

    def parent_results(self, job_id: str) -> dict[str, Any]:
        return parent_results_of(self.hashes[job_id], self.hashes)

    def job(self, job_id: str) -> JobData:
        """A job, or the one that a duplicate's id leads to. Raises JobNotFound."""
        owner = self._unique.resolve(job_id)
        if owner not in self.hashes:
            raise JobNotFound(f"no job {owner} was enqueued in this test")
        return decode_job(owner, self.hashes[owner])

    def cancel(self, job_id: str) -> int:
        return self._then_run(self.cancel_job(self._unique.resolve(job_id)))

    def requeue(self, job_id: str) -> int:
        return self._then_run(self._requeue(self._unique.resolve(job_id)))

    def has_job(self, job_id: str) -> bool:
        return self._unique.resolve(job_id) in self.hashes

    def has_followers(self, job_id: str) -> bool:
        return any(job_id in found.get("after", "").split() for found in self.hashes.values())

    def duplicate_of(self, job_id: str) -> str:
        owner = self._unique.resolve(job_id)
        return "" if owner == job_id else owner

    def set_limit(self, key: str, number: str) -> bool:
        return self._then_run(self._lanes.set_limit(key, number))

    def pause(self, queue: str, key: str, paused: bool, by: str) -> bool:
        return self._then_run(self._pauses.pause(queue, key, paused, by))

    def unique_conflict(self, job_id: str) -> tuple[str, str]:
        job_id = self._unique.resolve(job_id)
        found = self._unique.conflict(job_id, self.hashes[job_id].get("unique", ""))
        return (found[0].key, found[1].job_id) if found else ("", "")

    def send_event(self, event: str, payload: str) -> None:
        self._steps.send_event(event, payload)
        self._run_inline()

    def forget_steps(self, job_id: str) -> int:
        found = self.hashes.get(job_id)
        if found is None:
            return -1
        if found["status"] not in (Status.FAILED, Status.CANCELLED):
            return 0
        self._steps.forget(job_id)
        return 1

    def wait_for_job(self, job_id: str, deadline: Deadline) -> None:
        """Nothing ends while the test waits, so there is nothing to wait for."""

    def wait_until(self, has_ended: Callable[[], bool], owner_id: str, deadline: Deadline) -> None:
        """As ``wait_for_job``."""

    def cancel_job(self, job_id: str, reason: JobReason = JobReason.NONE) -> int:
        found = self.hashes.get(job_id)
        if found is None:
            return -1
        status = Status(found["status"])
        if status.is_final:
            return 0
        if status is Status.PROCESSING and self._running is not None:
            found["cancel_ms"] = str(self.now_ms())
            self._running.mark_cancelled()
            return 2
        if "lane" in found or found["priority"] != "0":
            self._ready.discard(job_id)
        set_fields(found, status=Status.CANCELLED, reason=reason, finished_ms=self.now_ms())
        self._ended(job_id)
        return 1

    def _requeue(self, job_id: str) -> int:
        found = self.hashes.get(job_id)
        if found is None:
            return -1
        if found["status"] not in (Status.FAILED, Status.CANCELLED):
            return 0
        if "refuses" in found:
            return int(found["refuses"])
        unique = found.get("unique", "")
        if self._unique.conflict(job_id, unique):
            return RequeueReply.UNIQUE_CONFLICT
        for name in OF_A_RUN:
            found.pop(name, None)
        back = Status.WAITING if found.get("waits") else Status.QUEUED
        generation = int(found.get("generation", 0)) + 1
        set_fields(found, status=back, ready_ms=self.now_ms(), generation=generation)
        self._unique.take(job_id, unique)
        self._workflows.revive(job_id)
        self._advance()
        return 1

    def _ended(self, job_id: str) -> None:
        """What end_job.lua does: update gathers, workflows and dependants."""
        found = self.hashes[job_id]
        if found["status"] == Status.COMPLETED:
            self._steps.forget(job_id)
        self._unique.ended(job_id)
        self._gathers.job_ended(job_id, found["status"], found.get("result", ""))
        self._workflows.job_ended(job_id)
        self._advance()

    def _advance(self) -> None:
        release_dependants(self.hashes, self.now_ms())
        self._workflows.advance()

    # Running a job.

    def _first_allowed_ms(self) -> float:
        """When a rate first allows one of the jobs that wait for it: only ``run_inline`` asks."""
        if not self._inline or not self.hashes.has_lanes:
            return math.inf
        now_ms = self.now_ms()
        instants = (
            self._lanes.allowed_ms(job_id)
            for job_id in self.hashes.with_status(Status.QUEUED)
            if "lane" in self.hashes[job_id]
        )
        return min((instant for instant in instants if instant > now_ms), default=math.inf)

    def _queue_due(self) -> None:
        """What promote.lua does."""
        for found in self.hashes.take_due(self.now_ms()):
            set_fields(found, status=Status.QUEUED, ready_ms=found.pop("due_ms"))

    def _next(self, statuses: frozenset[Status], *, by_rate: bool) -> str | None:
        changed = self.hashes.take_changed()
        if statuses == self._ready_statuses:
            for job_id in changed:
                if self._may_run(job_id, statuses):
                    self._ready.add(job_id)
                else:
                    self._ready.discard(job_id)
        else:
            found = self.hashes.with_status(*statuses)
            self._ready.keep(job_id for job_id in found if self._may_run(job_id, statuses))
            self._ready_statuses = statuses
        return self._lanes.choose(self._not_held(statuses), by_rate=by_rate)

    def _not_held(self, statuses: frozenset[Status]) -> Iterable[str]:
        """The ready jobs that no pause or unfilled chunk holds. The others keep their places."""
        if not self.hashes.has_lanes and not self._pauses.are_any:
            return self._ready
        ready = [one for one in self._ready if not self._pauses.hold(self.hashes[one])]
        if statuses != QUEUED:
            return ready
        waiting = set(in_waiting_chunks(self.hashes, ready, self.now_ms()))
        return [job_id for job_id in ready if job_id not in waiting]

    def _may_run(self, job_id: str, statuses: frozenset[Status]) -> bool:
        """Whether it has one of the statuses. A job that waits for an event is not run early."""
        found = self.hashes[job_id]
        status = Status(found["status"])
        return status in statuses and not (status is Status.SCHEDULED and found.get("waits_for"))

    def _run(self, job_id: str, *, by_rate: bool) -> list[str]:
        """Run a job, or the chunk whose first job it is; returns the ids."""
        run: InlineRun | ChunkRun
        if is_chunk_task(self.hashes[job_id]["task"]):
            run = self._chunk_of(job_id, by_rate=by_rate)
        else:
            report = partial(self._report, job_id)
            run = InlineRun(
                self._claim(job_id), self.parent_results(job_id), report, self._steps,
                self._waited_since,
            )  # fmt: skip
        outer, self._running = self._running, run
        try:
            with committed():
                resolutions = run.run()
        finally:
            self._running = outer
        self._end(run, resolutions)
        return [job.id for job in run.jobs]

    def _report(self, job_id: str, progress: str) -> bool:
        set_fields(self.hashes[job_id], progress=progress)
        return True

    def _chunk_of(self, first: str, *, by_rate: bool) -> ChunkRun:
        most = self._lanes.most_at_once(first)
        run = ChunkRun(self._claim(first), self._steps, self._waited_since, most)
        for job_id in self._ready:
            held = self._pauses.hold(self.hashes[job_id])
            if job_id != first and not held and run.takes(self._as_claimed(job_id)):
                if by_rate and not self._lanes.allows(job_id):
                    break
                run.add(self._claim(job_id))
        return run

    def _claim(self, job_id: str) -> ClaimedJob:
        data, claimed = self.job(job_id), self._as_claimed(job_id)
        if data.status is Status.SCHEDULED and data.waits_for == "":
            self._steps.end_sleep(job_id)
        self._lanes.start(job_id)
        set_fields(
            self.hashes[job_id], status=Status.PROCESSING, child="test", lease=claimed.lease,
            started_ms=self.now_ms(),
        )  # fmt: skip
        return claimed

    def _waited_since(self, job: ClaimedJob) -> tuple[int, int] | None:
        """As WorkflowQueries.waited_since."""
        found = self.hashes[job.id]
        if "ran" in found or "generation" in found:
            return None
        since = [found["enqueued_ms"], found.get("renewed_ms", "0")]
        parents = [self.hashes.get(one, JobHash()) for one in found.get("after", "").split()]
        since += [parent.get("finished_ms", "0") for parent in parents]
        return max(map(int, since)), self.now_ms()

    def _as_claimed(self, job_id: str) -> ClaimedJob:
        """The job as its next claim would return it."""
        found, data = self.hashes[job_id], self.job(job_id)
        return ClaimedJob(
            job_id, data.queue, data.task, found["payload"], data.lease + 1, data.attempts, 0,
            found.get("options", ""), 1,
        )  # fmt: skip

    def _end(self, run: InlineRun | ChunkRun, resolutions: Sequence[Resolution]) -> None:
        for job, resolution in zip(run.jobs, resolutions, strict=True):
            found = self.hashes[job.id]
            is_superseded = self._unique.is_superseded(job.id)
            apply_resolution(found, resolution, job.attempts, self.now_ms(), is_superseded)
            if resolution.kind is OutcomeKind.PARKED and found["status"] == Status.SCHEDULED:
                self._steps.parked(job.id)
            if resolution.kind is OutcomeKind.LIMITED and found["status"] == Status.RETRYING:
                self._lanes.postpone(job.id, self.now_ms() + int(resolution.detail))
            if Status(found["status"]).is_final:
                self._ended(job.id)
        for job in run.jobs:
            if self._raises and self.hashes[job.id]["status"] == Status.FAILED:
                raise JobFailed(
                    f"job {job.id} of {job.task} is failed: {self.job(job.id).error}"
                ) from run.error


def _to_travel_ms(by: timedelta | None, parts: dict[str, float]) -> int:
    """The arguments of ``travel`` as ms. Raises InvalidOption."""
    try:
        return to_ms((by or timedelta()) + timedelta(**parts), "travel()")
    except (TypeError, OverflowError) as error:
        given = ", ".join(f"{name}={short_repr(value)}" for name, value in parts.items())
        raise InvalidOption(
            f"travel() accepts a timedelta, or its parts such as hours=1, minutes=30, "
            f"not {given or short_repr(by)} ({error})"
        ) from None
