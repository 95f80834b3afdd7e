"""Runs jobs and chunks in memory by the worker's own pipeline; and keeps their steps, waits and
events as the Lua scripts do."""

from __future__ import annotations

import re
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync

from ..broker.replies import ClaimedJob, OutcomeKind, WaitReply, WaitState
from ..client.enqueue import open_connections
from ..client.registry import lookup
from ..conf import get_settings
from ..core.statuses import Status
from ..exceptions import Interrupt
from ..worker.child.chunks import perform_chunk, shares_chunk
from ..worker.child.context import JobContext
from ..worker.child.executor import Execution, Pipeline, WaitedSince
from ..worker.child.retry_policy import UNKNOWN_TASK_LIMIT, Resolution
from ..worker.child.steps import Steps, StepStore
from ..worker.current import current_run
from .expectations import CapturedJobs
from .hashes import queued_since_ms, set_fields
from .index import JobHash

MAY_WAIT = (Status.SCHEDULED, Status.QUEUED, Status.PROCESSING)
_NUMBERS = re.compile(r" k:\S+=(\d+)/(\d+)")  # in a job's lane: size and wait in ms


@contextmanager
def committed() -> Iterator[None]:
    """Count what a job commits as committed, as in a worker.

    The transaction of the ``TestCase`` around the job never commits, so the hooks that the job
    registered there are called when it ends.
    """
    before = {
        connection: len(connection.run_on_commit)
        for connection in open_connections()
        if connection.in_atomic_block
        and all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    }
    yield
    for connection, count in before.items():
        while len(connection.run_on_commit) > count:  # a hook may register more
            _, hook, *_ = connection.run_on_commit.pop(count)
            hook()


class InlineRun:
    """One run of a job by the worker's own pipeline; ``error`` is the exception it raised."""

    def __init__(
        self,
        job: ClaimedJob,
        parent_results: Mapping[str, Any],
        report: Callable[[str], bool],
        steps: InMemorySteps,
        waited_since: WaitedSince,
    ) -> None:
        # Only jobs of a chain, which have one parent, ask for their parent's result.
        of_parent = next(iter(parent_results.values()), None)
        self._pipeline = Pipeline(
            get_settings(), lambda _: UNKNOWN_TASK_LIMIT, lambda _: of_parent, waited_since
        )
        self._context = JobContext(job, report, steps)
        self.jobs = [job]
        self.error: BaseException | None = None

    def mark_cancelled(self) -> None:
        """Show the task that it should stop; here it is not interrupted."""
        self._context.mark_cancelled()

    def run(self) -> Sequence[Resolution]:
        """Run to the end. An unknown task fails at once, because no newer worker will start."""
        execution = self._pipeline.prepare(self.jobs[0])
        return [execution if isinstance(execution, Resolution) else self._perform(execution)]

    def _perform(self, execution: Execution) -> Resolution:
        task, args = execution.task, execution.args
        execution.context, execution.runner = self._context, self
        outer = current_run.get()
        if task.options.takes_context:
            self._context.max_attempts = execution.max_attempts
            args = [self._context, *args]
        # async_to_sync brings ORM calls of the task back to this thread and its transaction.
        func: Callable[..., Any] = async_to_sync(task.func) if task.is_async else task.func
        try:
            body = self._pipeline.perform(
                execution, lambda _: copy_context().run(func, *args, **execution.kwargs)
            )
        # Other exceptions (Ctrl-C, pytest.fail) are meant for the test.
        except (Exception, Interrupt, SystemExit, CancelledError) as error:
            self.error = error
            return self._pipeline.resolve(execution, error)
        finally:
            current_run.set(outer)
        return Resolution(OutcomeKind.COMPLETED, body)

    def new_context(self, _: Execution) -> JobContext:
        """The context of the run."""
        return self._context


def in_waiting_chunks(
    jobs: Mapping[str, Mapping[str, str]], ready: Iterable[str], now_ms: int
) -> list[str]:
    """The ready jobs whose chunks are not full and still wait for more jobs."""
    lanes: dict[tuple[str, str], list[str]] = {}
    for job_id in ready:
        found = jobs[job_id]
        if " k:" in found.get("lane", ""):
            lanes.setdefault((found["queue"], found["lane"]), []).append(job_id)
    waiting: list[str] = []
    for (_, lane), ids in lanes.items():
        size, wait_ms = map(int, _NUMBERS.findall(lane)[0])
        since_ms = min(queued_since_ms(jobs[job_id]) for job_id in ids)
        if len(ids) < size and now_ms < since_ms + wait_ms:
            waiting += ids
    return waiting


def is_chunk_task(name: str) -> bool:
    task = lookup(name)
    return task is not None and task.options.chunk is not None


