"""Commands and replies as bytes: encodes commands, and sends them to Redis on the socket of a
redis-py connection.

redis-py's own ``send_packed_command`` and ``read_response`` take twice as many instructions, which
amounts to a tenth of an enqueue. Its connection is kept for logging in and everything else. Every
call reads all of its replies, so neither side finds any that the other should have read.
"""

from __future__ import annotations

import os
import select
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from hiredis import Reader, pack_command
from redis import exceptions as redis_errors
from redis.connection import AbstractConnection

#: The codec of replies and arguments. Bytes that are not UTF-8 pass through unchanged.
AS_READ = ("utf-8", "surrogateescape")
READ_BYTES = 32768
NUMBERS = frozenset({int, float, bool})
_INCOMPLETE = object()


def packed(command: tuple[Any, ...]) -> bytes:
    """Encode a command. Bytes that were not UTF-8 were read as lone surrogates and are sent as the
    same bytes, so that even an id that another program made can be read and deleted.

    hiredis gets no numbers: to write one, it lets Python call signal handlers, and if one raises,
    as a timeout's does, hiredis crashes the process.
    """
    parts: Any = tuple([str(each) if type(each) in NUMBERS else each for each in command])
    try:
        data: bytes = pack_command(parts)
    except UnicodeEncodeError:
        parts = tuple([each.encode(*AS_READ) if isinstance(each, str) else each for each in parts])
        data = pack_command(parts)
    return data


class Packer:
    """Encodes the commands that redis-py itself sends on a connection."""

    def pack(self, name: str, *arguments: Any) -> list[bytes]:
        return [packed((*name.split(), *arguments))]


def bulk(text: str) -> bytes:
    """One argument of a command, encoded."""
    data = text.encode(*AS_READ)
    return b"$%d\r\n%b\r\n" % (len(data), data)


known_bulk = lru_cache(maxsize=1024)(bulk)  # for texts that are mostly the same, such as names


def packed_head(arguments: tuple[Any, ...], further: int) -> bytes:
    """The beginning of a command, which ``further`` more ``bulk`` texts will complete."""
    count, _, data = packed(arguments).partition(b"\r\n")
    return b"*%d\r\n%b" % (int(count[1:]) + further, data)


class Wire:
    """The socket of a connection that is open."""

    __slots__ = ("_buffer", "_poll", "_reader", "_socket")

    def __init__(self, connection: Any) -> None:
        encoding, errors = AS_READ
        self._socket = connection._sock
        self._poll = None
        if hasattr(select, "poll"):  # eventlet removes it
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
        self._reader: Any = Reader(  # its type stub does not allow a bytearray
            encoding=encoding,
            errors=errors,
            notEnoughData=_INCOMPLETE,
            replyError=connection._parser.parse_error,
        )
        self._buffer = bytearray(READ_BYTES)

    def has_input(self) -> bool:
        """Whether the server may have sent something unasked, or closed the connection."""
        return self._poll is None or bool(self._poll.poll(0))

    def ask(self, command: bytes) -> Any:
        """Send encoded commands and return the first reply. Raises what redis-py raises."""
        self._socket.sendall(command)
        return self.read()

    def read(self) -> Any:
        """Read the next reply to what was sent."""
        while (reply := self._reader.gets()) is _INCOMPLETE:
            size = self._socket.recv_into(self._buffer)
            if not size:
                raise redis_errors.ConnectionError("Connection closed by server.")
            self._reader.feed(self._buffer, 0, size)
        if isinstance(reply, Exception):
            raise reply
        return reply


_links: WeakSet[Link] = WeakSet()


class Link:
    """The socket of one caller to one server."""

    __slots__ = ("__weakref__", "connection", "hangs_until", "used", "waiting_until", "wire")

    def __init__(self) -> None:
        _links.add(self)
        self.connection: AbstractConnection | None = None
        self.wire: Wire | None = None  # of that connection
        self.waiting_until = 0.0  # for the reply to a blocking pop (monotonic); 0.0: none
        self.used = 0.0  # when it was opened, or its last request was sent (monotonic)
        self.hangs_until = 0.0  # of a cluster node that failed to accept a connection (monotonic)


def _forget_sockets() -> None:
    """Called in a forked process, such as a task's, which must not read its parent's replies."""
    for link in _links:
        link.connection, link.wire, link.waiting_until = None, None, 0.0


os.register_at_fork(after_in_child=_forget_sockets)
