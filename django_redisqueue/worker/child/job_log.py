"""The log of jobs: one record per run, from the logger ``django_redisqueue.jobs``.

Lines are ``key=value`` and carry the same values as attributes of the record (``extra``), for
handlers that write JSON. Text from a job is logged as its ``repr``, so that a line feed in it
cannot forge a log line. The traceback of a failure is the stored one, without redacted arguments.
"""

from __future__ import annotations

import logging
import time
import traceback
from contextlib import suppress
from typing import Any

from ...broker.replies import ClaimedJob, OutcomeKind
from ...core.codec import loads
from ...core.instruments import CORRELATION, OPTION, headers_in
from ...core.text import indented
from .retry_policy import Resolution

logger = logging.getLogger("django_redisqueue.jobs")

LONGEST = 500  # characters of a value
LEVELS = {
    OutcomeKind.COMPLETED: logging.INFO,
    OutcomeKind.PARKED: logging.INFO,
    OutcomeKind.CANCELLED: logging.INFO,
    OutcomeKind.RETRYING: logging.WARNING,
    OutcomeKind.DELAYED: logging.WARNING,
    OutcomeKind.LIMITED: logging.WARNING,
    OutcomeKind.FAILED: logging.ERROR,
}
WITH_DELAY = {OutcomeKind.RETRYING, OutcomeKind.DELAYED, OutcomeKind.LIMITED}
WITH_ERROR = WITH_DELAY | {OutcomeKind.CANCELLED, OutcomeKind.FAILED}


def _shown(key: str, value: object) -> str:
    text = str(value)[:LONGEST]
    is_plain = key != "error" and text.isprintable() and not set(text) & {" ", "=", "'", '"'}
    return text if is_plain else repr(text)


def logs_completed() -> bool:
    """Whether completed jobs are logged. Writing a line may take longer than the job."""
    return logger.isEnabledFor(logging.INFO)


def log_outcome(job: ClaimedJob, resolution: Resolution, started_ms: int | None = None) -> None:
    """Log how a run ended. ``started_ms``: when it began (monotonic); None if it did not."""
    level = LEVELS.get(resolution.kind)
    if level is None or not logger.isEnabledFor(level):
        return
    facts, trace = _facts(job, started_ms, resolution)
    line = " ".join(f"{key}={_shown(key, value)}" for key, value in facts.items())
    try:
        record = logger.makeRecord(
            logger.name, level, __file__, 0, "%s", (line,), None, "log_outcome"
        )
        vars(record).update(facts)  # `extra` refuses what the application's record factory sets
        if trace:
            record.exc_text = indented(trace)  # which every formatter writes below the message
        logger.handle(record)
    except Exception:  # from the application's factory, filter or handler: no outcome may be lost
        with suppress(Exception):  # a job may have closed standard error
            traceback.print_exc()


def _facts(
    job: ClaimedJob, started_ms: int | None, resolution: Resolution
) -> tuple[dict[str, Any], str]:
    """The attributes of the record, and the traceback of an error, or ''."""
    now_ms = time.monotonic_ns() // 1_000_000
    facts: dict[str, Any] = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "attempt": job.attempts + 1,
        "ms": 0 if started_ms is None else now_ms - started_ms,
        "outcome": resolution.kind.value,
    }
    if OPTION in job.options and (headers := headers_in(loads(job.options))).get(CORRELATION):
        facts[CORRELATION] = headers[CORRELATION]
    if resolution.kind not in WITH_ERROR:
        return facts, ""
    error = loads(resolution.body) if resolution.body else {}
    facts["error"] = f"{error.get('type', '')}: {error.get('message', '')}"[:LONGEST]
    if resolution.kind in WITH_DELAY:
        facts["delay_ms"] = int(resolution.detail)
    elif resolution.detail:
        facts["reason"] = resolution.detail
    return facts, error.get("traceback", "")
