"""The event stream, read page by page: the truth that the mirror is made from.

An entry of the stream has the events of one script. An event's place is a pair of numbers as the
entry's id is, the second one times ENTRY, and how many events stand before it in the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..clock import LAST_MS
from ..codec import dumps
from ..conf import Settings, get_settings
from ..exceptions import RedisQueueError, shown
from ..link import Link
from ..parsing import EXACT, INT16, INT32, INT64, Fields, mapping, number, storable, text
from ..redaction import display_payload
from ..states import Status
from ..tags import OPTION
from .entries import JOB, Entries, Part, parts_of
from .flowevents import FlowEvent, flow_event
from .reader import Reader

logger = logging.getLogger("django_redisqueue")

PAGE = 1000  # events a read, and what the last entry has more: under 1 MB
ENTRY = 1000  # places in an entry
Position = tuple[int, int]  # the place of an event: ms and a number
START: Position = (0, 0)
STATUSES = frozenset(Status)
PLAIN = 8  # keys of an event that has none of the optional ones
# What the columns of a record take.
MOST_ID, MOST_STATUS, MOST_QUEUE, MOST_TASK, MOST_WORKER, MOST_REASON = 80, 10, 64, 255, 128, 16


class Event(NamedTuple):
    """One transition of one job, as emit.lua wrote it. A tuple, for there are many.

    ``args``, ``result`` and ``error`` are JSON text, or None when the stream does not carry it (it
    is over 1 KB, or there is none). ``more`` has the optional keys: dueMs, reason, progress,
    recoveries, priority, requeues, tags (JSON text).
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


class Body(NamedTuple):
    """What a job's hash holds, None for what is not there; the payload as it may be shown."""

    payload: str | None = None
    result: str | None = None
    error: str | None = None
    attempts: int = 0
    priority: int = 0
    generation: int = 0
    enqueued_ms: int | None = None
    started_ms: int | None = None
    tags: str = ""  # JSON of what its options say of them
    faults: Sequence[str] = ()  # what could not be read


TEXTS = ("payload", "result", "error")
BODY = (*TEXTS, "options", "attempts", "priority", "generation", "enqueued_ms", "started_ms")


class Fault(NamedTuple):
    """Something that the mirror cannot show as it was written: an event, which ``is_left_out``,
    or a part of one."""

    position: Position
    problem: str
    is_left_out: bool = False


class Page(NamedTuple):
    """What whole entries of the stream tell of jobs and of workflows; ``seen`` events were looked
    at, up to ``last``. Nothing was behind them if it ``is_end``."""

    events: list[Event]
    flows: list[FlowEvent]
    faults: list[Fault]
    seen: int
    last: Position
    is_end: bool = False

    def first(self, count: int) -> Page:
        """What the first ``count`` events tell, in the order of the stream."""
        if len(self.events) + len(self.flows) <= count:
            return self
        places = [event.position for event in self.events]
        places += [flow.position for flow in self.flows]
        return self.until(sorted(places)[count - 1])

    def until(self, last: Position) -> Page:
        """What the events up to that place tell."""
        events = [event for event in self.events if event.position <= last]
        flows = [flow for flow in self.flows if flow.position <= last]
        faults = [fault for fault in self.faults if fault.position <= last]
        left_out = sum(fault.is_left_out for fault in faults)
        return Page(events, flows, faults, len(events) + len(flows) + left_out, last)


class EntryLost(RedisQueueError):
    """The entry to read on from is not in the stream any more."""


