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
from dataclasses import replace

from ..conf import Settings
from .attendant import Attendant
from .identity import Worker, start_time
from .posts import EXIT_DONE, EXIT_DRY, Bells, Post, SupervisorOptions
from .resources import bury_strangers
from .watch import Watch
from .zygote import Born, Died, Unborn, Zygote

logger = logging.getLogger("django_redisqueue")

UNDER_WAY = 8  # children that the zygote is asked for at a time, so that its socket never fills up
CLAIMED_TO_BEGUN = 1.0  # s that a claimed job may take to begin, for a cancel that waits for it
ASK_AGAIN = 0.01  # s between two looks for it
LOOK_AGAIN = 0.1  # s until the next look for jobs that are being recovered, with burst
BARREN = 1.0  # s until the next try, when the zygote could not fork
LAST_BREATH = 1.0  # s for children to die in when the zygote has


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
        self._attendant: Attendant
        self._watch: Watch
        self._spawned = 0
        self._signals: list[int] = []
        self._notices: list[tuple[Sequence[tuple[str, int]], Sequence[str]]] = []
        self._cancels: dict[str, float] = {}  # job id -> until when to look for it
        self._stop_at: float | None = None
        self._kill_at = 0.0
        self._is_broken = False

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

    def notify(self, lost: Sequence[tuple[str, int]], flagged: Sequence[str]) -> None:
        """Jobs and their leases that are lost, and jobs to cancel; wakes the main thread."""
        self._notices.append((lost, flagged))
        try:
            os.write(self._bells.own_end, b"!")
        except BlockingIOError:
            return  # the pipe is full of calls to wake up already

    def on_cancel(self, child: str, job_id: str) -> None:
        """Somebody has cancelled a job that a child holds, ours or another's."""
        if child in self.children():
            self.notify([], [job_id])

    # -- the main thread

    def run(self, attendant: Attendant) -> int:
        """The whole life of the worker; returns the exit code."""
        self._attendant = attendant
        self._watch = Watch(self._posts, attendant, self._settings, self._options.max_memory)
        for post in self._posts:
            post.respawn_at = time.monotonic()
        self._fill_seats()
        attendant.start()
        with selectors.DefaultSelector() as selector:
            for source in (self._zygote.socket, self._bells.bell, self._bells.own):
                selector.register(source, selectors.EVENT_READ)
            while not all(post.is_over for post in self._posts):
                self._hear(selector.select(self._pause()))
                self._obey_signals()
                self._fill_seats()
                self._watch.look()
                if os.getpid() == 1:
                    bury_strangers(self._zygote.pid)
                if self._stop_at is not None and time.monotonic() > self._kill_at:
                    self._kill_all()
        return self._end()

    def on_signal(self, number: int) -> None:
        """Called by the signal handler."""
        self._signals.append(number)

    def _pause(self) -> float:
        interval = ASK_AGAIN if self._cancels else self._watch.interval
        soonest = min((post.respawn_at for post in self._posts if post.respawn_at), default=None)
        return interval if soonest is None else min(interval, max(0.0, soonest - time.monotonic()))

    def _hear(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        for key, _ in ready:
            if key.fileobj is self._zygote.socket:
                self._hear_zygote()
            else:
                os.read(key.fd, 4096)
                if key.fileobj == self._bells.bell:
                    self._watch.begin()
        while self._notices:
            lost, flagged = self._notices.pop(0)
            until = time.monotonic() + CLAIMED_TO_BEGUN
            self._cancels.update((job_id, until) for job_id in flagged)
            self._pass_on(lost, self._cancels)
        if self._cancels:
            self._pass_on([], self._cancels)

    def _hear_zygote(self) -> None:
        try:
            for news in self._zygote.news():
                if isinstance(news, Born):
                    self._welcome(news)
                elif isinstance(news, Unborn):
                    self._put_off(news)
                else:
                    self._mourn(news)
        except ConnectionError as error:
            logger.error("%s, and its children with it; stopping the worker", error)
            self._mourn_all()

    # -- births and deaths

    def _fill_seats(self) -> None:
        now = time.monotonic()
        room = UNDER_WAY - sum(1 for post in self._posts if post.child and not post.pid)
        for post in self._posts:
            if room > 0 and post.respawn_at and post.respawn_at <= now:
                room -= 1
                self._spawned += 1
                post.take_seat(self._worker.child(self._spawned), now)
                self._zygote.spawn(post.role, post.seat.number, post.child)

    def _welcome(self, news: Born) -> None:
        post = self._posts[news.seat]
        post.pid = news.pid
        if self._jobs_are_over if post.role == "bridge" else self._stop_at is not None:
            post.order("stop")

    def _put_off(self, news: Unborn) -> None:
        """Try again later: the children that there are go on meanwhile."""
        post = self._posts[news.seat]
        logger.error(
            "no process for child %s: %s; trying again in %g s", post.child, news.problem, BARREN
        )
        post.leave_seat()
        if self._stop_at is None:
            post.respawn_at = time.monotonic() + BARREN
        else:
            post.is_over = True
            self._see_to_the_end()

    def _mourn(self, news: Died) -> None:
        post = next(post for post in self._posts if post.pid == news.pid)
        self._zygote.bury(news.pid)
        obituary = self._watch.obituary(post)
        # A job may end its process with the very code of a child that ends in order.
        in_order = news.code in (EXIT_DONE, EXIT_DRY) and not obituary.blamed
        is_dry = in_order and news.code == EXIT_DRY and self._stays_dry(post)
        crashed = not in_order and not post.is_killed and post.overdue is None
        if crashed:
            logger.error("child %s died (%s)", post.child, news.cause)
        was_useful = bool(post.seat.done or obituary.outcomes or obituary.blamed)
        post.leave_seat()
        self._attendant.post(replace(obituary, in_order=in_order))
        if self._stop_at is not None or is_dry:
            post.is_over = True
            self._see_to_the_end()
            return
        # A child that dies before it was of any use would only do so again, so it waits a little.
        now = time.monotonic()
        is_early = crashed and not was_useful and now - post.born < 5
        post.early_deaths = post.early_deaths + 1 if is_early else 0
        delay = 0.0 if post.early_deaths < 3 else min(5.0, 0.1 * 2**post.early_deaths)
        if in_order and news.code == EXIT_DRY:
            delay = LOOK_AGAIN
        post.respawn_at = now + delay

    def _stays_dry(self, post: Post) -> bool:
        """With burst: False when what dead children held came back while this one looked, or is
        still to come back."""
        return post.role != "jobs" or not self._attendant.may_recover_since(post.born)

    def _mourn_all(self) -> None:
        """Without the zygote nobody can be seated again; what its children held is given back."""
        self._is_broken = True
        end = time.monotonic() + LAST_BREATH
        for post in self._posts:
            if post.pid and _is_gone(post.pid, end):
                self._attendant.post(self._watch.obituary(post))
            post.leave_seat()
            post.respawn_at, post.is_over = 0.0, True

    @property
    def _jobs_are_over(self) -> bool:
        return all(post.is_over for post in self._posts if post.role == "jobs")

    def _see_to_the_end(self) -> None:
        """The mirror's bridge goes behind the last job child, so that it sees how the jobs ended.
        With burst, so does the maintenance child, behind the bridge."""
        if not self._jobs_are_over:
            return
        bridges = [post for post in self._posts if post.role == "bridge" and not post.is_over]
        for post in bridges:
            if not post.is_leaving:
                post.order("stop")
        if not bridges and self._stop_at is None:
            self._begin_stop()

    # -- orders

    def _pass_on(self, lost: Sequence[tuple[str, int]], cancels: dict[str, float]) -> None:
        """Tell children of their lost and cancelled jobs. A cancelled job that its child has
        claimed but not begun is looked for again for a while; then the next heartbeat asks."""
        now = time.monotonic()
        for post in self._posts:
            if not post.pid or post.role != "jobs":
                continue
            for job in post.seat.running():
                if job.id in cancels:
                    del cancels[job.id]
                    post.order(f"cancel {job.id} {job.lease}")
                elif (job.id, job.lease) in lost:
                    post.abandon(job.id, job.lease)
        for job_id in [job_id for job_id, until in cancels.items() if until < now]:
            del cancels[job_id]

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
            if post.respawn_at:
                post.respawn_at, post.is_over = 0.0, True
            if post.role != "bridge":
                post.order("stop")
        self._see_to_the_end()

    def _kill_all(self) -> None:
        for post in self._posts:
            if post.pid and not post.is_killed:  # also one that is born only now
                post.is_killed = True
                os.kill(post.pid, signal.SIGKILL)

    def _end(self) -> int:
        """Children first, then what they left behind is released, then the connections go."""
        self._zygote.stop()
        if not self._attendant.stop(timeout=5.0):
            logger.error("Redis does not answer; what was held is recovered when its leases lapse")
            return 1
        return int(self._is_broken)


def _is_gone(pid: int, end: float) -> bool:
    """Wait until a process is no longer there, with ``end`` (monotonic) as the limit."""
    while time.monotonic() < end:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # the latter: the pid is a stranger's now
            return True
        if not start_time(pid):  # dead, but nobody has reaped it
            return True
        time.sleep(0.005)
    return False
