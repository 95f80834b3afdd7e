"""What a task with ``takes_context=True`` gets as its first argument."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..bounds import is_number
from ..codec import dumps, utf8_size
from ..connection import producer_link
from ..exceptions import InvalidArguments, JobAbandoned, RedisQueueError, shown
from ..gather import Gather, gather_of
from ..jobs import Job
from ..ports import replaced_transport
from ..store.replies import Claimed
from ..store.workflows import WorkflowReads
from .reconnect import while_away

PROGRESS_INTERVAL = 0.1  # s between two reports of one job, but for the last
UNREPORTED_INTERVAL = 2.0  # s until the next after one that Redis did not take
MOST = 2**63  # of done and total
LONGEST_NOTE = 1000  # characters

Report = Callable[[str], bool]


class JobContext:
    """The running job as its task sees it."""

    __slots__ = (
        "_cancelled", "_parent_results", "_report", "_reported", "attempt", "claimed", "job",
    )  # fmt: skip

    def __init__(
        self, job: Job, attempt: int, report: Report, claimed: Claimed | None = None
    ) -> None:
        self.job = job  #: handle of this very job
        self.attempt = attempt  #: 1 for the first try
        self.claimed = claimed  # as the worker got it, for the wrapper of a Django task
        self._report = report
        self._reported = 0.0
        self._cancelled = False
        self._parent_results: dict[str, Any] | None = None

    @property
    def parent_results(self) -> dict[str, Any]:
        """What the jobs that this one waited for returned, by their ids and in the order they were
        given; None for one without a result. Read once, when first asked for. Raises ResultGone."""
        if self._parent_results is None:
            source = replaced_transport() or WorkflowReads(producer_link())
            self._parent_results = source.parent_results(self.job.id)
        return self._parent_results

    @property
    def gather(self) -> Gather | None:
        """The gather that this job is a listener of, or that it follows; None for other jobs. It
        waits for Redis while that is away, until the job's timeout."""
        return gather_of(self.job.id, while_away)

    @property
    def cancelled(self) -> bool:
        """True once somebody has asked this job to stop."""
        return self._cancelled

    def mark_cancelled(self) -> None:
        """The worker's way to say so."""
        self._cancelled = True

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Show how far the job is; cheap to call often: between two reports 0.1 s pass, but
        ``done >= total`` is always reported. Of a long note the first 1,000 characters are shown.
        Raises InvalidArguments, and JobAbandoned when the job is no longer this run's. In an async
        job it does not wait for Redis: a thread sends the latest, and the last before the job's
        outcome; that the job is lost is known by the next call.
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
        except RedisQueueError:  # no reason to fail a job
            self._reported = time.monotonic() + UNREPORTED_INTERVAL
            return
        if not is_ours:
            raise JobAbandoned(f"job {self.job.id} was taken over by another worker")


def _check_number(value: object, name: str) -> None:
    if not is_number(value, 0, MOST):
        raise InvalidArguments(
            f"progress: {name} must be a number from 0 to 2**63, not {shown(value)}"
        )


def _check_note(note: object) -> str:
    """The note as it can be shown. One that is only too long is cut, and shows that it was: that is
    no reason to fail a job that has run well until then."""
    if not isinstance(note, str):
        raise InvalidArguments(f"progress: note must be a text, not {shown(note)}")
    utf8_size(note, "progress: note")
    return note if len(note) <= LONGEST_NOTE else f"{note[: LONGEST_NOTE - 1]}…"
