"""Verbs over many jobs go on in steps: what is left of one whose caller is gone.

See continuation.lua.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..exceptions import shown
from ..ids import is_queue_name
from ..keys import Keys
from ..link import Link
from ..parsing import EXACT, whole
from ..states import Status
from .reader import clock_ms, pairs

VERBS = ("clear", "requeue")
STATUSES = frozenset(Status)
STEP = 50  # jobs a call, so that other clients of Redis wait for half a millisecond


class Step(NamedTuple):
    """One step of a verb over many jobs; ``left`` is from before the step."""

    token: str
    left: int
    first: int  # 1 for the first


ALONE = Step("", 0, 1)  # all there is to do


class Taken(NamedTuple):
    """What a step did: to how many of the jobs it looked at (0: the list is empty, or somebody else
    goes on)."""

    seen: int
    done: int


class Continuation(NamedTuple):
    """What is left of a verb."""

    token: str
    verb: str  # "clear" or "requeue"
    queue: str
    status: str
    left: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands where a continuation belongs."""

    token: str
    problem: str


def left_behind(link: Link, keys: Keys) -> list[Continuation | Unreadable]:
    """Those that nobody seems to be at any more. One round trip."""
    clock, fields = link.pipeline([("TIME",), ("HGETALL", keys.continuations)])
    now_ms = clock_ms(clock)
    found = [_continuation(token, words, now_ms) for token, words in pairs(fields).items()]
    return [one for one in found if one is not None]


def _continuation(token: str, words: str, now_ms: int) -> Continuation | Unreadable | None:
    """None while its caller is at it."""
    parts = words.split(" ")
    if len(parts) == 5:
        verb, queue, status, left, until = parts
        jobs, until_ms = whole(left, 0, EXACT), whole(until, 0, EXACT)
        is_known = verb in VERBS and status in STATUSES and is_queue_name(queue)
        if is_known and jobs is not None and until_ms is not None:
            return Continuation(token, verb, queue, status, jobs) if until_ms < now_ms else None
    return Unreadable(
        token, f"{shown(token)}: {shown(words)} is not '<verb> <queue> <status> <jobs> <ms>'"
    )


def drop(link: Link, keys: Keys, token: str) -> None:
    """Nobody goes on with this one."""
    link.call("HDEL", keys.continuations, token)
