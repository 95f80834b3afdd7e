"""Which histories of a job are possible: checks them against the states of docs/transitions.md. A
waiting job may be reported in the same state again, after its arguments were replaced."""

from __future__ import annotations

from collections.abc import Iterable

FINAL = ("completed", "failed", "cancelled")
NEXT = {
    "": {"queued", "scheduled", "waiting"},
    "waiting": {"waiting", "queued", "scheduled", "cancelled"},
    "scheduled": {"scheduled", "queued", "cancelled"},
    "retrying": {"queued", "cancelled"},
    "queued": {"queued", "processing", "cancelled"},
    "processing": {"queued", "retrying", "scheduled", *FINAL},
    "completed": set(),
    "failed": {"queued"},
    "cancelled": {"queued"},
}


def flaw(events: Iterable[tuple[int, str]]) -> str:
    """What is wrong with the (seq, status) pairs of a job's events, given in order; "" if nothing
    is."""
    before = ""
    for number, (seq, status) in enumerate(events, 1):
        if seq != number:
            return f"event {number} has the number {seq}"
        if status not in NEXT[before]:
            return f"{status} follows {before or 'nothing'}"
        before = status
    return "" if before in FINAL else f"it has not ended but is {before or 'unheard of'}"
