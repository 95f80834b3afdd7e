"""The log of jobs: one record a run, with fields for programs and the traceback of a failure."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_redisqueue.broker.replies import OutcomeKind
from django_redisqueue.worker.child import job_log, retry_policy
from django_redisqueue.worker.child.retry_policy import Resolution

from ..parts import claimed

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
    assert shown[1].startswith("  Traceback") or "test_job_log" in shown[1]
    assert shown[-1].startswith("  ValueError: card ")


@pytest.mark.parametrize(("level", "lines"), [(logging.WARNING, 1), (logging.ERROR, 0)])
def test_the_level_decides(caplog: pytest.LogCaptureFixture, level: int, lines: int) -> None:
    caplog.set_level(level, LOGGER)
    job_log.log_outcome(claimed(), Resolution(OutcomeKind.COMPLETED, "1"), 0)
    assert not job_log.logs_completed()
    retry = failure(ValueError("no"))._replace(kind=OutcomeKind.RETRYING, detail="500")
    job_log.log_outcome(claimed(), retry, 0)
    assert len(caplog.records) == lines
