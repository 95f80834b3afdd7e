"""Headers, which travel with a job besides its arguments, and instruments, which watch jobs.

A job's headers are one of its options: the correlation id of the request that enqueued it, and what
instruments add, such as a trace context. Instruments (``django_redisqueue.telemetry``) watch jobs
as they are enqueued and run. Without them a job carries nothing more and costs nothing more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from .codec import dumps, loads

logger = logging.getLogger("django_redisqueue")

OPTION = "headers"  # in a job's options
CORRELATION = "correlation_id"  # a header

#: Of the request or job that this code runs for, or "".
correlation_id: ContextVar[str] = ContextVar("redisqueue_correlation_id", default="")


@dataclass(slots=True, repr=False)
class Run:
    """A call of a task, for one job or, in a chunk, several. ``arguments`` are those of the first
    job without the redacted ones, whose texts are in ``secrets``."""

    task: str
    queue: str
    attempt: int
    jobs: Sequence[tuple[str, Mapping[str, str]]]  # id and headers of each
    arguments: Callable[[], tuple[Sequence[Any], Mapping[str, Any]]]
    secrets: Callable[[], Sequence[str]]


#: Called when a run has ended: its OutcomeKind, its error as stored, and the exception.
End = Callable[[str, Mapping[str, str], BaseException | None], None]


class Instrument(Protocol):
    """Watches jobs. Exceptions that it raises are logged and never harm a job."""

    def producing(self, task: str, queue: str, count: int) -> AbstractContextManager[object]:
        """Wraps an enqueue of ``count`` jobs."""

    def inject(self, job_id: str, headers: dict[str, str]) -> None:
        """Add headers to a new job."""

    def begin(self, run: Run) -> End:
        """Called when a run begins, in the context in which the task is called."""


_instruments: list[Instrument] = []


def add_instrument(instrument: Instrument) -> Callable[[], None]:
    """Let an instrument watch the jobs of this process; returns a function that removes it."""
    _instruments.append(instrument)
    return lambda: _instruments.remove(instrument)


@contextmanager
def producing(task: str, queue: str, count: int) -> Iterator[None]:
    with ExitStack() as entered:
        for each in _instruments:
            manager = _safely(each.producing, task, queue, count)
            if manager is not None and _safely(_enter, manager):
                entered.push(partial(_safely, _exit, manager))
        yield


def _enter(manager: AbstractContextManager[object]) -> bool:
    manager.__enter__()
    return True


def _exit(manager: AbstractContextManager[object], *error: Any) -> None:
    try:
        manager.__exit__(*error)
    except BaseException as raised:
        if raised is not error[1]:  # a generator raises what it was given
            raise


def with_headers(options: str, job_id: str) -> str:
    """The encoded options of a new job, with its headers if there are any."""
    correlation = correlation_id.get()
    if not (correlation or _instruments):
        return options
    headers = {CORRELATION: correlation} if correlation else {}
    for each in _instruments:
        _safely(each.inject, job_id, headers)
    if not headers:
        return options
    return dumps({**(loads(options) if options else {}), OPTION: headers})


def headers_in(options: Mapping[str, Any]) -> Mapping[str, str]:
    """The headers in a job's options; {} if it has none, or none that can be read."""
    found = options.get(OPTION)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        return {}
    return found


def is_watched(headers: Mapping[str, str] | None = None) -> bool:
    """Whether a job with these headers is followed: it has some, or there are instruments."""
    return bool(headers or _instruments)


def begin(run: Run) -> End:
    """Set the run's correlation id and notify the instruments. Call the returned function in the
    same thread or task."""
    token = correlation_id.set(run.jobs[0][1].get(CORRELATION, ""))
    ends: list[End | None] = [_safely(each.begin, run) for each in _instruments]

    def end(kind: str, stored: Mapping[str, str], error: BaseException | None) -> None:
        for each in reversed(ends):
            if each is not None:
                _safely(each, kind, stored, error)
        _safely(correlation_id.reset, token)

    return end


def _safely(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Exception:
        #: An instrument (OpenTelemetry, Sentry or your own) raised an exception. The job is
        #: unharmed. The traceback shows what to fix in the instrument.
        logger.exception("telemetry has failed; the job continues")
        return None
