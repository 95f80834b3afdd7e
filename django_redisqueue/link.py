"""A link to Redis: one connection used by one caller at a time.

It speaks redis-py's ``Connection`` directly: its client class takes 18 us of the 79 of a command,
and packing arguments with checks of their types 2 us of every job (both measured); and its defaults
retry (`Redis()` ten times, `from_url` never), which for a queue means running a script twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from hiredis import pack_command
from redis import exceptions as redis_errors
from redis.connection import AbstractConnection

from .exceptions import NotReplicated, WrongKeyType
from .refusals import translate
from .targets import Target

BLOCK = 5  # s that Redis holds a blocking pop; never 0, so a dead peer is noticed
Tag = TypeVar("Tag")


#: How bytes become text and text bytes on a link; what is not UTF-8 comes and goes unchanged.
AS_READ = ("utf-8", "surrogateescape")


def _packed(command: tuple[Any, ...]) -> bytes:
    """A command as it travels. Bytes that were not UTF-8 came as lone surrogates, and go back as
    the same bytes: an id that somebody else made can be asked for, reported and deleted."""
    try:
        packed: bytes = pack_command(cast(Any, command))
    except UnicodeEncodeError:
        parts: Any = (each.encode(*AS_READ) if isinstance(each, str) else each for each in command)
        packed = pack_command(tuple(parts))
    return packed


class Wait(NamedTuple):
    """How many replicas must have what was written; ``key``: a hash for a write of its own, behind
    the others. (WAIT waits for a connection's last write, and a repeated call may write nothing.)
    """

    replicas: int
    key: str


class _Guard:
    """Hands out a link's connection; what goes wrong with it closes the link and is translated."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> AbstractConnection:
        try:
            return self._link.open()
        except BaseException as error:
            self._fail(error)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._link.close()
        if isinstance(error, redis_errors.RedisError | OSError):
            raise translate(error, self._link.target.address) from error


class Link:
    """One connection, opened when first used and again after every failure.

    Raises the errors of ``refusals.translate``. Every error closes the connection: after a protocol
    error Redis has done so too, and after an interrupt inside a call (a job's timeout) the reply
    still under way would answer the next question.
    """

    def __init__(self, target: Target, timeout: float, connect_timeout: float) -> None:
        self.target = target
        self._timeouts = (timeout, connect_timeout)
        self._connection: AbstractConnection | None = None
        self._wait_ms = int(timeout * 1000 * 2 / 3)  # for replicas: the reply must come in time
        self._waiting = False
        self._guard = _Guard(self)

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        connection, self._connection = self._connection, None
        self._waiting = False
        if connection is not None:
            connection.disconnect()

    def drop_if_cut(self) -> None:
        """Notice, without a round trip, that the other side has closed the connection."""
        connection = self._connection
        try:
            cut = connection is not None and connection.can_read(0)
        except (redis_errors.RedisError, OSError):
            cut = True
        if cut:
            self.close()

    def call(self, *command: Any) -> Any:
        """Send one command and return its reply (text, int, None or lists of them)."""
        with self._guard as connection:
            connection.send_packed_command([_packed(command)])
            return connection.read_response()

    def script(self, sha: str, source: str, key: str, *args: Any) -> Any:
        """Run a script by its digest; send its source when Redis does not know it."""
        with self._guard as connection:
            connection.send_packed_command([_packed(("EVALSHA", sha, 1, key, *args))])
            try:
                return connection.read_response()
            except redis_errors.NoScriptError:
                connection.send_packed_command([_packed(("EVAL", source, 1, key, *args))])
                return connection.read_response()

    def script_on_replicas(self, wait: Wait, sha: str, source: str, key: str, *args: Any) -> Any:
        """``script``, and in the same round trip a wait until replicas have what it wrote. Raises
        NotReplicated."""
        with self._guard as connection:
            self._send_and_wait(connection, wait, ("EVALSHA", sha, 1, key, *args))
            reply, reached = self._read(connection), self._read_wait(connection)
            if isinstance(reply, redis_errors.NoScriptError):
                self._send_and_wait(connection, wait, ("EVAL", source, 1, key, *args))
                reply, reached = self._read(connection), self._read_wait(connection)
            for answer in (reply, reached):
                if isinstance(answer, Exception):
                    raise answer
        self._check_reached(wait, reached)
        return reply

    def _send_and_wait(
        self, connection: AbstractConnection, wait: Wait, *commands: tuple[Any, ...]
    ) -> None:
        """Send the commands, and behind them a write and the wait for it."""
        fence = ("HSET", wait.key, "fence", 1)
        behind = (fence, ("WAIT", wait.replicas, self._wait_ms))
        connection.send_packed_command([_packed(one) for one in (*commands, *behind)])

    def _read_wait(self, connection: AbstractConnection) -> Any:
        """How many replicas have the write, or an error."""
        fenced, reached = self._read(connection), self._read(connection)
        return fenced if isinstance(fenced, Exception) else reached

    def _check_reached(self, wait: Wait, reached: int) -> None:
        if reached < wait.replicas:
            raise NotReplicated(
                f"Redis at {self.target.address} has it, but {reached} of the {wait.replicas} "
                f'replicas of REDISQUEUE["WAIT_REPLICAS"] within {self._wait_ms} ms: it may run, '
                "or be lost in a failover; sending it again makes no second job"
            )

    def pipeline(self, commands: Sequence[Sequence[Any]], *, lenient: bool = False) -> list[Any]:
        """Send several commands at once; an error reply of one is raised after all are read.

        ``lenient``: None is what a key replies that holds another type than it should.
        """
        with self._guard as connection:
            connection.send_packed_command([b"".join(map(_packed, map(tuple, commands)))])
            replies = [self._read(connection) for _ in commands]
        for at, reply in enumerate(replies):
            if isinstance(reply, Exception):
                error = translate(reply, self.target.address)
                if not (lenient and isinstance(error, WrongKeyType)):
                    raise error from reply
                replies[at] = None
        return replies

    @staticmethod
    def _read(connection: AbstractConnection) -> Any:
        try:
            return connection.read_response()
        except redis_errors.ResponseError as error:
            return error

    def stream_scripts(
        self, calls: Iterable[tuple[Tag, tuple[Any, ...]]], wait: Wait | None = None
    ) -> Iterator[tuple[Tag, Any]]:
        """``script`` for many calls (tag, arguments); the next is sent before one is read. At the
        end replicas are waited for; raises NotReplicated then."""
        under_way: deque[tuple[Tag, tuple[Any, ...]]] = deque()
        with self._guard as connection:
            for tag, (sha, source, key, *args) in calls:
                connection.send_packed_command([_packed(("EVALSHA", sha, 1, key, *args))])
                under_way.append((tag, (source, key, *args)))
                if len(under_way) > 1:
                    yield self._answer(connection, under_way)
            while under_way:
                yield self._answer(connection, under_way)
            if wait is not None:
                self._send_and_wait(connection, wait)
                reached = self._read_wait(connection)
                if isinstance(reached, Exception):
                    raise reached
        if wait is not None:
            self._check_reached(wait, reached)

    def _answer(
        self, connection: AbstractConnection, under_way: deque[tuple[Tag, tuple[Any, ...]]]
    ) -> tuple[Tag, Any]:
        tag, (source, key, *args) = under_way.popleft()
        reply = self._read(connection)
        if isinstance(reply, redis_errors.NoScriptError):
            # The script is new to this server; those behind may already be on their way to the same
            # answer, so read them off before sending sources.
            for _ in under_way:
                self._read(connection)
            connection.send_packed_command([_packed(("EVAL", source, 1, key, *args))])
            reply = self._read(connection)
            for _, (later_source, later_key, *later_args) in under_way:
                later = ("EVAL", later_source, 1, later_key, *later_args)
                connection.send_packed_command([_packed(later)])
        if isinstance(reply, Exception):
            raise reply
        return tag, reply

    def pop(self, keys: Sequence[str], timeout: float) -> str | None:
        """Block until one of the lists has a token; return its key, or None after ``timeout``
        seconds by Redis's clock (to its 100 ms tick)."""
        reply = self.call("BLPOP", *keys, f"{min(timeout, BLOCK):.3f}")
        return reply[0] if reply else None

    def wait(self, keys: Sequence[str], timeout: float) -> str | None:
        """Block until one of the lists has a token; return its key, or None after ``timeout``
        seconds.

        The clock is this side's: Redis ends a blocking pop only to its own 100 ms tick. A pop that
        is still out when the time is up stays out, and the next ``wait`` (on the same keys) takes
        it up.
        """
        end = time.monotonic() + timeout
        with self._guard as connection:
            while True:
                if not self._waiting:
                    connection.send_command("BLPOP", *keys, BLOCK)
                    self._waiting = True
                left = end - time.monotonic()
                if not connection.can_read(max(left, 0)):
                    return None
                reply = connection.read_response()
                self._waiting = False
                if reply or left <= 0:
                    return reply[0] if reply else None

    def subscribe(self, *channels: str) -> None:
        """Listen on channels; from now on only ``message`` may be called."""
        self.call("SUBSCRIBE", *channels)

    def message(self, timeout: float) -> str | None:
        """The next message of a channel, or None after ``timeout`` seconds."""
        if self._connection is None:
            error = redis_errors.ConnectionError("the subscription's connection was lost")
            raise translate(error, self.target.address) from error
        with self._guard as connection:
            if not connection.can_read(timeout):
                return None
            reply = cast(list[str], connection.read_response())
            return reply[2] if reply[0] == "message" else None

    def open(self) -> AbstractConnection:
        """The connection, opened if there is none."""
        if self._connection is not None:
            return self._connection
        timeout, connect_timeout = self._timeouts
        self._connection = self.target.open(timeout, connect_timeout)
        return self._connection
