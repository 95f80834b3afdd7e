"""The supervisor's Redis side, in a thread of its own: heartbeats, reports for the dead,
hand-backs.

The supervisor's main thread never waits for Redis; it leaves work here and is told what concerns
its children through ``notify``.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..conf import Settings
from ..connection import worker_link
from ..exceptions import CorruptJob, RedisQueueError
from ..registry import get_task
from ..store.reads import Reads
from ..store.replies import Outcome, Settled
from ..store.transitions import Seeker, Transitions
from ..store.upkeep import Beat
from . import verdicts
from .beacon import Beacon
from .reaper import Reaper
from .reconnect import say_away, say_back
from .strays import Held, Strays

logger = logging.getLogger("django_redisqueue")


@dataclass(frozen=True, slots=True)
class HandBack:
    """A child's running job turned out slow: release what waits, report what has ended."""

    child: str
    unstarted: Sequence[tuple[str, int]]
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class Obituary:
    """A child has died. ``blamed``: ids that ran and are suspected; ``overdue``: the one job it was
    killed for, as (id, lease). ``in_order``: it ended by itself, and has left nothing."""

    child: str
    outcomes: Sequence[Outcome]
    blamed: Sequence[str]
    overdue: tuple[str, int] | None = None
    in_order: bool = False


Errand = HandBack | Obituary
# Ids and leases that are lost, ids to cancel.
Notify = Callable[[Sequence[tuple[str, int]], Sequence[str]], None]
REPORTED_TOGETHER = ASKED_TOGETHER = 100
AWAY = 0.5  # s between two tries while Redis is away


def _is_recovery(errand: Errand) -> bool:
    return isinstance(errand, Obituary) and not errand.in_order


