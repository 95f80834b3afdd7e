"""Spans and metrics by OpenTelemetry's semantic conventions for messaging.

Call ``instrument()`` in each process that enqueues or runs jobs, once its providers are set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry import metrics as otel_metrics
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from ..core.instruments import CORRELATION, End, Run, add_instrument
from ..signals import child_stopping

SCOPE = "django_redisqueue"
SYSTEM = "redisqueue"
FLUSH_MS = 5000
_single: ContextVar[Span | None] = ContextVar("redisqueue_enqueue_span", default=None)


def instrument(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Watch the jobs of this process, with the global providers unless others are given. Returns a
    function that stops it. A child flushes the providers before it exits."""
    tracing = tracer_provider or trace.get_tracer_provider()
    metering = meter_provider or otel_metrics.get_meter_provider()

    def flush(**_: Any) -> None:
        for provider in (tracing, metering):
            if hasattr(provider, "force_flush"):  # the API's own providers have none
                provider.force_flush(FLUSH_MS)

    remove = add_instrument(OpenTelemetry(tracing, metering))
    child_stopping.connect(flush, weak=False)

    def uninstrument() -> None:
        remove()
        child_stopping.disconnect(flush)

    return uninstrument


def _labels(operation: str, queue: str) -> dict[str, str | int]:
    """The attributes that spans and metrics share."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
    }


class OpenTelemetry:
    def __init__(self, tracing: TracerProvider, metering: MeterProvider) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracing)
        meter = otel_metrics.get_meter(SCOPE, meter_provider=metering)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._send_time = meter.create_histogram("messaging.client.operation.duration", "s")
        self._run_time = meter.create_histogram("messaging.process.duration", "s")

    @contextmanager
    def producing(self, task: str, queue: str, count: int) -> Iterator[None]:
        labels = _labels("enqueue", queue)
        attributes = {**labels, "messaging.operation.type": "send", "redisqueue.task": task}
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        started = time.perf_counter()
        with self._tracer.start_as_current_span(
            f"enqueue {queue}", kind=SpanKind.PRODUCER, attributes=attributes,
            record_exception=False, set_status_on_exception=False,  # it may quote a secret
        ) as span:  # fmt: skip
            token = _single.set(span if count == 1 else None)
            try:
                yield
            except Exception as error:
                labels["error.type"] = type(error).__qualname__
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise
            finally:
                _single.reset(token)
                self._sent.add(count, labels)
                self._send_time.record(time.perf_counter() - started, labels)

    def inject(self, job_id: str, headers: dict[str, str]) -> None:
        span = _single.get()
        if span is not None:
            span.set_attribute("messaging.message.id", job_id)
            if CORRELATION in headers:
                span.set_attribute("messaging.message.conversation_id", headers[CORRELATION])
        propagate.inject(headers)

    def begin(self, run: Run) -> End:
        origins = [propagate.extract(headers) for _, headers in run.jobs]
        found = [trace.get_current_span(origin).get_span_context() for origin in origins]
        labels = _labels("process", run.queue)
        span = self._tracer.start_span(
            f"process {run.queue}",
            context=origins[0] if len(run.jobs) == 1 else None,
            kind=SpanKind.CONSUMER,
            attributes={**labels, "messaging.operation.type": "process", **_run_attributes(run)},
            links=[Link(each) for each in found if each.is_valid],
        )
        token = context.attach(trace.set_span_in_context(span))
        started = time.perf_counter()

        def end(kind: str, stored: Mapping[str, str], error: BaseException | None) -> None:
            context.detach(token)
            span.set_attribute("redisqueue.outcome", str(kind))
            if stored:
                _record(span, stored)
                labels["error.type"] = stored["type"]
            span.end()
            self._consumed.add(len(run.jobs), labels)
            self._run_time.record(time.perf_counter() - started, labels)

        return end


def _run_attributes(run: Run) -> dict[str, str | int]:
    found: dict[str, str | int] = {"redisqueue.task": run.task, "redisqueue.attempt": run.attempt}
    if len(run.jobs) > 1:
        found["messaging.batch.message_count"] = len(run.jobs)
        return found
    found["messaging.message.id"], headers = run.jobs[0]
    if CORRELATION in headers:
        found["messaging.message.conversation_id"] = headers[CORRELATION]
    return found


def _record(span: Span, stored: Mapping[str, str]) -> None:
    """Record the error as it is stored with the job, without redacted arguments."""
    span.set_attribute("error.type", stored["type"])
    span.add_event(
        "exception",
        {
            "exception.type": stored["type"],
            "exception.message": stored["message"],
            "exception.stacktrace": stored.get("traceback", ""),
        },
    )
    span.set_status(Status(StatusCode.ERROR, stored["message"]))
