"""Answers of all shards together, in as many round trips as the same query needs for one shard. A
shard that does not answer is in ``shards.missing``, and the result covers the others: show both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, islice
from typing import TypeVar

from ..core.ids import ids_by_shard
from ..core.job_data import JobData, WaitKind
from ..core.policies import UniqueKey
from ..core.records import WorkerReport, WorkerState, parse_report, worker_of
from ..core.schedules import ScheduleData
from ..core.statuses import Status
from ..core.text import printable
from ..exceptions import InvalidOption
from .base import Entry, QueryBase, Read, merged, page_after
from .connection import RedisConnection
from .keys import Keys
from .overview import ChildOverview, Fleet, Leases, QueueOverview, ServerOverview
from .policies import LanePause, LimitQueries, LimitState, UniqueQueries, first_keys
from .queries import Queries, UnreadableJob
from .schedules import ScheduleQueries, UnreadableSchedule
from .shards import AllShards
from .steps import Wait, WaitQueries

MAX_MERGED = 10_000  # the most jobs that each shard reads for a page over several shards
Row = TypeVar("Row")
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class WorkerOverview:
    """One worker. ``children``: the ids of its children, with the ms left of their leases."""

    id: str
    children: Mapping[str, int]
    report: WorkerReport | None = None  # None: none has arrived, or an older version wrote it

    @property
    def is_alive(self) -> bool:
        """Whether any of its children has a valid lease in all shards that answer."""
        return any(left > 0 for left in self.children.values())

    @property
    def state(self) -> WorkerState | None:
        """None for a dead worker or one without a report."""
        return WorkerState(self.report.state) if self.is_alive and self.report else None


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """Some workers together. ``serving``: how many claim the jobs of each queue."""

    total: int
    alive: int
    quiet: int  # alive, and told to claim no more jobs
    slots: int  # of those that claim jobs
    memory: int
    serving: Mapping[str, int]


# Queues


def stats(shards: AllShards, queues: Sequence[str]) -> dict[str, dict[str, int]]:
    """The number of jobs by status, for each queue. One round trip."""
    found = shards.read(lambda one: Queries(one).stats.read(queues)).by_shard.values()
    return {queue: add_counts(each[queue] for each in found) for queue in queues}


def overview(shards: AllShards, queues: Sequence[str]) -> list[QueueOverview]:
    """What a monitor shows of these queues. Two round trips."""
    found = shards.read(lambda one: Queries(one).overview.read(queues)).by_shard
    return add_queues(found)


def add_counts(counts: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    found = Counter[Key]()
    for each in counts:
        found.update(each)
    return dict(found)


def add_queues(found: Mapping[int, Sequence[QueueOverview]]) -> list[QueueOverview]:
    """The sums of queues over shards. Each shard has the same queues in the same order."""
    shards = tuple(found)
    return [_add_queue(shards, parts) for parts in zip(*found.values(), strict=True)]


def _add_queue(shards: tuple[int, ...], parts: Sequence[QueueOverview]) -> QueueOverview:
    if len(parts) == 1:
        return replace(parts[0], shards=shards)
    paused = [part for part in parts if part.is_paused]
    first = min(paused, key=lambda part: part.paused_ms or 0, default=parts[0])
    waits = [part.oldest_ms for part in parts if part.oldest_ms is not None]
    return QueueOverview(
        parts[0].name,
        max(part.now_ms for part in parts),
        add_counts(part.counts for part in parts),
        add_counts(part.totals for part in parts),
        first.paused_ms,
        max(waits, default=None),
        tuple(key for part in parts for key in part.wrong_keys),
        first.paused_by,
        shards,
    )


def pauses(shards: AllShards, queues: Sequence[str]) -> list[LanePause]:
    """The limits and shares that are paused in these queues. One round trip."""
    found = shards.read(lambda one: LimitQueries(one).pauses.read(*queues)).by_shard.values()
    first: dict[tuple[str, str], LanePause] = {}
    for pause in chain.from_iterable(found):
        first.setdefault((pause.queue, pause.key), pause)
    place = {queue: at for at, queue in enumerate(queues)}
    return sorted(first.values(), key=lambda pause: (place[pause.queue], pause.key))


# Jobs


def job_ids(shards: AllShards, queue: str, status: Status, start: int, stop: int) -> list[str]:
    """A page of a list's ids, ``stop`` included: finished jobs newest first, others next first.
    Queued jobs come from each shard in turn.

    With several shards, each reads all ids before the end of the page. Raises InvalidOption for a
    page beyond MAX_MERGED.
    """
    is_merged = len(shards.numbers) > 1
    if is_merged and stop >= MAX_MERGED:
        raise InvalidOption(
            f"with several shards, only the first {MAX_MERGED:,} jobs of a list can be read, "
            f"not {stop}"
        )
    first = 0 if is_merged else start
    lists = shards.read(lambda one: Queries(one).ranked.read(queue, status, first, stop))
    ids = (job_id for _, job_id in merge(*lists.by_shard.values()))
    return list(islice(ids, start - first, stop + 1 - first))


def outlines(shards: AllShards, ids: Sequence[str]) -> list[JobData | UnreadableJob]:
    """Several jobs without their results, in one round trip, except those of missing shards."""
    parts = ids_by_shard(ids)
    found = shards.read(lambda one: Queries(one).outlines.read(parts[one.shard]), parts)
    jobs = {job.id: job for job in chain.from_iterable(found.by_shard.values())}
    return [jobs[job_id] for job_id in ids if job_id in jobs]


# Workers


def leases(shards: AllShards, *, all_roles: bool = False) -> Leases:
    """The leases of the children that claim jobs, or of all. A child has one in every shard; the
    first one to end counts, because the jobs that it holds in that shard are then recovered."""
    found = list(
        shards.read(lambda one: Queries(one).leases.read(all_roles=all_roles)).by_shard.values()
    )
    left: dict[str, int] = {}
    for each in found:
        for child, ms in each.left.items():
            left[child] = min(ms, left.get(child, ms))
    total = max(len(left), *(each.total for each in found))
    dead = sum(1 for ms in left.values() if ms < 0)
    return Leases(total, total - dead, left)


def fleet(shards: AllShards, limit: int) -> Fleet:
    """The first ``limit`` children that claim jobs, and what each is running. Those with an expired
    lease come first, then by name. Three round trips."""
    found = leases(shards)
    ordered = sorted(found.left, key=lambda child: (found.left[child] > 0, child))
    shown = {child: found.left[child] for child in ordered[:limit]}
    return Fleet(found.total, found.alive, children(shards, shown))


def children(shards: AllShards, shown: Mapping[str, int]) -> list[ChildOverview]:
    """What these children are running, given the time left of their leases. Two round trips."""
    parts = shards.read(lambda one: Queries(one).children.read(shown)).by_shard.values()
    return [_add_child([part[child] for part in parts]) for child in shown]


def _add_child(parts: Sequence[ChildOverview]) -> ChildOverview:
    """A child over all shards. It runs the job that it claimed first."""
    first = max(parts, key=lambda part: (bool(part.job), part.since_ms or 0))
    return replace(first, held=sum(part.held for part in parts))


def read_workers(shards: AllShards) -> list[WorkerOverview]:
    """All workers, dead ones first, then by name. Two round trips. The cost of the first one grows
    with the number of children, up to FLEET."""
    of_worker: dict[str, dict[str, int]] = defaultdict(dict)
    for child, left in leases(shards, all_roles=True).left.items():
        of_worker[worker_of(child)][child] = left
    ids = list(of_worker)
    # Reports are the same in all shards, so the first one that answers is asked.
    first = next(shard for shard in shards.numbers if shard not in shards.missing)
    found = shards.read(lambda one: Queries(one).reports.read(ids), [first]).by_shard
    texts = found.get(first, [None] * len(ids))
    workers = [
        WorkerOverview(printable(worker), of_worker[worker], parse_report(text))
        for worker, text in zip(ids, texts, strict=True)
    ]
    return sorted(workers, key=lambda one: (one.is_alive, one.id))


def read_children(
    shards: AllShards, workers: Iterable[WorkerOverview]
) -> dict[str, list[ChildOverview]]:
    """What the children of these workers are running, by worker. Two round trips."""
    shown = {child: left for worker in workers for child, left in worker.children.items()}
    found: dict[str, list[ChildOverview]] = defaultdict(list)
    for child in children(shards, shown):
        found[worker_of(child.child)].append(child)
    return found


def summarize(workers: Sequence[WorkerOverview]) -> FleetSummary:
    alive = [worker for worker in workers if worker.is_alive]
    reports = [worker.report for worker in alive if worker.report]
    taking = [report for report in reports if report.state == WorkerState.RUNNING]
    return FleetSummary(
        len(workers), len(alive), len(reports) - len(taking),
        sum(report.slots for report in taking), sum(report.memory for report in reports),
        Counter(queue for report in taking for queue in report.queues),
    )  # fmt: skip


# Servers


def servers(shards: AllShards) -> list[ServerOverview]:
    """The servers that answer, each with the events of all its shards. One round trip."""
    by_run: dict[str, list[ServerOverview]] = {}
    for one in shards.read(lambda one: Queries(one).server.read()).by_shard.values():
        by_run.setdefault(one.run_id, []).append(one)
    return [_add_server(parts) for parts in by_run.values()]


def _add_server(parts: Sequence[ServerOverview]) -> ServerOverview:
    events = [part.events for part in parts if part.events is not None]
    return replace(
        parts[0],
        events=sum(events) if len(events) == len(parts) else None,
        shards=tuple(shard for part in parts for shard in part.shards),
    )


# Limits


def limits(shards: AllShards, after: str, count: int) -> tuple[list[LimitState], str]:
    """Up to ``count`` limits (perhaps fewer) by key, among those that are held or waited for and
    rates under which jobs have started; and the ``after`` of the next page, '' at the end. Six
    round trips. Raises InvalidOption."""
    pages = shards.read(lambda one: LimitQueries(one).some_keys.read(after, count)).by_shard
    known = chain.from_iterable(keys for keys, _ in pages.values())
    ends = [following for _, following in pages.values() if following]
    keys, following = first_keys(known, ends, count)
    found = limit_states(shards, {shard: set(some) for shard, (some, _) in pages.items()}, keys)
    return [one for one in found if one.queues or not one.is_full], following


def limit_states(
    shards: AllShards, known: Mapping[int, Iterable[str]], keys: Sequence[str]
) -> list[LimitState]:
    """These limits in this order; ``known`` has the keys of each shard. Four round trips."""
    wanted = {shard: [key for key in keys if key in some] for shard, some in known.items()}
    found = shards.read(
        lambda one: LimitQueries(one).states.read(wanted[one.shard]),
        [shard for shard, some in wanted.items() if some],
    ).by_shard
    parts: dict[str, list[LimitState]] = defaultdict(list)
    for shard, states in found.items():
        for key, state in zip(wanted[shard], states, strict=True):
            parts[key].append(state)
    return [_add_limit(parts[key]) for key in keys if key in parts]


def _add_limit(parts: Sequence[LimitState]) -> LimitState:
    """The sum of a limit over shards. A limit is in several shards only after SHARDS was changed,
    until the earlier jobs have ended."""
    if len(parts) == 1:
        return parts[0]
    oldest = [part.oldest_ms for part in parts if part.oldest_ms is not None]
    nexts = [part.next_ms for part in parts if part.next_ms is not None]
    return replace(
        parts[0],
        used=sum(part.used for part in parts),
        next_ms=max(nexts, default=None),
        is_full=all(part.is_full for part in parts),
        is_set=any(part.is_set for part in parts),
        holders=[holder for part in parts for holder in part.holders],
        parked=sum(part.parked for part in parts),
        queues=list(dict.fromkeys(queue for part in parts for queue in part.queues)),
        oldest_ms=max(oldest, default=None),
    )


# Sorted sets, a page at a time


def unique_keys(shards: AllShards, after: str, count: int) -> tuple[list[UniqueKey], str]:
    """A page of the unique keys, oldest first, and its ``after``. Four round trips."""
    return _page(
        shards, after, count,
        lambda keys: keys.uniques, lambda one: UniqueQueries(one).described.read,
    )  # fmt: skip


def unique_key(shards: AllShards, key: str) -> list[UniqueKey]:
    """The job that has a key, or none; several after SHARDS was changed. Asks all shards, because
    a job with a limit has its unique key in the limit's shard. Three round trips."""
    found = shards.read(lambda one: UniqueQueries(one).find.read(key)).by_shard.values()
    return [one for one in found if one is not None]


