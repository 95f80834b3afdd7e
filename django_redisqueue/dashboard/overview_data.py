"""The data of the overview: queues, workers, Redis and the mirror at one moment."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from django.db import Error as DatabaseError
from django.db import connections, router, transaction
from django.db.models import Model
from django.utils import timezone

from ..broker.events import parse_position
from ..broker.overview import ChildOverview, QueueOverview, Rates, ServerOverview, rates
from ..broker.queries import Queries
from ..broker.scan import Scanner
from ..conf import get_settings
from ..core import formatting
from ..core.statuses import Status
from ..exceptions import RedisQueueError
from ..metrics.rollups import SPANS, Sums, figures
from ..mirror.writer import SHARD
from ..models import MirrorState, Rollup
from ..worker.identity import parse_child
from .pages import local_time

STATUSES = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.WAITING, Status.RETRYING,
    Status.FAILED, Status.COMPLETED, Status.CANCELLED,
)  # fmt: skip
WORKERS = 50  # per page
RATE_WINDOW = 10.0  # s
SAMPLE_TTL = 60.0  # s after which a sample is too old for a rate
UP_TO_DATE = 1000  # ms of mirror lag that are not shown
LATE = 30_000  # ms of mirror lag that deserve a notice


@dataclass(slots=True)
class OverviewData:
    """The whole overview. Without Redis it has notices, and what the database knows."""

    queues: list[QueueRow] = field(default_factory=list)
    workers: list[WorkerRow] = field(default_factory=list)
    worker_page: int = 1
    worker_pages: int = 1
    worker_total: int = 0
    worker_alive: int = 0
    server: ServerFacts | None = None
    notices: list[Notice] = field(default_factory=list)
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
class Notice:
    """A message above the tables."""

    level: str  # "error" or "warning"
    text: str
    remedy: str = ""


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
    """Read the overview: eight round trips to Redis and two queries, however many queues, workers
    and jobs there are. Jobs of queues that have left the settings cost two more round trips."""
    data = OverviewData(worker_page=max(1, worker_page))
    names = sorted(get_settings().queues)
    now = timezone.now()
    try:
        queues = queries.overview(names)
        _add_queues(data, queues, before, now)
        _add_stranded(data, queries)
        _add_workers(data, queries)
        data.server = ServerFacts(queries.server())
    except RedisQueueError as error:
        data.notices.append(Notice("error", str(error)))
    if data.server and data.server.server.may_evict:
        data.notices.append(
            Notice(
                "error",
                f"Redis has the maxmemory-policy {data.server.server.eviction}: when its memory is "
                "full it deletes jobs.",
                "Set maxmemory-policy noeviction.",
            )
        )
    try:
        _add_mirror(data, queries, now)
    except RedisQueueError:
        data.mirror = "not known"
    return data


def _add_queues(
    data: OverviewData, queues: Sequence[QueueOverview], before: Sample | None, now: datetime
) -> None:
    data.notices += [
        Notice(
            "error",
            f"Queue {queue.name} stands still: {', '.join(queue.wrong_keys)} should be of another "
            "type. Another program writes under this PREFIX.",
            "Rename or delete these keys. Nothing in the queue was changed, and it resumes by "
            "itself.",
        )
        for queue in queues
        if queue.wrong_keys
    ]
    hour: Mapping[str, Sums] = {}
    try:
        with savepoint(Rollup):
            hour = figures(SPANS["1h"], now).queues
    except DatabaseError as error:
        data.notices.append(unreadable_part("last hour's figures", error))
    data.queues = [
        QueueRow(queue, _rates(queue, before), hour.get(queue.name, Sums())) for queue in queues
    ]
    if queues:
        counters = {queue.name: (queue.arrived, queue.finished) for queue in queues}
        data.sample = Sample(queues[0].now_ms, counters).text()


def _rates(queue: QueueOverview, before: Sample | None) -> Rates | None:
    counters = before.queues.get(queue.name) if before else None
    if before is None or counters is None or queue.now_ms - before.now_ms > SAMPLE_TTL * 1000:
        return None
    came, done = counters
    totals = {"enqueued": came, "completed": done}
    earlier = QueueOverview(queue.name, before.now_ms, {}, totals, None)
    return rates(earlier, queue)


def _add_stranded(data: OverviewData, queries: Queries) -> None:
    for queue, jobs in queries.stranded(get_settings().queues).items():
        data.notices.append(
            Notice(
                "warning",
                f"Queue {queue} has unfinished jobs ({formatting.number(jobs)}), and is not in "
                'REDISQUEUE["QUEUES"]: no worker of this project runs them.',
                "Put it back into QUEUES until they have ended, or are cleared.",
            )
        )


def _add_workers(data: OverviewData, queries: Queries) -> None:
    fleet = queries.fleet(WORKERS, (data.worker_page - 1) * WORKERS)
    data.workers = [WorkerRow(child) for child in fleet.children]
    data.worker_total, data.worker_alive = fleet.total, fleet.alive
    data.worker_pages = max(1, -(-fleet.total // WORKERS))


def _add_mirror(data: OverviewData, queries: Queries, now: datetime) -> None:
    if not get_settings().mirror:
        data.mirror = "off"
        off = 'The mirror is off (REDISQUEUE["MIRROR"]): no records, no history, no charts.'
        data.notices.append(Notice("warning", off))
        return
    try:
        with savepoint(MirrorState):
            state = MirrorState.objects.filter(shard=SHARD).first() or MirrorState(shard=SHARD)
    except DatabaseError as error:
        data.mirror = "not known"
        data.notices.append(unreadable_part("state of the mirror", error))
        return
    if state.problem:
        data.mirror = "stands still"
        data.notices.append(Notice("error", f"The mirror stands still: {state.problem}"))
    if state.gaps:
        data.notices.append(Notice("warning", _gaps(state)))
    if state.left_out or state.incomplete:
        data.notices.append(Notice("warning", _left_out(state), state.fault))
    if data.server and not data.mirror:
        lag = Scanner(queries.connection).unread(parse_position(state.position)).oldest_ms
        data.mirror = "up to date" if lag < UP_TO_DATE else f"{formatting.duration(lag)} behind"
        if lag > LATE:
            late = f"The mirror is {formatting.duration(lag)} behind."
            data.notices.append(
                Notice("warning", late, "Is a worker, or manage.py bridgeevents, running?")
            )


def _left_out(state: MirrorState) -> str:
    return (
        f"The mirror has left out {state.left_out} events and shortened {state.incomplete} that "
        f"could not be read or stored, last at {local_time(state.fault_at)}."
    )


def _gaps(state: MirrorState) -> str:
    times = "once" if state.gaps == 1 else f"{state.gaps} times"
    after = "it will be" if state.unreconciled else "it was"
    return (
        f"The mirror has missed events {times}, last at {local_time(state.gap_at)}; {after} "
        "reconciled with Redis, but the history of some jobs may be incomplete."
    )


@contextmanager
def savepoint(model: type[Model]) -> Iterator[None]:
    """Let queries fail without breaking a transaction that the request may be in."""
    alias = router.db_for_read(model)
    if not connections[alias].in_atomic_block:
        yield
        return
    with transaction.atomic(using=alias):
        yield


def unreadable_part(what: str, error: DatabaseError) -> Notice:
    """The notice for a part of the page whose query failed."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return Notice(
        "error", f"The {what} cannot be read ({line}).", "Queues and jobs are not affected."
    )
