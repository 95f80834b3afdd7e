"""What may be wrong with limits and schedules."""

from __future__ import annotations

from collections.abc import Iterator

from ..broker.keys import Keys
from ..broker.limits import LimitState
from ..core import formatting
from ..core.placement import shard_of_id
from .facts import Facts
from .findings import Finding, FindingId, Level
from .limits import NAMED, limit_sentence

SCHEDULE_LATE = 60_000  # ms


def schedule_trouble(facts: Facts) -> Iterator[Finding]:
    """Schedules that have an error, or are due and do not fire."""
    if facts.shard is None:
        return
    errors = facts.shard.policies.errors
    if errors:
        shown = [f"{name} ({error})" for name, error in list(errors.items())[:NAMED]]
        more = ", …" if len(errors) > NAMED else ""
        yield Finding(
            Level.ERROR,
            FindingId.SCHEDULE_ERROR,
            f"{_schedules(len(errors))} not run: {', '.join(shown)}{more}.",
            "Correct the code, the setting SCHEDULES or the row that defines it.",
            ("schedules",),
        )
    late = facts.shard.policies.late(facts.shard.now_ms - SCHEDULE_LATE)
    if late:
        name, ms = late[0]
        yield Finding(
            Level.ERROR,
            FindingId.SCHEDULE_LATE,
            f"Schedule {name} was due {formatting.duration(ms + SCHEDULE_LATE)} ago and has not "
            "fired.",
            "A worker's maintenance fires schedules: is a worker running?",
            ("schedules",),
        )


def _schedules(count: int) -> str:
    return "1 schedule does" if count == 1 else f"{formatting.number(count)} schedules do"


def limit_trouble(facts: Facts) -> Iterator[Finding]:
    """Limits that keep jobs waiting for too long, or whose slots nobody will give back."""
    for state in facts.limits:
        if state.stuck:
            keys = Keys(facts.settings.prefix, shard_of_id(state.stuck[0]))
            yield _stuck(state, keys)
        queues = [facts.settings.queues[name] for name in state.queues if _is_known(facts, name)]
        allowed = [queue.alert_wait_ms for queue in queues if queue.alert_wait_ms is not None]
        if state.oldest_ms is not None and allowed and state.oldest_ms > min(allowed):
            yield _late(state, state.oldest_ms, min(allowed))


def _is_known(facts: Facts, queue: str) -> bool:
    return queue in facts.settings.queues


def _stuck(state: LimitState, keys: Keys) -> Finding:
    named = ", ".join(state.stuck[:NAMED]) + (", …" if len(state.stuck) > NAMED else "")
    return Finding(
        Level.ERROR,
        FindingId.LIMIT_STUCK,
        f"Limit {state.name} has slots of jobs that do not run ({named}), so fewer others start.",
        "Something else has written into Redis. Give each back: "
        f'ZREM {keys.slots} "{state.key} {state.stuck[0]}".',
        ("limits",),
    )


def _late(state: LimitState, oldest_ms: int, most: float) -> Finding:
    return Finding(
        Level.WARNING,
        FindingId.LIMIT_LATE,
        f"A job has waited for {formatting.duration(oldest_ms)} for {limit_sentence(state)}, "
        f"longer than {formatting.duration(most)} (ALERT_WAIT).",
        "Raise the limit, or look at what the jobs do that hold it. More workers do not help.",
        ("limits",),
    )
