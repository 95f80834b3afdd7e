"""What the overview shows: queues, workers, Redis and the mirror at one moment."""

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

from ..conf import get_settings
from ..exceptions import RedisQueueError
from ..metrics import SPANS, Sums, figures
from ..mirror.writer import SHARD
from ..models import MirrorState, Rollup
from ..store.census import Census
from ..store.events import parse_position
from ..store.overview import QueueOverview, Rates, rates
from ..store.reads import Reads
from . import words
from .lines import Notice, QueueLine, ServerLine, WorkerLine

WORKERS = 50  # a page
RATES_OVER = 10.0  # s
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


@contextmanager
def may_fail(model: type[Model]) -> Iterator[None]:
    """Queries whose failure must not spoil a transaction that the request is in."""
    alias = router.db_for_read(model)
    if not connections[alias].in_atomic_block:
        yield
        return
    with transaction.atomic(using=alias):
        yield


def unreadable(what: str, error: DatabaseError) -> Notice:
    """What a page says of a part that the database did not give."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return Notice(
        "error", f"The {what} cannot be read ({line}).", "Queues and jobs are not touched."
    )


def board(reads: Reads, worker_page: int, before: Look | None) -> Board:
    """Eight round trips to Redis and two queries, whatever there is; two more while jobs of a
    former queue are left."""
    made = Board(worker_page=max(1, worker_page))
    names = sorted(get_settings().queues)
    now = timezone.now()
    try:
        queues = reads.overview(names)
        _show_queues(made, queues, before, now)
        _show_stranded(made, reads)
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


class SharedBoard:
    """The overview for all open streams of this process: read once for those that look at about
    the same time. For one thread."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, Board]] = {}  # by page of workers: when, what
        self._looks: deque[tuple[float, Look]] = deque()

    def get(self, reads: Reads, worker_page: int, fresh: float) -> Board:
        """A look that is at most ``fresh`` seconds old. Rates are over the last ten seconds."""
        now = time.monotonic()
        self._found = {page: it for page, it in self._found.items() if now - it[0] < fresh}
        if worker_page not in self._found:
            while len(self._looks) > 1 and now - self._looks[0][0] > RATES_OVER:
                self._looks.popleft()
            before = self._looks[0][1] if self._looks else None
            made = board(reads, worker_page, before)
            look = parse_look(made.look)
            if look is not None:
                self._looks.append((now, look))
            self._found[worker_page] = now, made
        return self._found[worker_page][1]


def _show_queues(
    made: Board, queues: Sequence[QueueOverview], before: Look | None, now: datetime
) -> None:
    made.notices += [
        Notice(
            "error",
            f"Queue {queue.name} stands still: {', '.join(queue.wrong_keys)} should be of another "
            "type. Another program writes under this PREFIX.",
            "Rename or delete what is there; nothing of the queue was changed, and it goes on "
            "by itself.",
        )
        for queue in queues
        if queue.wrong_keys
    ]
    hour: Mapping[str, Sums] = {}
    try:
        with may_fail(Rollup):
            hour = figures(SPANS["1h"], now).queues
    except DatabaseError as error:
        made.notices.append(unreadable("last hour's figures", error))
    made.queues = [
        QueueLine(queue, _rates(queue, before), hour.get(queue.name, Sums())) for queue in queues
    ]
    if queues:
        seen = {queue.name: (queue.arrived, queue.finished) for queue in queues}
        made.look = Look(queues[0].now_ms, seen).text()


def _show_stranded(made: Board, reads: Reads) -> None:
    for queue, jobs in reads.stranded(get_settings().queues).items():
        made.notices.append(
            Notice(
                "warning",
                f"Queue {queue} has unfinished jobs ({words.number(jobs)}), and is not in "
                'REDISQUEUE["QUEUES"]: no worker of this project runs them.',
                "Put it back into QUEUES until they have ended, or are cleared.",
            )
        )


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
    try:
        with may_fail(MirrorState):
            state = MirrorState.objects.filter(shard=SHARD).first() or MirrorState(shard=SHARD)
    except DatabaseError as error:
        made.mirror = "not known"
        made.notices.append(unreadable("state of the mirror", error))
        return
    if state.problem:
        made.mirror = "stands still"
        made.notices.append(Notice("error", f"The mirror stands still: {state.problem}"))
    if state.gaps:
        made.notices.append(Notice("warning", _gaps(state)))
    if state.left_out or state.incomplete:
        made.notices.append(Notice("warning", _faults(state), state.fault))
    if made.server and not made.mirror:
        behind = Census(reads.link).unread(parse_position(state.position)).oldest_ms
        made.mirror = "up to date" if behind < CLOSE else f"{words.duration(behind)} behind"
        if behind > LATE:
            late = f"The mirror is {words.duration(behind)} behind."
            made.notices.append(
                Notice("warning", late, "Is a worker, or manage.py bridgeevents, running?")
            )


def _faults(state: MirrorState) -> str:
    return (
        f"The mirror has left out {state.left_out} events and shortened {state.incomplete}: they "
        f"could not be read or stored, last at {words.shown(state.fault_at)}."
    )


def _gaps(state: MirrorState) -> str:
    times = "once" if state.gaps == 1 else f"{state.gaps} times"
    after = "it is to be" if state.unreconciled else "it was"
    return (
        f"The mirror has missed events {times}, last at {words.shown(state.gap_at)}; {after} "
        "reconciled with Redis, but the history of some jobs may have holes."
    )
