"""What jobs ask of Redis while they run, on links apart from the loop's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from ..conf import Settings
from ..connection import worker_link
from ..exceptions import ResultGone
from ..store.reader import whole
from ..store.replies import Claimed
from ..store.transitions import Transitions
from ..store.workflows import WorkflowReads
from .context import Report
from .reconnect import until_answered, while_away

logger = logging.getLogger("django_redisqueue")


class Asides:
    """A link opens when it is first used, and most jobs ask for nothing."""

    def __init__(
        self, child: str, settings: Settings, keep_alive: Callable[[], None] = lambda: None
    ) -> None:
        self._child = child
        self._settings = settings
        self._keep_alive = keep_alive  # while Redis is away, nothing runs that has a timeout
        self._store = Transitions(worker_link(), settings)

    def delays(self, job_id: str) -> int:
        """How often a job was put off because nobody knew its task."""
        key = self._store.keys.job(job_id)

        def ask(_: bool) -> Any:
            self._keep_alive()
            return self._store.link.call("HGET", key, "delays")

        delays = until_answered(ask, who=self._child)
        return max(0, whole(delays) or 0)

    def parent_result(self, job_id: str) -> Any:
        """What the only parent of a job of a chain returned. Raises ResultGone."""
        reads = WorkflowReads(self._store.link, self._settings)

        def ask(_: bool) -> dict[str, Any] | ResultGone:
            self._keep_alive()
            try:
                return reads.parent_results(job_id)
            except ResultGone as gone:  # it does not come back, as Redis does
                return gone

        found = until_answered(ask, who=self._child)
        if isinstance(found, ResultGone):
            raise found
        return next(iter(found.values()), None)

    def report(self, job: Claimed, progress: str) -> bool:
        """Store the progress of the main thread's job; False when its lease is lost."""
        return self._store.progress(self._child, job.id, job.lease, progress)

    def report_anywhere(self, job: Claimed, progress: str) -> bool:
        """The same from any thread."""
        store = Transitions(worker_link(), self._settings)
        try:
            return store.progress(self._child, job.id, job.lease, progress)
        finally:
            store.link.close()


class LatestProgress:
    """The latest progress of an async job, on its way from the job to the thread that sends it: a
    job on an event loop must not wait for Redis. ``wake`` calls that thread.

    Who reports the outcome sends the last before it; from the end on nobody else sends any.
    """

    def __init__(self, send: Report, wake: Callable[[LatestProgress], None]) -> None:
        self._send = send
        self._wake = wake
        self._text = ""  # not sent yet; "" for none
        self._is_lost = False
        self._is_over = False
        self._guard = threading.Lock()  # of the above, for a moment
        self._sending = threading.Lock()  # one at a time, which keeps their order

    def give(self, text: str) -> bool:
        """For the job, in any of its threads: returns at once. False when the lease is known to be
        lost, or the job has ended and left this thread behind."""
        with self._guard:
            if self._is_over or self._is_lost:
                return False
            is_first = not self._text
            self._text = text
        if is_first:
            self._wake(self)
        return True

    def send(self) -> None:
        """Send what the job gave last; when that fails, wake for another try."""
        with self._sending:
            if self._is_over:
                return
            try:
                self._send_latest()
            except Exception:
                self._wake(self)
                raise

    def end(self) -> None:
        """The job has ended: nothing more is taken from it."""
        with self._guard:
            self._is_over = True

    def send_last(self) -> None:
        """Send what is left, for the outcome to come behind it. It waits while Redis is away, as
        the outcome would; no other trouble with it holds that up."""
        with self._sending:
            try:
                while_away(self._send_latest)
            except Exception as error:  # whatever it is, the outcome matters more
                logger.warning("the last progress of a job could not be sent: %s", error)

    def _send_latest(self) -> None:
        with self._guard:
            text = self._text
        if not text:
            return
        is_ours = self._send(text)
        with self._guard:
            self._is_lost = not is_ours
            if self._text is text:
                self._text = ""
                return
        self._wake(self)  # a newer one, which has not woken the thread
