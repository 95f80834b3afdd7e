"""Names, ids and shards: how ids are made, which characters names may contain, and which shard
holds what.

A shard is the unit of atomicity: its keys share a hash tag, so a Redis Cluster keeps them in one
slot. The rules never change: every process finds the same shard for the same name, and a tag does
not depend on how many shards there are.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import string
import time
from binascii import crc_hqx
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product

from ..exceptions import InvalidName, short_repr

MAX_SHARDS = 64
SLOTS = 16384  # of a Redis Cluster

# Which 24th of the slots holds the tags of shards 0, 1, 2, ... (and 24, 25, ...). If 2, 3, 4, 6, 8
# or 12 nodes have slot ranges of equal size, no node gets more than one shard more than another,
# whatever the number of shards. The first entry is the 24th that holds the tag "0".
_CELLS = (
    20, 0, 8, 12, 4, 16, 10, 22, 2, 14, 6, 18, 3, 15, 21, 9, 5, 17, 7, 19, 11, 13, 1, 23,
)  # fmt: skip
_WITHIN_CELL = (1 / 2, 1 / 4, 3 / 4)  # where in its 24th: shards 0-23, 24-47, 48-
_ENDINGS = ["".join(pair) for pair in product(string.ascii_lowercase, repeat=2)]

QUEUE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
# These patterns are also in the OpenAPI document, so they keep to the syntax of JSON Schema.
JOB_ID_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"  # a Django TaskResult.id has 64 at most
WORKFLOW_ID_PATTERN = r"^flow_[A-Za-z0-9_]{1,50}$"
TAG_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.\-]{0,63}$"
_PERIODIC = re.compile(r"periodic_[0-9a-z]{10}_(\d{1,15})_")
# The ids made below, with the shard after the last "_" and before the first ".".
_OWN_ID = re.compile(
    r"(?:job|flow|gather|periodic_[0-9a-z]{10})_\d+(?:_[0-9a-z]{10})?_(\d{1,2})(?:\.|$)"
)
STEP_NAME = re.compile(r"[\w .:@/+=-]{1,100}", re.ASCII)  # also of awaited events

_PAIRS = ["".join(pair) for pair in product(string.digits + string.ascii_lowercase, repeat=2)]
_SPACE = 36**10
_FOUR = 36**4

# Its own generator, because an application may seed the one of the ``random`` module, and processes
# with the same seed would give two jobs the same id. Redis would take the second job for the first
# one sent again. Like the module's generator, it gets a new seed in forked children.
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)


def crc16(text: str) -> int:
    """CRC-16/XMODEM, by which a Redis Cluster hashes keys."""
    return crc_hqx(text.encode("utf-8", "surrogateescape"), 0)


@cache
def tag(shard: int) -> str:
    """The text in braces in the shard's keys: "0", or the shard's number followed by the two
    letters that bring the slot nearest to where the shard belongs."""
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
    """The shard for the name of a queue or schedule, the value of a limit, a unique key, or the key
    of a gather."""
    return crc16(text) % shards if shards > 1 else 0


def new_job_id(shard: int = 0) -> str:
    """``job_<ms>_<10 base36>_<shard>``: sortable by time, unique without coordination."""
    return f"job_{_unique()}_{shard}"


def new_workflow_id(shard: int = 0) -> str:
    """The same for a workflow, ``flow_...``; its jobs are ``<workflow id>.<number>``."""
    return f"flow_{_unique()}_{shard}"


def is_workflow_id(found: str) -> bool:
    """Whether this is the id of a workflow, rather than of a job, which may belong to one."""
    return found.startswith("flow_") and "." not in found


def new_gather_id(shard: int = 0) -> str:
    """The same for a gather, ``gather_...``; its jobs end in a number, ``then`` or ``failure``."""
    return f"gather_{_unique()}_{shard}"


def periodic_prefix(name: str) -> str:
    """The prefix of the ids of a schedule's jobs: ``periodic_<10 base36>_``."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _SPACE
    pairs = []
    for _ in range(5):
        number, rest = divmod(number, 1296)
        pairs.append(_PAIRS[rest])
    return f"periodic_{''.join(pairs)}_"


