"""Verbs over many jobs go on in steps: what is left of one whose caller is gone.

See continuation.lua.
"""

from __future__ import annotations

from typing import NamedTuple

from ..keys import Keys
from ..link import Link
from .reader import clock_ms, pairs

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


def left_behind(link: Link, keys: Keys) -> list[Continuation]:
    """Those that nobody seems to be at any more. One round trip."""
    clock, fields = link.pipeline([("TIME",), ("HGETALL", keys.continuations)])
    now_ms, found = clock_ms(clock), []
    for token, word in pairs(fields).items():
        verb, queue, status, left, until_ms = word.split()
        if int(until_ms) < now_ms:
            found.append(Continuation(token, verb, queue, status, int(left)))
    return found
