"""Who this Redis is, all jobs it knows, and how much of its stream is unread: for the mirror."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..jobdata import with_unsaid
from .entries import events_from
from .events import START, Position, entry_of, first_place
from .reader import Reader, clock_ms

KEYS_A_PAGE = 200  # that Redis looks at: some 0.1 ms of its time
SCAN_START = "0"  # and its end


class Sighting(NamedTuple):
    """What a job's hash says of where the job is, as text; None for what it does not hold."""

    id: str
    status: str
    queue: str | None
    task: str | None
    seq: str | None
    audit: str | None
    child: str | None
    attempts: str | None
    priority: str | None
    generation: str | None
    reason: str | None
    enqueued_ms: str | None
    started_ms: str | None
    finished_ms: str | None
    due_ms: str | None


class FlowSighting(NamedTuple):
    """What a workflow's hash says of it, as text; None for what it does not hold."""

    id: str
    status: str
    name: str | None
    generation: str | None
    total: str | None
    completed: str | None
    failed: str | None
    cancelled: str | None
    made_ms: str | None
    ended_ms: str | None
    paused_ms: str | None


class Unread(NamedTuple):
    """What the mirror has yet to read: how many events (None: not known just now), and the age of
    the oldest."""

    events: int | None
    oldest_ms: int


class Census(Reader):
    """The reads, on one link."""

    def incarnation(self) -> str:
        """The id that the mirror has given to this Redis's data, or ''."""
        return self.link.call("HGET", self.keys.meta, "incarnation") or ""

    def name(self) -> str:
        """Give this Redis's data an id if it has none; its id."""
        key = self.keys.meta
        _, incarnation = self.link.pipeline(
            [("HSETNX", key, "incarnation", secrets.token_hex(16)), ("HGET", key, "incarnation")]
        )
        return str(incarnation)

    def page(self, cursor: str) -> tuple[str, list[Sighting]]:
        """The jobs of one step of a SCAN, and where to go on: SCAN_START to begin with, and again
        at the end. Every job that is there all the while is seen at least once."""
        following, rows = self._scan(cursor, self.keys.job(""), Sighting._fields[1:])
        return following, [_said(Sighting(*row)) for row in rows]

    def flow_page(self, cursor: str) -> tuple[str, list[FlowSighting]]:
        """The same for workflows."""
        following, rows = self._scan(cursor, self.keys.workflow(""), FlowSighting._fields[1:])
        return following, [FlowSighting(*row) for row in rows]

    def _scan(self, cursor: str, prefix: str, names: Sequence[str]) -> tuple[str, list[list[Any]]]:
        following, keys = self.link.call(
            "SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", KEYS_A_PAGE, "TYPE", "hash"
        )
        if not keys:
            return following, []
        replies = self.link.pipeline([("HMGET", key, *names) for key in keys])
        return following, [
            [key.removeprefix(prefix), *fields]
            for key, fields in zip(keys, replies, strict=True)
            if fields[0]  # else a tombstone, or gone meanwhile
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


def _said(job: Sighting) -> Sighting:
    return job if job.seq else job._replace(seq=with_unsaid({"status": job.status}).get("seq"))
