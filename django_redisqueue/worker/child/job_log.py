"""The worker's log: one line for each job that did not simply complete.

Lines are ``key=value`` and carry the same values as ``extra`` for structured handlers. Text that
comes from a job is logged by its ``repr``, so that a line feed in it cannot forge a log line.
"""

from __future__ import annotations

import logging

from ...broker.replies import ClaimedJob, OutcomeKind
from ...core.codec import loads
from .retry_policy import Resolution

logger = logging.getLogger("django_redisqueue")

LONGEST = 500  # characters of a value
LEVELS = {
    OutcomeKind.FAILED: logging.ERROR,
    OutcomeKind.RETRYING: logging.WARNING,
    OutcomeKind.DELAYED: logging.WARNING,
    OutcomeKind.CANCELLED: logging.INFO,
}


def _shown(key: str, value: object) -> str:
    text = str(value)[:LONGEST]
    is_plain = key != "error" and text.isprintable() and not set(text) & {" ", "=", "'", '"'}
    return text if is_plain else repr(text)


def log_outcome(job: ClaimedJob, resolution: Resolution) -> None:
    """Log how a run ended, unless the job completed."""
    level = LEVELS.get(resolution.kind)
    if level is None or not logger.isEnabledFor(level):
        return
    error = loads(resolution.body) if resolution.body else {}
    facts = {
        "job_id": job.id,
        "task": job.task,
        "queue": job.queue,
        "status": resolution.kind.value,
        "attempt": job.attempts + 1,
        "error": f"{error.get('type', '')}: {error.get('message', '')}"[:LONGEST],
    }
    if resolution.kind in (OutcomeKind.RETRYING, OutcomeKind.DELAYED):
        facts["delay_ms"] = int(resolution.detail)
    elif resolution.detail:
        facts["reason"] = resolution.detail
    line = " ".join(f"{key}={_shown(key, value)}" for key, value in facts.items())
    logger.log(level, "%s", line, extra={"job": facts})
