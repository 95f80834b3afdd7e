"""Names and ids: how they are made, and their strict character sets."""

from __future__ import annotations

import hashlib
import random
import re
import string
import time
from itertools import product

from ..exceptions import InvalidName, short_repr

_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
# These patterns are also in the OpenAPI document, so they keep to the syntax of JSON Schema.
JOB_ID_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"  # a Django TaskResult.id has 64 at most
WORKFLOW_ID_PATTERN = r"^flow_[A-Za-z0-9_]{1,50}$"
TAG_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.\-]{0,63}$"
_ID = re.compile(JOB_ID_PATTERN)
_FLOW = re.compile(WORKFLOW_ID_PATTERN)
_GATHER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")  # without ':', which ends it in a key
_LISTENER = re.compile(r"(?!queryDoneCount$)[A-Za-z_][A-Za-z0-9_.]{0,127}")
_WORKER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,63}")
_TAG = re.compile(TAG_PATTERN)
_SCHEDULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_PERIODIC = re.compile(r"periodic_[0-9a-z]{10}_(\d{1,15})_")
STEP_NAME = re.compile(r"[\w .:@/+=-]{1,100}", re.ASCII)  # also of awaited events
_TASK = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

_PAIRS = ["".join(pair) for pair in product(string.digits + string.ascii_lowercase, repeat=2)]
_SPACE = 36**10
_FOUR = 36**4


def new_job_id(shard: int = 0) -> str:
    """``job_<ms>_<10 base36>_<shard>``: sortable by time, unique without coordination.

    ``random`` is reseeded in every forked child by CPython, so siblings never share a sequence.
    """
    return f"job_{_unique()}_{shard}"


def new_workflow_id(shard: int = 0) -> str:
    """The same for a workflow, ``flow_...``; its jobs are ``<workflow id>.<number>``."""
    return f"flow_{_unique()}_{shard}"


def new_gather_id(shard: int = 0) -> str:
    """The same for a gather, ``gather_...``; its jobs are ``<gather id>.<number>``, ``.then`` and
    ``.failure``."""
    return f"gather_{_unique()}_{shard}"


def periodic_prefix(name: str) -> str:
    """How the ids of a schedule's jobs begin: ``periodic_<10 base36>_``."""
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


def _unique() -> str:
    # Two numbers of one machine word: Python takes twice as long with one of 36**10.
    first, second = random.getrandbits(30), random.getrandbits(30)
    rest = first // _FOUR * (2**30 // _FOUR) + second // _FOUR
    pairs = _PAIRS
    tail = (
        f"{pairs[first % 1296]}{pairs[first // 1296 % 1296]}"
        f"{pairs[second % 1296]}{pairs[second // 1296 % 1296]}{pairs[rest % 1296]}"
    )
    return f"{time.time_ns() // 1_000_000}_{tail}"


def check_queue_name(name: object) -> str:
    """Return ``name``; raise InvalidName unless it is 1 to 64 of ``A-Z a-z 0-9 _ . -``."""
    return _checked(_QUEUE, name, "queue name", "1 to 64 letters, digits, '_', '.' or '-'")


def is_queue_name(name: str) -> bool:
    """Whether ``check_queue_name`` accepts it."""
    return _QUEUE.fullmatch(name) is not None


def check_job_id(value: object) -> str:
    """Return ``value``; raise InvalidName unless it has the form of a job id."""
    return _checked(_ID, value, "job id", "1 to 64 letters, digits, '_', '.' or '-'")


def check_workflow_id(value: object) -> str:
    """Return ``value``; raise InvalidName unless it has the form of a workflow's id."""
    return _checked(_FLOW, value, "workflow id", "flow_<ms>_<letters and digits>_<shard>")


def check_gather_key(value: object) -> str:
    """Return ``value``; raise InvalidName unless it is 1 to 128 of ``A-Z a-z 0-9 _ . -``."""
    return _checked(_GATHER, value, "key of a gather", "1 to 128 letters, digits, '_', '.' or '-'")


def check_topic(value: object) -> str:
    """Return ``value``; raise InvalidName unless it is 1 to 64 of ``A-Z a-z 0-9 _ . -``."""
    return _checked(_QUEUE, value, "topic", "1 to 64 letters, digits, '_', '.' or '-'")


def check_listener_name(value: object) -> str:
    """Return ``value``; raise InvalidName unless it can name a listener. ``queryDoneCount`` cannot:
    it is the field that counts the results."""
    allowed = "1 to 128 letters, digits, '_' or '.', and not queryDoneCount"
    return _checked(_LISTENER, value, "name of a listener", allowed)


def claims_jobs(child: str) -> bool:
    """Whether a child of a worker claims jobs, by its id (``Worker.child``): not if it is for
    maintenance or the mirror."""
    return not child.rpartition(".")[2].startswith(("maintenance", "bridge"))


def check_worker_name(name: object) -> str:
    """Return ``name``; raise InvalidName unless it is 1 to 64 of ``A-Z a-z 0-9 _ -``."""
    return _checked(_WORKER, name, "worker name", "1 to 64 letters, digits, '_' or '-'")


def check_schedule_name(name: object) -> str:
    """Return ``name``; raise InvalidName unless it is 1 to 200 of ``A-Z a-z 0-9 _ . -``."""
    return _checked(_SCHEDULE, name, "schedule name", "1 to 200 letters, digits, '_', '.' or '-'")


def check_task_name(name: object) -> str:
    """Return ``name``; raise InvalidName unless it is a dotted path."""
    return _checked(_TASK, name, "task name", "a dotted Python path")


def check_tag_name(name: object) -> str:
    """Return ``name``; raise InvalidName unless it is the name of a tag."""
    return _checked(
        _TAG, name, "name of a tag", "a letter, then up to 63 letters, digits, '_', '.' or '-'"
    )


def _checked(pattern: re.Pattern[str], value: object, what: str, allowed: str) -> str:
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    raise InvalidName(f"{short_repr(value)} is not a valid {what}: use {allowed}")
