"""``sentry_sdk.init(integrations=[RedisQueueIntegration()])``: exceptions of jobs, each once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.utils import event_from_exception

from ..core.instruments import CORRELATION, End, Run, add_instrument
from ..core.redaction import REDACTED

JOB_LOGGER = "django_redisqueue.jobs"  # its records of failures would be duplicate events
TASKS_LOGGERS = ("django.tasks", "django_tasks")


class RedisQueueIntegration(Integration):
    """Reports the exception of a job that has failed permanently, but not of attempts that are
    retried. Events contain no redacted arguments."""

    identifier = "redisqueue"

    @staticmethod
    def setup_once() -> None:
        ignore_logger(JOB_LOGGER)
        add_instrument(Sentry())


class Sentry:
    def producing(self, task: str, queue: str, count: int) -> AbstractContextManager[object]:
        return nullcontext()

    def inject(self, job_id: str, headers: dict[str, str]) -> None:
        pass

    def begin(self, run: Run) -> End:
        scope = sentry_sdk.isolation_scope()  # one job's breadcrumbs do not carry over to the next
        job_id = run.jobs[0][0]
        scope.__enter__().add_event_processor(partial(_without_djangos_line, job_id))

        def end(kind: str, stored: Mapping[str, str], error: BaseException | None) -> None:
            try:
                if kind == "failed" and error is not None:
                    _report(run, error)
            finally:
                scope.__exit__(None, None, None)

        return end


def _without_djangos_line(job_id: str, event: Any, hint: Any) -> Any:
    """Drop the line that Django logs about each failed attempt of this job, with its exception."""
    record = hint.get("log_record")
    if record is None or record.name not in TASKS_LOGGERS or job_id not in record.args:
        return event
    DedupeIntegration.reset_last_seen()  # otherwise it drops our event of the same exception
    return None


def _report(run: Run, error: BaseException) -> None:
    client = sentry_sdk.get_client()
    if client.get_integration(RedisQueueIntegration) is None:
        return
    event, hint = event_from_exception(
        error,
        client_options=client.options,
        mechanism={"type": RedisQueueIntegration.identifier, "handled": False},
    )
    secrets = run.secrets()
    args, kwargs = run.arguments()
    job_id, headers = run.jobs[0]
    with sentry_sdk.new_scope() as scope:
        scope.set_transaction_name(run.task)
        scope.set_tag("redisqueue.task", run.task)
        scope.set_tag("redisqueue.queue", run.queue)
        if CORRELATION in headers:
            scope.set_tag(CORRELATION, headers[CORRELATION])
        scope.set_context(
            "redisqueue", {"id": job_id, "attempt": run.attempt, "jobs": len(run.jobs)}
        )
        scope.set_extra("arguments", {"args": list(args), "kwargs": dict(kwargs)})
        if secrets or REDACTED in repr((args, kwargs)):
            _without_secrets(event, secrets)
        scope.capture_event(event, hint=hint)


def _without_secrets(event: Any, secrets: Any) -> None:
    """Remove whatever could show a redacted argument: variables, and exception texts."""
    for found in event["exception"]["values"]:
        for secret in secrets:
            found["value"] = (found.get("value") or "").replace(secret, REDACTED)
        for frame in found.get("stacktrace", {}).get("frames", ()):
            frame.pop("vars", None)
