"""From what happened to what is reported: retry, fail or cancel."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from ..backoff import to_backoff
from ..clock import to_ms
from ..conf import Settings
from ..exceptions import (
    Interrupt,
    InvalidOption,
    JobAbandoned,
    JobCancelled,
    JobTimeout,
    ResultGone,
    Retry,
)
from ..jobdata import encode_error
from ..options import TaskOptions
from ..redaction import REDACTED
from ..states import JobReason
from ..store.replies import Verdict

_OWN = __package__.partition(".")[0]
UNKNOWN_TASK_LIMIT = 12  # delays of 5, 10, 20, 40 and then 60 s: about nine minutes
_UNKNOWN_TASK_CAP_MS = 60_000


class Ruling(NamedTuple):
    """Verdict, body and detail of an outcome (settle.lua)."""

    verdict: Verdict
    body: str = ""
    detail: str = ""


class Unstorable(Exception):
    """What a job returned cannot be stored, because of ``problem``; a retry would not help."""

    def __init__(self, problem: Exception) -> None:
        super().__init__("the result cannot be stored")
        self.problem = problem


def judge(
    error: BaseException,
    options: TaskOptions,
    attempts: int,
    max_attempts: int,
    settings: Settings,
    secrets: Sequence[str] = (),
) -> Ruling:
    """What an exception means for a job with ``attempts`` spent before this try. ``secrets``: what
    must not stand in its text."""
    if isinstance(error, Unstorable):
        text = describe(error.problem, settings.max_error_bytes, secrets)
        return Ruling(Verdict.FAILED, text, JobReason.RESULT)
    text = describe(error, settings.max_error_bytes, secrets)
    if isinstance(error, JobCancelled):
        return Ruling(Verdict.CANCELLED, text)
    if isinstance(error, JobAbandoned):
        return Ruling(Verdict.QUEUED)  # settle refuses it if the lease is lost indeed
    spent = attempts + 1
    reason = JobReason.TIMEOUT if isinstance(error, JobTimeout) else JobReason.NONE
    if spent >= max_attempts or not _may_retry(error, options):
        return Ruling(Verdict.FAILED, text, reason)
    try:
        delay_ms = _delay_ms(error, options, spent)
    except InvalidOption as wrong:
        return Ruling(Verdict.FAILED, describe(wrong, settings.max_error_bytes), reason)
    return Ruling(Verdict.RETRYING, text, str(delay_ms))


def _may_retry(error: BaseException, options: TaskOptions) -> bool:
    if isinstance(error, Retry | JobTimeout):
        return True
    return isinstance(error, options.retry_on) and not isinstance(error, options.no_retry_on)


def _delay_ms(error: BaseException, options: TaskOptions, spent: int) -> int:
    delay = getattr(error, "delay", None) if isinstance(error, Retry) else None
    if delay is not None:  # a subclass may have an __init__ of its own
        return to_ms(delay, "Retry(delay=...)")
    return to_backoff(options.backoff).delay_ms(spent)


def describe(error: BaseException, limit: int, secrets: Sequence[str] = ()) -> str:
    """The error as JSON: class, message and traceback, without the worker's own frames and without
    ``secrets``."""
    # The first frames are the package's own; an application's traceback begins in its task.
    frames = error.__traceback__
    while frames is not None and _is_own(frames.tb_frame.f_globals.get("__package__")):
        frames = frames.tb_next
    if isinstance(error, Interrupt):
        frames = frames or error.__traceback__
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    message, trace = _message(error), _traceback(error, frames)
    for secret in secrets:
        message, trace = message.replace(secret, REDACTED), trace.replace(secret, REDACTED)
    return encode_error(name, message, trace, limit)


def _is_own(package: object) -> bool:
    return isinstance(package, str) and package.partition(".")[0] == _OWN


def _traceback(error: BaseException, frames: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except BaseException as broken:  # a SyntaxError of somebody's own may hold no text
        frames_alone = "".join(traceback.format_tb(frames))
        return f"{frames_alone}(the rest cannot be shown: {type(broken).__name__})\n"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # an exception's own __str__ may raise anything
        return f"<{type(error).__name__} whose text cannot be made: {type(broken).__name__}>"


def unknown_task(name: str, delays: int, settings: Settings) -> Ruling:
    """A task this worker does not know: a newer one may (rolling deploy), for a bounded time."""
    message = (
        f"no task {name!r} is registered in this worker. If it was renamed, keep the old name with "
        "@task(aliases=[...]); if its module is not an app's tasks module, name it in "
        'REDISQUEUE["TASK_MODULES"]; then requeue the job'
    )
    body = encode_error("UnknownTask", message, "", settings.max_error_bytes)
    if delays >= UNKNOWN_TASK_LIMIT:
        return Ruling(Verdict.FAILED, body, JobReason.UNKNOWN_TASK)
    return Ruling(Verdict.DELAYED, body, str(min(_UNKNOWN_TASK_CAP_MS, 5000 * 2**delays)))


def corrupt(problem: str, settings: Settings) -> Ruling:
    """A payload that cannot be read."""
    body = encode_error("CorruptJob", problem, "", settings.max_error_bytes)
    return Ruling(Verdict.FAILED, body, JobReason.CORRUPT)


def without_input(gone: ResultGone, settings: Settings) -> Ruling:
    """What its parent returned is not there any more; a retry would not help."""
    return Ruling(Verdict.FAILED, describe(gone, settings.max_error_bytes), JobReason.NONE)


def timed_out(
    options: TaskOptions, attempts: int, max_attempts: int, timeout_ms: int, settings: Settings
) -> Ruling:
    """What the supervisor reports for a job whose child it had to kill."""
    error = JobTimeout(
        f"ran longer than its timeout of {timeout_ms / 1000:g} s and did not stop when told; "
        "its process was killed"
    )
    return judge(error, options, attempts, max_attempts, settings)
