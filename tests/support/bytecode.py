"""Reads which global variables a Lua script uses, from the bytecode that the server itself
compiles.

Redis refuses such a use only when it runs, so a mistyped name in a line that seldom runs would be
found late.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from redis import Redis

COMPILE = "return string.dump(loadstring(ARGV[1]))"
HEADER_BYTES = 12
GETGLOBAL, SETGLOBAL = 5, 7  # opcodes of Lua 5.1


class Globals(NamedTuple):
    """The names of global variables that a script reads, and those that it writes."""

    read: set[str]
    written: set[str]


def globals_of(redis: Redis, source: str) -> Globals:
    """The globals of a script. Raises redis.ResponseError for one that cannot be compiled."""
    reader = _Reader(redis.eval(COMPILE, 0, source))  # type: ignore[arg-type]
    reader.function()
    return reader.found


class _Reader:
    """Reads functions in the format of Lua 5.1."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        self._at = HEADER_BYTES
        self.found = Globals(set(), set())

    def function(self) -> None:
        self._text()  # its source
        self._numbers("ii4B")  # where it is, its upvalues, parameters and size
        instructions = self._numbers(f"{self._number()}I")
        constants = [self._constant() for _ in range(self._number())]
        for instruction in instructions:
            name = constants[instruction >> 14] if instruction >> 14 < len(constants) else ""
            if instruction & 63 == GETGLOBAL:
                self.found.read.add(name)
            elif instruction & 63 == SETGLOBAL:
                self.found.written.add(name)
        for _ in range(self._number()):
            self.function()
        self._numbers(f"{self._number()}i")  # lines
        for _ in range(self._number()):  # local variables
            self._text()
            self._numbers("ii")
        for _ in range(self._number()):  # upvalues
            self._text()

    def _numbers(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{layout}", self._code, self._at)
        self._at += struct.calcsize(f"<{layout}")
        return found

    def _number(self) -> int:
        return int(self._numbers("i")[0])

    def _text(self) -> str:
        (size,) = self._numbers("Q")
        (text,) = self._numbers(f"{size}s")
        return str(text[:-1].decode())

    def _constant(self) -> Any:
        (kind,) = self._numbers("B")
        if kind == 4:
            return self._text()
        layout = {0: "", 1: "B", 3: "d"}[kind]
        return self._numbers(layout)
