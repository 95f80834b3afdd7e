"""Commands as the bytes that Redis reads."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from hiredis import pack_command

#: The codec of replies and arguments. Bytes that are not UTF-8 come and go unchanged.
AS_READ = ("utf-8", "surrogateescape")


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
