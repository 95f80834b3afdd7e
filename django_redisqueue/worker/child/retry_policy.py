"""Decides what becomes of a job that did not complete: retry, fail or cancel."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from ...broker.replies import OutcomeKind
from ...client.options import TaskOptions
from ...conf import Settings
from ...core.clock import to_ms
from ...core.formatting import duration
from ...core.job_data import encode_error, instant_ms
from ...core.policies import to_backoff
from ...core.redaction import REDACTED
from ...core.statuses import JobReason
from ...exceptions import (
    ApprovalRejected,
    EventTimeout,
    Interrupt,
    InvalidOption,
    JobAbandoned,
    JobCancelled,
    JobSuspended,
    JobTimeout,
    RateLimited,
    Retry,
)

_OWN = __package__.partition(".")[0]
UNKNOWN_TASK_LIMIT = 12  # delays of 5, 10, 20, 40 and then 60 s: about nine minutes
_UNKNOWN_TASK_CAP_MS = 60_000


class Resolution(NamedTuple):
    """What becomes of a job: kind, body and detail of its ``Outcome``."""

    kind: OutcomeKind
    body: str = ""
    detail: str = ""


class UnstorableResult(Exception):
    """The result cannot be stored, because of ``problem``. A retry would not help."""

    def __init__(self, problem: Exception) -> None:
        super().__init__("the result cannot be stored")
        self.problem = problem


def resolve_error(
    error: BaseException,
    options: TaskOptions,
    attempts: int,
    max_attempts: int,
    settings: Settings,
    secrets: Sequence[str] = (),
) -> Resolution:
    """Resolve an exception in a job that has spent ``attempts`` so far, without ``secrets``."""
    try:
        return _resolve(error, options, attempts, max_attempts, settings, secrets)
    except BaseException:  # from a property of its class, or from a metaclass
        return Resolution(OutcomeKind.FAILED, _unreadable(settings.max_error_bytes))


def _resolve(
    error: BaseException,
    options: TaskOptions,
    attempts: int,
    max_attempts: int,
    settings: Settings,
    secrets: Sequence[str],
) -> Resolution:
    error = _unwrapped(error)
    if isinstance(error, UnstorableResult):
        text = describe(error.problem, settings.max_error_bytes, secrets)
        return Resolution(OutcomeKind.FAILED, text, JobReason.RESULT)
    if isinstance(error, JobSuspended):
        return Resolution(OutcomeKind(error.kind), error.body, error.detail)
    spent = attempts + 1
    # With more attempts, all have the same message, by which the page of errors groups them.
    suffix = ""
    if max_attempts == 1 and isinstance(error, Retry):
        suffix = "; no attempt is left, because max_attempts is 1"
    text = describe(error, settings.max_error_bytes, secrets, suffix)
    if isinstance(error, JobCancelled):
        return Resolution(OutcomeKind.CANCELLED, text)
    if isinstance(error, JobAbandoned):
        return Resolution(OutcomeKind.QUEUED)  # Redis refuses it if the lease is lost
    is_limited = isinstance(error, RateLimited)
    reason = JobReason.TIMEOUT if isinstance(error, JobTimeout) else JobReason.NONE
    if not is_limited and (spent >= max_attempts or not _may_retry(error, options)):
        return Resolution(OutcomeKind.FAILED, text, reason)
    try:
        delay_ms = _delay_ms(error, options, spent)
    except InvalidOption as wrong:
        return Resolution(OutcomeKind.FAILED, describe(wrong, settings.max_error_bytes), reason)
    kind = OutcomeKind.LIMITED if is_limited else OutcomeKind.RETRYING
    return Resolution(kind, text, str(delay_ms))


def _unwrapped(error: BaseException) -> BaseException:
    """The interrupt in an exception group, such as one from ``asyncio.TaskGroup``, or the first of
    a group that contains only retry requests; otherwise the same error."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    found: BaseException | None = error.subgroup((JobTimeout, JobCancelled, JobAbandoned))
    if found is None:
        asked, others = error.split((Retry, RateLimited))
        found = asked if others is None else None
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found or error


