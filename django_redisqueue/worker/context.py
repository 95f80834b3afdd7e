"""What a task with ``takes_context=True`` gets as its first argument."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..codec import dumps
from ..connection import producer_link
from ..exceptions import InvalidArguments, JobAbandoned, RedisQueueError
from ..gather import Gather, gather_of
from ..jobs import Job
from ..ports import replaced_transport
from ..store.workflows import WorkflowReads
from .reconnect import while_away

PROGRESS_INTERVAL = 0.1  # s between two reports of one job, but for the last
UNREPORTED_INTERVAL = 2.0  # s until the next after one that Redis did not take

Report = Callable[[str], bool]


class JobContext:
    """The running job as its task sees it."""

    __slots__ = ("_cancelled", "_parent_results", "_report", "_reported", "attempt", "job")

    def __init__(self, job: Job, attempt: int, report: Report) -> None:
        self.job = job  #: handle of this very job
        self.attempt = attempt  #: 1 for the first try
        self._report = report
        self._reported = 0.0
        self._cancelled = False
        self._parent_results: dict[str, Any] | None = None

    @property
    def parent_results(self) -> dict[str, Any]:
        """What the jobs that this one waited for returned, by their ids and in the order they were
        given; None for one without a result. Read once, when first asked for."""
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
        ``done >= total`` is always reported. Raises JobAbandoned when the job is no longer this
        run's. In an async job it does not wait for Redis: a thread sends the latest, and the last
        before the job's outcome; that the job is lost is known by the next call.
        """
        if not all(isinstance(value, int | float) for value in (done, total)) or not isinstance(
            note, str
        ):
            raise InvalidArguments("progress takes two numbers and a text")
        now = time.monotonic()
        if now - self._reported < PROGRESS_INTERVAL and done < total:
            return
        self._reported = now
        text = dumps({"done": done, "total": total, "note": note[:1000]})
        try:
            is_ours = self._report(text)
        except RedisQueueError:  # no reason to fail a job
            self._reported = time.monotonic() + UNREPORTED_INTERVAL
            return
        if not is_ours:
            raise JobAbandoned(f"job {self.job.id} was taken over by another worker")
