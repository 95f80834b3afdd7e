"""Roles that one process of a shard has at a time, such as maintenance and the mirror's bridge.

The leader holds a lease on the role in Redis and renews it while it works. Other processes ask for
the role at intervals. They get it once the leader gives it up or, if the leader died, when its
lease has expired. A suspended leader may work for a moment alongside its successor, so the work of
a role must be safe to do twice at once.

In a worker, the supervisor's heartbeats renew the lease while the leader sleeps, and notice that a
role is vacant (supervisor/heartbeat.py). The worker's children ask Redis themselves when they
begin, after an error, and while a heartbeat says so.

With one shard, a role runs in the main thread. With several, each shard's role runs in its own
thread, so that a shard that does not answer delays no other.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from django.db import connections

from ...broker.commands import Commands
from ...broker.connection import WAIT_SECONDS
from ...broker.failures import RetryBackoff
from ...broker.replies import LeadReply
from ...exceptions import RedisQueueError
from ...mirror.signal_delivery import KeepAlive
from ..child_state import KEEP_ALIVE, ChildState, RoleNote
from ..interrupts import Interrupts, StoppableWaits

CHECK = 1.0  # s between two checks of the threads of shards
NOTE_CHECK = 1.0  # s between two reads of what the heartbeats found; no command to Redis
STOP_CHECK = 0.5  # s until a waiting thread checks whether to stop; no command to Redis
# s without sleep after a takeover or an error: Redis may hold for that long the pop of a leader
# whose connection is gone, and that pop takes the next token.
AWAKE = WAIT_SECONDS + 5.0
STOP = 10.0  # s that the threads may take to end
RECOVERY_WAIT = 0.1  # s of each wait until an outage counts as over
STEADY = 1.0  # s without another error until then: some passes need no command that Redis refuses

Block = Callable[[float], object]  # waits for at most some seconds; True ends the wait
Wait = Callable[[Block, float], object]  # runs such a wait, which an order to stop may end


@dataclass(frozen=True, slots=True)
class RoleHost:
    """What a process gives the role of one shard. ``state`` connects a worker's child with its
    supervisor's heartbeats; other processes have none."""

    shard: int = 0
    wait: Wait = lambda block, seconds: block(seconds)
    keep_alive: KeepAlive = lambda seconds: None
    state: ChildState | None = None


STANDALONE = RoleHost()


class LeaderRole(ABC):
    """``start`` runs passes until told to stop, ``run_once`` is one pass, ``stop`` gives up the
    role. ``run`` is the whole life of a role."""

    errors: ClassVar[tuple[type[Exception], ...]] = (RedisQueueError,)  #: that a pass may raise

    def __init__(
        self, who: str, commands: Commands, role: str, host: RoleHost,
        *, lease_ms: int, renew: float, retry: float,
    ) -> None:  # fmt: skip
        """The leader renews its lease every ``renew`` seconds; others ask every ``retry``."""
        self._who = who
        self._commands = commands
        self._role = role
        self._host = host
        self._lease_ms = lease_ms
        self._renew = renew
        self._retry = retry
        self._leads = False
        self._renew_at = 0.0  # 0.0: ask Redis, whatever heartbeats say
        self._awake_until = 0.0
        self._backoff = RetryBackoff()

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run passes until ``is_over()``, then give up the role."""
        self.start(is_over)
        self.stop()

    def start(self, is_over: Callable[[], bool]) -> None:
        """Run passes until ``is_over()``. After an error, retry for as long as it takes."""
        backoff, since = self._backoff, 0.0
        while not is_over():
            try:
                self.run_once()
            except self.errors as error:
                self._renew_at = 0.0  # another process may lead by now
                self._awake_until = time.monotonic() + AWAKE
                self.failed(error)
                self._host.keep_alive(KEEP_ALIVE)  # a pass may fail before it gives a sign of life
                self._host.wait(time.sleep, backoff.next_pause())
                since = time.monotonic()
            else:
                is_steady = backoff.failures and time.monotonic() - since >= STEADY
                if is_steady and not is_over():  # an order to stop may have ended the pass
                    self.recovered(backoff.failures)
                    backoff.reset()

    def run_once(self) -> None:
        """Renew the lease if it is time, then work, or wait if another process leads."""
        self._host.keep_alive(KEEP_ALIVE)
        now = time.monotonic()
        if now >= self._renew_at and not self._is_left_to_heartbeats(now):
            reply = self._commands.lead(self._who, self._lease_ms, self._role)
            if reply and not self._leads:
                self._awake_until = now + AWAKE
            self._leads = bool(reply)
            self._renew_at = now + (self._renew if self._leads else self._retry)
            self.renewed(reply)
        if self._leads:
            self.work()
        else:
            self.idle(time.sleep, self.until_renewal())

    @property
    def is_quiet(self) -> bool:
        """Whether the shard is idle, and heartbeats renew the lease."""
        is_awake = time.monotonic() < self._awake_until
        return not is_awake and self._note is RoleNote.QUIET

    @property
    def _note(self) -> RoleNote:
        """What the last heartbeat found."""
        host = self._host
        return RoleNote.ASK if host.state is None else host.state.role_note(host.shard)

    def _is_left_to_heartbeats(self, now: float) -> bool:
        """Whether a heartbeat renewed the lease, or found that another process leads."""
        if not self._renew_at or self._note is RoleNote.ASK:
            return False
        if self._leads and not self.is_quiet:
            return False
        self._renew_at = now + (self._renew if self._leads else NOTE_CHECK)
        return True

    def stop(self) -> None:
        """Give up the role to the next process that asks."""
        if self._leads:
            with suppress(RedisQueueError):  # otherwise the lease expires
                self._commands.lead(self._who, 0, self._role)
        self._leads, self._renew_at = False, 0.0

    def hangs(self) -> bool:
        """True if only a new process can help."""
        return False

    def idle(self, block: Block, seconds: float) -> None:
        """Run a wait that an order to stop may end. Meanwhile, heartbeats renew a leader's lease.
        After an error the wait is short, so that the end of an outage is noticed soon."""
        host = self._host
        if self._backoff.failures:
            seconds = min(seconds, RECOVERY_WAIT)
        host.keep_alive(KEEP_ALIVE)
        state = host.state if self._leads and self._renew_at else None  # not after an error
        if state is not None:
            state.note_sleep(host.shard, True)
        try:
            host.wait(block, seconds)
        finally:
            if state is not None:
                state.note_sleep(host.shard, False)

    def until_renewal(self) -> float:
        """Seconds until the lease is due for renewal."""
        return max(0.0, self._renew_at - time.monotonic())

    @abstractmethod
    def work(self) -> None:
        """Do what is due as the leader, or wait for something due, at most ``until_renewal``."""

    @abstractmethod
    def renewed(self, reply: LeadReply) -> None:
        """Called when Redis has answered whether this process leads."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Called when a pass has raised one of ``errors``."""

    @abstractmethod
    def recovered(self, tries: int) -> None:
        """Called when a pass has succeeded after ``tries`` failed ones."""


