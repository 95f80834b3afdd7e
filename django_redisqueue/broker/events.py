"""The stream of the events of jobs and workflows, page by page: the source of the mirror."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..conf import Settings
from ..core.clock import LAST_MS
from ..core.codec import dumps
from ..core.instruments import CORRELATION, headers_in
from ..core.parsing import (
    MAX_EXACT,
    MAX_INT16,
    MAX_INT32,
    MAX_INT64,
    Fields,
    is_number,
    object_or_none,
    storable,
    text_or_none,
)
from ..core.redaction import display_payload
from ..core.statuses import Status, WorkflowTransition
from ..core.tags import OPTION
from ..exceptions import RedisQueueError, short_repr
from .connection import RedisConnection
from .entries import (
    ENTRY,
    JOB,
    START,
    EventFeed,
    Position,
    RawEvent,
    entry_id,
    events_before,
    first_position,
    last_position,
    parse_entry,
)

logger = logging.getLogger("django_redisqueue")

PAGE = 1000  # events per read, plus the rest of the last entry: under 1 MB
STATUSES = frozenset(Status)
TRANSITIONS = frozenset(WorkflowTransition)
PLAIN = 8  # keys of a job's event without optional ones
TEXTS = ("payload", "result", "error")
BODY = (
    *TEXTS, "options", "attempts", "priority", "generation", "enqueued_ms", "started_ms", "progress"
)  # fmt: skip
# The lengths of the mirror's columns
MAX_ID, MAX_STATUS, MAX_QUEUE, MAX_TASK, MAX_WORKER, MAX_REASON = 80, 10, 64, 255, 128, 16
MAX_WORKFLOW_ID, MAX_NAME, MAX_CORRELATION = 64, 200, 128
_NO_OPTIONAL_KEYS: dict[str, Any] = {}


class JobStreamEvent(NamedTuple):
    """One transition of a job. A tuple, because there are many.

    ``args``, ``result`` and ``error`` are JSON, or None if the event does not carry them (over
    1 KB, or absent). ``more`` has the optional keys: dueMs, reason, progress, recoveries, priority,
    requeues, tags (JSON), correlation, replaced (True: newer arguments replaced the job's own).
    """

    position: Position
    job_id: str
    status: str
    queue: str
    task: str
    worker: str
    attempt: int
    seq: int
    at_ms: int
    args: str | None
    result: str | None
    error: str | None
    more: dict[str, Any]


class WorkflowCounts(NamedTuple):
    """The counts that a workflow's hash, events and record have."""

    generation: int  # how often a retry has resumed it
    total: int  # jobs, like all counts below
    completed: int
    failed: int
    cancelled: int

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.cancelled


class WorkflowStreamEvent(NamedTuple):
    """One transition of a workflow, with its complete state at ``at_ms``: the last event is enough
    to know the state."""

    position: Position
    workflow_id: str
    step: WorkflowTransition
    at_ms: int
    made_ms: int
    name: str
    counts: WorkflowCounts
    is_paused: bool
    reason: str = ""  # "lost" or "reconciled" if the mirror created the event


class JobBody(NamedTuple):
    """The parts of a job's hash that the mirror reads, with redacted arguments replaced."""

    payload: str | None = None
    result: str | None = None
    error: str | None = None
    attempts: int = 0
    priority: int = 0
    generation: int = 0
    enqueued_ms: int | None = None
    started_ms: int | None = None
    tags: str = ""  # JSON
    correlation: str = ""
    progress: str = ""  # JSON
    faults: Sequence[str] = ()  # unreadable values


class EventFault(NamedTuple):
    """An unreadable event, which ``is_left_out``, or an unreadable part of one."""

    position: Position
    problem: str
    is_left_out: bool = False


class StreamPage(NamedTuple):
    """The events of whole entries, ``seen`` of them up to ``last``. ``is_end``: nothing follows."""

    events: list[JobStreamEvent]
    workflows: list[WorkflowStreamEvent]
    faults: list[EventFault]
    seen: int
    last: Position
    is_end: bool = False

    def first(self, count: int) -> StreamPage:
        """The first ``count`` events of the page, in the order of the stream."""
        if len(self.events) + len(self.workflows) <= count:
            return self
        positions = [event.position for event in self.events]
        positions += [event.position for event in self.workflows]
        return self.until(sorted(positions)[count - 1])

    def until(self, last: Position) -> StreamPage:
        """The events of the page up to that position."""
        events = [event for event in self.events if event.position <= last]
        workflows = [event for event in self.workflows if event.position <= last]
        faults = [fault for fault in self.faults if fault.position <= last]
        left_out = sum(fault.is_left_out for fault in faults)
        seen = len(events) + len(workflows) + left_out
        return StreamPage(events, workflows, faults, seen, last)


class EntryLost(RedisQueueError):
    """The entry to continue from is no longer in the stream."""


class EventStream(EventFeed):
    def __init__(self, connection: RedisConnection, settings: Settings | None = None) -> None:
        super().__init__(connection, settings)
        limits = self.settings
        self.largest_body = (  # bytes
            limits.max_payload_bytes + limits.max_result_bytes + limits.max_error_bytes
        )
        self._logged = START  # faults up to here were logged

    def read(self, after: Position, count: int = PAGE) -> StreamPage:
        """The next entries after ``after``, with ``count`` events. Logs and leaves out unreadable
        events. Raises EntryLost if the entry of ``after`` is no longer in the stream, because then
        some events may be missing in between."""
        start = "-" if after == START else entry_id(after)
        entries, is_end = self._entries.read(start, count)
        if after != START and (not entries or entries[0][0] != start):
            raise EntryLost(f"entry {start} is no longer in the event stream")
        return self._page(entries, after)._replace(is_end=is_end)

    def _page(
        self, entries: Iterable[tuple[str, Sequence[RawEvent]]], after: Position
    ) -> StreamPage:
        page = StreamPage([], [], [], 0, after)
        seen, last = 0, after
        for name, parts in entries:
            ms, number = begin = first_position(name)
            end = last_position(begin, parts)
            if end <= after:
                continue
            if not 0 < len(parts) <= ENTRY:
                page.faults.append(EventFault(end, f"it has {len(parts)} events", True))
            for at, part in enumerate(parts[:ENTRY], number):
                if (ms, at) > after:
                    seen += 1
                    _read_part((ms, at), part, page)
            last = end
        self._log(page.faults)
        return page._replace(seen=seen, last=last)

    def _log(self, faults: Iterable[EventFault]) -> None:
        """Log each fault once, although a page may be read again."""
        for fault in faults:
            if fault.position > self._logged:
                self._logged = fault.position
                name, problem = entry_id(fault.position), fault.problem
                if fault.is_left_out:
                    #: Another program has written to the stream of events, and its entry is left
                    #: out. Find that program, and give it another database or PREFIX.
                    logger.error("entry %s of %s is no event: %s", name, self.keys.events, problem)
                else:
                    #: An event has a field that cannot be read; the record gets the rest. Another
                    #: program has changed keys below PREFIX.
                    logger.error("entry %s of %s: %s", name, self.keys.events, problem)

    def wait_for_replicas(self) -> None:
        """Wait until replicas have everything that was read, so that no failover takes it back.
        Raises NotReplicated."""
        self._wait_for_replicas("the mirror waits for them")

    def first(self) -> Position | None:
        """The position of the oldest event."""
        first, _ = self.ends()
        return first if first != START else None

    def is_trimmed(self) -> bool:
        """Whether the stream has lost its oldest events."""
        first = self.connection.call("XRANGE", self.keys.events, "-", "+", "COUNT", "1")
        return any(map(events_before, first))

    def middle(self) -> Position:
        """The position of an event about halfway through the stream; START if it is short."""
        length = int(self.connection.call("LLEN", self.keys.trim_index))
        entry = self.connection.call("LINDEX", self.keys.trim_index, str(length // 2))
        return first_position(entry.partition(" ")[0]) if entry else START

    def at(self, position: Position) -> StreamPage | None:
        """A page of the one event at that position, if it exists; None if its entry is gone."""
        name = entry_id(position)
        entries = self.connection.call("XRANGE", self.keys.events, name, name)
        if not entries:
            return None
        before = position[0], position[1] - 1
        return self._page([(name, parse_entry(entries[0][1]))], before).until(position)

    def newest(self, until: Position) -> StreamPage | None:
        """A page of the last event up to that position; None if there is no entry up to it."""
        found = self.connection.call(
            "XREVRANGE", self.keys.events, entry_id(until), "-", "COUNT", "1"
        )
        if not found:
            return None
        name, parts = found[0][0], parse_entry(found[0][1])
        last = min(until, last_position(first_position(name), parts))
        return self._page([(name, parts)], (last[0], last[1] - 1)).until(last)

    def bodies(self, ids: Sequence[str]) -> list[JobBody]:
        """The bodies of these jobs, in one pipeline; an empty one for a job that is gone."""
        commands = [("HMGET", self.keys.job(job_id), *BODY) for job_id in ids]
        return [_body(reply) for reply in self._each(commands)]

    def sizes(self, ids: Sequence[str]) -> list[int]:
        """About how many bytes ``bodies`` would read for each of these jobs."""
        asked = [("HSTRLEN", self.keys.job(job_id), name) for job_id in ids for name in TEXTS]
        found = [size or 0 for size in self._each(asked)]
        return [sum(found[at : at + len(TEXTS)]) for at in range(0, len(found), len(TEXTS))]


def _body(reply: Sequence[str | None] | None) -> JobBody:
    if reply is None:
        return JobBody()
    raw = dict(zip(BODY, reply, strict=True))
    fields = Fields(raw)
    if raw["options"] and raw["payload"]:
        raw["payload"] = display_payload(raw["payload"], raw["options"])
    payload, result, error = (_stored(raw[name], name, fields) for name in TEXTS)
    options = object_or_none(raw["options"]) if raw["options"] else {}
    correlation = headers_in(options or {}).get(CORRELATION, "")
    progress = _progress(fields, object_or_none(raw["progress"])) if raw["progress"] else None
    return JobBody(
        payload, result, error, fields.integer("attempts", MAX_INT32),
        fields.integer("priority", MAX_INT16, low=-MAX_INT16),
        fields.integer("generation", MAX_INT32), fields.instant_ms("enqueued_ms"),
        fields.instant_ms("started_ms"),
        _tags(options, fields), text_or_none(correlation, MAX_CORRELATION) or "",
        dumps(progress) if progress else "", fields.faults,
    )  # fmt: skip


def _stored(value: str | None, name: str, fields: Fields) -> str | None:
    """Text that fits a column of unlimited length."""
    if value is None:
        return None
    found = text_or_none(value, len(value))
    if found is not value:
        fields.fault(name, value)
    return found


def _tags(options: object, fields: Fields) -> str:
    """The tags in a job's options as JSON, or ''."""
    parts = options.get(OPTION, []) if isinstance(options, dict) else options
    if not isinstance(parts, list) or len(parts) % 2 or not all(type(one) is str for one in parts):
        fields.fault("options", options)
        return ""
    return storable(dumps(dict(zip(parts[::2], parts[1::2], strict=True)))) if parts else ""


def _read_part(position: Position, part: RawEvent, page: StreamPage) -> None:
    """Add the event to the page, or a fault."""
    kind, json, name, value = part
    raw = object_or_none(json)
    if raw is None:
        page.faults.append(EventFault(position, f"{short_repr(json)} is not a JSON object", True))
        return
    fields = Fields(raw)
    event: JobStreamEvent | WorkflowStreamEvent | None
    if kind == JOB:
        if (event := _event(position, fields, name, value)) is not None:
            page.events.append(event)
    elif (event := parse_workflow_event(position, fields, value)) is not None:
        page.workflows.append(event)
    if fields.faults:
        page.faults.append(EventFault(position, "; ".join(fields.faults), event is None))


def _event(
    position: Position, fields: Fields, name: str | None, value: str | None
) -> JobStreamEvent | None:
    """A job's event; None without a readable id or status."""
    job_id = fields.text("jobId", MAX_ID, needed=True)
    status = fields.text("status", MAX_STATUS, needed=True)
    if fields.faults or not job_id or status not in STATUSES:
        fields.fault("the status", f"{status} of {job_id}")
        return None
    if value is not None:
        value = _stored(value, name or "", fields)
    return JobStreamEvent(
        position, job_id, status, fields.text("queue", MAX_QUEUE, needed=True),
        fields.text("task", MAX_TASK, needed=True),
        fields.text("workerId", MAX_WORKER, needed=True),
        fields.integer("attempt", MAX_INT32, needed=True),
        fields.integer("seq", MAX_EXACT, needed=True),
        fields.instant_ms("timestamp") or min(position[0], LAST_MS),
        value if name == "args" else None, value if name == "result" else None,
        value if name == "error" else None,
        _more(fields) if len(fields) > PLAIN else _NO_OPTIONAL_KEYS,
    )  # fmt: skip


def _more(fields: Fields) -> dict[str, Any]:
    more: dict[str, Any] = {}
    for name in ("recoveries", "requeues"):
        if name in fields:
            more[name] = fields.integer(name, MAX_INT32)
    if "priority" in fields:
        more["priority"] = fields.integer("priority", MAX_INT16, low=-MAX_INT16)
    if "dueMs" in fields:
        more["dueMs"] = fields.instant_ms("dueMs")
    if "reason" in fields:
        more["reason"] = fields.text("reason", MAX_REASON)
    if "progress" in fields and (found := _progress(fields, fields["progress"])):
        more["progress"] = found
    if "options" in fields:
        more["tags"] = _tags(fields["options"], fields)
    if "correlationId" in fields:
        more["correlation"] = fields.text("correlationId", MAX_CORRELATION)
    if "replaced" in fields:
        more["replaced"] = True
    return more


def _progress(fields: Fields, raw: object) -> dict[str, Any] | None:
    value = Fields(raw if isinstance(raw, dict) else {})
    found = {name: value[name] for name in ("done", "total")}
    note = value.text("note", MAX_INT32)
    if value.faults or not all(is_number(one, 0, MAX_INT64) for one in found.values()):
        fields.fault("progress", fields["progress"])
        return None
    return {**found, "note": note} if "note" in value else found


def parse_workflow_event(
    position: Position, fields: Fields, name: str | None
) -> WorkflowStreamEvent | None:
    """A workflow's event; None without a readable id or status."""
    workflow_id = fields.text("workflowId", MAX_WORKFLOW_ID, needed=True)
    status = fields.text("status", MAX_WORKFLOW_ID, needed=True)
    if fields.faults or status not in TRANSITIONS:
        fields.fault("status", status)
        return None
    step = WorkflowTransition(status)
    at_ms = fields.instant_ms("timestamp") or min(position[0], LAST_MS)
    named = text_or_none(name or "", MAX_NAME)
    if named != (name or ""):
        fields.fault("name", name)
    counts = [fields.integer(name, MAX_INT32, needed=True) for name in WorkflowCounts._fields]
    return WorkflowStreamEvent(
        position, workflow_id, step, at_ms, fields.instant_ms("madeMs") or at_ms, named or "",
        WorkflowCounts(*counts),
        fields["paused"] is True or step is WorkflowTransition.PAUSED,
    )  # fmt: skip