def unique_key_count(shards: AllShards) -> int:
    return sum(shards.read(lambda one: UniqueQueries(one).count.read()).by_shard.values())


def schedules(
    shards: AllShards, after: str, count: int
) -> tuple[list[ScheduleData | UnreadableSchedule], str]:
    """A page of the schedules by their next due times, and its ``after``. Three round trips."""
    return _page(
        shards, after, count,
        lambda keys: keys.schedules, lambda one: ScheduleQueries(one).described.read,
    )  # fmt: skip


def schedule_count(shards: AllShards) -> int:
    return sum(shards.read(lambda one: ScheduleQueries(one).count.read()).by_shard.values())


def waits(shards: AllShards, kind: WaitKind, after: str, count: int) -> tuple[list[Wait], str]:
    """A page of the jobs that wait for something of one kind, oldest first, and its ``after``.
    Three round trips."""
    return _page(
        shards, after, count,
        lambda keys: keys.waits(kind), lambda one: WaitQueries(one).described.read,
    )  # fmt: skip


def wait_counts(shards: AllShards) -> dict[WaitKind, int]:
    """How many jobs wait for something of each kind."""
    return add_counts(shards.read(lambda one: WaitQueries(one).counts.read()).by_shard.values())


def _page(
    shards: AllShards,
    after: str,
    count: int,
    key: Callable[[Keys], str],
    describe: Callable[[RedisConnection], Callable[[Sequence[Entry]], Read[dict[Entry, Row]]]],
) -> tuple[list[Row], str]:
    """A page of a sorted set that is spread over the shards. Each shard describes its own rows."""
    pages = shards.read(lambda one: page_after(key(QueryBase(one).keys), after, count)).by_shard
    page = merged(pages.values(), count)
    wanted = dict.fromkeys(page.entries)
    parts = {shard: [e for e in part.entries if e in wanted] for shard, part in pages.items()}
    found = shards.read(lambda one: describe(one)(parts[one.shard]), parts).by_shard
    rows: dict[Entry, list[Row]] = defaultdict(list)
    for part in found.values():
        for entry, row in part.items():
            rows[entry].append(row)
    return [row for entry in wanted for row in rows[entry]], page.following
