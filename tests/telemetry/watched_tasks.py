"""Tasks of a worker that reports to OpenTelemetry and Sentry; both write into files.

``TELEMETRY_FOLDER`` says where: one JSON document a line, in ``spans`` and in ``events``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from django_redisqueue import task
from django_redisqueue.telemetry import correlation_id, opentelemetry
from django_redisqueue.telemetry.sentry import RedisQueueIntegration
from tests.app.django_api import task as django_task

FOLDER = Path(os.environ.get("TELEMETRY_FOLDER", ""))


class FileTransport(Transport):
    """Sentry's transport, writing to a file."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            with (FOLDER / "events").open("a") as file:
                file.write(json.dumps(event) + "\n")


def in_one_line(span: ReadableSpan) -> str:
    return str(span.to_json(indent=None)) + "\n"


if FOLDER.name:  # in the worker, not in the test
    provider = TracerProvider()
    out = (FOLDER / "spans").open("a", buffering=1)
    # It exports in batches every five seconds, or when a child flushes it before its exit.
    provider.add_span_processor(
        BatchSpanProcessor(ConsoleSpanExporter(out=out, formatter=in_one_line))
    )
    opentelemetry.instrument(provider)
    sentry_sdk.init(
        "https://key@sentry.example/1",
        transport=FileTransport,
        integrations=[RedisQueueIntegration()],
        include_local_variables=True,
    )


@task
def parent() -> str:
    child.enqueue()
    return correlation_id()


@task
async def child() -> str:
    return correlation_id()


@task(redact=("card",), max_attempts=2, backoff=[0])
def charge(card: str, amount: int) -> None:
    raise ValueError(f"{card} is refused for {amount}")


@task(max_attempts=2, backoff=[0])
def flaky(marks: str) -> str:
    mark = Path(marks)
    if not mark.exists():
        mark.touch()
        raise OSError("not yet")
    return "steady"


@task(takes_context=True)
def alone(context: Any) -> dict[str, Any]:
    return {"attempt": context.attempt}


@django_task
def refuse(amount: int) -> None:
    raise ValueError(f"refused for {amount}")


@django_task
async def refuse_in_async(amount: int) -> None:
    raise ValueError(f"refused for {amount}")