MakeRole = Callable[[RoleHost], LeaderRole]


def run_in_shards(
    shards: int,
    make: MakeRole,
    waits: StoppableWaits,
    state: ChildState | None = None,
    stop: float = STOP,
) -> None:
    """Run the role of each shard until the process is ordered to stop, or until one of them hangs,
    in which case a new process must take over. Threads may take ``stop`` seconds to end. Raises
    what none of the roles should raise. ``state``: that of a worker's child."""
    keep_alive = STANDALONE.keep_alive if state is None else state.keep_alive
    if shards == 1:
        role = make(RoleHost(0, lambda block, s: waits.wait(lambda: block(s)), keep_alive, state))
        role.run(lambda: waits.stopping or role.hangs())
        return
    over = threading.Event()
    threads = [_RoleThread(shard, make, over, state) for shard in range(shards)]
    for thread in threads:
        thread.start()
    while not waits.stopping and not any(one.fault or one.role.hangs() for one in threads):
        if all(thread.is_on_time for thread in threads):
            keep_alive(KEEP_ALIVE)
        waits.wait(lambda: time.sleep(CHECK))
    over.set()
    end = time.monotonic() + stop
    for thread in threads:
        while thread.is_alive() and (left := end - time.monotonic()) > 0:
            keep_alive(KEEP_ALIVE)
            thread.join(min(left, CHECK))
    for fault in filter(None, (thread.fault for thread in threads)):
        raise fault


def run_in_child(shards: int, make: MakeRole, state: ChildState, stop: float = STOP) -> bool:
    """``run_in_shards`` in a child of a worker. Always False: a role never runs out of work."""
    interrupts = Interrupts(state)
    interrupts.install()
    run_in_shards(shards, make, interrupts, state, stop)
    return False


class _RoleThread(threading.Thread):
    """The role of one shard. A daemon: a shard that hangs must not keep the process alive."""

    def __init__(
        self, shard: int, make: MakeRole, over: threading.Event, state: ChildState | None
    ) -> None:
        super().__init__(name=f"shard {shard}", daemon=True)
        self._over = over
        self._alive_until = time.monotonic() + KEEP_ALIVE
        self.fault: BaseException | None = None  # the error that broke it
        self.role = make(RoleHost(shard, self._wait, self._keep_alive, state))

    @property
    def is_on_time(self) -> bool:
        """False if its sign of life is overdue, or it has died."""
        return self.is_alive() and time.monotonic() < self._alive_until

    def run(self) -> None:
        try:
            self.role.run(self._over.is_set)
        except BaseException as error:
            self.fault = error
        connections.close_all()

    def _keep_alive(self, seconds: float) -> None:
        self._alive_until = time.monotonic() + seconds

    def _wait(self, block: Block, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._over.is_set():
            left = end - time.monotonic()
            if left <= 0 or block(min(left, STOP_CHECK)):
                return
