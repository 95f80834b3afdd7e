"""Limits, unique keys, schedules and waits in a few words each."""

from __future__ import annotations

from collections.abc import Sequence

from ..broker.health import ShardState
from ..broker.limits import LimitState
from ..core import formatting
from ..core.job_data import WaitKind
from .facts import Facts
from .limits import limit_use
from .policies import SCHEDULE_LATE

SHOWN = 3  # limits, or schedules
WAITS = {
    WaitKind.EVENT: "for events",
    WaitKind.APPROVAL: "for approvals",
    WaitKind.SLEEP: "asleep",
}


def policy_lines(facts: Facts) -> list[tuple[str, str]]:
    """(what, how many and in which state) of those that there are."""
    if facts.shard is None:
        return []
    found = [
        ("Limits", _limits(facts)),
        ("Unique keys", _count(facts.shard.policies.unique_keys)),
        ("Schedules", _schedules(facts.shard)),
        ("Waits", _waits(facts.shard)),
    ]
    return [(label, text) for label, text in found if text]


def _count(count: int) -> str:
    return formatting.number(count) if count else ""


def _limits(facts: Facts) -> str:
    """Those with the most parked lanes."""
    texts = [limit_line(state) for state in facts.limits[:SHOWN]]
    more = len(facts.shard.policies.parked) - len(texts) if facts.shard else 0
    return "; ".join(texts) + (f"; and {formatting.number(more)} more" if more > 0 else "")


def limit_line(state: LimitState) -> str:
    """``stripe:42 5 of 5, 3 lanes parked, oldest 2 m``"""
    lanes = "1 lane" if state.parked == 1 else f"{formatting.number(state.parked)} lanes"
    text = f"{state.name} {limit_use(state)}, {lanes} parked"
    if state.oldest_ms is not None:
        text += f", oldest {formatting.duration(state.oldest_ms)}"
    if state.next_ms:
        text += f", next start in {formatting.duration(state.next_ms)}"
    return text


def _schedules(shard: ShardState) -> str:
    policies = shard.policies
    if not policies.schedules:
        return ""
    parts = [formatting.number(policies.schedules)]
    if policies.paused:
        parts.append(f"{formatting.number(policies.paused)} paused")
    if policies.errors:
        parts.append(_named("with an error", list(policies.errors)))
    if late := policies.late(shard.now_ms - SCHEDULE_LATE):
        parts.append(_named("late", [name for name, _ in late]))
    if policies.due:
        name, due_ms = policies.due[0]
        left_ms = due_ms - shard.now_ms
        when = f"in {formatting.duration(left_ms)}" if left_ms > 0 else "now"
        parts.append(f"next {name} {when}")
    return ", ".join(parts)


def _named(how: str, names: Sequence[str]) -> str:
    """``2 late (report, clean)``"""
    more = ", …" if len(names) > SHOWN else ""
    return f"{formatting.number(len(names))} {how} ({', '.join(names[:SHOWN])}{more})"


def _waits(shard: ShardState) -> str:
    """``2 for events, 1 for approvals, 3 asleep``"""
    waits = shard.policies.waits.items()
    return ", ".join(f"{formatting.number(n)} {WAITS[kind]}" for kind, n in waits if n)
