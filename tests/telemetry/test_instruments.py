"""What is carried with a job, and which instruments observe it, in the test's own process."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_redisqueue import Chunk, task
from django_redisqueue.core.instruments import End, Run, add_instrument
from django_redisqueue.exceptions import InvalidOption
from django_redisqueue.telemetry import (
    CorrelationFilter,
    CorrelationMiddleware,
    correlate,
    correlation_id,
    opentelemetry,
)
from django_redisqueue.testing import capture_jobs, run_inline


@task
def report() -> str:
    return correlation_id()


@task
def nested() -> str:
    report.enqueue()
    return correlation_id()


@task(chunk=Chunk(10, wait=0))
def together(items: list[Any]) -> None:
    pass


@task(redact=("card",))
def pay(card: str) -> None:
    pass


class Watched:
    """The spans and metrics of a block."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracing = TracerProvider()
        self.tracing.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.metering = MeterProvider([self.reader])

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data: Any = self.reader.get_metrics_data()
        (scope,) = data.resource_metrics[0].scope_metrics
        (metric,) = [each for each in scope.metrics if each.name == name]
        return list(metric.data.data_points)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    end = opentelemetry.instrument(made.tracing, made.metering)
    yield made
    end()


def get(request: HttpRequest) -> HttpResponse:
    return HttpResponse(report.enqueue().id)


async def aget(request: HttpRequest) -> HttpResponse:
    return HttpResponse((await report.aenqueue()).id)


def call(view: Any, **headers: str) -> HttpResponse:
    request = RequestFactory(headers=headers).get("/")
    found: Any = CorrelationMiddleware(view)(request)
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


@pytest.mark.parametrize("view", [get, aget])
def test_jobs_have_the_correlation_id_of_their_request(view: Any) -> None:
    with capture_jobs() as jobs:
        response = call(view, **{"X-Request-ID": "req-1"})
        jobs.drain()
        assert response.headers["X-Request-ID"] == "req-1"
        assert [job.result for job in jobs.jobs] == ["req-1"]
    assert correlation_id() == ""


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_the_record_that_django_logs_after_the_middleware_has_the_id_of_its_request(
    kind: type[Client | AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(MIDDLEWARE=["django_redisqueue.telemetry.CorrelationMiddleware"]):
        response: Any = kind().get("/no/such/page", headers={"X-Request-ID": "req-4"})
        if asyncio.iscoroutine(response):
            response = asyncio.run(response)
    assert response.status_code == 404
    [record] = [one for one in caplog.records if one.name == "django.request"]
    assert CorrelationFilter().filter(record)
    assert record.correlation_id == "req-4"  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'q"\n', "ä"])
def test_an_invalid_id_is_replaced(given: str) -> None:
    with capture_jobs() as jobs:
        response = call(get, **{"X-Request-ID": given})
        jobs.drain()
        assert len(response.headers["X-Request-ID"]) == 32
        assert [job.result for job in jobs.jobs] == [response.headers["X-Request-ID"]]
    with pytest.raises(InvalidOption, match="correlation id"), correlate(given):
        pass


def test_jobs_of_jobs_and_log_records_have_the_same_id() -> None:
    record = logging.makeLogRecord({})
    with correlate("req-2"), capture_jobs() as jobs:
        nested.enqueue()
        assert CorrelationFilter().filter(record)
    assert record.correlation_id == "req-2"  # type: ignore[attr-defined]
    with run_inline():
        assert nested.enqueue().result == ""
    jobs.drain()
    assert [job.result for job in jobs.jobs] == ["req-2", "req-2"]


def test_a_job_carries_nothing_without_telemetry() -> None:
    with capture_jobs() as jobs:
        report.enqueue()
        assert [job.data.options for job in jobs.jobs] == [{}]


def test_a_schedule_carries_no_trace(watched: Watched) -> None:
    with watched.tracing.get_tracer("test").start_as_current_span("deploy"), correlate("deploy-1"):
        assert report.template((), {}).options == ""


def test_spans_of_a_batch_and_of_its_chunk(watched: Watched) -> None:
    with run_inline():
        together.enqueue_many([(1,), (2,)])
    (sent,) = watched.spans("enqueue default")
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 2
    runs = watched.spans("process default")
    links = [link.context.span_id for run in runs for link in run.links]
    assert links == [sent.context.span_id, sent.context.span_id]


def test_metrics(watched: Watched) -> None:
    with run_inline():
        report.enqueue()
    for name in ("messaging.client.sent.messages", "messaging.client.consumed.messages"):
        (point,) = watched.points(name)
        assert point.value == 1
    (point,) = watched.points("messaging.process.duration")
    assert point.attributes == {
        "messaging.system": "redisqueue",
        "messaging.operation.name": "process",
        "messaging.destination.name": "default",
    }
    (point,) = watched.points("messaging.client.operation.duration")
    assert point.attributes["messaging.operation.name"] == "enqueue"


def test_an_enqueue_that_fails_shows_no_secret(watched: Watched) -> None:
    with pytest.raises(TypeError), capture_jobs():
        pay.enqueue(object())
    (span,) = watched.spans("enqueue default")
    assert span.attributes is not None
    assert span.attributes["error.type"]
    assert "object at" not in span.to_json()


class Broken:
    """An instrument that always raises."""

    def producing(self, task: str, queue: str, count: int) -> Any:
        raise RuntimeError

    def inject(self, job_id: str, headers: dict[str, str]) -> None:
        raise RuntimeError

    def begin(self, run: Run) -> End:
        raise RuntimeError


class BrokenEnd(Broken):
    def producing(self, task: str, queue: str, count: int) -> Any:
        return nullcontext()

    def begin(self, run: Run) -> End:
        def end(*_: Any) -> None:
            raise RuntimeError

        return end


@pytest.mark.parametrize("instrument", [Broken(), BrokenEnd()])
def test_failing_telemetry_does_not_affect_jobs(
    instrument: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    remove = add_instrument(instrument)
    try:
        with run_inline(), correlate("req-3"):
            assert report.enqueue().result == "req-3"
    finally:
        remove()
    assert "telemetry has failed" in caplog.text


SETTINGS_WITH_SENTRY = """
import logging
import django
from django.conf import settings
from django_redisqueue.telemetry.sentry import RedisQueueIntegration
settings.configure(
    INSTALLED_APPS=["django_redisqueue"],
    LOGGING={"version": 1, "handlers": {"all": {"class": "logging.StreamHandler"}},
             "root": {"handlers": ["all"]}},
)
django.setup()
for name in ("", ".jobs", ".api", ".dashboard"):
    logging.getLogger(f"django_redisqueue{name}").error("seen%s", name)
"""


def test_settings_that_import_the_package_do_not_silence_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS_WITH_SENTRY],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr.split() == ["seen", "seen.jobs", "seen.api", "seen.dashboard"]