class Events(Reader):
    """The reads, on one link."""

    def __init__(self, link: Link, settings: Settings | None = None) -> None:
        settings = settings or get_settings()
        super().__init__(link, settings)
        self.largest_body = (  # bytes
            settings.max_payload_bytes + settings.max_result_bytes + settings.max_error_bytes
        )
        self._entries = Entries(link, self.keys.events)
        self._logged = START  # faults up to here are in the log

    def read(self, after: Position, count: int = PAGE) -> Page:
        """The next entries with ``count`` events behind ``after``, which is ``last`` of the page
        when there are none.

        What is no event (somebody else wrote into the stream) is logged and left out, and so is
        the part of an event that cannot be read. Raises
        EntryLost when the entry of ``after`` is not in the stream any more, in which case what
        follows in it need not be what came next.
        """
        start = "-" if after == START else entry_of(after)
        entries, is_end = self._entries.read(start, count)
        if after != START and (not entries or entries[0][0] != start):
            raise EntryLost(f"the entry {start} is not in the stream of events any more")
        return self._page(entries, after)._replace(is_end=is_end)

    def _page(self, entries: Iterable[tuple[str, Sequence[Part]]], after: Position) -> Page:
        page = Page([], [], [], 0, after)
        seen, last = 0, after
        for name, parts in entries:
            ms, number = begin = first_place(name)
            end = last_place(begin, parts)
            if end <= after:
                continue
            if not 0 < len(parts) <= ENTRY:
                page.faults.append(Fault(end, f"it has {len(parts)} events", True))
            for at, part in enumerate(parts[:ENTRY], number):
                if (ms, at) > after:
                    seen += 1
                    _read_part((ms, at), part, page)
            last = end
        self._log(page.faults)
        return page._replace(seen=seen, last=last)

    def _log(self, faults: Iterable[Fault]) -> None:
        """Once each: a page may be read again."""
        for fault in faults:
            if fault.position > self._logged:
                self._logged = fault.position
                name, problem = entry_of(fault.position), fault.problem
                if fault.is_left_out:
                    logger.error("entry %s of %s is no event: %s", name, self.keys.events, problem)
                else:
                    logger.error("entry %s of %s: %s", name, self.keys.events, problem)

    def first(self) -> Position | None:
        """The place of the oldest event there is."""
        entries = self._one("XRANGE", "-", "+")
        return first_place(entries[0][0]) if entries else None

    def last(self) -> Position | None:
        """The place of the newest event there is."""
        entries = self._one("XREVRANGE", "+", "-")
        return last_place(first_place(entries[0][0]), parts_of(entries[0][1])) if entries else None

    def at(self, position: Position) -> Page | None:
        """The page of the one event of that place, which tells of nothing if there is no event;
        None when its entry is not in the stream."""
        name = entry_of(position)
        entries = self._one("XRANGE", name, name)
        if not entries:
            return None
        page = self._page([(name, parts_of(entries[0][1]))], START)
        here = [event for event in page.events if event.position == position]
        flows = [flow for flow in page.flows if flow.position == position]
        return Page(here, flows, [], 1, position)

    def _one(self, command: str, start: str, end: str) -> Any:
        return self.link.call(command, self.keys.events, start, end, "COUNT", "1")

    def bodies(self, ids: Sequence[str]) -> list[Body]:
        """What the hashes of these jobs hold, in one pipeline; of a job that is gone, nothing."""
        commands = [("HMGET", self.keys.job(job_id), *BODY) for job_id in ids]
        return [_body(reply) for reply in self._each(commands)]

    def sizes(self, ids: Sequence[str]) -> list[int]:
        """About how many bytes ``bodies`` would read of each of these jobs."""
        asked = [("HSTRLEN", self.keys.job(job_id), name) for job_id in ids for name in TEXTS]
        found = [size or 0 for size in self._each(asked)]
        return [sum(found[at : at + len(TEXTS)]) for at in range(0, len(found), len(TEXTS))]


def _body(reply: Sequence[str | None] | None) -> Body:
    if reply is None:
        return Body()
    raw = dict(zip(BODY, reply, strict=True))
    fields = Fields(raw)
    if raw["options"] and raw["payload"]:
        raw["payload"] = display_payload(raw["payload"], raw["options"])
    payload, result, error = (_stored(raw[name], name, fields) for name in TEXTS)
    return Body(
        payload, result, error, fields.whole("attempts", INT32),
        fields.whole("priority", INT16, low=-INT16), fields.whole("generation", INT32),
        fields.instant_ms("enqueued_ms"), fields.instant_ms("started_ms"),
        _tags(mapping(raw["options"]) if raw["options"] else {}, fields), fields.faults,
    )  # fmt: skip


def _stored(value: str | None, name: str, fields: Fields) -> str | None:
    """A text as a column without a limit takes it."""
    if value is None:
        return None
    found = text(value, len(value))
    if found is not value:
        fields.fault(name, value)
    return found


