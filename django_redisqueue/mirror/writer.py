"""One batch of events into the database: rows and cursor in one transaction, or nothing."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.db import Error, connections, router, transaction
from django.db.models import F

from ..codec import dumps, loads
from ..models import JobEvent, JobRecord, MirrorState, Rollup
from ..parsing import storable
from ..store.events import START, Event, Events, Fault, Position, parse_position, show
from ..store.flowevents import FlowEvent
from .changes import Change, Known, collapse
from .courtesy import Courtesy
from .flowwriter import FlowWriter
from .tables import Instants, Row, Table, ms_or_none
from .tally import Tally

logger = logging.getLogger("django_redisqueue")

SHARD = 0
BODIES = 8_000_000  # bytes of arguments, results and errors that a batch reads from jobs' hashes
EVENT_COLUMNS = (
    "job_id", "status", "queue", "task", "worker", "attempt", "epoch", "seq", "at", "detail",
    "entry_ms", "entry_no",
)  # fmt: skip
DETAILS = ("reason", "dueMs", "progress", "recoveries", "requeues", "priority", "reconciled")


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the mirror is, and in which epoch."""

    position: Position = START
    epoch: int = 0


class Overtaken(Exception):
    """Another bridge has moved the cursor: nothing was written, read it anew."""


class TooLarge(Exception):
    """A batch would read more than BODIES from the jobs' hashes: its first ``fits`` events would
    not. Nothing was written."""

    def __init__(self, fits: int) -> None:
        super().__init__(fits)
        self.fits = fits


