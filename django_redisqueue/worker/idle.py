"""What a child does while there is no work: it blocks on the wake lists."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from ..connection import blocking_link
from ..exceptions import RedisQueueError
from ..link import BLOCK, Link
from ..store.transitions import Seeker, Transitions
from .interrupts import Interrupts
from .lane import AsyncLane

LEAVE_OUT = 0.25  # s that a queue is not waited for after its work was found not to be ours
LOOK = 0.25  # s between two looks for jobs while async ones run, with burst
HANDED_BACK = 0.02  # s between two looks for jobs that the supervisor is handing back
SUSPECT_PATIENCE = 30.0  # s that a suspect job waits before a busy child makes room for it
FIRST_PAUSE = 1.0  # s for which it then takes no other job


class SuspectPatience:
    """When a busy child stops taking jobs so that it can run a suspect: one that may have taken a
    worker down.

    A suspect runs only on a child that has no other job, and the others pass it. A child whose
    async jobs overlap may never be free by itself. Once a suspect has waited for
    ``SUSPECT_PATIENCE``, the child therefore pauses: it takes nothing, so that what it runs can
    end. Each pause is twice as long as the one before, and followed by as much time in which it
    works as usual: so one of them outlasts the longest job, and other jobs never wait longer than
    the suspect has.
    """

    def __init__(self) -> None:
        self._pause = 0.0  # length of the next one; 0: nothing waits
        self._pause_at = 0.0

    def paused_until(self, waits: bool, now: float) -> float:
        """After a claim: until when to take nothing, or 0.0. ``waits``: a suspect waits for a child
        that is free. Times are monotonic, in seconds."""
        if not waits:
            self._pause = 0.0
        elif not self._pause:
            self._pause, self._pause_at = FIRST_PAUSE, now + SUSPECT_PATIENCE
        elif now >= self._pause_at:
            until = now + self._pause
            self._pause_at = until + self._pause
            self._pause *= 2
            return until
        return 0.0


class Idle:
    """The waits of one child; an order to stop ends each of them."""

    def __init__(
        self, store: Transitions, seeker: Seeker, interrupts: Interrupts, lane: AsyncLane
    ) -> None:
        self._store = store
        self._seeker = seeker
        self._interrupts = interrupts
        self._lane = lane
        self._wake: Link = blocking_link()
        self._left_out: dict[str, float] = {}
        self._held_nothing = False

    def leave_out(self, queues: Sequence[str]) -> None:
        """Do not wait for these for a while: their work is not for this child."""
        until = time.monotonic() + LEAVE_OUT
        for queue in queues:
            self._left_out[queue] = until

    def wait(self) -> None:
        """Until there may be work, or for a few seconds."""
        now = time.monotonic()
        self._left_out = {queue: until for queue, until in self._left_out.items() if until > now}
        queues = [queue for queue in self._seeker.queues if queue not in self._left_out]
        timeout = min(self._left_out.values(), default=now + BLOCK) - now
        keys = [self._store.keys.queue(queue).wake for queue in queues]
        if keys:
            self._interrupts.wait(lambda: self._pop(keys, timeout))
        else:
            self._interrupts.wait(lambda: time.sleep(timeout))

    def _pop(self, keys: Sequence[str], timeout: float) -> None:
        try:
            self._wake.pop(keys, max(timeout, 0.05))
        except RedisQueueError:
            return  # the claim that follows meets the same error, says so and tries again

    def until_handed_back(self) -> None:
        """A suspect job waits for this child to hold nothing; what it holds is being handed back
        by the supervisor."""
        self._interrupts.wait(lambda: time.sleep(HANDED_BACK))

    def is_dry(self, unwritten: int) -> bool:
        """With burst, after a claim that brought nothing: True when it can bring nothing more.
        ``unwritten``: jobs that this child holds only because their outcomes cannot be written.

        Jobs that the supervisor took from this child and has not yet handed back are still to come:
        nothing was held before the last claim, and that found nothing either.
        """
        if self._lane.in_flight:
            self._held_nothing = False
            lane = self._lane
            self._interrupts.wait(lambda: lane.wait(lambda: not lane.in_flight, LOOK))
            return False
        if self._held_nothing:
            return True
        held = self._store.keys.held(self._seeker.child)
        try:
            self._held_nothing = self._store.link.call("LLEN", held) <= unwritten
        except RedisQueueError:
            return False  # the next claim waits for Redis
        if not self._held_nothing:
            self._interrupts.wait(lambda: time.sleep(HANDED_BACK))
        return False

    def has_work(self) -> None:
        """A claim brought something."""
        self._held_nothing = False

    def close(self) -> None:
        """Leave the wake lists right: the wait that was cut short may have swallowed a token."""
        self._wake.close()
        with suppress(RedisQueueError):
            self._store.claim(self._seeker, 0, 0)
