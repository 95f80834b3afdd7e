"""One run of a job, from its claim to its outcome.

- *Prepare*: look up the task and read the arguments. The result is an ``Execution``, or the
  ``Resolution`` of a job that cannot run.
- *Perform*: call the task, with its timeout and, if it is ``exactly_once``, in one transaction with
  its receipt.
- *Encode*: turn the result into JSON. A result that is too large for Redis becomes a file if other
  jobs read it: that of a gather's listener, of a job in a workflow, or of a job with followers. The
  name of the file is recorded in Redis before the file is written, and the job is reported with
  that name afterwards, so maintenance deletes the file if a process dies in between.
- *Resolve*: turn an exception into a ``Resolution``: retry, fail or cancel (retry_policy.py).
- *Record*: write the outcome into the log that the child shares with its supervisor. From then on
  the outcome survives the child.
- *Report*: send it to Redis together with the next claim (loop.py).

``Pipeline`` has the steps that every run shares. ``Executor`` drives them for sync tasks in the
main thread, ``ThreadRunner`` in threads, ``AsyncRunner`` for async tasks on an event loop, and
``django_redisqueue.testing`` in the process of a test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ...broker.commands import Commands
from ...broker.connection import worker_connection
from ...broker.failures import retry_until_answered
from ...broker.replies import ClaimedJob, Outcome, OutcomeKind
from ...client.large_results import free_name, write_result
from ...client.registry import lookup
from ...client.tasks import Task
from ...client.transport import transport
from ...conf import Settings
from ...core.codec import decode_payload, encode_result, encode_stored, loads
from ...core.ids import shard_of_id
from ...core.instruments import End, Run, begin, headers_in, is_watched
from ...core.interrupts import interrupt_shield
from ...core.job_data import EXPIRES
from ...core.redaction import redact, secrets_in
from ...exceptions import (
    InvalidArguments,
    JobAbandoned,
    JobSuspended,
    LeaseLost,
    PayloadTooLarge,
    RedisQueueError,
    RedisUnavailable,
    ResultGone,
)
from ...outbox.receipts import run_once
from ..child_state import ChildState
from ..current import current_run
from ..interrupts import Interrupts
from . import retry_policy
from .context import JobContext
from .databases import Databases
from .forks import ForkGuard
from .job_log import WITH_ERROR, log_outcome
from .job_redis import JobRedis
from .retry_policy import Resolution, UnstorableResult
from .steps import Steps

NO_LIMIT = 2**63
SHARED = ("gather_", "flow_")  # prefixes of the ids of jobs whose results others read
NOT_SHARED = -2  # code of record_result_file.lua

ReportProgress = Callable[[ClaimedJob, str], bool]
COMPLETED = Resolution(OutcomeKind.COMPLETED)
WaitedSince = Callable[[ClaimedJob], tuple[int, int] | None]  # see JobRedis.waited_since
CallFunction = Callable[[list[Any]], object]  # called with these arguments
_creating = threading.Lock()  # held while a context is created


class Runner(Protocol):
    def new_context(self, execution: Execution) -> JobContext: ...


@dataclass(slots=True, repr=False)
class Execution:
    """A job ready to run. Not frozen, because creating it would take three times as long."""

    job: ClaimedJob
    task: Task
    args: list[Any]
    kwargs: dict[str, Any]
    timeout_ms: int
    max_attempts: int
    headers: Mapping[str, str] | None = None
    end: End | None = None  # set while it is watched
    runner: Runner | None = None  # set while the job runs
    context: JobContext | None = None  # created when it is first asked for

    def __repr__(self) -> str:
        return f"<Execution of {self.task.name} for {self.job.id}>"  # without its arguments

    @property
    def is_running(self) -> bool:
        return self.runner is not None

    def get_context(self) -> JobContext | None:
        """The context of this run, which its task and all its threads share."""
        found, runner = self.context, self.runner
        if found is None and runner is not None:
            with interrupt_shield.get()(), _creating:
                if self.context is None:
                    self.context = runner.new_context(self)
                found = self.context
        return found

    def secrets(self) -> Sequence[str]:
        """The values of redacted arguments, which an error's text must not contain."""
        redaction = self.task.redaction
        if redaction is None:
            return ()
        args, kwargs = decode_payload(self.job.payload)  # the task may have changed its copy
        args[:0] = self.args[: len(self.args) - len(args)]  # a parent's result
        return secrets_in(args, kwargs, redaction.marks(args, kwargs))

    def shown_arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments, without those that the task redacts."""
        redaction = self.task.redaction
        if redaction is None:
            return self.args, self.kwargs
        return redact(self.args, self.kwargs, redaction.marks(self.args, self.kwargs))


class Pipeline:
    """The steps of a run that do not depend on where it takes place."""

    def __init__(
        self,
        settings: Settings,
        unknown_task_delays: Callable[[str], int],
        parent_result: Callable[[str], Any],
        waited_since: WaitedSince = lambda _: None,
    ) -> None:
        """The callables are those of ``JobRedis``, or replacements."""
        self.settings = settings
        self._unknown_task_delays = unknown_task_delays
        self._parent_result = parent_result
        self._waited_since = waited_since

    def prepare(self, job: ClaimedJob) -> Execution | Resolution:
        """Make a claimed job ready to run, or resolve that it cannot run."""
        try:
            return self._prepare(job)
        except ResultGone as gone:  # no retry can restore it
            text = retry_policy.describe(gone, self.settings.max_error_bytes)
            return Resolution(OutcomeKind.FAILED, text)
        except (LeaseLost, RedisUnavailable):
            return Resolution(OutcomeKind.QUEUED)  # Redis refuses it if the lease is lost
        except Exception as error:  # the job's hash may have been changed manually
            return retry_policy.corrupt(f"job {job.id} cannot be read: {error}", self.settings)

    def _prepare(self, job: ClaimedJob) -> Execution | Resolution:
        task: Task | None = lookup(job.task)
        if task is None:
            delays = self._unknown_task_delays(job.id)
            return retry_policy.unknown_task(job.task, delays, self.settings)
        timeout_ms, max_attempts = task.options.timeout_ms, task.options.max_attempts
        takes_result = False
        headers = None
        args, kwargs = decode_payload(job.payload)
        if job.options:  # this job's options override those of its task
            own = _options_of(job)
            timeout_ms = own.get("timeout_ms", timeout_ms)
            max_attempts = own.get("max_attempts", max_attempts)
            if EXPIRES in own and (instants := self._waited_since(job)) is not None:
                expired = retry_policy.check_expiry(own[EXPIRES], *instants, self.settings)
                if expired is not None:
                    return expired
            takes_result = own.get("takes_result", False)
            headers = headers_in(own)
        if timeout_ms is None:
            timeout_ms = self.settings.timeout_ms
        execution = Execution(job, task, args, kwargs, timeout_ms, max_attempts, headers)
        return self._with_result(execution) if takes_result else execution

    def _with_result(self, execution: Execution) -> Execution | Resolution:
        """The same, with the result of the job's parent as the first argument."""
        try:
            result = self._parent_result(execution.job.id)
        except (RedisQueueError, ValueError):
            raise
        except Exception as error:  # of the large result's storage: as if the task read it
            return self.resolve(execution, error)
        execution.args.insert(0, result)
        return execution

    @staticmethod
    def begin(*executions: Execution) -> None:
        """Tell instruments that a run begins, in the context in which the task is called.
        ``complete`` or ``resolve`` for the first of a chunk's jobs ends it."""
        first = executions[0]
        if is_watched(first.headers):
            jobs = [(one.job.id, one.headers or {}) for one in executions]
            first.end = begin(
                Run(
                    first.job.task, first.job.queue, first.job.attempts + 1, jobs,
                    first.shown_arguments, first.secrets,
                )
            )  # fmt: skip

    @staticmethod
    def complete(execution: Execution) -> None:
        """Note that a run that was begun has completed."""
        end, execution.end = execution.end, None
        if end is not None:
            end(OutcomeKind.COMPLETED, {}, None)

    def perform(self, execution: Execution, call_task: Callable[[Execution], object]) -> str:
        """Call the task and encode its result, in a transaction with its receipt if the task is
        ``exactly_once``.

        Raises whatever ``call_task`` and ``encode`` raise; in that case nothing was committed.
        """
        job, options, settings = execution.job, execution.task.options, self.settings
        current_run.set(execution)
        try:
            if is_watched(execution.headers):
                self.begin(execution)
            if options.exactly_once:
                body = run_once(
                    job.id, options.using, lambda: encode(call_task(execution), job, settings)
                )
            else:
                body = encode(call_task(execution), job, settings)
            if execution.end is not None:
                self.complete(execution)
            return body
        except JobSuspended as suspended:
            suspended.prepare()
            raise
        finally:
            execution.runner = None

    def resolve(self, execution: Execution, error: BaseException) -> Resolution:
        """Decide what an exception in the run means for the job."""
        resolution = retry_policy.resolve_error(
            error, execution.task.options, execution.job.attempts, execution.max_attempts,
            self.settings, execution.secrets(),
        )  # fmt: skip
        end, execution.end = execution.end, None
        if end is not None:
            has_error = resolution.kind in WITH_ERROR and resolution.body
            end(resolution.kind, loads(resolution.body) if has_error else {}, error)
        return resolution


