"""What a worker says of jobs in its log: one line for each that did not simply complete.

Lines are ``key=value`` and carry the same as ``extra`` for structured handlers. Text that a job
brought along is shown by ``repr``, so that a line feed in it cannot forge a line of the log.
"""

from __future__ import annotations

import logging

from ..codec import loads
from ..store.replies import Claimed, Verdict
from .verdicts import Ruling

logger = logging.getLogger("django_redisqueue")

LONGEST = 500  # characters of one value
LEVELS = {
    Verdict.FAILED: logging.ERROR,
    Verdict.RETRYING: logging.WARNING,
    Verdict.DELAYED: logging.WARNING,
    Verdict.CANCELLED: logging.INFO,
}


def _shown(key: str, value: object) -> str:
    text = str(value)[:LONGEST]
    is_plain = key != "error" and text.isprintable() and not set(text) & {" ", "=", "'", '"'}
    return text if is_plain else repr(text)


def note(job: Claimed, ruling: Ruling) -> None:
    """Log how a job ended; completed ones are silent."""
    level = LEVELS.get(ruling.verdict)
    if level is None or not logger.isEnabledFor(level):
        return
    error = loads(ruling.body) if ruling.body else {}
    facts = {
        "job_id": job.id,
        "task": job.task,
        "queue": job.queue,
        "status": ruling.verdict.value,
        "attempt": job.attempts + 1,
        "error": f"{error.get('type', '')}: {error.get('message', '')}"[:LONGEST],
    }
    if ruling.verdict in (Verdict.RETRYING, Verdict.DELAYED):
        facts["delay_ms"] = int(ruling.detail)
    elif ruling.detail:
        facts["reason"] = ruling.detail
    words = " ".join(f"{key}={_shown(key, value)}" for key, value in facts.items())
    logger.log(level, "%s", words, extra={"job": facts})
