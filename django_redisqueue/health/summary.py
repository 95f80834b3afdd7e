"""Limits, unique keys and schedules in a few words each, for the overview and the monitor."""

from __future__ import annotations

from ..broker.health import ShardState
from ..broker.limits import LimitState
from ..core import formatting
from .facts import Facts
from .limits import limit_use

SHOWN = 3  # limits


def policy_lines(facts: Facts) -> list[tuple[str, str]]:
    """(what, how many and in which state) of those that there are."""
    if facts.shard is None:
        return []
    found = [
        ("Limits", _limits(facts)),
        ("Unique keys", _count(facts.shard.policies.unique_keys)),
        ("Schedules", _schedules(facts.shard)),
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
        parts.append(f"{formatting.number(len(policies.errors))} with an error")
    if policies.due:
        name, due_ms = policies.due[0]
        left_ms = due_ms - shard.now_ms
        when = f"in {formatting.duration(left_ms)}" if left_ms > 0 else "now"
        parts.append(f"next {name} {when}")
    return ", ".join(parts)
