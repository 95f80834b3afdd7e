"""The supervisor: seats its children, watches them, and sees to what they leave behind.

Its main thread runs no job, no database work and no Redis call. It waits in one ``select`` for news
of the zygote, signals, a child's bell and the attendant's notices; it looks at the seats every 10
ms while one of them holds unstarted jobs, and else twice a second.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Sequence

from ..clock import mono_ms
from ..conf import Settings
from .attendant import Attendant, HandBack, Obituary
from .identity import Worker
from .posts import Bells, Post, SupervisorOptions
from .resources import resident_bytes
from .seat import Running
from .zygote import Born, Died, Zygote

logger = logging.getLogger("django_redisqueue")

HARD_GRACE_MS = 5000  # from a job's timeout, when it is told, to the kill
WATCH, REST = 0.01, 0.5  # s between two looks at the seats
WATCH_FOR = 0.5  # s without unstarted jobs after which a seat has to ring again
MEMORY_INTERVAL = 5.0  # s between two looks at the children's memory
EXIT_DONE = 0


class Supervisor:
    """Runs until a signal stops it, or with ``burst`` until its children have ended."""

    def __init__(
        self,
        worker: Worker,
        zygote: Zygote,
        posts: Sequence[Post],
        bells: Bells,
        settings: Settings,
        options: SupervisorOptions,
    ) -> None:
        self._worker = worker
        self._zygote = zygote
        self._posts = posts
        self._bells = bells
        self._settings = settings
        self._options = options
        self._attendant: Attendant | None = None
        self._spawned = 0
        self._signals: list[int] = []
        self._notices: list[tuple[Sequence[str], Sequence[str]]] = []
        self._stop_at: float | None = None
        self._kill_at = 0.0
        self._memory_at = 0.0
        self._children: list[str] = []

    # -- asked by the attendant's thread

    def children(self) -> list[str]:
        """The ids of the children that live."""
        return [post.child for post in self._posts if post.child]

    def running(self) -> list[tuple[str, str, int]]:
        """Id, child and lease of the jobs that run."""
        return [
            (job.id, post.child, job.lease)
            for post in self._posts
            if post.child
            for job in post.seat.running()
        ]

    def notify(self, lost: Sequence[str], flagged: Sequence[str]) -> None:
        """Jobs whose lease is lost, and jobs to cancel; wakes the main thread."""
        self._notices.append((lost, flagged))
        os.write(self._bells.own_end, b"!")

    # -- the main thread

    def run(self, attendant: Attendant) -> int:
        """The whole life of the worker; returns the exit code."""
        self._attendant = attendant
        for post in self._posts:
            self._spawn(post)
        attendant.start()
        with selectors.DefaultSelector() as selector:
            for source in (self._zygote.socket, self._bells.bell, self._bells.own):
                selector.register(source, selectors.EVENT_READ)
            while not self._is_over():
                ready = selector.select(self._pause())
                self._hear(ready)
                self._obey_signals()
                self._look()
        return self._end(attendant)

    def on_signal(self, number: int) -> None:
        """Called by the signal handler."""
        self._signals.append(number)

    def _is_over(self) -> bool:
        return all(post.is_over for post in self._posts)

    def _pause(self) -> float:
        now = time.monotonic()
        if any(post.watched_until > now for post in self._posts):
            return WATCH
        soonest = min(
            (post.respawn_at for post in self._posts if post.respawn_at), default=now + REST
        )
        return min(REST, max(0.0, soonest - now))

    def _hear(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        for key, _ in ready:
            if key.fileobj is self._zygote.socket:
                for news in self._zygote.news():
                    if isinstance(news, Born):
                        self._welcome(news)
                    else:
                        self._mourn(news)
            else:
                os.read(key.fd, 4096)
                if key.fileobj == self._bells.bell:
                    self._watch_all()
        while self._notices:
            self._pass_on(*self._notices.pop(0))

    # -- births and deaths

    def _spawn(self, post: Post) -> None:
        self._spawned += 1
        post.respawn_at = 0.0
        post.child = self._worker.child(self._spawned)
        post.born = time.monotonic()
        post.overdue, post.is_killed, post.is_leaving = None, False, False
        self._zygote.spawn(post.role, post.seat.number, post.child)

    def _welcome(self, news: Born) -> None:
        post = self._posts[news.seat]
        post.pid = news.pid
        if self._stop_at is not None:
            self._order(post, "stop")

    def _mourn(self, news: Died) -> None:
        post = next(post for post in self._posts if post.pid == news.pid)
        self._zygote.bury(news.pid)
        self._write_obituary(post)
        was_useful = post.seat.done > 0 or time.monotonic() - post.born > 5
        crashed = news.code != EXIT_DONE and not post.is_killed and post.overdue is None
        if crashed:
            logger.error("child %s died (%s)", post.child, _cause(news.code))
        post.seat.reset()
        post.pid, post.child, post.watched_until = 0, "", 0.0
        done = news.code == EXIT_DONE and self._options.burst and not post.is_leaving
        if self._stop_at is not None or done:
            post.is_over = True
            self._end_burst()
            return
        # A child that dies before it was of any use would only do so again, so it waits a little.
        post.early_deaths = 0 if was_useful or not crashed else post.early_deaths + 1
        delay = 0.0 if post.early_deaths < 3 else min(5.0, 0.1 * 2**post.early_deaths)
        post.respawn_at = time.monotonic() + delay
        if not delay:
            self._spawn(post)

    def _write_obituary(self, post: Post) -> None:
        """What the child had not reported itself; what had not started is released unharmed."""
        assert self._attendant is not None
        if post.role != "jobs":
            self._attendant.post(Obituary(post.child, [], []))
            return
        outcomes = post.seat.outcomes()
        ended = {(outcome.id, outcome.lease) for outcome in outcomes}
        blamed = [
            job.id
            for job in post.seat.running()
            if (job.id, job.lease) not in ended and not post.is_killed and post.overdue is None
        ]
        overdue = post.overdue if post.overdue and post.overdue[:2] not in ended else None
        self._attendant.post(Obituary(post.child, outcomes, blamed, overdue))

    def _end_burst(self) -> None:
        """With burst, the maintenance child ends when the last job child has."""
        if not self._options.burst or self._stop_at is not None:
            return
        if all(post.is_over for post in self._posts if post.role == "jobs"):
            self._begin_stop()

    # -- looking at the seats

    def _watch_all(self) -> None:
        until = time.monotonic() + WATCH_FOR
        for post in self._posts:
            if post.role == "jobs" and post.pid:
                post.watched_until = until
                post.seat.watch(True)

    def _look(self) -> None:
        now = time.monotonic()
        now_ms = mono_ms()
        for post in self._posts:
            if post.pid and post.role == "jobs":
                self._look_at(post, now, now_ms)
            elif post.respawn_at and post.respawn_at <= now:
                self._spawn(post)
        if self._options.max_memory and now > self._memory_at:
            self._memory_at = now + MEMORY_INTERVAL
            self._check_memory()
        if self._stop_at is not None and now > self._kill_at:
            self._kill_all()

    def _look_at(self, post: Post, now: float, now_ms: int) -> None:
        if post.watched_until:
            self._keep_watch(post, now, now_ms)
        for job in post.seat.running():
            if job.deadline_ms and now_ms > job.deadline_ms + HARD_GRACE_MS and not post.overdue:
                logger.error(
                    "job %s did not stop at its timeout; killing its process %d", job.id, post.pid
                )
                post.overdue = (job.id, job.lease, job.call)
                os.kill(post.pid, signal.SIGKILL)

    def _keep_watch(self, post: Post, now: float, now_ms: int) -> None:
        if post.seat.has_unstarted():
            post.watched_until = now + WATCH_FOR
            running = post.seat.running()
            if running and now_ms - running[0].started_ms > self._settings.batch_window_ms:
                self._hand_back(post, running)
        elif now > post.watched_until:
            post.watched_until = 0.0
            post.seat.watch(False)
            if post.seat.has_unstarted():  # it looked at the flag just before
                post.watched_until = now + WATCH_FOR
                post.seat.watch(True)

    def _hand_back(self, post: Post, running: Sequence[Running]) -> None:
        """The job that runs is slow: whatever waits behind it goes back, whatever ended is
        reported.
        """
        assert self._attendant is not None
        unstarted = post.seat.steal()
        self._attendant.post(HandBack(post.child, unstarted, post.seat.outcomes()))

    def _check_memory(self) -> None:
        for post in self._posts:
            if post.pid and post.role == "jobs" and not post.is_leaving:
                size = resident_bytes(post.pid)
                if size > self._options.max_memory:
                    logger.warning(
                        "child %s uses %d MB, over its limit; it ends after its job",
                        post.child, size // 2**20,
                    )  # fmt: skip
                    self._order(post, "stop")

    # -- orders

    def _order(self, post: Post, line: str) -> None:
        if post.pid:
            post.is_leaving = post.is_leaving or line == "stop"
            post.seat.order(line)
            os.kill(post.pid, signal.SIGUSR1)

    def _pass_on(self, lost: Sequence[str], flagged: Sequence[str]) -> None:
        for post in self._posts:
            if not post.pid or post.role != "jobs":
                continue
            for job in post.seat.running():
                if job.id in flagged:
                    self._order(post, f"cancel {job.id} {job.lease}")
                elif job.id in lost:
                    self._order(post, f"abandon {job.id} {job.lease}")

    # -- the end

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._stop_at is None:
                logger.info("%s: finishing running jobs", signal.Signals(number).name)
                self._begin_stop()
            else:
                logger.warning("%s again: stopping now", signal.Signals(number).name)
                self._kill_at = 0.0

    def _begin_stop(self) -> None:
        self._stop_at = time.monotonic()
        self._kill_at = self._stop_at + self._options.grace
        for post in self._posts:
            if post.pid:
                self._order(post, "stop")
            elif post.respawn_at:
                post.respawn_at, post.is_over = 0.0, True

    def _kill_all(self) -> None:
        self._kill_at = float("inf")
        for post in self._posts:
            if post.pid:
                post.is_killed = True
                os.kill(post.pid, signal.SIGKILL)

    def _end(self, attendant: Attendant) -> int:
        """Children first, then what they left behind is released, then the connections go."""
        self._zygote.stop()
        if attendant.stop(timeout=5.0):
            return 0
        logger.error("Redis does not answer; what was held is recovered when its leases lapse")
        return 1


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
