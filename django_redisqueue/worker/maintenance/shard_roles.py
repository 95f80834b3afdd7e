"""The role of a process in every shard.

With one shard it runs in the main thread. With several, each shard's role runs in a thread of its
own, so that a shard that does not answer holds up no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...mirror.signal_delivery import KeepAlive
from ..child.databases import close_all
from ..child_state import KEEP_ALIVE
from ..interrupts import StoppableWaits
from .leader import Block, LeaderRole, Wait

CHECK = 1.0  # s between two looks at the threads
STOP_CHECK = 0.5  # s between a thread's looks whether it is to stop; no command to Redis
STOP = 10.0  # s that the threads may take to end


MakeRole = Callable[[int, Wait, KeepAlive], LeaderRole]  # of a shard


def run_in_shards(
    shards: int,
    make: MakeRole,
    waits: StoppableWaits,
    keep_alive: KeepAlive = lambda seconds: None,
    stop: float = STOP,
) -> None:
    """Run the role of each shard until the process is ordered to stop, or until one of them hangs:
    then a new process must take over. Threads may take ``stop`` seconds to end."""
    if shards == 1:
        role = make(0, lambda block, s: waits.wait(lambda: block(s)), keep_alive)
        role.run(lambda: waits.stopping or role.hangs())
        return
    over = threading.Event()
    threads = [_RoleThread(shard, make, over) for shard in range(shards)]
    for thread in threads:
        thread.start()
    while not waits.stopping and not any(thread.role.hangs() for thread in threads):
        if all(thread.is_on_time for thread in threads):
            keep_alive(KEEP_ALIVE)
        waits.wait(lambda: time.sleep(CHECK))
    over.set()
    end = time.monotonic() + stop
    for thread in threads:
        while thread.is_alive() and (left := end - time.monotonic()) > 0:
            keep_alive(KEEP_ALIVE)
            thread.join(min(left, CHECK))


class _RoleThread(threading.Thread):
    """The role of one shard. A daemon, so that a shard that hangs does not keep the process."""

    def __init__(self, shard: int, make: MakeRole, over: threading.Event) -> None:
        super().__init__(name=f"shard {shard}", daemon=True)
        self._over = over
        self._alive_until = time.monotonic() + KEEP_ALIVE
        self.role = make(shard, self._wait, self._keep_alive)

    @property
    def is_on_time(self) -> bool:
        """False if it should have given a sign of life, or has died."""
        return self.is_alive() and time.monotonic() < self._alive_until

    def run(self) -> None:
        self.role.run(self._over.is_set)
        close_all()

    def _keep_alive(self, seconds: float = KEEP_ALIVE) -> None:
        self._alive_until = time.monotonic() + seconds

    def _wait(self, block: Block, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._over.is_set():
            left = end - time.monotonic()
            if left <= 0 or block(min(left, STOP_CHECK)):
                return