def _tags(options: object, fields: Fields) -> str:
    """The tags in a job's options as JSON, or '' when there are none."""
    parts = options.get(OPTION, []) if isinstance(options, dict) else options
    if not isinstance(parts, list) or len(parts) % 2 or not all(type(one) is str for one in parts):
        fields.fault("options", options)
        return ""
    return storable(dumps(dict(zip(parts[::2], parts[1::2], strict=True)))) if parts else ""


def parse_position(text: str) -> Position:
    """``'1526919030474-55'`` as numbers. Raises ValueError."""
    ms, _, number = text.partition("-")
    return int(ms), int(number)


def show(position: Position) -> str:
    """The place as text."""
    return f"{position[0]}-{position[1]}"


def first_place(name: str) -> Position:
    """The place of an entry's first event."""
    ms, number = parse_position(name)
    return ms, number * ENTRY


def last_place(begin: Position, parts: Sequence[Part]) -> Position:
    """The place of the last event of the entry that begins there; its own, if it has none."""
    ms, number = begin
    return ms, number + min(max(len(parts), 1), ENTRY) - 1


def entry_of(position: Position) -> str:
    """The id of the entry in which an event stands."""
    return show((position[0], position[1] // ENTRY))


_NONE_MORE: dict[str, Any] = {}


def _read_part(position: Position, part: Part, page: Page) -> None:
    """Add what this event tells to the page, or that it cannot be read."""
    field, json, name, value = part
    raw = mapping(json)
    if raw is None:
        page.faults.append(Fault(position, f"{shown(json)} is no JSON object", True))
        return
    fields = Fields(raw)
    if field == JOB:
        event = _event(position, fields, name, value)
        is_left_out = event is None
        if event is not None:
            page.events.append(event)
    else:
        flow = flow_event(position, fields, value)
        is_left_out = flow is None
        if flow is not None:
            page.flows.append(flow)
    if fields.faults:
        page.faults.append(Fault(position, "; ".join(fields.faults), is_left_out))


def _event(position: Position, fields: Fields, name: str | None, value: str | None) -> Event | None:
    """A job's event; None when it does not say of which job, or what became of it."""
    job_id = fields.text("jobId", MOST_ID, needed=True)
    status = fields.text("status", MOST_STATUS, needed=True)
    if fields.faults or not job_id or status not in STATUSES:
        fields.fault("the status", f"{status} of {job_id}")
        return None
    if value is not None:
        value = _stored(value, name or "", fields)
    return Event(
        position, job_id, status, fields.text("queue", MOST_QUEUE, needed=True),
        fields.text("task", MOST_TASK, needed=True),
        fields.text("workerId", MOST_WORKER, needed=True),
        fields.whole("attempt", INT32, needed=True), fields.whole("seq", EXACT, needed=True),
        fields.instant_ms("timestamp", min(position[0], LAST_MS)),
        value if name == "args" else None, value if name == "result" else None,
        value if name == "error" else None, _more(fields) if len(fields) > PLAIN else _NONE_MORE,
    )  # fmt: skip


def _more(fields: Fields) -> dict[str, Any]:
    """The optional keys."""
    more: dict[str, Any] = {}
    for name in ("recoveries", "requeues"):
        if name in fields:
            more[name] = fields.whole(name, INT32)
    if "priority" in fields:
        more["priority"] = fields.whole("priority", INT16, low=-INT16)
    if "dueMs" in fields:
        more["dueMs"] = fields.instant_ms("dueMs")
    if "reason" in fields:
        more["reason"] = fields.text("reason", MOST_REASON)
    if "progress" in fields:
        progress = _progress(fields)
        if progress is not None:
            more["progress"] = progress
    if "options" in fields:
        more["tags"] = _tags(fields["options"], fields)
    return more


def _progress(fields: Fields) -> dict[str, Any] | None:
    raw = fields["progress"]
    value = Fields(raw if isinstance(raw, dict) else {})
    found = {name: number(value[name], 0, INT64) for name in ("done", "total")}
    note = value.text("note", INT32)
    if value.faults or None in found.values():
        fields.fault("progress", raw)
        return None
    return {**found, "note": note} if "note" in value else found
