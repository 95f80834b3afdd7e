"""The maintenance child: what must exist once a shard, behind a leader lease."""

from __future__ import annotations

import logging
import math
import select
import time
from contextlib import suppress
from functools import partial

from django.db import connections

from ..conf import Settings
from ..connection import blocking_link, worker_link
from ..exceptions import RedisQueueError
from ..keys import Keys
from ..mirror.retention import Retention, of_receipts
from ..states import Status
from ..store.replies import Lead
from ..store.transitions import Transitions
from .desk import Desk
from .interrupts import Interrupts
from .reaper import Reaper
from .reconnect import pause, say_away, say_back
from .relay import Relay
from .roles import Chore, Continuer, Pruner, Timer, do_due
from .seat import Seat
from .sweeper import Sweeper

logger = logging.getLogger("django_redisqueue")

LEASE_MS = 15_000
RENEW = 7.0  # s; others try as often, so a dead leader is followed within LEASE_MS + RENEW
PRUNE = 5.0  # s between two passes over what has completed, sooner while there is more to do
PRUNE_OTHERS = 25.0  # s; there are fewer of those, and each look is a round trip
MORE = 0.1  # s until then
AUDIT = 15.0  # s
RELAY = 5.0  # s
FORGET = 600.0  # s
RECEIPTS = 60.0  # s
BUSY = 120.0  # s that one round may take, with many queues to promote and to prune
NEVER = math.inf  # but when the lease's renewal says that there is something
FILES = 60.0  # s


class Maintenance:
    """Runs the timer to the millisecond, and chores when they are due; takes no jobs."""

    def __init__(self, child: str, seat: Seat, settings: Settings) -> None:
        self._child = child
        self._store = Transitions(worker_link(), settings)
        self._waiter = blocking_link()
        self._seat = seat
        self._interrupts = Interrupts(seat)
        self._timer_key = Keys(settings.prefix).timer
        self._timer = Timer(self._store, tuple(settings.queues))
        reaper = Reaper(self._store, list(settings.queues))
        completed = Pruner(self._store, settings, (Status.COMPLETED,))
        others = Pruner(self._store, settings, (Status.FAILED, Status.CANCELLED))
        self._chores = [
            Chore(lambda: completed.run_once() >= 1000, PRUNE),
            Chore(lambda: others.run_once() >= 1000, PRUNE_OTHERS),
            Chore(others.tidy, PRUNE_OTHERS),
            Chore(lambda: bool(reaper.audit()), AUDIT),
        ]
        self._rest = Chore(Continuer(self._store).run_once, NEVER, due=NEVER)
        self._chores.append(self._rest)
        self._desk = Desk(_database_chores(settings))
        self._leads = False
        self._renew_at = 0.0

    def run(self) -> bool:
        """Until ordered to stop, or until a chore hangs, so that a new process takes its place;
        False, as of a child that has not run out of work."""
        self._interrupts.install()
        tries = 0
        while not self._interrupts.stopping and not self._desk.hangs():
            self._seat.keep_alive()
            try:
                self._interrupts.wait(self.run_once)
                say_back("maintenance")
                tries = 0
            except RedisQueueError as error:
                say_away("maintenance", error)
                self._renew_at = 0.0
                self._interrupts.wait(partial(pause, tries))
                tries += 1
        self._desk.close()
        if self._leads:
            with suppress(RedisQueueError):  # else its lease runs out
                self._store.lead(self._child, 0)
        return False

    def run_once(self) -> None:
        """Renew the leadership if it is time, do what is due, and wait for the next thing."""
        now = time.monotonic()
        if now >= self._renew_at:
            lead = self._store.lead(self._child, LEASE_MS)
            self._leads = bool(lead)
            if lead is Lead.AND_CONTINUE:
                self._rest.due = 0.0
            self._renew_at = now + RENEW
            self._desk.lead(self._leads)
        if not self._leads:
            select.select([], [], [], max(0.0, self._renew_at - time.monotonic()))
            return
        self._seat.keep_alive(BUSY)
        next_ms = self._timer.run_once()
        # An idle shard is looked at when the leadership is renewed: each look is a round trip.
        timeout = MORE if do_due(self._chores) else max(0.0, self._renew_at - time.monotonic())
        if next_ms >= 0:
            timeout = min(timeout, next_ms / 1000)
        self._seat.keep_alive()
        self._waiter.wait([self._timer_key], timeout)


def _database_chores(settings: Settings) -> list[Chore]:
    """What the desk does; each in a thread of its own, with a link of its own."""

    def store() -> Transitions:
        return Transitions(worker_link(), settings)

    relays = [
        Chore(Relay(store(), [alias]).run_once, RELAY, name=f"the outbox's relay on {alias!r}")
        for alias in connections
    ]
    return [
        *relays,
        Chore(Relay(store()).forget_ids, FORGET, name="the look for ids without outbox rows"),
        Chore(
            Retention(settings, of_receipts).run_once, RECEIPTS, name="the retention of receipts"
        ),
        Chore(Sweeper(store(), settings).run_once, FILES, name="the deletion of large results"),
    ]
