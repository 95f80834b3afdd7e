"""Continuations: what remains of a clear or requeue whose caller is gone.

Both verbs work in steps, and after each step Redis stores what remains (continuation.lua).
"""

from __future__ import annotations

from typing import NamedTuple

from ..core.ids import QUEUE_NAME, new_job_id
from ..core.parsing import MAX_EXACT, clock_ms, int_or_none, pairs
from ..core.statuses import Status
from .connection import RedisConnection
from .keys import Keys

VERBS = ("clear", "requeue")
STATUSES = frozenset(Status)
STEP = 50  # jobs per call, which delays other clients of Redis by half a millisecond


class ContinuationStep(NamedTuple):
    """One step of a clear or requeue; ``left``: jobs left before the step."""

    token: str
    left: int
    first: int  # 1 for the first


def new_token(now_ms: int) -> str:
    return f"{now_ms}-{new_job_id()}"


SINGLE_STEP = ContinuationStep("", 0, 1)  # leaves no continuation


class StepReply(NamedTuple):
    """How many jobs a step looked at (0: the list is empty, or another process continues), and how
    many it changed."""

    seen: int
    done: int


class Continuation(NamedTuple):
    token: str
    verb: str  # "clear" or "requeue"
    queue: str
    status: str
    left: int


def abandoned_continuations(connection: RedisConnection, keys: Keys) -> list[Continuation]:
    """The continuations whose callers seem to have gone. One round trip."""
    clock, fields = connection.pipeline([("TIME",), ("HGETALL", keys.continuations)])
    now_ms = clock_ms(clock)
    found = [_continuation(token, text, now_ms) for token, text in pairs(fields).items()]
    return [one for one in found if one is not None]


def _continuation(token: str, text: str, now_ms: int) -> Continuation | None:
    """None while its caller is still working on it, and for text that no script here writes."""
    parts = text.split(" ")
    if len(parts) != 5:
        return None
    verb, queue, status, left, until = parts
    jobs, until_ms = int_or_none(left, 0, MAX_EXACT), int_or_none(until, 0, MAX_EXACT)
    is_known = verb in VERBS and status in STATUSES and QUEUE_NAME.fullmatch(queue)
    if not is_known or jobs is None or until_ms is None or until_ms >= now_ms:
        return None
    return Continuation(token, verb, queue, status, jobs)