class ChunkRun:
    """One call of a chunk task, of ``most`` jobs or fewer; ``error`` is what it raised."""

    def __init__(
        self, first: ClaimedJob, store: StepStore, waited_since: WaitedSince, most: float
    ) -> None:
        self._pipeline = Pipeline(
            get_settings(), lambda _: UNKNOWN_TASK_LIMIT, lambda _: None, waited_since
        )
        self._steps_of = partial(Steps, store=store)
        self._most = most
        self._chunk: list[Execution] = []
        self._prepared: list[Execution | Resolution] = []
        self.jobs: list[ClaimedJob] = []
        self.error: BaseException | None = None
        self.add(first)

    def mark_cancelled(self) -> None:
        """Does nothing: as in a worker, a chunk ignores the cancellation of one of its jobs."""

    def add(self, job: ClaimedJob) -> None:
        """Add a job that the chunk ``takes``."""
        prepared = self._pipeline.prepare(job)
        self.jobs.append(job)
        self._prepared.append(prepared)
        if isinstance(prepared, Execution):
            self._chunk.append(prepared)

    def takes(self, job: ClaimedJob) -> bool:
        """Whether this job may share the call."""
        prepared = self._pipeline.prepare(job)
        if not self._chunk or not isinstance(prepared, Execution):
            return False
        first = self._chunk[0]
        chunk = first.task.options.chunk
        if chunk is None or len(self._chunk) >= min(chunk.size, self._most):
            return False
        return job.queue == first.job.queue and shares_chunk(first, prepared)

    def run(self) -> Sequence[Resolution]:
        """Call the task; returns what becomes of each job."""
        resolved = iter(self._perform(self._chunk) if self._chunk else ())
        if self.error and not isinstance(self.error, Exception | Interrupt | SystemExit):
            raise self.error  # Ctrl-C and pytest.fail are meant for the test
        return [one if isinstance(one, Resolution) else next(resolved) for one in self._prepared]

    def _perform(self, chunk: Sequence[Execution]) -> Sequence[Resolution]:
        return perform_chunk(self._pipeline, chunk, self._steps_of, self._call)

    def _call(self, args: list[object]) -> object:
        try:
            return copy_context().run(self._chunk[0].task.func, *args)
        except BaseException as error:
            self.error = error
            raise


class InMemorySteps:
    """The steps of a test's jobs, and what they wait for: a ``StepStore``."""

    def __init__(self, jobs: CapturedJobs) -> None:
        self._jobs = jobs
        self._fields: dict[str, dict[str, str]] = {}
        self._events: dict[str, tuple[str, int]] = {}  # payloads, and until when they are kept

    def load(self, job: ClaimedJob) -> dict[str, str]:
        return dict(self._fields.get(job.id, {}))

    def save(self, job: ClaimedJob, field: str, value: str) -> int:
        fields = {**self._fields.get(job.id, {}), field: value}
        size = sum(len(name) + len(text.encode()) for name, text in fields.items())
        if size > get_settings().max_result_bytes:
            return -1
        self._fields[job.id] = fields
        return 1

    def has_any(self, job_id: str) -> bool:
        return job_id in self._fields

    def forget(self, job_id: str) -> None:
        self._fields.pop(job_id, None)

    def check_wait(self, job: ClaimedJob, event: str, ms: int | None, *, sleeps: bool) -> WaitReply:
        """What check_wait.lua does."""
        field, now_ms = f"{'sleep' if sleeps else 'wait'}:{event}", self._jobs.now_ms()
        kind, _, known = self._fields.get(job.id, {}).get(field, "").partition(" ")
        generation = self._jobs.hashes[job.id].get("generation", "0")
        if kind == "event":
            return WaitReply(WaitState.OVER, known)
        if kind == "late" and known == generation:
            return WaitReply(WaitState.LATE)
        payload = None if sleeps else self._payload(event)
        if payload is not None:
            return self._note(job, field, f"event {payload}", WaitReply(WaitState.OVER, payload))
        noted_due, _, noted_generation = known.partition(" ")
        is_noted = kind == "until" and (sleeps or (noted_generation or "0") == generation)
        due = noted_due if is_noted else "" if ms is None else str(now_ms + ms)
        if due and int(due) <= now_ms:
            if sleeps:
                return WaitReply(WaitState.OVER, "null")
            return self._note(job, field, f"late {generation}", WaitReply(WaitState.LATE))
        note = f"until {due}" if sleeps or generation == "0" else f"until {due} {generation}"
        return self._note(job, field, note, WaitReply(WaitState.GOES_ON, due))

    def _note(self, job: ClaimedJob, field: str, value: str, reply: WaitReply) -> WaitReply:
        return reply if self.save(job, field, value) == 1 else WaitReply(WaitState.TOO_LARGE)

    def _payload(self, event: str) -> str | None:
        payload, until_ms = self._events.get(event, ("", 0))
        return payload if until_ms > self._jobs.now_ms() else None

    def send_event(self, event: str, payload: str) -> None:
        """What send_event.lua does."""
        until_ms = self._jobs.now_ms() + get_settings().event_ttl_ms
        self._events[event] = payload, until_ms
        for job_id, found in self._jobs.hashes.items():
            # Not if it has had an earlier one, or its timeout has passed.
            still_waits = self._fields.get(job_id, {}).get(f"wait:{event}", "").startswith("until")
            if found.get("waits_for") == event and found["status"] in MAY_WAIT and still_waits:
                self._wake(job_id, found, event, payload)

    def parked(self, job_id: str) -> None:
        """Wake a job that has just been parked if its event has come."""
        event = self._jobs.hashes[job_id]["waits_for"]
        payload = self._payload(event) if event else None
        if payload is not None:
            self._wake(job_id, self._jobs.hashes[job_id], event, payload)

    def end_sleep(self, job_id: str) -> None:
        """End the sleep of a job that a test runs early."""
        fields = self._fields.get(job_id, {})
        for name in [name for name in fields if name.startswith("sleep:")]:
            fields[name] = f"until {self._jobs.now_ms()}"

    def _wake(self, job_id: str, found: JobHash, event: str, payload: str) -> None:
        self._fields.setdefault(job_id, {})[f"wait:{event}"] = f"event {payload}"
        if found["status"] == Status.SCHEDULED:
            set_fields(found, status=Status.QUEUED, ready_ms=self._jobs.now_ms())
            found.pop("due_ms", None)
