"""Answers of all shards together: added counts, merged lists, and pages that span shards.

Each function takes as many round trips as the same query of one shard. A shard that does not answer
is in ``shards.missing``, and the result is that of the others: show both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import chain, islice
from typing import TypeVar

from ..core.job_data import JobData, WaitKind
from ..core.placement import ids_by_shard
from ..core.schedules import ScheduleData
from ..core.statuses import Status
from ..core.unique import UniqueKey
from ..exceptions import InvalidOption
from .connection import RedisConnection
from .limits import LanePause, LimitQueries, LimitState, shown_limits
from .overview import ChildOverview, Fleet, Leases, QueueOverview, ServerOverview, first_of
from .paging import Entry, EntryPage, merged
from .queries import Queries, UnreadableJob
from .reads import Read
from .schedules import ScheduleQueries, UnreadableSchedule
from .shards import AllShards
from .steps import Wait, WaitQueries
from .uniques import UniqueQueries

MAX_MERGED = 10_000  # jobs that each shard reads for a page of several shards
Row = TypeVar("Row")
Key = TypeVar("Key")


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
    """The sum of each count."""
    found: dict[Key, int] = {}
    for each in counts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found


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
    """The limits and shares whose jobs these queues keep back. One round trip."""
    found = shards.read(lambda one: LimitQueries(one).pauses.read(*queues)).by_shard.values()
    first: dict[tuple[str, str], LanePause] = {}
    for pause in chain.from_iterable(found):
        first.setdefault((pause.queue, pause.key), pause)
    place = {queue: at for at, queue in enumerate(queues)}
    return sorted(first.values(), key=lambda pause: (place[pause.queue], pause.key))


# Jobs


def job_ids(shards: AllShards, queue: str, status: Status, start: int, stop: int) -> list[str]:
    """A page of a list's ids, ``stop`` included: finished jobs newest first, others next first.
    Queued jobs come in turn from each shard.

    With several shards each reads as many as are before the end of the page. Raises InvalidOption
    for a page behind MAX_MERGED.
    """
    if len(shards.numbers) == 1:
        (ids,) = shards.read(
            lambda one: Queries(one).ids.read(queue, status, start, stop)
        ).by_shard.values()
        return ids
    if stop >= MAX_MERGED:
        raise InvalidOption(
            f"with several shards, the first {MAX_MERGED:,} jobs of a list can be read, not {stop}"
        )
    lists = shards.read(lambda one: Queries(one).ranked.read(queue, status, 0, stop))
    return [job_id for _, job_id in islice(merge(*lists.by_shard.values()), start, stop + 1)]


def outlines(shards: AllShards, ids: Sequence[str]) -> list[JobData | UnreadableJob]:
    """Several jobs without their results, in one round trip. Those of missing shards are left
    out."""
    by_shard = ids_by_shard(ids)
    found = shards.read_some({shard: partial(_outlines, some) for shard, some in by_shard.items()})
    jobs = {job.id: job for job in chain.from_iterable(found.by_shard.values())}
    return [jobs[job_id] for job_id in ids if job_id in jobs]


def _outlines(
    ids: Sequence[str], connection: RedisConnection
) -> Read[list[JobData | UnreadableJob]]:
    return Queries(connection).outlines.read(ids)


# Workers


def leases(shards: AllShards, *, all_roles: bool = False) -> Leases:
    """The leases of the children of workers that claim jobs, or of all. A child has one in every
    shard; the first one to end counts, because what it holds in that shard is then recovered."""
    found = list(
        shards.read(lambda one: Queries(one).leases.read(all_roles=all_roles)).by_shard.values()
    )
    left: dict[str, int] = {}
    for each in found:
        for child, ms in each.left.items():
            left[child] = min(ms, left.get(child, ms))
    total = max(len(left), *(each.total for each in found))
    dead = sum(1 for ms in left.values() if ms < 0)
    return Leases(max(each.now_ms for each in found), total, total - dead, left)


def fleet(shards: AllShards, limit: int, start: int = 0) -> Fleet:
    """A page of the children of workers that claim jobs. Three round trips."""
    found = leases(shards)
    shown = first_of(found.left, limit, start)
    return Fleet(found.total, found.alive, children(shards, shown))


def children(shards: AllShards, shown: Mapping[str, int]) -> list[ChildOverview]:
    """What these children run, given with what is left of their leases. Two round trips."""
    parts = shards.read(lambda one: Queries(one).children.read(shown)).by_shard.values()
    return [_add_child([part[child] for part in parts]) for child in shown]


def _add_child(parts: Sequence[ChildOverview]) -> ChildOverview:
    """A child over all shards. It runs the job that it claimed first."""
    first = max(parts, key=lambda part: (bool(part.job), part.since_ms or 0))
    return replace(first, held=sum(part.held for part in parts))


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
    """Up to ``count`` limits that are held or waited for, or rates under which jobs have started,
    by their keys; and the ``after`` of the next page, '' at the end. A page may be shorter than
    that. Six round trips. Raises InvalidOption."""
    pages = shards.read(lambda one: LimitQueries(one).some_keys.read(after, count)).by_shard
    known = {key for keys, _ in pages.values() for key in keys}
    ends = [following for _, following in pages.values() if following]
    keys = sorted(key for key in known if not ends or key <= min(ends))
    has_more = bool(ends) or len(keys) > count
    keys = keys[:count]
    found = limit_states(shards, {shard: set(some) for shard, (some, _) in pages.items()}, keys)
    return shown_limits(found), keys[-1] if keys and has_more else ""


def limit_states(
    shards: AllShards, known: Mapping[int, Iterable[str]], keys: Sequence[str]
) -> list[LimitState]:
    """These limits in this order; ``known`` has the keys of each shard. Four round trips."""
    wanted = {shard: [key for key in keys if key in some] for shard, some in known.items()}
    found = shards.read_some(
        {shard: partial(_limit_states, some) for shard, some in wanted.items() if some}
    ).by_shard
    parts: dict[str, list[LimitState]] = {}
    for shard, states in found.items():
        for key, state in zip(wanted[shard], states, strict=True):
            parts.setdefault(key, []).append(state)
    return [_add_limit(parts[key]) for key in keys if key in parts]


def _limit_states(keys: Sequence[str], connection: RedisConnection) -> Read[list[LimitState]]:
    return LimitQueries(connection).states.read(keys)


def _add_limit(parts: Sequence[LimitState]) -> LimitState:
    """The sum of a limit over shards. It is in several shards only after SHARDS was changed, until
    the earlier jobs have ended."""
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
    """A page of the unique keys, those taken first first, and its ``after``. Four round trips."""
    return _page(
        shards,
        count,
        lambda one: UniqueQueries(one).entries.read(after, count),
        lambda entries, one: UniqueQueries(one).described.read(entries),
    )


def unique_key(shards: AllShards, key: str) -> list[UniqueKey]:
    """The job that has a key, or none. Three round trips.

    All shards are asked, because a job with a limit has its unique key in the limit's shard.
    Several may answer after SHARDS was changed.
    """
    found = shards.read(lambda one: UniqueQueries(one).find.read(key)).by_shard.values()
    return [one for one in found if one is not None]


def unique_key_count(shards: AllShards) -> int:
    """How many unique keys are taken."""
    return sum(shards.read(lambda one: UniqueQueries(one).count.read()).by_shard.values())


def schedules(
    shards: AllShards, after: str, count: int
) -> tuple[list[ScheduleData | UnreadableSchedule], str]:
    """A page of the schedules by their next due times, and its ``after``. Three round trips."""
    return _page(
        shards,
        count,
        lambda one: ScheduleQueries(one).entries.read(after, count),
        lambda entries, one: ScheduleQueries(one).described.read(entries),
    )


def schedule_count(shards: AllShards) -> int:
    """How many schedules there are."""
    return sum(shards.read(lambda one: ScheduleQueries(one).count.read()).by_shard.values())


def waits(shards: AllShards, kind: WaitKind, after: str, count: int) -> tuple[list[Wait], str]:
    """A page of the jobs that wait for something of a kind, the oldest first, and its ``after``.
    Three round trips."""
    return _page(
        shards,
        count,
        lambda one: WaitQueries(one).entries.read(kind, after, count),
        lambda entries, one: WaitQueries(one).described.read(entries),
    )


def wait_counts(shards: AllShards) -> dict[WaitKind, int]:
    """How many jobs wait for something of each kind."""
    return add_counts(shards.read(lambda one: WaitQueries(one).counts.read()).by_shard.values())


def _page(
    shards: AllShards,
    count: int,
    entries: Callable[[RedisConnection], Read[EntryPage]],
    describe: Callable[[Sequence[Entry], RedisConnection], Read[dict[Entry, Row]]],
) -> tuple[list[Row], str]:
    """A page of a sorted set that is spread over the shards. Each shard describes its own rows."""
    pages = shards.read(entries).by_shard
    page = merged(pages.values(), count)
    wanted = set(page.entries)
    found = shards.read_some(
        {
            shard: partial(describe, [one for one in part.entries if one in wanted])
            for shard, part in pages.items()
        }
    ).by_shard
    rows: dict[Entry, list[Row]] = {}
    for part in found.values():
        for entry, row in part.items():
            rows.setdefault(entry, []).append(row)
    in_order = dict.fromkeys(page.entries)
    return [row for entry in in_order for row in rows.get(entry, ())], page.following