class Attendant:
    """``children`` and ``running`` are asked for what to renew and what to ask after."""

    def __init__(
        self,
        settings: Settings,
        queues: Sequence[str],
        beacon: Beacon,
        children: Callable[[], list[str]],
        running: Callable[[], list[tuple[str, str, int]]],
        notify: Notify,
        held: Held,
    ) -> None:
        self._settings = settings
        self._store = Transitions(worker_link(), settings)
        self._reads = Reads(self._store.link, settings)
        self._reaper = Reaper(self._store, queues)
        self._strays = Strays(self._store, held)
        self._beacon = beacon
        self._children = children
        self._running = running
        self._notify = notify
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="attendant", daemon=True)
        self._unfinished: Errand | None = None
        self._put_off: list[Errand] = []  # until the next heartbeat
        self._unsettled: set[str] = set()  # children of which something was put off
        self._recoveries_posted = self._recoveries_done = 0  # by one thread each
        self._recovered_at = float("inf")  # when (monotonic) jobs last came back; inf: not yet
        self._failed = False
        self._asked = 0

    def start(self) -> None:
        """Take over what this machine's dead workers held, then beat until ``stop``."""
        self._thread.start()

    def post(self, errand: Errand) -> None:
        """Have something written to Redis; it will be, as soon as Redis answers."""
        if _is_recovery(errand):
            self._recoveries_posted += 1
        self._errands.put(errand)

    def may_recover_since(self, since: float) -> bool:
        """True when jobs of dead children have gone back to their queues after ``since``
        (monotonic), or are still to: who found the queues empty before has to look again."""
        pending = self._recoveries_posted - self._recoveries_done
        return pending > 0 or self._recovered_at >= since

    def stop(self, timeout: float) -> bool:
        """Write what is left, in at most ``timeout`` seconds; False when that was too short."""
        self._errands.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive() and not self._failed

    def _run(self) -> None:
        try:
            self._attend()
        except BaseException:
            # Without heartbeats the worker would be taken for dead: better it ends.
            logger.exception("the attendant thread broke; stopping the worker")
            self._failed = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _attend(self) -> None:
        interval = self._settings.heartbeat_ms / 1000
        took_over = False  # until then ``_recovered_at`` is inf
        while True:
            due = time.monotonic() + interval
            answered = self.beat()
            self._try_again()
            if answered and not took_over:
                took_over = self._quietly(self._take_over)
            if not self._work_until(due if answered else time.monotonic() + AWAY):
                self._say_what_stays()
                return

    def _work_until(self, due: float) -> bool:
        """Do what was posted until the next heartbeat is due; False when all is done and over.

        An errand that Redis did not answer is done again, in full, after the next heartbeat: every
        write of it is fenced, so a repeat of one that went through changes nothing.
        """
        while (left := due - time.monotonic()) > 0:
            try:
                errand = self._unfinished or self._errands.get(timeout=left)
            except queue.Empty:
                return True
            if errand is None:
                return False
            self._unfinished = errand
            try:
                self._do(errand)
            except RedisQueueError as error:
                say_away("supervisor", error)
                time.sleep(min(AWAY, left) * random.uniform(0.5, 1))
                return True
            self._unfinished = None
        return True

    def beat(self) -> bool:
        """One heartbeat, and a pass of the reaper when leases have lapsed; False when Redis is
        away.
        """
        asked = self._to_ask_after()
        try:
            beat: Beat = self._store.heartbeat(self._leased(), asked)
        except RedisQueueError as error:
            say_away("supervisor", error)
            self._beacon.beat(False)
            return False
        self._beacon.beat(True)
        say_back("supervisor")
        if beat.lost or beat.flagged:
            # With the lease: a child of ours may run the job again by now, under a new one.
            lost = [(job_id, lease) for job_id, _, lease in asked if job_id in beat.lost]
            self._notify(lost, beat.flagged)
        if beat.lapsed:  # all of them: a whole machine may have died (law 3)
            until = time.monotonic() + self._settings.heartbeat_ms / 2000
            self._quietly(lambda: self._reaper.run_once(until))
        self._strays.after_beat(beat.steady_ms)
        return True

    def _leased(self) -> list[str]:
        """Whose leases are renewed: of dead children too, while their outcomes are to be written,
        lest another worker recovers the jobs and runs them again."""
        return [*self._children(), *self._unsettled]

    def _to_ask_after(self) -> list[tuple[str, str, int]]:
        """Running jobs, other ones every time when there are many."""
        running = self._running()
        first = self._asked if self._asked < len(running) else 0
        self._asked = first + ASKED_TOGETHER
        return running[first : self._asked]

    def _take_over(self) -> None:
        self._reaper.take_over()
        self._recovered_at = time.monotonic()

    def _quietly(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except RedisQueueError as error:
            say_away("reaper", error)
            return False
        say_back("reaper")
        return True

    def _do(self, errand: Errand) -> None:
        """Write it; what cannot be written, for a queue has a key of a wrong type, is put off."""
        rest = self._release(errand) if isinstance(errand, HandBack) else self._bury(errand)
        if rest is None:
            self._unsettled.discard(errand.child)
        else:
            self._unsettled.add(errand.child)
            self._put_off.append(rest)

    def _release(self, errand: HandBack) -> HandBack | None:
        """What is left of it; of its outcomes nothing, for its child reports them itself."""
        self._report(errand.child, errand.outcomes)
        codes = self._store.release(errand.child, errand.unstarted) if errand.unstarted else []
        pairs = zip(errand.unstarted, codes, strict=True)
        left = [job for job, code in pairs if code == Settled.UNWRITTEN]
        return HandBack(errand.child, left, []) if left else None

    def _bury(self, errand: Obituary) -> Obituary | None:
        unwritten = self._report(errand.child, errand.outcomes)
        if errand.overdue is not None:
            unwritten += self._report(errand.child, self._overdue(*errand.overdue))
        keep = [outcome.id for outcome in unwritten]
        is_stuck = self._reaper.reap_dead(errand.child, errand.blamed, keep).stuck
        if _is_recovery(errand):
            self._recovered_at = max(time.monotonic(), self._recovered_at)
            self._recoveries_done += 1
        self._store.lead(errand.child, 0)  # if it did, another worker need not wait for its lease
        if not unwritten and not is_stuck:
            return None
        return replace(errand, outcomes=unwritten, overdue=None, in_order=True)

    def _report(self, child: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Report outcomes; those that could not be written."""
        unwritten = []
        for at in range(0, len(outcomes), REPORTED_TOGETHER):
            some = outcomes[at : at + REPORTED_TOGETHER]
            codes, _ = self._store.finish(Seeker(child, ()), 0, some, 0)
            unwritten += [o for o, c in zip(some, codes, strict=True) if c == Settled.UNWRITTEN]
        return unwritten

    def _say_what_stays(self) -> None:
        while not self._errands.empty():  # posted once more, behind the order to stop
            self._put_off += filter(None, [self._errands.get()])
        if self._put_off:
            names = ", ".join(sorted({errand.child for errand in self._put_off}))
            logger.error(
                "some outcomes and jobs of %s could not be written, for a key of their queue is of "
                "a wrong type; once it is mended, these jobs are recovered and run again", names,
            )  # fmt: skip

    def _try_again(self) -> None:
        """Post once more what was put off."""
        for errand in self._put_off:
            self._errands.put(errand)
        self._put_off.clear()

    def _overdue(self, job_id: str, lease: int) -> list[Outcome]:
        """The outcome of a job that was killed for its timeout; its task's policy decides."""
        try:
            job = self._reads.job(job_id)
            task = get_task(job.task)
        except (LookupError, CorruptJob) as error:
            logger.error("job %s was killed for its timeout, but: %s", job_id, error)
            return []
        options = task.options
        timeout_ms = job.options.get("timeout_ms", options.timeout_ms)
        ruling = verdicts.timed_out(
            options,
            job.attempts,
            job.options.get("max_attempts", options.max_attempts),
            self._settings.timeout_ms if timeout_ms is None else timeout_ms,
            self._settings,
        )
        return [Outcome(job_id, lease, 0, ruling.verdict, ruling.body, ruling.detail)]