def _may_retry(error: BaseException, options: TaskOptions) -> bool:
    if isinstance(error, EventTimeout | ApprovalRejected):
        return False  # it is stored: the next run would meet it again
    if isinstance(error, Retry | JobTimeout):
        return True
    return isinstance(error, options.retry_on) and not isinstance(error, options.no_retry_on)


def _delay_ms(error: BaseException, options: TaskOptions, spent: int) -> int:
    """Raises InvalidOption. A subclass may omit to call ``Retry.__init__``, hence ``getattr``."""
    if isinstance(error, RateLimited):
        return to_ms(getattr(error, "retry_after", None), "RateLimited(retry_after=...)")
    if isinstance(error, Retry) and (delay := getattr(error, "delay", None)) is not None:
        return to_ms(delay, "Retry(delay=...)")
    return to_backoff(options.backoff).delay_ms(spent)


def describe(
    error: BaseException, limit: int, secrets: Sequence[str] = (), suffix: str = ""
) -> str:
    """The error as JSON: class, message (with the suffix) and traceback, without the ``secrets``
    and without the frames of this package."""
    try:
        return _describe(error, limit, secrets, suffix)
    except BaseException:
        return _unreadable(limit)


def _unreadable(limit: int) -> str:
    message = "the exception of the task cannot be read: its class raises when it is looked at"
    return encode_error("UnreadableError", message, "", limit)


def _describe(error: BaseException, limit: int, secrets: Sequence[str], suffix: str) -> str:
    frames = error.__traceback__
    while frames is not None:
        package = frames.tb_frame.f_globals.get("__package__")
        if not isinstance(package, str) or package.partition(".")[0] != _OWN:
            break
        frames = frames.tb_next
    if isinstance(error, Interrupt):
        frames = frames or error.__traceback__
    kind = type(error)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    message, trace = _message(error), _traceback(error, frames)
    for secret in secrets:
        message, trace = message.replace(secret, REDACTED), trace.replace(secret, REDACTED)
    return encode_error(f"{prefix}{kind.__qualname__}", message + suffix, trace, limit)


def _traceback(error: BaseException, frames: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except BaseException as broken:  # such as a SyntaxError that was raised without its details
        frames_alone = "".join(traceback.format_tb(frames))
        return f"{frames_alone}(the rest cannot be shown: {type(broken).__name__})\n"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # __str__ of an application's exception may raise anything
        return f"<{type(error).__name__} whose text cannot be made: {type(broken).__name__}>"


def unknown_task(name: str, delays: int, settings: Settings) -> Resolution:
    """Delay a job of an unknown task, which newer workers may have, for a bounded time."""
    message = (
        f"no task {name!r} is registered in this worker. If it is new, restart the worker; if it "
        "was renamed, keep the old name with @task(aliases=[...]); if its module is not an app's "
        'tasks module, name it in REDISQUEUE["TASK_MODULES"]; then requeue the job'
    )
    body = encode_error("UnknownTask", message, "", settings.max_error_bytes)
    if delays >= UNKNOWN_TASK_LIMIT:
        return Resolution(OutcomeKind.FAILED, body, JobReason.UNKNOWN_TASK)
    return Resolution(OutcomeKind.DELAYED, body, str(min(_UNKNOWN_TASK_CAP_MS, 5000 * 2**delays)))


def check_expiry(
    expires: str, since_ms: int, claimed_ms: int, settings: Settings
) -> Resolution | None:
    """Cancel a job that was claimed after it had expired; None for others. Raises ValueError."""
    late_ms = claimed_ms - instant_ms(expires, since_ms)
    if late_ms <= 0:
        return None
    message = (
        f"no worker claimed it before it expired, but {duration(late_ms)} later; requeue it to run "
        "it anyway"
    )
    body = encode_error("JobExpired", message, "", settings.max_error_bytes)
    return Resolution(OutcomeKind.CANCELLED, body, JobReason.EXPIRED)


def corrupt(problem: str, settings: Settings) -> Resolution:
    """Fail a job that cannot be read."""
    body = encode_error("CorruptJob", problem, "", settings.max_error_bytes)
    return Resolution(OutcomeKind.FAILED, body, JobReason.CORRUPT)
