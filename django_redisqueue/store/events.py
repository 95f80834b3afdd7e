"""The event stream, read page by page: the truth that the mirror is made from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..codec import dumps, loads
from ..exceptions import RedisQueueError
from ..redaction import display_payload
from ..states import Status
from ..tags import tags_in
from .flowevents import FIELD, FlowEvent, flow_event
from .reader import Reader

logger = logging.getLogger("django_redisqueue")

PAGE = 1000  # events a read: under 1 MB, some 3 ms of Redis's time
Position = tuple[int, int]  # the two halves of an entry's id: ms and a counter
START: Position = (0, 0)
STATUSES = frozenset(Status)
PLAIN = 8  # keys of an event that has none of the optional ones


class Event(NamedTuple):
    """One transition of one job, as emit.lua wrote it. A tuple, for there are many.

    ``args``, ``result`` and ``error`` are JSON text, or None when the entry does not carry it (it
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
    """What a part of the stream tells of jobs and of workflows; ``entries`` were looked at, up to
    ``last``."""

    events: list[Event]
    flows: list[FlowEvent]
    entries: int
    last: Position


class EntryLost(RedisQueueError):
    """The entry to read on from is not in the stream any more."""


class Events(Reader):
    """The reads, on one link."""

    def read(self, after: Position, count: int = PAGE) -> Page:
        """The next entries behind ``after``, which is ``last`` of the page when there are none.

        An entry that is no event (somebody else wrote into the stream) is logged and left out.
        Raises EntryLost when the entry ``after`` is not in the stream any more, in which case what
        follows in it need not be what came next.
        """
        start = "-" if after == START else show(after)
        entries = self.link.call("XRANGE", self.keys.events, start, "+", "COUNT", count + 1)
        if after == START:
            del entries[count:]
        elif not entries or entries.pop(0)[0] != start:
            raise EntryLost(f"the entry {start} is not in the stream of events any more")
        return self._page(entries, after)

    def _page(self, entries: Sequence[Any], after: Position) -> Page:
        events, flows = [], []
        for name, fields in entries:
            try:
                if fields[0] == FIELD:
                    flows.append(flow_event(parse_position(name), fields))
                else:
                    events.append(_event(name, fields))
            except (ValueError, KeyError, TypeError) as error:
                logger.error("entry %s of %s is no event: %r", name, self.keys.events, error)
        last = parse_position(entries[-1][0]) if entries else after
        return Page(events, flows, len(entries), last)

    def first(self) -> Position | None:
        """The oldest entry there is."""
        return self._one("XRANGE", "-", "+")

    def last(self) -> Position | None:
        """The newest entry there is."""
        return self._one("XREVRANGE", "+", "-")

    def at(self, position: Position) -> Page | None:
        """The page of this one entry, which tells of nothing if it is no event; None when it is
        not in the stream."""
        name = show(position)
        entries = self.link.call("XRANGE", self.keys.events, name, name)
        return self._page(entries, position) if entries else None

    def _one(self, command: str, start: str, end: str) -> Position | None:
        entries = self.link.call(command, self.keys.events, start, end, "COUNT", "1")
        return parse_position(entries[0][0]) if entries else None

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
    """The position as Redis writes it."""
    return f"{position[0]}-{position[1]}"


_NONE_MORE: dict[str, Any] = {}


def _event(name: str, fields: Sequence[str]) -> Event:
    ms, _, number = name.partition("-")
    if fields[0] != "event":
        raise KeyError("event")
    raw = loads(fields[1])
    if raw["status"] not in STATUSES:
        raise ValueError(f"unknown status {raw['status']!r}")
    args = result = error = None
    if len(fields) > 2:
        if fields[2] == "args":
            args = fields[3]
        elif fields[2] == "result":
            result = fields[3]
        elif fields[2] == "error":
            error = fields[3]
    return Event(
        (int(ms), int(number)), raw["jobId"], raw["status"], raw["queue"], raw["task"],
        raw["workerId"], int(raw["attempt"]), int(raw["seq"]), int(raw["timestamp"]),
        args, result, error, raw if len(raw) > PLAIN else _NONE_MORE,
    )  # fmt: skip