class Writer:
    """Writes into the alias that a router chooses for JobRecord."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.alias = router.db_for_write(JobRecord)
        self._records = Table(JobRecord, self.alias)
        self._history = Table(JobEvent, self.alias)
        self._rollups = Table(Rollup, self.alias)
        self._flows = FlowWriter(self.alias)
        self._courtesy = Courtesy(self.alias)

    def cursor(self) -> Cursor:
        """As the database has it; its row is made when it is not there."""
        state, _ = MirrorState.objects.using(self.alias).get_or_create(shard=SHARD)
        return Cursor(parse_position(state.position), state.epoch)

    def write(
        self,
        batch: Sequence[Event],
        at: Cursor,
        to: Position,
        flows: Sequence[FlowEvent] = (),
        faults: Sequence[Fault] = (),
    ) -> Cursor:
        """Apply the events of jobs and of workflows behind ``at``, up to ``to``, and count the
        ``faults`` found among them; the new cursor.

        Raises Overtaken, and TooLarge. What is known of the jobs is read before the transaction,
        which makes it shorter: if another bridge writes in between, the cursor is not where it was.
        A reconcile leaves it where it is, so that looks again at what is known.
        """
        tally, stays = Tally(), to == at.position
        ids = list({event.job_id for event in batch})
        known = self._known(ids)
        changes = collapse(batch, known, at.epoch, tally)
        spoilt = self._fill(changes, batch)
        instants = Instants(self.alias)
        history = [_history(event, at.epoch, instants) for event in batch]
        rows = _rows(changes, instants)
        flow_rows = self._flows.rows(flows, at.epoch, instants)
        self._courtesy.wait()
        with transaction.atomic(self.alias):
            moved = self._move(at, to)
            begun = time.monotonic()
            if not moved or (stays and self._known(ids) != known):
                raise Overtaken
            for (is_new, columns), some in rows.items():
                (self._records.insert if is_new else self._records.update)(columns, some)
            self._history.insert(EVENT_COLUMNS, history)
            tally.write(self._rollups)
            if not self._flows.write(flow_rows, check=stays):
                raise Overtaken
            self.note([*faults, *spoilt])
        self._courtesy.held(time.monotonic() - begun)
        for fault in spoilt:
            logger.error("mirror: %s", fault.problem)
        return replace(at, position=to)

    def _move(self, at: Cursor, to: Position) -> bool:
        """First in the transaction: it locks out other bridges, which then find it moved."""
        states = MirrorState.objects.using(self.alias)
        here = states.filter(shard=SHARD, position=show(at.position), epoch=at.epoch)
        return here.update(position=show(to), problem="", updated_at=datetime.now(UTC)) == 1

    def _known(self, ids: Sequence[str]) -> dict[str, Known]:
        found: dict[str, Known] = {}
        for records in self._records.of(ids):
            rows = records.values_list("pk", "epoch", "seq", "status", "queued_at", "started_at")
            for job_id, epoch, seq, status, queued, started in rows:
                found[job_id] = Known(epoch, seq, status, ms_or_none(queued), ms_or_none(started))
        return found

    def _fill(self, changes: Mapping[str, Change], batch: Sequence[Event]) -> list[Fault]:
        """Read from the hashes what the events did not carry; what could not be read there."""
        lacking = [job_id for job_id, change in changes.items() if change.lacks]
        fits = self._fitting(lacking)
        if fits < len(lacking):
            over = lacking[fits]
            first = next(at for at, event in enumerate(batch) if event.job_id == over)
            raise TooLarge(max(1, first))  # 0 would be an event from before what is known
        faults = []
        for job_id, body in zip(lacking, self._events.bodies(lacking), strict=True):
            changes[job_id].fill(body)
            if body.faults:
                problem = f"in the hash of job {job_id}, {'; '.join(body.faults)}"
                faults.append(Fault(changes[job_id].event.position, problem))
        return faults

    def _fitting(self, ids: Sequence[str]) -> int:
        """The bodies of how many of these jobs make a batch. Sizes cost a round trip, so they are
        asked for only where it could be more."""
        if len(ids) * self._events.largest_body <= BODIES:
            return len(ids)
        left = BODIES
        for at, size in enumerate(self._events.sizes(ids)):
            left -= size
            if left < 0 < at:
                return at
        return len(ids)

    def note(self, faults: Sequence[Fault]) -> None:
        """Count what is not in the tables as it was written, and keep the last problem."""
        if not faults:
            return
        last, left_out = faults[-1], sum(fault.is_left_out for fault in faults)
        MirrorState.objects.using(self.alias).filter(shard=SHARD).update(
            left_out=F("left_out") + left_out,
            incomplete=F("incomplete") + len(faults) - left_out,
            fault=storable(f"{show(last.position)}: {last.problem}"),
            fault_at=datetime.now(UTC),
        )

    def is_writable(self, at: Cursor) -> bool:
        """Whether the database takes an ordinary write just now, on a new connection."""
        connections[self.alias].close()
        try:
            with transaction.atomic(self.alias):
                self._move(at, at.position)
        except Error:
            return False
        return True


INSTANT_FIELDS = frozenset({"enqueued_at", "queued_at", "due_at", "started_at", "finished_at"})
_DEFAULTS = {field.name: field.get_default() for field in JobRecord._meta.concrete_fields}
_COLUMNS = tuple(_DEFAULTS)

Shape = tuple[bool, tuple[str, ...]]  # new or not, columns


def _rows(changes: Mapping[str, Change], instants: Instants) -> dict[Shape, list[Row]]:
    """The rows to write, by statement: new ones have all columns, others what has changed."""
    rows: dict[Shape, list[Row]] = defaultdict(list)
    for job_id, change in changes.items():
        fields = change.fields
        fields["epoch"], fields["seq"] = change.order
        for name in fields.keys() & INSTANT_FIELDS:
            if fields[name] is not None:
                fields[name] = instants(fields[name])
        if change.is_new:
            row = {**_DEFAULTS, **fields, "id": job_id}
            rows[True, _COLUMNS].append([*row.values()])
        else:
            rows[False, tuple(fields)].append([*fields.values(), job_id])
    return rows


def _history(event: Event, epoch: int, instants: Instants) -> Row:
    return (
        event.job_id, event.status, event.queue, event.task, event.worker, event.attempt, epoch,
        event.seq, instants(event.at_ms), _detail(event), *event.position,
    )  # fmt: skip


def _detail(event: Event) -> str:
    """JSON of what the other columns do not have, or ''."""
    more, error = event.more, event.error
    if not more and error is None:
        return ""
    found = {name: more[name] for name in DETAILS if name in more}
    if error is not None:
        found["error"] = _loads(error)
    try:
        return storable(dumps(found))
    except (ValueError, RecursionError):
        return storable(dumps({**found, "error": error}))


def _loads(text: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return text  # not of our making; it is shown as it is
