"""The supervisor's eyes: what the seats say of slow jobs, overdue jobs, memory, and the dead."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence

from ..clock import mono_ms
from ..conf import Settings
from .attendant import Attendant, HandBack, Obituary
from .posts import Post
from .resources import resident_bytes
from .seat import Running

logger = logging.getLogger("django_redisqueue")

HARD_GRACE_MS = 5000  # from a job's timeout, when it is told, to the kill
WATCH, REST = 0.01, 0.5  # s between two looks at the seats, at the least and at the most
WATCH_FOR = 0.5  # s without anything to watch for after which a seat has to ring again
SILENT_FOR_MS = 2000  # that a broken promise is looked at: this process may have been stopped, too
MEMORY_INTERVAL = 5.0  # s between two looks at the children's memory


class Watch:
    """Looks at the posts of a supervisor; what is to be written goes to its attendant."""

    def __init__(
        self, posts: Sequence[Post], attendant: Attendant, settings: Settings, max_memory: int
    ) -> None:
        self._all = posts
        self._posts = [post for post in posts if post.role == "jobs"]
        self._attendant = attendant
        self._window_ms = settings.batch_window_ms
        self._max_memory = max_memory
        self._memory_at = 0.0
        self.interval = REST  #: s until the next look, as of the last one

    def begin(self) -> None:
        """A child has claimed a batch: look often from now on."""
        until = time.monotonic() + WATCH_FOR
        for post in self._posts:
            if post.pid:
                post.watched_until = until
                post.seat.watch(True)

    def look(self) -> None:
        """One look at every seat."""
        now, now_ms = time.monotonic(), mono_ms()
        self.interval = REST
        for post in self._posts:
            if post.pid:
                if post.watched_until:
                    self._look_for_slow(post, now, now_ms)
                self._look_for_overdue(post, now_ms)
        for post in self._all:
            self._look_for_silent(post, now_ms)
        if self._max_memory and now > self._memory_at:
            self._memory_at = now + MEMORY_INTERVAL
            self._look_for_hungry()

    def obituary(self, post: Post) -> Obituary:
        """What the dead child had not reported itself; what had not started is released
        unharmed.
        """
        if post.role != "jobs":
            return Obituary(post.child, [], [])
        outcomes = post.seat.outcomes()
        ended = {(outcome.id, outcome.lease) for outcome in outcomes}
        blamed = [
            job.id
            for job in post.seat.running()
            if (job.id, job.lease) not in ended and not post.is_killed and post.overdue is None
        ]
        overdue = post.overdue if post.overdue and post.overdue not in ended else None
        return Obituary(post.child, outcomes, blamed, overdue)

    def _look_for_slow(self, post: Post, now: float, now_ms: int) -> None:
        """Nothing waits behind a slow job: not those that have not started, nor the outcomes of
        those that have ended.
        """
        job = post.seat.in_front()
        since_ms = self._waiting_since(post, job)
        if since_ms:
            post.watched_until = now + WATCH_FOR
        elif now > post.watched_until:
            post.watched_until = 0.0
            post.seat.watch(False)
            if not self._waiting_since(post, post.seat.in_front()):
                return
            post.watched_until = now + WATCH_FOR  # it looked at the flag just before
            post.seat.watch(True)
        left_ms = since_ms + self._window_ms - now_ms if since_ms else self._window_ms
        if left_ms <= 0 and job is not None:
            self._hand_back(post, job)
        # What is offered behind this look is due a whole window later, so no look comes too late.
        self.interval = min(self.interval, left_ms / 1000 if left_ms > 0 else WATCH)

    def _waiting_since(self, post: Post, job: Running | None) -> int:
        """When (monotonic ms) something began to wait for ``job``, which runs; 0 when nothing
        does."""
        is_new = job is not None and (job.id, job.lease) != post.handed_back
        ended_ms = post.seat.ended_since() if is_new else 0
        return min(filter(None, (post.seat.unstarted_since(), ended_ms)), default=0)

    def _hand_back(self, post: Post, job: Running) -> None:
        post.handed_back = (job.id, job.lease)
        unstarted = post.seat.steal()
        self._attendant.post(HandBack(post.child, unstarted, post.seat.outcomes()))

    def _look_for_overdue(self, post: Post, now_ms: int) -> None:
        for job in post.seat.running():
            if job.deadline_ms and now_ms > job.deadline_ms + HARD_GRACE_MS and not post.overdue:
                logger.error(
                    "job %s did not stop at its timeout; killing its process %d", job.id, post.pid
                )
                post.overdue = (job.id, job.lease)
                os.kill(post.pid, signal.SIGKILL)

    def _look_for_silent(self, post: Post, now_ms: int) -> None:
        """The watchdog: a child that is stopped or stuck is replaced. Not while it runs a job,
        which has a timeout of its own and may hold the GIL for as long."""
        until_ms = post.seat.alive_until_ms
        if not post.pid or not until_ms or now_ms <= until_ms or post.seat.running():
            post.silent_since_ms = 0
        elif not post.silent_since_ms:
            post.silent_since_ms = now_ms
        elif now_ms - post.silent_since_ms > SILENT_FOR_MS and not post.is_killed:
            logger.error(
                "child %s (%s) is stopped or stuck: no sign of life for %.0f s more than it may "
                "take; replacing its process %d",
                post.child, post.role, (now_ms - until_ms) / 1000, post.pid,
            )  # fmt: skip
            post.is_killed = True
            os.kill(post.pid, signal.SIGKILL)

    def _look_for_hungry(self) -> None:
        for post in self._posts:
            size = resident_bytes(post.pid) if post.pid and not post.is_leaving else 0
            if size > self._max_memory:
                logger.warning(
                    "child %s uses %d MB, over its limit; it ends after its job",
                    post.child, size // 2**20,
                )  # fmt: skip
                post.order("stop")
