"""Commands and replies as bytes: encodes commands, and asks Redis on the socket of a connection of
redis-py; and what is known of a caller's socket to a server.

redis-py's own ``send_packed_command`` and ``read_response`` take twice as many instructions, which
are a tenth of an enqueue. Its connection remains: it logs in, and everything else goes by it. Every
call reads all of its replies, so neither of the two finds any that the other should have read.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Any, cast
from weakref import WeakSet

from hiredis import Reader, pack_command
from redis import exceptions as redis_errors
from redis.connection import AbstractConnection

from .redis_url import RedisUrl

#: The codec of replies and arguments. Bytes that are not UTF-8 come and go unchanged.
AS_READ = ("utf-8", "surrogateescape")
READ_BYTES = 32768
HANGS = 1.0  # s in which no further connection to a node that hangs is tried
_INCOMPLETE = object()


def packed(command: tuple[Any, ...]) -> bytes:
    """Encode a command. Bytes that were not UTF-8 came as lone surrogates and go back as the same
    bytes, so that even an id that another program made can be read and deleted."""
    try:
        data: bytes = pack_command(cast(Any, command))
    except UnicodeEncodeError:
        parts: Any = (each.encode(*AS_READ) if isinstance(each, str) else each for each in command)
        data = pack_command(tuple(parts))
    return data


def bulk(text: str) -> bytes:
    """One argument of a command."""
    data = text.encode(*AS_READ)
    return b"$%d\r\n%b\r\n" % (len(data), data)


known_bulk = lru_cache(maxsize=1024)(bulk)  # for texts that are mostly the same, such as names


def packed_head(arguments: tuple[Any, ...], further: int) -> bytes:
    """The beginning of a command, which as many ``bulk`` texts as ``further`` says complete."""
    count, _, data = packed(arguments).partition(b"\r\n")
    return b"*%d\r\n%b" % (int(count[1:]) + further, data)


class Wire:
    """The socket of a connection that is open."""

    __slots__ = ("_buffer", "_reader", "_socket")

    def __init__(self, connection: Any) -> None:
        encoding, errors = AS_READ
        self._socket = connection._sock
        self._reader: Any = Reader(  # its stub knows no bytearray
            encoding=encoding,
            errors=errors,
            notEnoughData=_INCOMPLETE,
            replyError=connection._parser.parse_error,
        )
        self._buffer = bytearray(READ_BYTES)

    def ask(self, command: bytes) -> Any:
        """Send an encoded command, or several, and return the first reply. Raises what redis-py
        raises."""
        self._socket.sendall(command)
        return self.read()

    def read(self) -> Any:
        """The next reply to what was sent."""
        while (reply := self._reader.gets()) is _INCOMPLETE:
            size = self._socket.recv_into(self._buffer)
            if not size:
                raise redis_errors.ConnectionError("Connection closed by server.")
            self._reader.feed(self._buffer, 0, size)
        if isinstance(reply, Exception):
            raise reply
        return reply


class HungNode(redis_errors.TimeoutError):
    """A node of a cluster has not accepted a connection a moment ago."""


_all: WeakSet[Link] = WeakSet()


class Link:
    """The socket of one caller to one server."""

    __slots__ = ("__weakref__", "connection", "hangs_until", "used", "waiting_until", "wire")

    def __init__(self) -> None:
        _all.add(self)
        self.connection: AbstractConnection | None = None
        self.wire: Wire | None = None  # of that connection
        self.waiting_until = 0.0  # for the reply to a blocking pop (monotonic); 0.0: for none
        self.used = 0.0  # by `producer_connection`, on the monotonic clock
        self.hangs_until = 0.0  # a node of a cluster that has not accepted a connection (monotonic)

    def open(self, redis_url: RedisUrl, timeout: float, connect_timeout: float) -> None:
        """Connect. The shards of a node that hangs wait for it once: all but the first fail at
        once."""
        began = time.monotonic()
        if began < self.hangs_until:
            raise HungNode("another shard has waited for its node in vain")
        try:
            self.connection = redis_url.open(timeout, connect_timeout)
        except (redis_errors.RedisError, OSError):
            now = time.monotonic()
            if redis_url.is_cluster and now - began > connect_timeout / 4:
                self.hangs_until = now + HANGS
            raise
        self.wire = Wire(self.connection)


def _forget_sockets() -> None:
    """In a forked process, such as one of a task: it must not read its parent's replies."""
    for link in _all:
        link.connection, link.wire, link.waiting_until = None, None, 0.0


os.register_at_fork(after_in_child=_forget_sockets)
