"""Limits, unique keys, schedules and waits: findings, and summaries of a few words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..broker.health import ShardState
from ..broker.keys import Keys
from ..broker.policies import LimitState
from ..core import formatting
from ..core.ids import shard_of_id
from ..core.job_data import WaitKind
from .facts import Facts
from .findings import NAMED, Finding, FindingId, listed, make_error, make_warning

SCHEDULE_LATE = 60_000  # ms
WAITS = {WaitKind.EVENT: "for events", WaitKind.APPROVAL: "for approvals", WaitKind.SLEEP: "asleep"}


def schedule_trouble(facts: Facts) -> Iterator[Finding]:
    """Schedules that have an error, or are due and do not fire."""
    if facts.shard is None:
        return
    errors = facts.shard.policies.errors
    if errors:
        named = listed([f"{name} ({error})" for name, error in errors.items()])
        yield make_error(
            FindingId.SCHEDULE_ERROR,
            f"{_schedules(len(errors))} not run: {named}.",
            "Correct the code, the setting SCHEDULES or the row that defines it.",
            ("schedules",),
        )
    late = facts.shard.policies.late(facts.shard.now_ms - SCHEDULE_LATE)
    if late:
        name, ms = late[0]
        yield make_error(
            FindingId.SCHEDULE_LATE,
            f"Schedule {name} was due {formatting.duration(ms + SCHEDULE_LATE)} ago, but has not "
            "fired.",
            "Check that a worker is running: its maintenance fires schedules.",
            ("schedules",),
        )


def _schedules(count: int) -> str:
    return "1 schedule does" if count == 1 else f"{formatting.number(count)} schedules do"


def limit_trouble(facts: Facts) -> Iterator[Finding]:
    """Limits that keep jobs waiting for too long, or whose slots are never returned."""
    for state in facts.limits:
        if state.stuck:
            keys = Keys(facts.settings.prefix, shard_of_id(state.stuck[0]))
            yield _stuck(state, keys)
        queues = [facts.settings.queues.get(name) for name in state.queues]
        allowed = [one.alert_wait_ms for one in queues if one and one.alert_wait_ms is not None]
        if state.oldest_ms is not None and allowed and state.oldest_ms > min(allowed):
            yield _late(state, state.oldest_ms, min(allowed))


def _stuck(state: LimitState, keys: Keys) -> Finding:
    named = listed(state.stuck)
    return make_error(
        FindingId.LIMIT_STUCK,
        f"Limit {state.name} has slots of jobs that are not running ({named}), so fewer jobs can "
        "start.",
        "Something else has written to Redis. Return each slot: "
        f'ZREM {keys.slots} "{state.key} {state.stuck[0]}".',
        ("limits",),
    )


def _late(state: LimitState, oldest_ms: int, most: float) -> Finding:
    return make_warning(
        FindingId.LIMIT_LATE,
        f"A job has waited for {formatting.duration(oldest_ms)} for {limit_sentence(state)}, "
        f"longer than {formatting.duration(most)} (ALERT_WAIT).",
        "Raise the limit, or look at what the jobs that hold it do. More workers do not help.",
        ("limits",),
    )


def limit_use(state: LimitState) -> str:
    """``5 of 5``, ``100 in 1m``"""
    if state.is_rate:
        return str(state.rate) if state.rate else "no limit"
    if state.most is None:
        return f"{formatting.number(state.used)}, no limit"
    return f"{formatting.number(state.used)} of {formatting.number(state.most)}"


def limit_sentence(state: LimitState) -> str:
    """``limit stripe:42, 5 of 5, held by job_1, job_2, job_3 and 2 more``"""
    words = f"limit {state.name}, {limit_use(state)}"
    if state.next_ms:
        words += f", next start in {formatting.duration(state.next_ms)}"
    named = [holder.job_id for holder in state.holders[:NAMED]]
    if named:
        more = state.used - len(named)
        rest = f" and {formatting.number(more)} more" if more > 0 else ""
        words += f", held by {', '.join(named)}{rest}"
    return words


def policy_lines(facts: Facts) -> list[tuple[str, str]]:
    """The label and a summary of each kind of policy that is in use."""
    if facts.shard is None:
        return []
    unique_keys = facts.shard.policies.unique_keys
    found = [
        ("Limits", _limit_lines(facts)),
        ("Unique keys", formatting.number(unique_keys) if unique_keys else ""),
        ("Schedules", _schedule_line(facts.shard)),
        ("Waits", _wait_line(facts.shard)),
    ]
    return [(label, text) for label, text in found if text]


def _limit_lines(facts: Facts) -> str:
    """The limits with the most parked lanes."""
    texts = [limit_line(state) for state in facts.limits[:NAMED]]
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


def _schedule_line(shard: ShardState) -> str:
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
    return f"{formatting.number(len(names))} {how} ({listed(names)})"


def _wait_line(shard: ShardState) -> str:
    """``2 for events, 1 for approvals, 3 asleep``"""
    waits = shard.policies.waits.items()
    return ", ".join(f"{formatting.number(n)} {WAITS[kind]}" for kind, n in waits if n)