def _options_of(job: ClaimedJob) -> dict[str, Any]:
    """Raises ValueError."""
    own = loads(job.options)
    if not isinstance(own, dict):
        raise ValueError(f"its options are {job.options[:40]!r}, not a JSON object")
    numbers = own.get("timeout_ms") or 0, own.get("max_attempts", 1)
    if not all(isinstance(number, int) and 0 <= number < 2**53 for number in numbers):
        raise ValueError(f"its timeout_ms or max_attempts is no whole number: {job.options[:200]}")
    return own


def encode(result: object, job: ClaimedJob, settings: Settings) -> str:
    """The result as JSON, in the form that is reported.

    Raises UnstorableResult, JobAbandoned, and whatever the file storage raises.
    """
    try:
        return encode_result(result, settings.max_result_bytes, job.task)
    except PayloadTooLarge as error:
        return encode_large(result, job, settings, error)
    except InvalidArguments as error:
        raise UnstorableResult(error) from error


def encode_large(
    result: object, job: ClaimedJob, settings: Settings, too_large: PayloadTooLarge
) -> str:
    """``encode`` for larger results. ``too_large``: the error if no other job reads it."""
    if not transport().in_memory:
        return encode_stored(_store(result, job, settings, too_large))
    if not (job.id.startswith(SHARED) or transport().has_followers(job.id)):
        raise UnstorableResult(too_large) from too_large
    return encode_result(result, NO_LIMIT, job.task)


