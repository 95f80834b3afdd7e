"""The errors of the API: one table from the package's exceptions to HTTP."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.http import HttpResponse, JsonResponse

from .. import exceptions as ours

logger = logging.getLogger("django_redisqueue.api")

MESSAGE_LENGTH = 500  # characters; a message may quote the request
RETRY_AFTER = 2  # s

# The first row whose class matches. Errors of 500 and above are logged, and answered with the
# docstring of their class: their own message may contain addresses and keys.
FAULTS: tuple[tuple[type[Exception], int, str], ...] = (
    (ours.UnknownTask, 400, "unknown_task"),
    (ours.UnknownQueue, 400, "unknown_queue"),
    (ours.InvalidTask, 400, "invalid_task"),
    (ours.InvalidName, 400, "invalid_name"),
    (ours.InvalidOption, 400, "invalid_option"),
    (ours.InvalidArguments, 400, "invalid_arguments"),
    (ours.PayloadTooLarge, 413, "payload_too_large"),
    (ours.JobNotFound, 404, "not_found"),
    (ours.UniqueConflict, 409, "unique_conflict"),
    (ours.WrongState, 409, "wrong_state"),
    (ours.JobFailed, 409, "job_failed"),
    (ours.NotCommitted, 409, "not_committed"),
    (ours.IdempotencyConflict, 422, "idempotency_conflict"),
    (ours.LeaseLost, 409, "lease_lost"),
    (ours.WorkerLost, 409, "worker_lost"),
    (ours.CorruptJob, 409, "corrupt_job"),
    (ours.WorkflowError, 400, "invalid_workflow"),
    (ours.WorkflowNotFound, 404, "not_found"),
    (ours.WorkflowFailed, 409, "workflow_failed"),
    (ours.GatherError, 400, "invalid_gather"),
    (ours.GatherExists, 409, "gather_exists"),
    (ours.GatherNotFound, 404, "not_found"),
    (ours.GatherFailed, 409, "gather_failed"),
    (ours.ResultGone, 404, "result_gone"),
    (ours.WaitTimeout, 504, "timeout"),
    (ours.EventTimeout, 504, "event_timeout"),
    (ours.ApprovalRejected, 409, "approval_rejected"),
    (ours.StepError, 409, "step_error"),
    (ours.RedisUnavailable, 503, "redis_unavailable"),
    (ours.RedisFull, 503, "redis_full"),
    (ours.RedisRefused, 503, "redis_refused"),
    (ours.EmbeddedServerError, 503, "redis_unavailable"),
    (ours.WrongKeyType, 500, "wrong_key_type"),
    (ours.ShardMismatch, 500, "shard_mismatch"),
    (ours.WrongRedis, 500, "wrong_redis"),
    (ours.ConfigurationError, 500, "configuration_error"),
    (ours.RedisQueueError, 500, "error"),
)


class ApiError(Exception):
    """A refusal: an HTTP status, a code for programs, and a message for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        field: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field
        self.headers = dict(headers or {})
        if status == 503:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER))

    def response(self) -> HttpResponse:
        error: dict[str, Any] = {"code": self.code, "message": _one_line(str(self))}
        if self.field:
            error["field"] = _one_line(self.field)
        return JsonResponse({"error": error}, status=self.status, headers=self.headers)


def to_api_error(error: ours.RedisQueueError, field: str = "") -> ApiError:
    """The answer to one of the package's own exceptions."""
    status, code = next((row[1], row[2]) for row in FAULTS if isinstance(error, row[0]))
    if status < 500:
        return ApiError(status, code, str(error), field)
    #: The HTTP API has answered with 500 or 503, because Redis is away, full or has a key of a
    #: wrong type. The text says which; the clients see only that it failed.
    logger.error("%s: %s", type(error).__name__, error)
    return ApiError(status, code, inspect.getdoc(type(error)) or code)


@contextmanager
def errors_for(field: str) -> Iterator[None]:
    """Turn errors of the package into ApiErrors that name this field of the request."""
    try:
        yield
    except ours.RedisQueueError as error:
        raise to_api_error(error, field) from error


def _one_line(message: str) -> str:
    """One line of limited length that UTF-8 can encode."""
    line = " ".join(message.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= MESSAGE_LENGTH else line[: MESSAGE_LENGTH - 1] + "…"
