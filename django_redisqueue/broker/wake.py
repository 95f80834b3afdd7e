"""Waiting for the wake tokens of several shards at once."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from ..exceptions import RedisQueueError
from .commands import Commands
from .connection import BLOCK_SECONDS, CONNECT_TIMEOUT, HUNG, IDLE_SECONDS, RedisConnection
from .nodes import socket_of
from .redis_url import RedisUrl

TICK = 0.2  # s after a pop's timeout by which the server has ended it
ANSWER = 0.1  # s that a server has to end a pop before its connection is closed
OWN_TOKEN_MS = 10_000  # after which a token that ended no pop expires


class WakeWait:
    """Blocks until a queue of some shard has a wake token. ``commands`` has one entry per shard.
    For the shards of one server this is a single command.

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
        keep_waiting: Callable[[], bool] = lambda: True,
        every: float = BLOCK_SECONDS,
    ) -> list[int]:
        """Block until one of the queues, (shard, name), has a token, or for ``timeout`` seconds, at
        most IDLE_SECONDS. Returns the shards whose tokens were taken: at most one per server, that
        of the first queue with a token.

        Asks ``keep_waiting`` every ``every`` seconds whether to keep waiting. If a server does
        not answer, it returns soon. It returns no shard when Redis is unavailable: the claim that
        follows meets the same error and logs it.
        """
        shards = {self._commands[shard].keys.queue(name).wake: shard for shard, name in queues}
        keys: dict[RedisUrl, list[str]] = {}
        for key, shard in shards.items():
            keys.setdefault(self._commands[shard].connection.redis_url, []).append(key)
        found = self._pop(keys, min(timeout, IDLE_SECONDS), keep_waiting, every)
        return [shards[key] for key in found if key in shards]

    def _pop(
        self,
        keys: Mapping[RedisUrl, Sequence[str]],
        timeout: float,
        keep_waiting: Callable[[], bool],
        every: float,
    ) -> list[str]:
        """Wait on all servers, then end the pops on the others, because a token that arrives while
        this child works would wake no one."""
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
            look = min(end, time.monotonic() + every + TICK)  # the last one after the pops
            found = _read_replies(waiting, look)
            now = time.monotonic()
            if now >= end or (now >= look and (len(waiting) < len(keys) or not keep_waiting())):
                break
        return found + _end_pops(waiting)

    def close(self) -> None:
        """Close the connections, even while they wait."""
        for connection in self._connections.values():
            connection.close()


def _read_replies(waiting: dict[int, _WakeConnection], end: float) -> list[str]:
    """The keys whose tokens were taken by the next pops to end, which leave ``waiting``."""
    found: list[str] = []
    for number in _wait_for_any(waiting, max(0.0, end - time.monotonic())):
        with suppress(RedisQueueError):
            found += waiting[number].end_pop()
        del waiting[number]
    return found


def _wait_for_any(sockets: Iterable[int], seconds: float) -> list[int]:
    """Wait until one of these sockets can be read; the numbers of those that can."""
    poll = select.poll()  # select() cannot watch descriptors over 1023
    for number in sockets:
        poll.register(number, select.POLLIN)
    return [number for number, _ in poll.poll(seconds * 1000)]


def _end_pops(waiting: dict[int, _WakeConnection]) -> list[str]:
    """End these pops. Returns the keys whose tokens they have taken in the meantime, which would be
    lost if the connections were closed at once.

    CLIENT UNBLOCK would also end them, but it crashes a server whose writes are paused, as in a
    failover (https://github.com/redis/redis/pull/14164). Such a server sends no reply.
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
    """A connection that sends a blocking pop and reads its reply later. Pushing one of this child's
    own tokens, over the connection of ``commands``, ends the pop, because Redis reads nothing more
    from this connection."""

    def __init__(self, commands: Commands, child: str) -> None:
        other = commands.connection
        super().__init__(other.redis_url, BLOCK_SECONDS + 3.0, CONNECT_TIMEOUT, other.shard)
        self._other = other
        self._own = commands.keys.child_wake(child)
        self._has_pushed = False  # and has not read the replies

    def begin_pop(self, keys: Sequence[str], timeout: float) -> int:
        """Send a blocking pop. Returns the number of the socket that gets the reply."""
        with self._guard as connection:
            connection.send_command("BLPOP", *keys, self._own, f"{timeout:.3f}")
            return socket_of(connection).fileno()

    def push_own(self) -> None:
        """Push the token that ends the pop. Call ``end_pop`` or ``close`` next."""
        self._has_pushed = True
        self._other.send([("LPUSH", self._own, 1), ("PEXPIRE", self._own, OWN_TOKEN_MS)])

    def end_pop(self) -> list[str]:
        """The key whose token the pop has taken, if any."""
        with self._guard as connection:
            reply = connection.read_response()
        if self._has_pushed:
            with suppress(RedisQueueError):  # what the pop has taken counts all the same
                self._other.receive(2)
            self._has_pushed = False
        return reply[:1] if reply else []

    def close(self) -> None:
        super().close()
        if self._has_pushed:
            self._other.close()
            self._has_pushed = False
