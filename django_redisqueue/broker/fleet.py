"""The workers of all shards: their reports, and what their children run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..core.text import printable
from ..core.worker_data import WorkerReport, WorkerState, parse_report, worker_of
from . import sums
from .base import QueryBase
from .overview import ChildOverview
from .reads import Read, query
from .shards import AllShards


@dataclass(frozen=True, slots=True)
class WorkerOverview:
    """One worker. ``children``: the ids of its children, with the ms left of their leases."""

    id: str
    children: Mapping[str, int]
    report: WorkerReport | None = None  # None: none arrived, or an older version wrote it

    @property
    def is_alive(self) -> bool:
        """Whether any of its children has a lease in all shards that answer."""
        return any(left > 0 for left in self.children.values())

    @property
    def state(self) -> WorkerState | None:
        """What it does; None for a dead worker, and for one without a report."""
        return WorkerState(self.report.state) if self.is_alive and self.report else None


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """Some workers together. ``serving``: how many take the jobs of each queue."""

    total: int
    alive: int
    quiet: int  # alive, and told to take no more jobs
    slots: int  # of those that take jobs
    memory: int
    serving: Mapping[str, int]


class FleetQueries(QueryBase):
    """Queries for workers, on one connection."""

    @query
    def reports(self, workers: Sequence[str]) -> Read[list[str | None]]:
        """The reports of these workers, as JSON."""
        if not workers:
            return []
        [found] = yield [("MGET", *map(self.keys.worker, workers))]
        return list(found or [None] * len(workers))


def read_workers(shards: AllShards) -> list[WorkerOverview]:
    """All workers, dead ones first, then by name. Two round trips. The cost of the first grows with
    the number of children, up to ``overview.FLEET`` of them."""
    of_worker: dict[str, dict[str, int]] = defaultdict(dict)
    for child, left in sums.leases(shards, all_roles=True).left.items():
        of_worker[worker_of(child)][child] = left
    ids = list(of_worker)
    # The same in all shards: the first one that answers is asked.
    first = next(shard for shard in shards.numbers if shard not in shards.missing)
    found = shards.read_some({first: lambda one: FleetQueries(one).reports.read(ids)}).by_shard
    texts = found.get(first, [None] * len(ids))
    workers = [
        WorkerOverview(printable(worker), of_worker[worker], parse_report(text))
        for worker, text in zip(ids, texts, strict=True)
    ]
    return sorted(workers, key=lambda one: (one.is_alive, one.id))


def read_children(
    shards: AllShards, workers: Iterable[WorkerOverview]
) -> dict[str, list[ChildOverview]]:
    """What the children of these workers run, by worker. Two round trips."""
    shown = {child: left for worker in workers for child, left in worker.children.items()}
    found: dict[str, list[ChildOverview]] = defaultdict(list)
    for child in sums.children(shards, shown):
        found[worker_of(child.child)].append(child)
    return found


def summarize(workers: Sequence[WorkerOverview]) -> FleetSummary:
    """The sums that pages show."""
    alive = [worker for worker in workers if worker.is_alive]
    reports = [worker.report for worker in alive if worker.report]
    taking = [report for report in reports if report.state == WorkerState.RUNNING]
    return FleetSummary(
        len(workers), len(alive), len(reports) - len(taking),
        sum(report.slots for report in taking), sum(report.memory for report in reports),
        Counter(queue for report in taking for queue in report.queues),
    )  # fmt: skip
