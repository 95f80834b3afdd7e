"""Times without claims: a child waits for work, or pauses to run a suspect job alone."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from ...broker.connection import BLOCK_SECONDS, IDLE_SECONDS
from ...broker.wake import WakeWait
from ...exceptions import RedisQueueError
from ..interrupts import Interrupts
from .claims import Claims
from .in_flight import InFlight

IGNORE_QUEUE = 0.25  # s without waiting for a queue whose jobs this child may not claim
SHORTEST = 0.05  # s, the shortest wait
LOOK_AWAY = 1.0  # s between two checks of whether unavailable shards answer again
POLL_BURST = 0.25  # s between two claims with burst, while jobs are in flight or shards unavailable
POLL_RELEASED = 0.02  # s between two claims while the supervisor releases jobs
SUSPECT_WAIT = 30.0  # s that a suspect job waits before a busy child makes room for it
FIRST_PAUSE = 1.0  # s during which that child then claims no other job


class SuspectPauses:
    """Decides when a busy child stops claiming jobs in order to run a suspect: a job that may have
    crashed a worker.

    A suspect runs only on a child that has no other job. A child whose jobs overlap may never be
    free, so once a suspect has waited for ``SUSPECT_WAIT`` the child pauses: it claims no jobs
    until those that it runs have ended. Each pause is twice as long as the previous one, so that
    one of them outlasts the longest job. After each pause the child works for as long as it paused,
    so that other jobs never wait longer than the suspect has.
    """

    def __init__(self) -> None:
        self._pause = 0.0  # length of the next one; 0: no suspect waits
        self._pause_at = 0.0

    def paused_until(self, waits: bool, now: float) -> float:
        """Until when (monotonic) to claim no jobs, or 0.0. ``waits``: a suspect waits."""
        if not waits:
            self._pause = 0.0
        elif not self._pause:
            self._pause, self._pause_at = FIRST_PAUSE, now + SUSPECT_WAIT
        elif now >= self._pause_at:
            until = now + self._pause
            self._pause_at = until + self._pause
            self._pause *= 2
            return until
        return 0.0


class IdleWait:
    """Waits until there may be work in some shard. An order to stop ends every wait."""

    def __init__(self, claims: Claims, interrupts: Interrupts, in_flight: InFlight) -> None:
        self._claims = claims
        self._interrupts = interrupts
        self._in_flight = in_flight
        self._wake: WakeWait | None = None  # with one shard, the claim itself waits in Redis
        if len(claims.shards) > 1:
            commands = [one.commands for one in claims.shards]
            self._wake = WakeWait(commands, claims.request.child, claims.note_silent)
        self._ignored: dict[tuple[int, str], float] = {}  # shard and queue -> until when
        self._held_nothing = False

    def ignore(self, queues: Sequence[str]) -> None:
        """Do not wait for these queues of the current shard for a while."""
        until = time.monotonic() + IGNORE_QUEUE
        for queue in queues:
            self._ignored[self._claims.current.shard, queue] = until

    def wait(self, wanted: int, longest: float = math.inf) -> None:
        """Block until there may be work, or for a few seconds, at most ``longest``. The next claim
        goes to the shard with work; with one shard, it has then been made, for ``wanted`` jobs."""
        now = time.monotonic()
        self._ignored = {key: until for key, until in self._ignored.items() if until > now}
        longest = min(longest, self._longest(), self._claims.resend_in())
        timeout = max(min(self._ignored.values(), default=now + longest) - now, SHORTEST)
        available = self._claims.available()
        queues = [(shard, queue) for queue in self._claims.request.queues for shard in available]
        queues = [queue for queue in queues if queue not in self._ignored]
        found: list[int] = []
        if queues:
            self._interrupts.wait(lambda: found.extend(self._take_token(queues, timeout, wanted)))
        else:
            self._interrupts.wait(lambda: time.sleep(min(timeout, BLOCK_SECONDS)))
        if self._wake is not None:
            self._claims.go_to(found[0] if found else None)
            self._claims.put_back(found[1:])

    def _longest(self) -> float:
        """The longest wait, in seconds: short if there is something to report, and if the claim
        itself waits in Redis, which would give jobs to a child that is gone."""
        is_free = not self._claims.unreported and not self._in_flight.count
        return IDLE_SECONDS if is_free and self._wake is not None else BLOCK_SECONDS

    def _take_token(
        self, queues: Sequence[tuple[int, str]], timeout: float, wanted: int
    ) -> list[int]:
        """The shards whose tokens were taken and where a claim must still be made."""
        if self._wake is not None:
            available = self._claims.available()
            every = LOOK_AWAY if len(available) < len(self._claims.shards) else BLOCK_SECONDS
            keep_waiting = partial(self._claims.are_available, available)
            return self._wake.wait(queues, timeout, keep_waiting, every)
        with suppress(RedisQueueError):  # the claim that follows also meets it, and logs it
            self._claims.current.wait([name for _, name in queues], timeout, wanted)
        return []

    def wait_for_release(self) -> None:
        """Let the supervisor release the jobs that this child holds, so it can run a suspect."""
        self._interrupts.wait(lambda: time.sleep(POLL_RELEASED))

    def next_shard(self) -> None:
        """With burst, go to the next shard; wait first if only silent shards may have jobs."""
        if self._claims.is_dry_where_answered:
            self._interrupts.wait(lambda: time.sleep(POLL_BURST))
        self._claims.go_to(None)

    def is_drained(self, in_flight_unwritten: int) -> bool:
        """With burst, after an empty claim in every shard: True if no further claim can return any.

        The supervisor may still have to release jobs of this child, which are then queued again. So
        the queues are drained only if this child held nothing before an empty claim, not counting
        jobs that it holds only because their outcomes cannot be written.
        """
        in_flight = self._in_flight
        if in_flight.count:
            self._held_nothing = False
            self._interrupts.wait(lambda: in_flight.wait(lambda: not in_flight.count, POLL_BURST))
            return False
        if self._held_nothing:
            return True
        try:
            self._held_nothing = self._count_held() <= self._claims.unreported + in_flight_unwritten
        except RedisQueueError:
            return False  # the next claim waits for Redis
        if not self._held_nothing:
            self._interrupts.wait(lambda: time.sleep(POLL_RELEASED))
        return False

    def _count_held(self) -> int:
        held = 0
        for one in self._claims.shards:
            key = one.commands.keys.child_processing(self._claims.request.child)
            held += one.commands.connection.call("LLEN", key)
        return held

    def found_work(self) -> None:
        """Note that a claim returned jobs."""
        self._held_nothing = False

    def close(self) -> None:
        """Put back what an interrupted wait may have taken."""
        if self._wake is not None:
            self._wake.close()
        self._claims.current.close_wait()
        self._claims.put_back(self._claims.available())
