"""The data of the overview: queues, workers, Redis and the mirror at one moment."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.db import Error as DatabaseError

from ..broker.overview import ChildOverview, QueueOverview, Rates, ServerOverview, rates
from ..broker.queries import Queries
from ..core import formatting
from ..core.statuses import Status
from ..exceptions import RedisQueueError
from ..health.facts import Facts, savepoint
from ..health.findings import Finding, redis_away, unreadable
from ..health.report import HealthReport, paused_ago, read_health
from ..metrics.rollups import SPANS, Sums, figures
from ..models import Rollup
from ..worker.identity import parse_child

STATUSES = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.WAITING, Status.RETRYING,
    Status.FAILED, Status.COMPLETED, Status.CANCELLED,
)  # fmt: skip
WORKERS = 50  # per page
RATE_WINDOW = 10.0  # s
SAMPLE_TTL = 60.0  # s after which a sample is too old for a rate
UP_TO_DATE = 1000  # ms of mirror lag that are not shown


@dataclass(slots=True)
class OverviewData:
    """The whole overview. Without Redis it has what the database knows."""

    health: HealthReport
    queues: list[QueueRow] = field(default_factory=list)
    recorded: list[tuple[str, Sums]] = field(default_factory=list)  # instead, without Redis
    workers: list[WorkerRow] = field(default_factory=list)
    policies: list[tuple[str, str, str]] = field(default_factory=list)  # label, state, URL
    worker_page: int = 1
    worker_pages: int = 1
    worker_total: int = 0
    worker_alive: int = 0
    server: ServerFacts | None = None
    notices: list[Finding] = field(default_factory=list)  # besides the health strip
    sample: str = ""
    mirror: str = ""

    @property
    def previous_workers(self) -> int:
        return self.worker_page - 1

    @property
    def next_workers(self) -> int:
        return self.worker_page + 1 if self.worker_page < self.worker_pages else 0


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue as a table row."""

    queue: QueueOverview
    rates: Rates | None
    hour: Sums

    @property
    def name(self) -> str:
        return self.queue.name

    @property
    def counts(self) -> list[tuple[str, str, bool]]:
        """(status, count, whether it needs attention)"""
        counts = self.queue.counts
        return [
            (
                status.value,
                formatting.number(counts[status.value]),
                status is Status.FAILED and counts["failed"] > 0,
            )
            for status in STATUSES
        ]

    @property
    def paused(self) -> str:
        """``3 h 5 m ago by ann``, or ''."""
        return paused_ago(self.queue) if self.queue.is_paused else ""

    @property
    def oldest(self) -> str:
        return formatting.duration(self.queue.oldest_ms)

    @property
    def came(self) -> str:
        return formatting.rate(self.rates.arrived if self.rates else None)

    @property
    def ended(self) -> str:
        return formatting.rate(self.rates.ended if self.rates else None)

    @property
    def wait(self) -> list[str]:
        return [formatting.duration(self.hour.wait_ms(quantile)) for quantile in (0.5, 0.95)]

    @property
    def run(self) -> list[str]:
        return [formatting.duration(self.hour.run_ms(quantile)) for quantile in (0.5, 0.95)]

    @property
    def failures(self) -> str:
        return formatting.number(self.hour.failed)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A child of a worker as a table row."""

    child: ChildOverview

    @property
    def name(self) -> str:
        worker = parse_child(self.child.child)
        return worker.name if worker else self.child.child

    @property
    def process(self) -> str:
        worker = parse_child(self.child.child)
        if worker is None:
            return ""
        return f"pid {worker.pid}, child {self.child.child.rpartition('.')[2]}"

    @property
    def is_alive(self) -> bool:
        return self.child.lease_ms > 0

    @property
    def lease(self) -> str:
        return formatting.duration(abs(self.child.lease_ms))

    @property
    def since(self) -> str:
        return formatting.duration(self.child.since_ms)

    @property
    def unstarted(self) -> int:
        """Jobs it has claimed besides the one it runs."""
        return max(0, self.child.held - 1)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the overview says about the Redis server."""

    server: ServerOverview

    @property
    def memory(self) -> str:
        used = formatting.size(self.server.memory)
        return f"{used} of {formatting.size(self.server.limit)}" if self.server.limit else used

    @property
    def events(self) -> str:
        known = self.server.events
        return "not known" if known is None else formatting.number(known)


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of the queues at one moment; two samples give the rates.

    The page's script keeps it and sends it back, so any process can answer the next request.
    """

    now_ms: int
    queues: Mapping[str, tuple[int, int]]  # arrived, finished

    def text(self) -> str:
        parts = [f"{name}:{came}:{done}" for name, (came, done) in self.queues.items()]
        return "~".join([str(self.now_ms), *parts])


def parse_sample(text: str) -> Sample | None:
    """The inverse of ``Sample.text``; None for anything else."""
    first, *rest = text[:50_000].split("~")
    try:
        queues = {}
        for part in rest:
            name, came, done = part.split(":")
            queues[name] = (int(came), int(done))
        return Sample(int(first), queues)
    except ValueError:
        return None


class SharedOverview:
    """The overview for all open streams of this process, cached for a moment. Not thread-safe."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[float, OverviewData]] = {}  # by page of workers
        self._samples: deque[tuple[float, Sample]] = deque()

    def get(self, queries: Queries, worker_page: int, max_age: float) -> OverviewData:
        """Data that is at most ``max_age`` seconds old, with rates over the last ten seconds."""
        now = time.monotonic()
        self._cache = {page: it for page, it in self._cache.items() if now - it[0] < max_age}
        if worker_page not in self._cache:
            while len(self._samples) > 1 and now - self._samples[0][0] > RATE_WINDOW:
                self._samples.popleft()
            before = self._samples[0][1] if self._samples else None
            data = read_overview(queries, worker_page, before)
            sample = parse_sample(data.sample)
            if sample is not None:
                self._samples.append((now, sample))
            self._cache[worker_page] = now, data
        return self._cache[worker_page][1]


