"""The event stream, read page by page: the truth that the mirror is made from.

An entry of the stream has the events of one script. An event's place is a pair of numbers as the
entry's id is, the second one times ENTRY, and how many events stand before it in the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..codec import dumps, loads
from ..conf import Settings
from ..exceptions import RedisQueueError
from ..link import Link
from ..redaction import display_payload
from ..states import Status
from ..tags import tags_in
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


class Event(NamedTuple):
    """One transition of one job, as emit.lua wrote it. A tuple, for there are many.

    ``args``, ``result`` and ``error`` are JSON text, or None when the stream does not carry it (it
    is over 1 KB, or there is none). ``more`` has the optional keys: dueMs, reason, progress,
    recoveries, priority, requeues, options (of a job with tags).
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
    """What a job's hash holds, as text, None for what is not there; the payload as it may be
    shown."""

    payload: str | None
    result: str | None
    error: str | None
    attempts: str | None
    priority: str | None
    generation: str | None
    enqueued_ms: str | None
    started_ms: str | None
    tags: str | None = None  # JSON of what its options say of them


BODY = Body._fields[:-1]  # as the hash has them


class Page(NamedTuple):
    """What whole entries of the stream tell of jobs and of workflows; ``seen`` events were looked
    at, up to ``last``. Nothing was behind them if it ``is_end``."""

    events: list[Event]
    flows: list[FlowEvent]
    seen: int
    last: Position
    is_end: bool = False


class EntryLost(RedisQueueError):
    """The entry to read on from is not in the stream any more."""


class Events(Reader):
    """The reads, on one link."""

    def __init__(self, link: Link, settings: Settings | None = None) -> None:
        super().__init__(link, settings)
        self._entries = Entries(link, self.keys.events)

    def read(self, after: Position, count: int = PAGE) -> Page:
        """The next entries with ``count`` events behind ``after``, which is ``last`` of the page
        when there are none.

        What is no event (somebody else wrote into the stream) is logged and left out. Raises
        EntryLost when the entry of ``after`` is not in the stream any more, in which case what
        follows in it need not be what came next.
        """
        start = "-" if after == START else entry_of(after)
        entries, is_end = self._entries.read(start, count)
        if after != START and (not entries or entries[0][0] != start):
            raise EntryLost(f"the entry {start} is not in the stream of events any more")
        return self._page(entries, after)._replace(is_end=is_end)

    def _page(self, entries: Iterable[tuple[str, Sequence[Part]]], after: Position) -> Page:
        events: list[Event] = []
        flows: list[FlowEvent] = []
        seen, last = 0, after
        for name, parts in entries:
            ms, number = begin = first_place(name)
            end = last_place(begin, parts)
            if end <= after:
                continue
            if not 0 < len(parts) <= ENTRY:
                self._log(name, f"it has {len(parts)} events")
            for at, (field, json, beside, value) in enumerate(parts[:ENTRY], number):
                place = (ms, at)
                if place <= after:
                    continue
                seen += 1
                try:
                    if field == JOB:
                        events.append(_event(place, json, beside, value))
                    else:
                        flows.append(flow_event(place, json, value))
                except (ValueError, KeyError, TypeError) as error:
                    self._log(name, repr(error))
            last = end
        return Page(events, flows, seen, last)

    def _log(self, name: str, problem: str) -> None:
        logger.error("entry %s of %s is no event: %s", name, self.keys.events, problem)

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
        return Page(here, [flow for flow in page.flows if flow.position == position], 1, position)

    def _one(self, command: str, start: str, end: str) -> Any:
        return self.link.call(command, self.keys.events, start, end, "COUNT", "1")

    def bodies(self, ids: Sequence[str]) -> list[Body]:
        """What the hashes of these jobs hold, in one pipeline; of a job that is gone, nothing."""
        commands = [("HMGET", self.keys.job(job_id), "options", *BODY) for job_id in ids]
        nothing = [None] * len(Body._fields)
        return [_body(*(reply or nothing)) for reply in self._each(commands)]


def _body(options: str | None, payload: str | None, *others: str | None) -> Body:
    if not options:
        return Body(payload, *others)
    shown = display_payload(payload, options) if payload else payload
    return Body(shown, *others)._replace(tags=tags_text(loads(options)))


def tags_text(options: Mapping[str, Any]) -> str:
    """The tags in a job's options as JSON, or '' when there are none."""
    tags = tags_in(options)
    return dumps(tags) if tags else ""


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


def _event(position: Position, json: str, name: str | None, value: str | None) -> Event:
    raw = loads(json)
    if raw["status"] not in STATUSES:
        raise ValueError(f"unknown status {raw['status']!r}")
    args = result = error = None
    if name == "args":
        args = value
    elif name == "result":
        result = value
    elif name == "error":
        error = value
    return Event(
        position, raw["jobId"], raw["status"], raw["queue"], raw["task"],
        raw["workerId"], int(raw["attempt"]), int(raw["seq"]), int(raw["timestamp"]),
        args, result, error, raw if len(raw) > PLAIN else _NONE_MORE,
    )  # fmt: skip
