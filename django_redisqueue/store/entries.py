"""The entries of the stream as Redis sends them. One has the events of a script: up to 100, mostly
fewer (include/emit.lua)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

from ..link import Link
from ..parsing import whole

JOB, WORKFLOW = "job", "workflow"
COUNTER = ":n"  # the first field: how many events had been written before this entry, ever
ALIKE = ":alike"  # JSON of the events of jobs from here on, but for the job's id
STATUS_AT = len('{"status":"')  # where it has the status
OF_WORKFLOW, NAME = ":workflow", ":name"
BESIDE = {"queued": "args", "scheduled": "args", "waiting": "args", "completed": "result"}
CHUNK = 100  # entries a command: what it sends is bounded, though their events are not known
GUESS = 25.0  # events an entry, until some were seen
BYTES = 8_000_000  # about as many characters are read at once; 100 entries of ours have no more

Raw = Sequence[Any]  # the entry's id, and its fields and values one after the other


#: One event: whose it is, its JSON, and what stands beside it, if anything does: what that is
#: (args, result or error of a job, name of a workflow) and its text. A plain tuple: there are many.
Part = tuple[str, str, str | None, str | None]


class Stretch(NamedTuple):
    """Entries one after the other, each as its id and its events; nothing was behind them if they
    are the ``end``."""

    entries: list[tuple[str, list[Part]]]
    is_end: bool


class Entries:
    """Reads about as many events as are wanted, by how many the entries had that were read last."""

    def __init__(self, link: Link, key: str) -> None:
        self._link = link
        self._key = key
        self._density = GUESS
        self._weight = 1.0  # characters an entry

    def read(self, start: str, events: int) -> Stretch:
        """From ``start``, as XRANGE takes it, to the entry with which it is so many events, or so
        many BYTES, not counting those of the first one when ``start`` is its id."""
        found: list[tuple[str, list[Part]]] = []
        skipped, have, size = int(start != "-"), 0, 0
        while True:
            count = self._count(events - have) + skipped
            some = self._parts(
                self._link.call("XRANGE", self._key, start, "+", "COUNT", str(count))
            )
            for at, (_, parts) in enumerate(some[skipped:], skipped + 1):
                have += max(1, len(parts))
                size += _size(parts)
                if have >= events or size >= BYTES:  # what there may be behind it is read again
                    return Stretch([*found, *some[:at]], at == len(some) < count)
            found += some
            if len(some) < count:
                return Stretch(found, True)
            start, skipped = f"({found[-1][0]}", 0

    def wait(self, after: str, events: int, seconds: float) -> Stretch:
        """Behind the entry ``after``, waiting for the first; not more than one command gives."""
        count = self._count(events)
        reply = self._link.call(
            "XREAD", "COUNT", str(count), "BLOCK", str(round(seconds * 1000)),
            "STREAMS", self._key, after,
        )  # fmt: skip
        found = self._parts(reply[0][1]) if reply else []
        return Stretch(found, len(found) < count)

    def _count(self, events: int) -> int:
        """About as many entries have so many events, and no more than BYTES."""
        return min(CHUNK, max(1, min(ceil(events / self._density), int(BYTES / self._weight))))

    def _parts(self, reply: Sequence[Raw]) -> list[tuple[str, list[Part]]]:
        found = [(name, parts_of(fields)) for name, fields in reply]
        if found:
            self._density = max(1.0, sum(len(parts) for _, parts in found) / len(found))
            self._weight = max(1.0, sum(_size(parts) for _, parts in found) / len(found))
        return found


def _size(parts: Sequence[Part]) -> int:
    return sum(len(json) + len(value or "") for _, json, _, value in parts)


def parts_of(fields: Sequence[str]) -> list[Part]:
    """The events of an entry; none of one that somebody else has written."""
    found: list[Part] = []
    alike: str | None = None
    what = ""
    pairs = iter(fields)  # of a field and its value
    for field, text in zip(pairs, pairs, strict=True):
        if field[:1] != ":" and alike is not None:
            name, beside = (what, text) if text else (None, None)
            for job_id in field.split(" "):
                found.append((JOB, f'{{"jobId":"{job_id}",{alike}', name, beside))
        elif field == ALIKE:
            status = text[STATUS_AT : text.find('"', STATUS_AT)]
            alike, what = text[1:], BESIDE.get(status, "error")
        elif field == OF_WORKFLOW:
            found.append((WORKFLOW, text, None, None))
        elif field == NAME and found:
            found[-1] = (*found[-1][:2], "name", text)
    return found


def events_from(entries: Sequence[Raw], total: str | None) -> int | None:
    """How many events stand in the stream from the first of these entries on, when ``total`` were
    ever written; None when it is not known: that entry is not ours, or the counter was lost."""
    if not entries:
        return 0
    field, before = entries[0][1][:2]
    began, ended = whole(before), whole(total)
    if field != COUNTER or began is None or ended is None:
        return None
    return ended - began if ended > began else None
