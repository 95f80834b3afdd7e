"""Drives the mirror's bridge: one a shard works, catches up, and sleeps until something happens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from django.db import Error as DatabaseError

from ..conf import Settings
from ..connection import blocking_link
from ..exceptions import RedisQueueError
from ..keys import Keys
from ..link import Link
from ..mirror.assembly import make_bridge
from ..mirror.bridge import Bridge
from ..mirror.health import explain
from ..mirror.signalling import KeepAlive
from ..store.transitions import Transitions
from .interrupts import Interrupts
from .reconnect import cause_of, pause
from .seat import KEEP_ALIVE, Seat

logger = logging.getLogger("django_redisqueue")

ROLE = "bridge"
LEASE_MS = 14_000
RENEW = 9.0  # s
RETRY = 5.0  # s between two tries of others, so a dead bridge is followed within 20 s
GATHER = 0.05  # s in which events gather after a page that was the last
LOOK = 30.0  # s between two looks at the stream without a message
BUSY = 30.0  # s that a page may take in the database before the watchdog takes it for stuck
LAST = 3.0  # s at the end, to mirror how the last jobs ended

Idle = Callable[[Callable[[], object]], object]  # runs a wait that an order to stop may end


def _wait_out(block: Callable[[], object]) -> object:
    return block()


class BridgeRole:
    """The role as every role is: ``start``, ``stop``, ``run_once``."""

    def __init__(
        self,
        who: str,
        settings: Settings,
        *,
        bridge: Bridge | None = None,
        idle: Idle = _wait_out,
        keep_alive: KeepAlive = lambda seconds: None,
    ) -> None:
        self._who = who
        self._bridge = bridge or make_bridge(settings, keep_alive=keep_alive)
        self._store = Transitions(self._bridge.link, settings)
        keys = Keys(settings.prefix)
        self._ear = _Ear(keys.status_channel, keys.flow_channel)
        self._wait = idle
        self._keep_alive = keep_alive
        self._leads = False
        self._renew_at = 0.0

    def start(self, is_over: Callable[[], bool]) -> None:
        """Mirror until ``is_over()``, for ever trying again: whatever is missed waits in Redis."""
        tries, said = 0, set[object]()
        while not is_over():
            try:
                self.run_once()
            except (RedisQueueError, DatabaseError) as error:
                problem = self._give_way(error)
                cause = cause_of(error) if isinstance(error, RedisQueueError) else problem
                if cause not in said:
                    logger.error("mirror: %s; trying again until it goes", problem)
                said.add(cause)
                self._idle(partial(pause, tries))
                tries += 1
            else:
                if tries:
                    logger.warning("mirror: goes on after %d tries", tries)
                tries = 0
                said.clear()

    def stop(self) -> None:
        """Make room for another bridge."""
        if self._leads:
            with suppress(RedisQueueError):  # else its lease runs out
                self._store.lead(self._who, 0, ROLE)
        self._leads, self._renew_at = False, 0.0
        self._ear.close()
        self._bridge.close()

    def run_once(self) -> None:
        """Lead, if nobody else does; then apply a page, or wait until there may be one."""
        self._keep_alive(BUSY)
        now = time.monotonic()
        if now >= self._renew_at:
            self._leads = bool(self._store.lead(self._who, LEASE_MS, ROLE))
            self._renew_at = now + (RENEW if self._leads else RETRY)
        if not self._leads:
            self._bridge.close()  # what it knows of the cursor will be old by then
            self._rest(self._renew_at - now)
        elif self._ear.wants_a_look and self._bridge.run_once():
            # It hears nothing while it catches up: Redis would cut it off for reading slowly.
            self._ear.close()
            self._rest(GATHER if self._bridge.is_at_the_end else 0)
        elif not self._ear.is_open:
            self._ear.open()  # and look once more, for what came in between
        else:
            self._idle(lambda: self._ear.listen(self._renew_at))

    def catch_up(self, until: float = float("inf")) -> int:
        """Apply all that is there, or go on ``until`` (monotonic), whoever leads: the cursor sees
        to it that nothing is twice. How many events that were."""
        before = self._bridge.applied
        while self._bridge.run_once() and time.monotonic() < until:
            self._keep_alive(BUSY)
        return self._bridge.applied - before

    @property
    def alias(self) -> str:
        """The database that it writes."""
        return self._bridge.writer.alias

    def _idle(self, block: Callable[[], object]) -> None:
        self._keep_alive(KEEP_ALIVE)
        self._wait(block)

    def _rest(self, seconds: float) -> None:
        if seconds:
            self._idle(partial(time.sleep, seconds))

    def _give_way(self, error: Exception) -> str:
        """After an error everything is looked at anew; what to say of it."""
        self._ear.close()
        self._bridge.close()
        self._renew_at = 0.0
        is_redis = isinstance(error, RedisQueueError)
        return str(error) if is_redis else explain(self.alias, error)


class _Ear:
    """The subscription: a message only wakes, and a look now and then does without one."""

    def __init__(self, *channels: str) -> None:
        self._channels = channels
        self._link: Link | None = None
        self._look_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._link is not None

    @property
    def wants_a_look(self) -> bool:
        """True unless it has listened since the last look, and heard nothing."""
        return time.monotonic() >= self._look_at

    def open(self) -> None:
        self._link = blocking_link()
        self._link.subscribe(*self._channels)
        self._look_at = 0.0

    def listen(self, until: float) -> None:
        """Until a message, until it is time to look, or ``until`` (monotonic)."""
        assert self._link is not None
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK  # the last look found nothing
        heard = self._link.message(max(0.0, min(until, self._look_at) - now))
        if heard is not None:
            self._look_at = 0.0

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._look_at = None, 0.0


class BridgeChild:
    """The role in a child of the worker."""

    def __init__(self, child: str, seat: Seat, settings: Settings, *, burst: bool) -> None:
        self._interrupts = Interrupts(seat)
        self._role = BridgeRole(
            child, settings, idle=self._interrupts.wait, keep_alive=seat.keep_alive
        )
        self._burst = burst

    def run(self) -> bool:
        """Until ordered to stop, and then to the end of what there is by then, for a few seconds
        at the most. With burst for as long as it takes; True then, for it is not to be replaced."""
        self._interrupts.install()
        self._role.start(lambda: self._interrupts.stopping)
        try:
            self._role.catch_up(float("inf") if self._burst else time.monotonic() + LAST)
        except (RedisQueueError, DatabaseError) as error:
            logger.warning("mirror: %s; what is not mirrored waits in Redis", error)
        self._role.stop()
        return self._burst