def _store(result: object, job: ClaimedJob, settings: Settings, too_large: PayloadTooLarge) -> str:
    """Write the file. Returns its name, which is recorded again if the storage changed it."""
    with closing(worker_connection(shard_of_id(job.id))) as connection:
        commands = Commands(connection, settings)
        wanted = free_name(job.id, job.lease)
        _record_file(commands, job, wanted, too_large)
        name = write_result(wanted, encode_result(result, NO_LIMIT, job.task))
        if name != wanted:
            _record_file(commands, job, name, too_large)
        return name


def _record_file(
    commands: Commands, job: ClaimedJob, name: str, too_large: PayloadTooLarge
) -> None:
    code = retry_until_answered(
        lambda _: commands.record_result_file(job.id, job.lease, name), who=job.id
    )
    if code == NOT_SHARED:
        raise UnstorableResult(too_large) from too_large
    if code == 0:
        commands.connection.look_again()  # perhaps this was the former master, cut off
        raise JobAbandoned(f"job {job.id} was taken over by another worker")
    if code < 0:
        problem = PayloadTooLarge(
            f"the result of {job.task} is over REDISQUEUE['MAX_RESULT_BYTES'], and its gather has "
            "ended and been forgotten, so its file would never be deleted; start another gather"
        )
        raise UnstorableResult(problem)