def read_overview(queries: Queries, worker_page: int, before: Sample | None) -> OverviewData:
    """Read the overview: six round trips to Redis, and one query besides those of the health,
    however many queues, workers and jobs there are."""
    health = read_health(queries.connection)
    data = OverviewData(health, worker_page=max(1, worker_page))
    data.notices = [each for each in health.findings if each not in health.problems]
    shard = health.facts.shard
    if shard is None:
        if health.facts.settings.mirror:
            hour = _last_hour(data)
            data.recorded = [
                (name, hour.get(name, Sums())) for name in health.facts.settings.queues
            ]
        data.mirror = _mirror(health.facts)
        return data
    _add_queues(data, shard.queues, before)
    try:
        _add_workers(data, queries)
        data.server = ServerFacts(queries.server())
    except RedisQueueError as error:  # it went away between two reads
        data.notices.append(redis_away(error))
    data.mirror = _mirror(health.facts)
    return data


def _add_queues(data: OverviewData, queues: Sequence[QueueOverview], before: Sample | None) -> None:
    hour = _last_hour(data)
    data.queues = [
        QueueRow(queue, _rates(queue, before), hour.get(queue.name, Sums())) for queue in queues
    ]
    if queues:
        counters = {queue.name: (queue.arrived, queue.finished) for queue in queues}
        data.sample = Sample(queues[0].now_ms, counters).text()


def _last_hour(data: OverviewData) -> Mapping[str, Sums]:
    try:
        with savepoint(Rollup):
            return figures(SPANS["1h"], data.health.facts.now).queues
    except DatabaseError as error:
        data.notices.append(unreadable("last hour's figures", error))
        return {}


def _rates(queue: QueueOverview, before: Sample | None) -> Rates | None:
    counters = before.queues.get(queue.name) if before else None
    if before is None or counters is None or queue.now_ms - before.now_ms > SAMPLE_TTL * 1000:
        return None
    came, done = counters
    totals = {"enqueued": came, "completed": done}
    earlier = QueueOverview(queue.name, before.now_ms, {}, totals, None)
    return rates(earlier, queue)


def _add_workers(data: OverviewData, queries: Queries) -> None:
    fleet = queries.fleet(WORKERS, (data.worker_page - 1) * WORKERS)
    data.workers = [WorkerRow(child) for child in fleet.children]
    data.worker_total, data.worker_alive = fleet.total, fleet.alive
    data.worker_pages = max(1, -(-fleet.total // WORKERS))


def _mirror(facts: Facts) -> str:
    """How far the mirror is, in a few words."""
    if not facts.settings.mirror:
        return "off"
    if facts.mirror is None or facts.shard is None:
        return "not known"
    if facts.mirror.problem:
        return "stands still"
    lag = facts.shard.unread.oldest_ms
    return "up to date" if lag < UP_TO_DATE else f"{formatting.duration(lag)} behind"
