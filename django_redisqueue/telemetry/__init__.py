"""What a process reports about its jobs: OpenTelemetry, Sentry, and request ids in logs.

A request has one id for everything that follows from it: its jobs, their jobs, and their log
records. The modules of this package need their libraries, so nothing here imports them.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

from ..core.instruments import CORRELATION
from ..core.instruments import correlation_id as _current
from ..exceptions import InvalidOption, short_repr
from ..worker.current import current_claim

__all__ = ["CorrelationFilter", "CorrelationMiddleware", "JobFilter", "correlate", "correlation_id"]

HEADER = "X-Request-ID"
_VALID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def correlation_id() -> str:
    """The correlation id of the request or job that this code runs for, or ''."""
    return _current.get()


@contextmanager
def correlate(value: str) -> Iterator[None]:
    """Give jobs enqueued in the block this correlation id; for management commands and the like.
    Raises InvalidOption."""
    if not _VALID.fullmatch(value):
        raise InvalidOption(
            "a correlation id has 1 to 128 letters, digits or characters of ._:/+=@-, not "
            f"{short_repr(value)}"
        )
    token = _current.set(value)
    try:
        yield
    finally:
        _current.reset(token)


class CorrelationMiddleware:
    """Correlates by the request's header ``X-Request-ID``, or by a new id if that is missing or
    invalid. The response also has the header. Sync and async."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        given = request.headers.get(HEADER, "")
        value = given if _VALID.fullmatch(given) else uuid.uuid4().hex
        setattr(request, CORRELATION, value)
        if self.is_async:
            return self._acall(request, value)
        with correlate(value):
            response: HttpResponse = self.get_response(request)
        response.headers[HEADER] = value
        return response

    async def _acall(self, request: HttpRequest, value: str) -> HttpResponse:
        with correlate(value):
            response: HttpResponse = await self.get_response(request)
        response.headers[HEADER] = value
        return response


class CorrelationFilter(logging.Filter):
    """Gives each log record ``correlation_id``, for formatters: '' outside requests and jobs."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, CORRELATION):  # the record of a job's outcome has its own
            # Django logs a response with an error status after the middleware, with its request.
            request = getattr(record, "request", None)
            setattr(record, CORRELATION, _current.get() or getattr(request, CORRELATION, ""))
        return True


class JobFilter(logging.Filter):
    """Gives each log record ``job_id``, ``task``, ``queue`` and ``attempt`` of the running job, for
    formatters: '-' outside jobs. A chunk has those of its first job."""

    def filter(self, record: logging.LogRecord) -> bool:
        job = current_claim()
        facts: dict[str, Any] = dict.fromkeys(("job_id", "task", "queue", "attempt"), "-")
        if job is not None:
            facts = {
                "job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempts + 1,
            }  # fmt: skip
        if record.name == "django_redisqueue.jobs":  # the outcome of a job, which has the others
            facts["job_id"] = vars(record).get("id", "-")
        vars(record).update({name: facts[name] for name in facts.keys() - vars(record).keys()})
        return True
