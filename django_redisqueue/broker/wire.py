"""Asks Redis on the socket of a connection of redis-py.

redis-py's own ``send_packed_command`` and ``read_response`` take twice as many instructions, which
are a tenth of an enqueue. Its connection remains: it logs in, and everything else goes by it. Every
call reads all of its replies, so neither of the two finds any that the other should have read.
"""

from __future__ import annotations

from typing import Any

from hiredis import Reader
from redis import exceptions as redis_errors

from .packed import AS_READ

READ_BYTES = 32768
_INCOMPLETE = object()


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
