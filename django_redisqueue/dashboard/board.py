"""What the overview shows: queues, workers, Redis and the mirror at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils import timezone

from ..conf import get_settings
from ..exceptions import RedisQueueError
from ..metrics import SPANS, Sums, figures
from ..models import MirrorState
from ..states import Status
from ..store.overview import ChildOverview, QueueOverview, Rates, ServerOverview, rates
from ..store.reads import Reads
from ..worker.identity import parse_child
from . import words

WORKERS = 50  # a page
STALE = 60.0  # s after which a look is too old to give a rate
SHOWN = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.RETRYING, Status.FAILED,
    Status.COMPLETED, Status.CANCELLED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """What two looks at a queue are compared by. It travels to the page's script and back, so that
    the rates need no memory here, whichever process answers."""

    now_ms: int
    queues: Mapping[str, tuple[int, int]]  # arrived, finished

    def text(self) -> str:
        parts = [f"{name}:{came}:{done}" for name, (came, done) in self.queues.items()]
        return "~".join([str(self.now_ms), *parts])


def parse_look(text: str) -> Look | None:
    """What ``Look.text`` wrote; None for anything else."""
    first, *rest = text[:50_000].split("~")
    try:
        queues = {}
        for part in rest:
            name, came, done = part.split(":")
            queues[name] = (int(came), int(done))
        return Look(int(first), queues)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue as a row."""

    found: QueueOverview
    rates: Rates | None
    hour: Sums

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def counts(self) -> list[tuple[str, str, bool]]:
        """(status, count, whether it asks for attention)"""
        counts = self.found.counts
        return [
            (
                each.value,
                words.number(counts[each.value]),
                each is Status.FAILED and counts["failed"] > 0,
            )
            for each in SHOWN
        ]

    @property
    def oldest(self) -> str:
        return words.duration(self.found.oldest_ms)

    @property
    def came(self) -> str:
        return words.rate(self.rates.came if self.rates else None)

    @property
    def ended(self) -> str:
        return words.rate(self.rates.ended if self.rates else None)

    @property
    def wait(self) -> tuple[str, str]:
        return words.duration(self.hour.wait_ms(0.5)), words.duration(self.hour.wait_ms(0.95))

    @property
    def run(self) -> tuple[str, str]:
        return words.duration(self.hour.run_ms(0.5)), words.duration(self.hour.run_ms(0.95))

    @property
    def failures(self) -> str:
        return words.number(self.hour.failed)


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A child of a worker as a row."""

    found: ChildOverview

    @property
    def name(self) -> str:
        worker = parse_child(self.found.child)
        return worker.name if worker else self.found.child

    @property
    def place(self) -> str:
        worker = parse_child(self.found.child)
        if worker is None:
            return ""
        return f"pid {worker.pid}, child {self.found.child.rpartition('.')[2]}"

    @property
    def is_alive(self) -> bool:
        return self.found.lease_ms > 0

    @property
    def lease(self) -> str:
        return words.duration(abs(self.found.lease_ms))

    @property
    def since(self) -> str:
        return words.duration(self.found.since_ms)

    @property
    def behind(self) -> int:
        """Jobs it holds besides the one it runs."""
        return max(0, self.found.held - 1)


@dataclass(frozen=True, slots=True)
class ServerLine:
    """Redis as a list of facts."""

    found: ServerOverview

    @property
    def memory(self) -> str:
        used = words.size(self.found.memory)
        return f"{used} of {words.size(self.found.limit)}" if self.found.limit else used

    @property
    def events(self) -> str:
        return words.number(self.found.events)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to know before all else."""

    level: str  # "error" or "warning"
    text: str
    remedy: str = ""


@dataclass(slots=True)
class Board:
    """The whole overview. Without Redis there are notices, and what the database knows."""

    queues: list[QueueLine] = field(default_factory=list)
    workers: list[WorkerLine] = field(default_factory=list)
    worker_page: int = 1
    worker_pages: int = 1
    worker_total: int = 0
    worker_alive: int = 0
    server: ServerLine | None = None
    notices: list[Notice] = field(default_factory=list)
    look: str = ""
    mirror: str = ""

    @property
    def previous_workers(self) -> int:
        return self.worker_page - 1

    @property
    def next_workers(self) -> int:
        return self.worker_page + 1 if self.worker_page < self.worker_pages else 0


def board(reads: Reads, worker_page: int, before: Look | None) -> Board:
    """Six round trips to Redis and two queries, whatever there is."""
    made = Board(worker_page=max(1, worker_page))
    names = sorted(get_settings().queues)
    now = timezone.now()
    try:
        queues = reads.overview(names)
        _show_queues(made, queues, before, now)
        _show_workers(made, reads)
        made.server = ServerLine(reads.server())
    except RedisQueueError as error:
        made.notices.append(Notice("error", str(error)))
    if made.server and made.server.found.may_evict:
        made.notices.append(
            Notice(
                "error",
                f"Redis has the maxmemory-policy {made.server.found.eviction}: when its memory is "
                "full it deletes jobs.",
                "Set maxmemory-policy noeviction.",
            )
        )
    made.notices += _mirror_notices()
    return made


def _show_queues(
    made: Board, queues: Sequence[QueueOverview], before: Look | None, now: datetime
) -> None:
    hour = figures(SPANS["1h"], now).queues
    made.queues = [
        QueueLine(queue, _rates(queue, before), hour.get(queue.name, Sums())) for queue in queues
    ]
    if queues:
        seen = {queue.name: (queue.arrived, queue.finished) for queue in queues}
        made.look = Look(queues[0].now_ms, seen).text()


def _rates(queue: QueueOverview, before: Look | None) -> Rates | None:
    seen = before.queues.get(queue.name) if before else None
    if before is None or seen is None or queue.now_ms - before.now_ms > STALE * 1000:
        return None
    came, done = seen
    totals = {"enqueued": came, "completed": done}
    earlier = QueueOverview(queue.name, before.now_ms, {}, totals, None)
    return rates(earlier, queue)


def _show_workers(made: Board, reads: Reads) -> None:
    fleet = reads.fleet(WORKERS, (made.worker_page - 1) * WORKERS)
    made.workers = [WorkerLine(child) for child in fleet.children]
    made.worker_total, made.worker_alive = fleet.total, fleet.alive
    made.worker_pages = max(1, -(-fleet.total // WORKERS))


def _mirror_notices() -> list[Notice]:
    if not get_settings().mirror:
        off = 'The mirror is off (REDISQUEUE["MIRROR"]): no records, no history, no charts.'
        return [Notice("warning", off)]
    found: list[Notice] = []
    for state in MirrorState.objects.order_by("shard")[:10]:
        if state.problem:
            found.append(Notice("error", f"The mirror stands still: {state.problem}"))
        if state.gaps:
            found.append(Notice("warning", _gaps(state)))
    return found


def _gaps(state: Any) -> str:
    times = "once" if state.gaps == 1 else f"{state.gaps} times"
    return (
        f"The mirror has missed events {times}, last at {words.shown(state.gap_at)}; it was "
        "reconciled with Redis, but the history of some jobs may have holes."
    )
