"""Who this Redis is, all jobs it knows, and how much of its stream is unread: for the mirror."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ..exceptions import shown
from ..jobdata import with_unsaid
from ..parsing import EXACT, INT16, INT32, Fields, text
from ..states import WorkflowStatus
from .entries import events_from
from .events import (
    MOST_ID,
    MOST_QUEUE,
    MOST_REASON,
    MOST_STATUS,
    MOST_TASK,
    MOST_WORKER,
    START,
    STATUSES,
    Position,
    entry_of,
    first_place,
)
from .flowevents import COUNTS, MOST_NAME
from .flowevents import MOST_ID as MOST_FLOW_ID
from .reader import Reader, clock_ms

KEYS_A_PAGE = 200  # that Redis looks at: some 0.1 ms of its time
SCAN_START = "0"  # and its end
MOST_INCARNATION = 64  # what its column takes
FLOW_STATUSES = frozenset(WorkflowStatus)


class Sighting(NamedTuple):
    """What a job's hash says of where the job is."""

    id: str
    status: str
    queue: str
    task: str
    seq: int
    audit: str
    child: str
    attempts: int
    priority: int
    generation: int
    reason: str
    enqueued_ms: int
    started_ms: int | None
    finished_ms: int | None
    due_ms: int | None


class FlowSighting(NamedTuple):
    """What a workflow's hash says of it."""

    id: str
    status: WorkflowStatus
    name: str
    generation: int
    total: int
    completed: int
    failed: int
    cancelled: int
    made_ms: int
    ended_ms: int | None
    is_paused: bool


JOB_FIELDS = Sighting._fields[1:]
FLOW_FIELDS = (*FlowSighting._fields[1:-1], "paused_ms")
Seen = TypeVar("Seen", Sighting, FlowSighting)


class Sightings(NamedTuple, Generic[Seen]):
    """One step of a SCAN: the cursor to go on with, what was found, and what could not be read."""

    following: str
    found: list[Seen]
    problems: list[str]


class Unread(NamedTuple):
    """What the mirror has yet to read: how many events (None: not known just now), and the age of
    the oldest."""

    events: int | None
    oldest_ms: int


class Census(Reader):
    """The reads, on one link."""

    def incarnation(self) -> str:
        """The id that the mirror has given to this Redis's data, or ''."""
        return text(self.link.call("HGET", self.keys.meta, "incarnation"), MOST_INCARNATION) or ""

    def name(self) -> str:
        """Give this Redis's data an id if it has none; its id."""
        key = self.keys.meta
        _, incarnation = self.link.pipeline(
            [("HSETNX", key, "incarnation", secrets.token_hex(16)), ("HGET", key, "incarnation")]
        )
        return text(incarnation, MOST_INCARNATION) or ""

    def page(self, cursor: str) -> Sightings[Sighting]:
        """The jobs of one step of a SCAN: SCAN_START to begin with, and again at the end. Every job
        that is there all the while is seen at least once."""
        following, rows = self._scan(cursor, self.keys.job(""), JOB_FIELDS)
        problems: list[str] = []
        jobs = [_sighting(job_id, raw, problems) for job_id, raw in rows]
        return Sightings(following, [job for job in jobs if job is not None], problems)

    def flow_page(self, cursor: str) -> Sightings[FlowSighting]:
        """The same for workflows."""
        following, rows = self._scan(cursor, self.keys.workflow(""), FLOW_FIELDS)
        problems: list[str] = []
        flows = [_flow_sighting(flow_id, raw, problems) for flow_id, raw in rows]
        return Sightings(following, [flow for flow in flows if flow is not None], problems)

    def _scan(
        self, cursor: str, prefix: str, names: Sequence[str]
    ) -> tuple[str, list[tuple[str, Fields]]]:
        following, keys = self.link.call(
            "SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", KEYS_A_PAGE, "TYPE", "hash"
        )
        replies = self._each([("HMGET", key, *names) for key in keys])
        return following, [
            (key.removeprefix(prefix), Fields(dict(zip(names, values, strict=True))))
            for key, values in zip(keys, replies, strict=True)
            if values and values[0]  # else a tombstone, or gone meanwhile
        ]

    def unread(self, after: Position) -> Unread:
        """What stands behind the mirror's cursor. One round trip, whatever the length."""
        start = "-" if after == START else f"({entry_of(after)}"
        entries, total, clock = self.link.pipeline(
            [
                ("XRANGE", self.keys.events, start, "+", "COUNT", 1),
                ("HGET", self.keys.meta, "events"),
                ("TIME",),
            ]
        )
        oldest_ms = clock_ms(clock) - first_place(entries[0][0])[0] if entries else 0
        return Unread(events_from(entries, total), max(0, oldest_ms))

    def knows(self, ids: Sequence[str]) -> list[bool]:
        """Whether each of these jobs is in Redis."""
        return self._have([self.keys.job(one) for one in ids])

    def knows_flows(self, ids: Sequence[str]) -> list[bool]:
        """Whether each of these workflows is in Redis."""
        return self._have([self.keys.workflow(one) for one in ids])

    def _have(self, keys: Sequence[str]) -> list[bool]:
        return [bool(reply) for reply in self._each([("HEXISTS", key, "status") for key in keys])]


def _sighting(job_id: str, raw: Fields, problems: list[str]) -> Sighting | None:
    status = raw.text("status", MOST_STATUS)
    if status not in STATUSES or text(job_id, MOST_ID) != job_id:
        problems.append(f"job {shown(job_id)} cannot be reconciled: its status is {shown(status)}")
        return None
    implied = int(with_unsaid({"status": status}).get("seq", 1))
    job = Sighting(
        job_id, status, raw.text("queue", MOST_QUEUE) or "default", raw.text("task", MOST_TASK),
        raw.whole("seq", EXACT, default=implied), raw.text("audit", MOST_STATUS),
        raw.text("child", MOST_WORKER), raw.whole("attempts", INT32 - 1),
        raw.whole("priority", INT16, low=-INT16), raw.whole("generation", INT32),
        raw.text("reason", MOST_REASON), raw.instant_ms("enqueued_ms", 0),
        raw.instant_ms("started_ms"), raw.instant_ms("finished_ms"),
        raw.instant_ms("due_ms"),
    )  # fmt: skip
    if raw.faults:
        problems.append(f"in the hash of job {job_id}, {'; '.join(raw.faults)}")
    return job


def _flow_sighting(flow_id: str, raw: Fields, problems: list[str]) -> FlowSighting | None:
    status = raw.text("status", MOST_STATUS)
    if status not in FLOW_STATUSES or text(flow_id, MOST_FLOW_ID) != flow_id:
        problems.append(
            f"workflow {shown(flow_id)} cannot be reconciled: its status is {shown(status)}"
        )
        return None
    generation, total, completed, failed, cancelled = (raw.whole(name, INT32) for name in COUNTS)
    flow = FlowSighting(
        flow_id, WorkflowStatus(status), raw.text("name", MOST_NAME), generation, total,
        completed, failed, cancelled, raw.instant_ms("made_ms", 0),
        raw.instant_ms("ended_ms"), "paused_ms" in raw,
    )  # fmt: skip
    if raw.faults:
        problems.append(f"in the hash of workflow {flow_id}, {'; '.join(raw.faults)}")
    return flow
