"""The first argument of a task with ``takes_context=True``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...broker.replies import ClaimedJob
from ...broker.retry import retry_while_unavailable
from ...client.gather import Gather, gather_of
from ...client.jobs import Job
from ...client.transport import transport
from ...core.codec import dumps, utf8_size
from ...core.parsing import is_number
from ...exceptions import InvalidArguments, JobAbandoned, RedisQueueError, short_repr

PROGRESS_INTERVAL = 0.1  # s between two reports of one job, except for the last
UNREPORTED_INTERVAL = 2.0  # s until the next report after one that failed
LIMIT = 2**63  # of done and total
MAX_NOTE = 1000  # characters

Report = Callable[[str], bool]


class JobContext:
    """The running job as its task sees it."""

    __slots__ = (
        "_cancelled", "_parent_results", "_report", "_reported", "attempt", "claimed", "job",
    )  # fmt: skip

    def __init__(
        self, job: Job, attempt: int, report: Report, claimed: ClaimedJob | None = None
    ) -> None:
        self.job = job  #: handle of this very job
        self.attempt = attempt  #: 1 for the first try
        self.claimed = claimed  # for tasks of Django's own tasks framework
        self._report = report
        self._reported = 0.0
        self._cancelled = False
        self._parent_results: dict[str, Any] | None = None

    @property
    def parent_results(self) -> dict[str, Any]:
        """The results of the parents by job id, in the order in which the parents were given; None
        for a parent without a result. Read once, on first use. Raises ResultGone."""
        if self._parent_results is None:
            self._parent_results = transport().parent_results(self.job.id)
        return self._parent_results

    @property
    def gather(self) -> Gather | None:
        """The gather that this job is a listener or a callback of, or None. Its methods wait while
        Redis is away, until the job's timeout."""
        return gather_of(self.job.id, retry_while_unavailable)

    @property
    def cancelled(self) -> bool:
        """True once the job was asked to stop."""
        return self._cancelled

    def mark_cancelled(self) -> None:
        """Called by the worker when the job is cancelled."""
        self._cancelled = True

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Report the progress of the job.

        It may be called often: it reports at most every 0.1 s, but ``done >= total`` always. A note
        is cut after 1,000 characters. Raises InvalidArguments, and JobAbandoned once another worker
        has taken over the job. In an async job it does not wait for Redis: a thread sends the
        latest progress, so a lost lease shows in the next call.
        """
        _check_number(done, "done")
        _check_number(total, "total")
        note = _check_note(note)
        now = time.monotonic()
        if now - self._reported < PROGRESS_INTERVAL and done < total:
            return
        self._reported = now
        text = dumps({"done": done, "total": total, "note": note})
        try:
            is_ours = self._report(text)
        except RedisQueueError:  # not a reason to fail the job
            self._reported = time.monotonic() + UNREPORTED_INTERVAL
            return
        if not is_ours:
            raise JobAbandoned(f"job {self.job.id} was taken over by another worker")


def _check_number(value: object, name: str) -> None:
    if not is_number(value, 0, LIMIT):
        raise InvalidArguments(
            f"progress: {name} must be a number from 0 to 2**63, not {short_repr(value)}"
        )


def _check_note(note: object) -> str:
    """The note, cut with an ellipsis if it is too long: that is no reason to fail a job."""
    if not isinstance(note, str):
        raise InvalidArguments(f"progress: note must be a text, not {short_repr(note)}")
    utf8_size(note, "progress: note")
    return note if len(note) <= MAX_NOTE else f"{note[: MAX_NOTE - 1]}…"
