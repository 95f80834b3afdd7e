"""A request, its jobs and their jobs form one trace, and each failure is one event in Sentry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_redisqueue.telemetry import correlate, opentelemetry
from tests.telemetry import watched_tasks as tasks
from tests.worker.conftest import harness
from tests.worker.harness import WorkerHarness

__all__ = ["harness"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_trace_continues_through_redis_and_workers(
    harness: WorkerHarness, tmp_path: Path
) -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    end = opentelemetry.instrument(provider)
    try:
        with (
            provider.get_tracer("test").start_as_current_span("request") as request,
            correlate("req-7"),
        ):
            parent = tasks.parent.enqueue()
            charge = tasks.charge.enqueue("eve-s card", amount=5)
            flaky = tasks.flaky.enqueue(str(tmp_path / "mark"))
    finally:
        end()
    trace = f"0x{request.get_span_context().trace_id:032x}"
    harness.environment["TELEMETRY_FOLDER"] = str(tmp_path)
    worker = harness.worker(
        "--processes", "1", "--burst", "--verbosity", "2", fresh=True,
        TASK_MODULES=["tests.telemetry.watched_tasks"],
    )  # fmt: skip
    assert worker.wait(60) == 0, worker.output

    sent = {
        str(span.attributes["messaging.message.id"]): span
        for span in exporter.get_finished_spans()
        if span.attributes and span.name == "enqueue default"
    }
    spans = lines(tmp_path / "spans")
    assert {span["context"]["trace_id"] for span in spans} == {trace}

    def runs(name: str) -> list[dict[str, Any]]:
        return [
            span for span in spans
            if span["name"] == "process default"
            and span["attributes"]["redisqueue.task"].endswith(f".{name}")
        ]  # fmt: skip

    (of_parent,), (of_child,) = runs("parent"), runs("child")
    assert of_parent["kind"] == "SpanKind.CONSUMER"
    assert of_parent["parent_id"] == f"0x{sent[parent.id].context.span_id:016x}"
    assert [link["context"]["span_id"] for link in of_parent["links"]] == [of_parent["parent_id"]]
    assert of_parent["attributes"] == {
        "messaging.system": "redisqueue",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": parent.id,
        "messaging.message.conversation_id": "req-7",
        "redisqueue.task": "tests.telemetry.watched_tasks.parent",
        "redisqueue.attempt": 1,
        "redisqueue.outcome": "completed",
    }
    (enqueue,) = [span for span in spans if span["name"] == "enqueue default"]
    assert enqueue["parent_id"] == of_parent["context"]["span_id"]
    assert (
        enqueue["attributes"]["messaging.message.id"]
        == (of_child["attributes"]["messaging.message.id"])
    )
    assert of_child["parent_id"] == enqueue["context"]["span_id"]
    assert [span["attributes"]["redisqueue.outcome"] for span in runs("charge")] == [
        "retrying", "failed",
    ]  # fmt: skip
    assert runs("charge")[1]["status"]["status_code"] == "ERROR"
    assert runs("charge")[1]["attributes"]["error.type"] == "ValueError"
    assert [span["attributes"]["redisqueue.outcome"] for span in runs("flaky")] == [
        "retrying", "completed",
    ]  # fmt: skip

    (event,) = lines(tmp_path / "events")
    assert event["transaction"] == "tests.telemetry.watched_tasks.charge"
    assert event["contexts"]["redisqueue"] == {"id": charge.id, "attempt": 2, "jobs": 1}
    assert event["extra"]["arguments"] == {"args": ["[redacted]"], "kwargs": {"amount": 5}}
    assert event["tags"]["correlation_id"] == "req-7"
    assert event["exception"]["values"][0]["value"] == "[redacted] is refused for 5"
    for file in ("spans", "events"):
        assert "eve-s card" not in (tmp_path / file).read_text()

    assert parent.wait(0) == "req-7"
    assert flaky.wait(0) == "steady"
    logged = [line for line in worker.output.splitlines() if "outcome=" in line]
    assert len(logged) == 6, worker.output
    assert all("correlation_id=req-7" in line for line in logged)


def test_a_failed_job_of_a_django_task_is_one_event(harness: WorkerHarness, tmp_path: Path) -> None:
    """The line that Django logs about each failed attempt is not another event."""
    made = [tasks.refuse, tasks.refuse_in_async]
    results = [one.enqueue(5) for one in made]
    for one in made:
        one.using(max_attempts=2).enqueue(7)  # still waits for its retry when the worker stops
    harness.environment["TELEMETRY_FOLDER"] = str(tmp_path)
    worker = harness.worker(
        "--processes", "1", "--burst", fresh=True, TASK_MODULES=["tests.telemetry.watched_tasks"]
    )
    assert worker.wait(60) == 0, worker.output
    assert worker.output.count("refused for 7") > 1, worker.output
    events = lines(tmp_path / "events")
    assert sorted(event["contexts"]["redisqueue"]["id"] for event in events) == sorted(
        result.id for result in results
    ), events
