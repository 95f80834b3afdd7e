"""The report: findings derived from the facts, the same for pages, API, monitor and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..broker.connection import RedisConnection, producer_connection
from ..broker.overview import QueueOverview
from ..conf import QueueSettings
from ..core import formatting
from ..exceptions import RedisQueueError
from ..models import MirrorState
from .facts import FAILURES_OVER, OUTBOX_ROWS, Facts, read_facts
from .findings import (
    Finding,
    FindingId,
    Level,
    evicts,
    listed,
    local_time,
    make_error,
    make_warning,
    redis_away,
    unknown_queue,
    unreadable,
)
from .policies import limit_trouble, schedule_trouble

MIN_FAILED = 10  # with fewer failed jobs, no rate is reported
MIRROR_LATE = 30_000  # ms
OUTBOX_LATE = timedelta(minutes=1)
RECENT = timedelta(days=1)  # how long a fault of the mirror is a warning


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The findings, worst first, and the facts that they are derived from."""

    findings: tuple[Finding, ...]
    facts: Facts

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that require action."""
        return tuple(each for each in self.findings if each.level is not Level.INFO)

    @property
    def level(self) -> str:
        """The worst level of the problems, or "ok"."""
        return self.problems[0].level.value if self.problems else "ok"


def read_health(connection: RedisConnection | None = None) -> HealthReport:
    """What is wrong now, by one bounded read (``read_facts``). Raises nothing that it reports."""
    facts = read_facts(connection or producer_connection())
    found = [finding for examine in EXAMINATIONS for finding in examine(facts)]
    return HealthReport(tuple(sorted(found, key=lambda each: each.level.rank)), facts)


def as_json(report: HealthReport) -> dict[str, Any]:
    """The report for programs."""
    findings = [
        {
            "id": each.id.value, "level": each.level.value, "message": each.text,
            "remedy": each.remedy, "queue": each.queue or None,
        }
        for each in report.findings
    ]  # fmt: skip
    return {"status": report.level, "findings": findings}


def _redis(facts: Facts) -> Iterator[Finding]:
    if facts.redis_error is not None:
        yield redis_away(facts.redis_error)
        return
    for error in dict.fromkeys(facts.missing.values()):
        yield _shards_away([n for n, one in facts.missing.items() if one is error], error)
    if facts.shard is not None and facts.shard.eviction != "noeviction":
        yield evicts(facts.shard.eviction)


def _shards_away(shards: Sequence[int], error: RedisQueueError) -> Finding:
    one = len(shards) == 1
    return make_error(
        FindingId.SHARD_AWAY,
        f"{'Shard' if one else 'Shards'} {', '.join(map(str, shards))} "
        f"{'does' if one else 'do'} not answer, so {'its' if one else 'their'} jobs are "
        f"not shown: {error}.",
        "Start that server. Jobs in the other shards continue to run.",
    )


def _workers(facts: Facts) -> Iterator[Finding]:
    """A worker announces the queues that it serves with its heartbeats. Workers that are stopping,
    or have an older version, announce none, so it is unknown what they serve."""
    if facts.shard is None:
        return
    if not facts.shard.is_staffed:
        yield from _no_worker(facts.shard.unfinished)
    elif facts.shard.served:
        for queue in facts.shard.queues:
            is_waiting = queue.counts["queued"] > 0 and not queue.is_paused
            if is_waiting and queue.name not in facts.shard.served:
                yield _not_served(queue)
    for shard, unfinished in facts.shard.deserted.items():
        yield from _no_worker(unfinished, f" in shard {shard}")
    lapsed = facts.shard.lapsed
    if lapsed:
        yield make_warning(
            FindingId.LAPSED,
            f"{_children(len(lapsed))}: dead, or not connected to Redis ({listed(lapsed)}).",
            "The next heartbeat of a living worker recovers what they ran.",
            ("workers",),
        )


def _children(count: int) -> str:
    if count == 1:
        return "The lease of 1 child of a worker has expired"
    return f"The leases of {formatting.number(count)} children of workers have expired"


def _no_worker(unfinished: int, where: str = "") -> Iterator[Finding]:
    if unfinished:
        yield make_error(
            FindingId.NO_WORKER,
            f"No worker is alive{where}, and {formatting.jobs(unfinished)} "
            f"{'waits' if unfinished == 1 else 'wait'} for one.",
            "Start one: manage.py runworker.",
        )


def _not_served(queue: QueueOverview) -> Finding:
    return make_error(
        FindingId.NOT_SERVED,
        f"No worker serves queue {queue.name}, which has {formatting.jobs(queue.counts['queued'])} "
        "queued.",
        f"Start one that does: manage.py runworker --queues {queue.name}.",
        ("queue", queue.name, "queued"),
        queue.name,
    )


def _queues(facts: Facts) -> Iterator[Finding]:
    for queue in facts.shard.queues if facts.shard else ():
        settings = facts.settings.queues[queue.name]
        if queue.wrong_keys:
            yield _broken(queue)
        if queue.is_paused:
            yield _paused(queue)
        else:
            yield from _late(queue, settings)
        yield from _failures(queue.name, settings, *facts.ended.get(queue.name, (0, 0)))
    for name, jobs in facts.shard.former.items() if facts.shard else ():
        yield unknown_queue(name, jobs)


def _broken(queue: QueueOverview) -> Finding:
    return make_error(
        FindingId.BROKEN,
        f"Queue {queue.name} is blocked: {', '.join(queue.wrong_keys)} should have another type. "
        "Another program writes under this PREFIX.",
        "Rename or delete these keys. The queue then resumes automatically; nothing in it was "
        "changed.",
        queue=queue.name,
    )


def _paused(queue: QueueOverview) -> Finding:
    queued = queue.counts["queued"]
    return make_warning(
        FindingId.PAUSED,
        f"Queue {queue.name} was paused {paused_ago(queue)}"
        + (f", and has {formatting.jobs(queued)} queued." if queued else "."),
        "Resume it when the reason for the pause is gone.",
        ("queue", queue.name, "queued"),
        queue.name,
    )


def paused_ago(queue: QueueOverview) -> str:
    """``3 h 5 m ago by ann``"""
    since_ms = queue.paused_ms or 0  # 0 if the field is not a number
    ago = formatting.duration(max(0, queue.now_ms - since_ms))
    when = f"{ago} ago" if since_ms > 0 else "at an unknown time"
    return f"{when}{f' by {queue.paused_by}' if queue.paused_by else ''}"


def _late(queue: QueueOverview, settings: QueueSettings) -> Iterator[Finding]:
    most = settings.alert_wait_ms
    if most is not None and queue.oldest_ms is not None and queue.oldest_ms > most:
        yield make_error(
            FindingId.LATE,
            f"The oldest job of queue {queue.name} has waited for "
            f"{formatting.duration(queue.oldest_ms)}, longer than {formatting.duration(most)} "
            "(ALERT_WAIT).",
            "Start more workers for it, or look at what they are running.",
            ("queue", queue.name, "queued"),
            queue.name,
        )


def _failures(name: str, settings: QueueSettings, completed: int, failed: int) -> Iterator[Finding]:
    most = settings.alert_failed
    if most is not None and failed >= MIN_FAILED and failed > most * (completed + failed):
        share = f"{failed / (completed + failed):.0%}"
        yield make_warning(
            FindingId.FAILURES,
            f"{formatting.number(failed)} jobs of queue {name} ({share} of those that ended) "
            f"failed in the last {formatting.duration(FAILURES_OVER.total_seconds() * 1000)}, more "
            f"than {most:.0%} (ALERT_FAILED).",
            "Look at their errors, and retry the jobs once the cause is fixed.",
            ("queue", name, "failed"),
            name,
        )


def _database(facts: Facts) -> Iterator[Finding]:
    for what, error in facts.unreadable.items():
        yield unreadable(what, error)


MIRROR_PAGE = ("mirrorstate_changelist",)


def _mirror(facts: Facts) -> Iterator[Finding]:
    if not facts.settings.mirror:
        off = 'The mirror is off (REDISQUEUE["MIRROR"]): no records, no history, no charts.'
        yield Finding(Level.INFO, FindingId.MIRROR_OFF, off)
    for state in facts.mirrors:
        yield from _mirror_of_shard(facts, state)
    lag_ms = facts.shard.unread.oldest_ms if facts.shard and facts.mirrors else 0
    if lag_ms > MIRROR_LATE and not any(state.problem for state in facts.mirrors):
        yield make_warning(
            FindingId.MIRROR_LATE,
            f"The mirror is {formatting.duration(lag_ms)} behind.",
            "Check that a worker or manage.py bridgeevents is running, and what its log says.",
        )


def _mirror_of_shard(facts: Facts, state: MirrorState) -> Iterator[Finding]:
    if state.problem:
        text = f"{_mirror_name(state)} has stopped: {state.problem}"
        yield make_error(FindingId.MIRROR_STOPPED, text, target=MIRROR_PAGE)
    if state.gaps:
        level = _level_of_fault(state.gap_at, facts.now, still=state.unreconciled)
        yield Finding(level, FindingId.MIRROR_GAPS, _gaps(state), target=MIRROR_PAGE)
    if state.left_out or state.incomplete:
        level = _level_of_fault(state.fault_at, facts.now)
        yield Finding(
            level, FindingId.MIRROR_FAULTS, _left_out(state), state.fault, target=MIRROR_PAGE
        )


def _mirror_name(state: MirrorState) -> str:
    return f"The mirror of shard {state.shard}" if state.shard else "The mirror"


def _level_of_fault(at: datetime | None, now: datetime, *, still: bool = False) -> Level:
    """What happened to the mirror stays on record, but needs attention only for a day."""
    return Level.WARNING if still or (at and now - at < RECENT) else Level.INFO


def _left_out(state: MirrorState) -> str:
    return (
        f"{_mirror_name(state)} left out {state.left_out} events and shortened "
        f"{state.incomplete} that could not be read or stored, last at "
        f"{local_time(state.fault_at)}."
    )


def _gaps(state: MirrorState) -> str:
    times = "once" if state.gaps == 1 else f"{state.gaps} times"
    after = "it will be" if state.unreconciled else "it was"
    return (
        f"{_mirror_name(state)} missed events {times}, last at {local_time(state.gap_at)}; {after} "
        "reconciled with Redis, but the history of some jobs may be incomplete."
    )


def _outbox(facts: Facts) -> Iterator[Finding]:
    target = ("outboxjob_changelist",)
    for outbox in facts.outboxes:
        if outbox.oldest is not None and outbox.oldest > OUTBOX_LATE:
            waited = formatting.duration(outbox.oldest.total_seconds() * 1000)
            yield make_error(
                FindingId.OUTBOX_STUCK,
                f"A job has waited in the outbox of database {outbox.alias} for {waited}.",
                "Check that a worker is running: it sends such jobs to Redis. A row that names "
                "several databases waits for all of them to commit; if one was rolled back, the "
                "row is deleted after a day.",
                target,
            )
        if outbox.refused:
            is_all = outbox.waiting + outbox.refused < OUTBOX_ROWS
            some = f"{'' if is_all else 'at least '}{outbox.refused}"
            yield make_warning(
                FindingId.OUTBOX_REFUSED,
                f"Redis refuses {some} of the jobs in the outbox of database {outbox.alias}.",
                "Each row says why. Remove the cause, and the job is sent. To give the job up, "
                "delete its OutboxJob in manage.py shell; the admin cannot delete it.",
                target,
            )


# Each looks at the same facts. Whatever has a state of its own has its own examination here.
EXAMINATIONS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _redis,
    _workers,
    _queues,
    limit_trouble,
    schedule_trouble,
    _mirror,
    _outbox,
    _database,
)
