"""What the overview shows: queues, workers, Redis and the mirror at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.utils import timezone

from ..conf import get_settings
from ..exceptions import RedisQueueError
from ..metrics import SPANS, Sums, figures
from ..mirror.writer import SHARD
from ..models import MirrorState
from ..store.census import Census
from ..store.events import parse_position
from ..store.overview import QueueOverview, Rates, rates
from ..store.reads import Reads
from . import words
from .lines import Notice, QueueLine, ServerLine, WorkerLine

WORKERS = 50  # a page
STALE = 60.0  # s after which a look is too old to give a rate
CLOSE = 1000  # ms behind that are no news
LATE = 30_000  # ms behind that deserve a word


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
    """Seven round trips to Redis and two queries, whatever there is."""
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
    try:
        _show_mirror(made, reads, now)
    except RedisQueueError:
        made.mirror = "not known"
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


def _show_mirror(made: Board, reads: Reads, now: datetime) -> None:
    if not get_settings().mirror:
        made.mirror = "off"
        off = 'The mirror is off (REDISQUEUE["MIRROR"]): no records, no history, no charts.'
        made.notices.append(Notice("warning", off))
        return
    state = MirrorState.objects.filter(shard=SHARD).first() or MirrorState(shard=SHARD)
    if state.problem:
        made.mirror = "stands still"
        made.notices.append(Notice("error", f"The mirror stands still: {state.problem}"))
    if state.gaps:
        made.notices.append(Notice("warning", _gaps(state)))
    if made.server and not made.mirror:
        behind = Census(reads.link).unread(parse_position(state.position)).oldest_ms
        made.mirror = "up to date" if behind < CLOSE else f"{words.duration(behind)} behind"
        if behind > LATE:
            late = f"The mirror is {words.duration(behind)} behind."
            made.notices.append(
                Notice("warning", late, "Is a worker, or manage.py bridgeevents, running?")
            )


def _gaps(state: MirrorState) -> str:
    times = "once" if state.gaps == 1 else f"{state.gaps} times"
    after = "it is to be" if state.unreconciled else "it was"
    return (
        f"The mirror has missed events {times}, last at {words.shown(state.gap_at)}; {after} "
        "reconciled with Redis, but the history of some jobs may have holes."
    )