def periodic_job_id(name: str, due_ms: int, shard: int = 0) -> str:
    """The id of a schedule's run at a due time; every process computes the same."""
    return f"{periodic_prefix(name)}{due_ms}_{shard}"


def manual_job_id(name: str, shard: int = 0) -> str:
    """The id of a run that was requested by hand."""
    return f"{periodic_prefix(name)}{_unique()}_{shard}"


def due_ms_of(job_id: str) -> int | None:
    """The due time of a schedule's run, from its id; None for other jobs."""
    found = _PERIODIC.match(job_id)
    return int(found[1]) if found else None


def shard_of_id(some_id: str) -> int:
    """The shard of a job, workflow or gather, from its id; 0 for any other id."""
    if some_id.endswith("_0") or some_id.partition(".")[0].endswith("_0"):
        return 0
    found = _OWN_ID.match(some_id)
    shard = int(found[1]) if found else 0
    return shard if shard < MAX_SHARDS else 0


def ids_by_shard(ids: Iterable[str]) -> dict[int, list[str]]:
    """The ids of each shard, in the given order."""
    found: dict[int, list[str]] = {}
    for some_id in ids:
        found.setdefault(shard_of_id(some_id), []).append(some_id)
    return found


def _unique() -> str:
    # Two numbers that each fit a machine word: one below 36**10 takes Python twice as long.
    first, second = _random.getrandbits(30), _random.getrandbits(30)
    rest = first // _FOUR * (2**30 // _FOUR) + second // _FOUR
    pairs = _PAIRS
    tail = (
        f"{pairs[first % 1296]}{pairs[first // 1296 % 1296]}"
        f"{pairs[second % 1296]}{pairs[second // 1296 % 1296]}{pairs[rest % 1296]}"
    )
    return f"{time.time_ns() // 1_000_000}_{tail}"


def claims_jobs(child: str) -> bool:
    """Whether the child with this id (``Worker.child``) claims jobs: False for the children that do
    maintenance or mirror events."""
    return not child.rpartition(".")[2].startswith(("maintenance", "bridge"))


def _checker(pattern: str | re.Pattern[str], what: str, allowed: str) -> Callable[[object], str]:
    """A function that returns a valid name, and raises InvalidName for anything else."""
    compiled = re.compile(pattern)

    def check(value: object) -> str:
        if isinstance(value, str) and compiled.fullmatch(value):
            return value
        raise InvalidName(f"{short_repr(value)} is not a valid {what}: use {allowed}")

    return check


_UP_TO_64 = "1 to 64 letters, digits, '_', '.' or '-'"
check_queue_name = _checker(QUEUE_NAME, "queue name", _UP_TO_64)
check_topic = _checker(QUEUE_NAME, "topic", _UP_TO_64)
check_job_id = _checker(JOB_ID_PATTERN, "job id", _UP_TO_64)
check_workflow_id = _checker(
    WORKFLOW_ID_PATTERN, "workflow id", "flow_<ms>_<letters and digits>_<shard>"
)
check_gather_key = _checker(
    r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}",
    "key of a gather",
    "1 to 128 letters, digits, '_', '.' or '-'",
)
check_listener_name = _checker(
    r"(?!queryDoneCount$)[A-Za-z_][A-Za-z0-9_.]{0,127}",
    "name of a listener",
    "1 to 128 letters, digits, '_' or '.', and not queryDoneCount",  # which counts the results
)
check_worker_name = _checker(
    r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,63}", "worker name", "1 to 64 letters, digits, '_' or '-'"
)
check_schedule_name = _checker(
    r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}",
    "schedule name",
    "1 to 200 letters, digits, '_', '.' or '-'",
)
check_task_name = _checker(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", "task name", "a dotted Python path"
)
check_tag_name = _checker(
    TAG_PATTERN, "name of a tag", "a letter, then up to 63 letters, digits, '_', '.' or '-'"
)
