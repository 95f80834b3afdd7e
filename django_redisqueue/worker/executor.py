"""Runs one job: resolve, decode, perform under its timeout, and say what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from ..codec import decode_payload, loads
from ..conf import Settings
from ..exceptions import ResultGone
from ..jobs import Job
from ..receipts import run_once
from ..redaction import secrets_in
from ..registry import lookup
from ..store.replies import Claimed, Outcome, Verdict
from ..tasks import Task
from . import journal, verdicts
from .context import JobContext
from .databases import Databases
from .forks import ForksEnd
from .interrupts import Interrupts
from .reportable import encode
from .seat import Seat
from .verdicts import Ruling

Report = Callable[[Claimed, str], bool]
Delays = Callable[[str], int]
ParentResult = Callable[[str], Any]


@dataclass(slots=True, repr=False)
class Call:
    """A job made ready to run. Not frozen: that takes three times as long to make."""

    job: Claimed
    task: Task
    args: list[Any]
    kwargs: dict[str, Any]
    timeout_ms: int
    max_attempts: int

    def __repr__(self) -> str:
        return f"<Call of {self.task.name} for {self.job.id}>"  # not its arguments

    def secrets(self) -> Sequence[str]:
        """What an error of the job must not say: the arguments that its task redacts."""
        redaction = self.task.redaction
        if redaction is None:
            return ()
        return secrets_in(self.args, self.kwargs, redaction.marks(self.args, self.kwargs))


class Resolver:
    """Turns a claimed job into a Call, or into the Ruling that it cannot become one."""

    def __init__(self, settings: Settings, delays: Delays, parent_result: ParentResult) -> None:
        self._settings = settings
        self._delays = delays
        self._parent_result = parent_result

    def __call__(self, job: Claimed) -> Call | Ruling:
        try:
            return self._resolve(job)
        except ResultGone as gone:
            return verdicts.without_input(gone, self._settings)
        except Exception as error:  # whatever a hand or a stranger has left in its hash
            return verdicts.corrupt(f"job {job.id} cannot be read: {error}", self._settings)

    def _resolve(self, job: Claimed) -> Call | Ruling:
        task: Task | None = lookup(job.task)
        if task is None:
            return verdicts.unknown_task(job.task, self._delays(job.id), self._settings)
        timeout_ms, max_attempts = task.options.timeout_ms, task.options.max_attempts
        takes_result = False
        args, kwargs = decode_payload(job.payload)
        if job.options:  # of this call, before those of its task
            own = _options_of(job)
            timeout_ms = own.get("timeout_ms", timeout_ms)
            max_attempts = own.get("max_attempts", max_attempts)
            takes_result = own.get("takes_result", False)
        if takes_result:
            args = [self._parent_result(job.id), *args]
        if timeout_ms is None:
            timeout_ms = self._settings.timeout_ms
        return Call(job, task, args, kwargs, timeout_ms, max_attempts)


def _options_of(job: Claimed) -> dict[str, Any]:
    """Raises ValueError."""
    own = loads(job.options)
    if not isinstance(own, dict):
        raise ValueError(f"its options are {job.options[:40]!r}, not a JSON object")
    numbers = own.get("timeout_ms") or 0, own.get("max_attempts", 1)
    if not all(isinstance(number, int) and 0 <= number < 2**53 for number in numbers):
        raise ValueError(f"its timeout_ms or max_attempts is no whole number: {job.options[:200]}")
    return own


class Executor:
    """Runs sync jobs one after another in the child's main thread."""

    def __init__(
        self, settings: Settings, seat: Seat, interrupts: Interrupts, report: Report
    ) -> None:
        self._settings = settings
        self._seat = seat
        self._interrupts = interrupts
        self._report = report
        self._databases = Databases()
        self._forks_end = ForksEnd()
        self._deadline_ms = 0  # of the job that runs

    def run(self, call: Call, token: bytes) -> Outcome:
        """Run the job to its end, whatever that is; its outcome stands in the seat when this
        returns.
        """
        job, seat, databases = call.job, self._seat, self._databases
        started_ms = time.monotonic_ns() // 1_000_000
        self._deadline_ms = started_ms + call.timeout_ms if call.timeout_ms else 0
        seat.begin(0, token, started_ms, self._deadline_ms)
        if databases.opened:
            databases.before()
        try:
            body = perform(call, self._perform, self._settings)
        except BaseException as error:
            # Also an interrupt that came as the job was ending, in one of the lines around it.
            self._interrupts.disarm()
            outcome = self.settle(job, self._judge(error, call))
        else:
            outcome = Outcome(job.id, job.lease, job.call, Verdict.COMPLETED, body)
            seat.log.record(outcome)
        seat.end(0)
        if databases.opened:
            databases.after()
        return outcome

    def settle(self, job: Claimed, ruling: Ruling) -> Outcome:
        """Log what is to be reported of a job that has not simply completed."""
        outcome = Outcome(job.id, job.lease, job.call, ruling.verdict, ruling.body, ruling.detail)
        self._seat.log.record(outcome)
        journal.note(job, ruling)
        return outcome

    def _judge(self, error: BaseException, call: Call) -> Ruling:
        return verdicts.judge(
            error, call.task.options, call.job.attempts, call.max_attempts, self._settings,
            call.secrets(),
        )  # fmt: skip

    def _perform(self, call: Call) -> object:
        """Only in here may an interrupt come, so none can break into the commit of a receipt."""
        task, job, context = call.task, call.job, None
        args = call.args
        if task.options.takes_context:
            context = JobContext(
                Job(job.id), job.attempts + 1, lambda text: self._report(job, text), job
            )
            args = [context, *args]
        self._interrupts.arm(job, context, self._deadline_ms)
        try:
            result: object = copy_context().run(task.func, *args, **call.kwargs)
        except BaseException as error:
            self._forks_end.check(error)
            self._interrupts.disarm()
            raise
        self._forks_end.check()
        self._interrupts.disarm()
        return result


def perform(call: Call, work: Callable[[Call], object], settings: Settings) -> str:
    """Run ``work``, in a transaction with its receipt when the task says so; its result as JSON.

    Raises what ``work`` and ``encode`` raise; then nothing was committed.
    """
    job, options = call.job, call.task.options
    if options.exactly_once:
        return run_once(job.id, options.using, lambda: encode(work(call), job, settings))
    return encode(work(call), job, settings)
