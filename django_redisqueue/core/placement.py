"""Shards: the hash tag of each, and which shard has what.

A shard is the unit of atomicity: its keys share a hash tag, so a Redis Cluster keeps them in one
slot. The rules are fixed: every process finds the same shard for the same name, and a tag does not
depend on how many shards there are.
"""

from __future__ import annotations

import string
from binascii import crc_hqx
from functools import cache
from itertools import product

MAX_SHARDS = 64
SLOTS = 16384  # of a Redis Cluster

# Which 24th of the slots has the tags of the shards 0, 1, 2, ... (and 24, 25, ...). If 2, 3, 4, 6,
# 8 or 12 nodes have equal ranges of slots, they get equally many shards, or one more, however many
# shards there are. The first is that of the tag "0".
_CELLS = (
    20, 0, 8, 12, 4, 16, 10, 22, 2, 14, 6, 18, 3, 15, 21, 9, 5, 17, 7, 19, 11, 13, 1, 23,
)  # fmt: skip
_WITHIN_CELL = (1 / 2, 1 / 4, 3 / 4)  # where in its 24th the slot is: of shards 0-23, 24-47, 48-
_ENDINGS = ["".join(pair) for pair in product(string.ascii_lowercase, repeat=2)]


def crc16(text: str) -> int:
    """CRC-16/XMODEM, by which a Redis Cluster hashes keys."""
    return crc_hqx(text.encode("utf-8", "surrogateescape"), 0)


@cache
def tag(shard: int) -> str:
    """The text that the shard's keys have in braces. That of shard 0 is "0"; others are the
    shard's number and two letters, those whose slot is nearest to where the shard belongs."""
    if shard == 0:
        return "0"
    turn, place = divmod(shard, len(_CELLS))
    wanted = (_CELLS[place] + _WITHIN_CELL[turn]) * SLOTS / len(_CELLS)
    return min(
        (f"{shard}{ending}" for ending in _ENDINGS), key=lambda text: abs(slot(text) - wanted)
    )


def slot(tag: str) -> int:
    """The slot of all keys with this tag."""
    return crc16(tag) % SLOTS


def shard_of_key(text: str, shards: int) -> int:
    """The shard of the name of a queue or schedule, the value of a limit, a unique key, or the key
    of a gather."""
    return crc16(text) % shards if shards > 1 else 0
