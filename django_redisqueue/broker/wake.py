"""Waiting for the wake tokens of several shards at once."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from ..exceptions import RedisQueueError
from .commands import Commands
from .connection import BLOCK_SECONDS, CONNECT_TIMEOUT, HUNG, IDLE_SECONDS, RedisConnection
from .redis_url import RedisUrl

TICK = 0.2  # s after its timeout by which a server has ended a pop
ANSWER = 0.1  # s that a server may take to end a pop before its connections are closed
OWN_TOKEN_MS = 10_000  # until a token that ended no pop expires


class WakeWait:
    """Blocks until a queue of some shard has a wake token. ``commands`` has those of every
    shard. For the shards of one server this is one command.

    ``note_silent`` is called with a shard whose server hangs: it accepts no connection in time."""

    def __init__(
        self,
        commands: Sequence[Commands],
        child: str,
        note_silent: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._commands = commands
        self._note_silent = note_silent
        self._connections: dict[RedisUrl, _WakeConnection] = {}
        for one in commands:
            url = one.connection.redis_url
            if url not in self._connections:
                self._connections[url] = _WakeConnection(one, child)

    def wait(
        self,
        queues: Sequence[tuple[int, str]],
        timeout: float,
        goes_on: Callable[[], bool] = lambda: True,
        every: float = BLOCK_SECONDS,
    ) -> list[int]:
        """Block until one of the queues, (shard, name), has a token, or for ``timeout`` seconds, at
        most IDLE_SECONDS. Returns the shards whose tokens were taken: on one server at most one,
        that of the first queue with a token.

        Every so many seconds it asks whether it ``goes_on``. Once a server has not answered it soon
        returns. It returns no shard when Redis is away: the claim that follows meets the same error
        and logs it.
        """
        shards = {self._commands[shard].keys.queue(name).wake: shard for shard, name in queues}
        keys: dict[RedisUrl, list[str]] = {}
        for key, shard in shards.items():
            keys.setdefault(self._commands[shard].connection.redis_url, []).append(key)
        found = self._pop(keys, min(timeout, IDLE_SECONDS), goes_on, every)
        return [shards[key] for key in found if key in shards]

    def _pop(
        self,
        keys: Mapping[RedisUrl, Sequence[str]],
        timeout: float,
        goes_on: Callable[[], bool],
        every: float,
    ) -> list[str]:
        """Wait on all servers, then end the pops on the others: a token that came while this child
        works would wake nobody."""
        waiting: dict[int, _WakeConnection] = {}
        for url, names in keys.items():
            connection, began = self._connections[url], time.monotonic()
            try:
                waiting[connection.begin_pop(names, timeout)] = connection
            except RedisQueueError:
                if time.monotonic() - began > HUNG:
                    self._note_silent(connection.shard)
        found: list[str] = []
        end = time.monotonic() + timeout + TICK
        while waiting and not found:
            look = min(end, time.monotonic() + every + TICK)  # the last behind the pops
            found = _read_replies(waiting, look)
            now = time.monotonic()
            if now >= end or (now >= look and (len(waiting) < len(keys) or not goes_on())):
                break
        return found + _end_pops(waiting)

    def close(self) -> None:
        """Close the connections, also while they wait."""
        for connection in self._connections.values():
            connection.close()


def _read_replies(waiting: dict[int, _WakeConnection], end: float) -> list[str]:
    """The keys whose tokens the next pops to end have taken. Removes these from ``waiting``."""
    found: list[str] = []
    for number in _wait_for_any(waiting, max(0.0, end - time.monotonic())):
        with suppress(RedisQueueError):
            found += waiting[number].end_pop()
        del waiting[number]
    return found


def _wait_for_any(sockets: Iterable[int], seconds: float) -> list[int]:
    """The numbers of these sockets that can be read, once one of them can."""
    poll = select.poll()  # select() cannot watch descriptors over 1023
    for number in sockets:
        poll.register(number, select.POLLIN)
    return [number for number, _ in poll.poll(seconds * 1000)]


def _end_pops(waiting: dict[int, _WakeConnection]) -> list[str]:
    """End these pops. Returns the keys whose tokens they have taken meanwhile: to close their
    connections at once would lose these.

    CLIENT UNBLOCK would end them, too, but a server whose writes are paused, as in a failover,
    crashes from it (https://github.com/redis/redis/pull/14164). From such a server no reply comes.
    """
    found: list[str] = []
    end = time.monotonic() + ANSWER
    try:
        for connection in waiting.values():
            with suppress(RedisQueueError):
                connection.push_own()
        while waiting and time.monotonic() < end:
            found += _read_replies(waiting, end)
    finally:
        for connection in waiting.values():
            connection.close()
    return found


class _WakeConnection(RedisConnection):
    """A connection that sends a blocking pop and reads its reply later. Pushing a token of this
    child's own, by the connection of ``commands``, ends the pop: Redis reads nothing more from this
    one."""

    def __init__(self, commands: Commands, child: str) -> None:
        other = commands.connection
        super().__init__(other.redis_url, BLOCK_SECONDS + 3.0, CONNECT_TIMEOUT, other.shard)
        self._other = other
        self._own = commands.keys.child_wake(child)
        self._has_pushed = False  # and the replies to that are unread

    def begin_pop(self, keys: Sequence[str], timeout: float) -> int:
        """Send a blocking pop. Returns the number of the socket that gets the reply."""
        with self._guard as connection:
            connection.send_command("BLPOP", *keys, self._own, f"{timeout:.3f}")
            return cast(Any, connection)._sock.fileno()

    def push_own(self) -> None:
        """Push the token that ends the pop. ``end_pop`` must follow, or ``close``."""
        self._has_pushed = True
        self._other.send([("LPUSH", self._own, 1), ("PEXPIRE", self._own, OWN_TOKEN_MS)])

    def end_pop(self) -> list[str]:
        """The key whose token the pop has taken, if it has."""
        with self._guard as connection:
            reply = connection.read_response()
            if self._has_pushed:
                self._other.receive(2)
                self._has_pushed = False
        return reply[:1] if reply else []

    def close(self) -> None:
        super().close()
        if self._has_pushed:
            self._other.close()
            self._has_pushed = False
