"""Preparing a claimed job for its run, and the job log."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

import pytest

from django_redisqueue.broker.replies import OutcomeKind
from django_redisqueue.conf import load
from django_redisqueue.exceptions import LeaseLost, RedisQueueError, RedisUnavailable
from django_redisqueue.worker.child import job_log, retry_policy
from django_redisqueue.worker.child.executor import Pipeline
from django_redisqueue.worker.child.retry_policy import Resolution
from tests.worker.parts import claimed

SETTINGS = load({})


def no_json(_: str) -> Any:
    return json.loads("")


CORRUPT = [
    ({"payload": "[1"}, "Expecting"),
    ({"options": "[]"}, "its options are '[]', not a JSON object"),
    ({"options": "{"}, "Expecting"),
    ({"options": '{"timeout_ms":"x"}'}, 'no whole number: {"timeout_ms":"x"}'),
    ({"options": '{"timeout_ms":[1]}'}, "no whole number"),
    ({"options": '{"timeout_ms":1e300}'}, "no whole number"),
    ({"options": '{"timeout_ms":-1}'}, "no whole number"),
    ({"options": '{"max_attempts":null}'}, "no whole number"),
    ({"options": '{"takes_result":true}'}, "Expecting"),
]


@pytest.mark.parametrize(("fields", "words"), CORRUPT)
def test_a_job_corrupted_by_hand_fails_and_does_not_end_the_child(
    fields: dict[str, str], words: str
) -> None:
    job = claimed()._replace(task="tests.app.tasks.noop", **fields)
    resolution = Pipeline(SETTINGS, lambda _: 0, no_json).prepare(job)
    assert isinstance(resolution, retry_policy.Resolution)
    assert (resolution.kind, resolution.detail) == (OutcomeKind.FAILED, "corrupt")
    message = json.loads(resolution.body)["message"]
    assert message.startswith("job job_1 cannot be read: ")
    assert words in message


@pytest.mark.parametrize("error", [LeaseLost, RedisUnavailable])
def test_a_job_is_released_if_redis_does_not_know_it_or_is_down(
    error: type[RedisQueueError],
) -> None:
    """After a failover, or when a replaced master was asked. It is not a failure of the job."""

    def unknown(job_id: str) -> Any:
        raise error(f"Redis has no record that job {job_id} is running")

    job = claimed()._replace(task="tests.app.tasks.noop", options='{"takes_result":true}')
    resolution = Pipeline(SETTINGS, lambda _: 0, unknown).prepare(job)
    assert isinstance(resolution, retry_policy.Resolution)
    assert resolution.kind == OutcomeKind.QUEUED


def test_a_storage_that_cannot_be_read_costs_an_attempt() -> None:
    """It holds a parent's large result, and may be readable again at the next attempt."""

    def refused(job_id: str) -> Any:
        raise ConnectionError("the storage does not answer")

    options = '{"takes_result":true,"max_attempts":2}'
    job = claimed()._replace(task="tests.app.tasks.noop", options=options)
    pipeline = Pipeline(SETTINGS, lambda _: 0, refused)
    first, last = pipeline.prepare(job), pipeline.prepare(job._replace(attempts=1))
    assert isinstance(first, retry_policy.Resolution)
    assert isinstance(last, retry_policy.Resolution)
    assert (first.kind, last.kind) == (OutcomeKind.RETRYING, OutcomeKind.FAILED)
    assert last.detail != "corrupt"
    assert json.loads(first.body)["message"] == "the storage does not answer"


LOGGER = "django_redisqueue.jobs"


def failure(error: Exception, *secrets: str) -> Resolution:
    try:
        raise error
    except type(error) as raised:
        text = retry_policy.describe(raised, 4000, secrets)
    return Resolution(OutcomeKind.FAILED, text)


def test_a_record_has_the_fields_of_the_job(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    job = claimed()
    job_log.log_outcome(job, Resolution(OutcomeKind.COMPLETED, "[1]"), 0)
    (record,) = caplog.records
    found: Any = record
    assert (record.name, record.levelname) == (LOGGER, "INFO")
    assert (found.id, found.task, found.queue) == (job.id, job.task, job.queue)
    assert (found.attempt, found.outcome) == (job.attempts + 1, "completed")
    assert found.ms > 0
    assert record.getMessage().startswith(f"id={job.id} task={job.task} queue={job.queue} ")
    assert record.getMessage().endswith(" outcome=completed")


def test_a_failure_has_its_traceback_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    job_log.log_outcome(claimed(), failure(ValueError("card 4711 refused"), "4711"))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "4711" not in caplog.text
    shown = logging.Formatter("%(message)s").format(record).split("\n")
    assert "error='ValueError: card " in shown[0]
    assert shown[1].startswith("  Traceback") or "test_executor" in shown[1]
    assert shown[-1].startswith("  ValueError: card ")


@pytest.mark.parametrize(("level", "lines"), [(logging.WARNING, 1), (logging.ERROR, 0)])
def test_the_level_decides(caplog: pytest.LogCaptureFixture, level: int, lines: int) -> None:
    caplog.set_level(level, LOGGER)
    job_log.log_outcome(claimed(), Resolution(OutcomeKind.COMPLETED, "1"), 0)
    assert not job_log.logs_completed()
    retry = failure(ValueError("no"))._replace(kind=OutcomeKind.RETRYING, detail="500")
    job_log.log_outcome(claimed(), retry, 0)
    assert len(caplog.records) == lines


def test_a_log_filter_that_raises_loses_no_outcome(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(record: logging.LogRecord) -> bool:
        raise LookupError("no request here")

    monkeypatch.setattr(logging.getLogger(LOGGER), "filters", [fail])
    job_log.log_outcome(claimed(), failure(ValueError("no")))
    assert "LookupError: no request here" in capsys.readouterr().err


def test_a_failing_log_and_a_failing_stderr_lose_no_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job may have closed it, or left its redirection in place."""
    monkeypatch.setattr(logging.getLogger(LOGGER), "filters", [lambda record: 1 / 0])
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    job_log.log_outcome(claimed(), failure(ValueError("no")))


def test_a_record_factory_may_set_attributes_of_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        record.task, record.tenant = "theirs", "a"
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", factory)
    job = claimed()
    job_log.log_outcome(job, failure(ValueError("no")))
    found: Any = caplog.records[0]
    assert (found.task, found.tenant) == (job.task, "a")