class Executor:
    """Runs sync jobs one after another in the child's main thread."""

    def __init__(
        self, pipeline: Pipeline, state: ChildState, interrupts: Interrupts, job_redis: JobRedis
    ) -> None:
        self._pipeline = pipeline
        self._state = state
        self._interrupts = interrupts
        self._job_redis = job_redis
        self._databases = Databases()
        self._fork_guard = ForkGuard()
        self._deadline_ms = 0  # of the running job
        interrupt_shield.set(interrupts.shield)  # each job runs in a copy of this context
        self.logs_completed = True  #: whether completed jobs are logged

    def run(self, execution: Execution, token: bytes) -> Outcome:
        """Run the job to its end. Its outcome is recorded when this returns."""
        job, state, databases = execution.job, self._state, self._databases
        started_ms = time.monotonic_ns() // 1_000_000
        self._deadline_ms = started_ms + execution.timeout_ms if execution.timeout_ms else 0
        state.begin(0, token, started_ms, self._deadline_ms)
        execution.runner = self
        if databases.is_used:
            databases.before()
        try:
            body = self._pipeline.perform(execution, self._call_task)
        except BaseException as error:
            # An interrupt may also be raised as the job ends, in one of the lines around it.
            self._interrupts.disarm()
            outcome = self.record(job, self._pipeline.resolve(execution, error), started_ms)
            databases.after_error()
        else:
            outcome = Outcome(job.id, job.lease, job.call, OutcomeKind.COMPLETED, body)
            state.log.record(outcome)
            if self.logs_completed:
                log_outcome(job, COMPLETED, started_ms)
        state.end(0)
        if databases.is_used:
            databases.after()
        return outcome

    def run_chunk(
        self,
        chunk: Sequence[Execution],
        tokens: Sequence[bytes],
        perform: Callable[[CallFunction], Sequence[Resolution]],
    ) -> list[Outcome]:
        """Run jobs of one task in one call, with the timeout of the first. ``perform`` gets a
        function that calls the task with a list of arguments, and returns each job's resolution."""
        first, state, databases = chunk[0], self._state, self._databases
        started_ms = time.monotonic_ns() // 1_000_000
        self._deadline_ms = started_ms + first.timeout_ms if first.timeout_ms else 0
        state.begin_chunk(tokens, started_ms, self._deadline_ms)
        if databases.is_used:
            databases.before()
        unnamed = first.job._replace(id="")  # a cancel of one job must not interrupt the others
        resolutions = perform(lambda args: self._call(unnamed, None, first.task.func, args, {}))
        pairs = zip(chunk, resolutions, strict=True)
        outcomes = [self.record(one.job, resolution, started_ms) for one, resolution in pairs]
        state.end_chunk()
        databases.after_error()
        if databases.is_used:
            databases.after()
        return outcomes

    def steps_of(self, job: ClaimedJob) -> Steps:
        """The steps of a job in this thread."""
        return Steps(job, self._job_redis)

    def record(
        self, job: ClaimedJob, resolution: Resolution, started_ms: int | None = None
    ) -> Outcome:
        outcome = Outcome(job.id, job.lease, job.call, *resolution)
        self._state.log.record(outcome)
        log_outcome(job, resolution, started_ms)
        return outcome

    def _call_task(self, execution: Execution) -> object:
        """Call the task. An interrupt may only occur here, not during the commit of a receipt."""
        task, args = execution.task, execution.args
        if task.options.takes_context:
            execution.context = self.new_context(execution)
            args = [execution.context, *args]
        result = self._call(execution.job, execution, task.func, args, execution.kwargs)
        if task.options.exactly_once:
            self._state.note_commit(0)
        return result

    def new_context(self, execution: Execution) -> JobContext:
        """The context of a run in the main thread."""
        job = execution.job
        context = JobContext(
            job, partial(self._job_redis.report, job), self._job_redis,
            lambda: self._interrupts.stopping, execution.max_attempts,
        )  # fmt: skip
        if self._interrupts.cancelled is job:
            context.mark_cancelled()
        return context

    def _call(
        self,
        job: ClaimedJob,
        execution: Execution | None,
        func: Callable[..., Any],
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> object:
        self._interrupts.arm(job, execution, self._deadline_ms)
        try:
            result: object = copy_context().run(func, *args, **kwargs)
        except BaseException as error:
            self._fork_guard.check(error)
            self._interrupts.disarm()
            raise
        self._fork_guard.check()
        self._interrupts.disarm()
        return result
