"""What was requested and what was done, in a file outside Redis and the database.

Producers, jobs and the program itself append to one file, a line of JSON each. A line is one write
to a file that is open for appending, so lines never mix, and a kill leaves a whole line or none.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

EVERY = 2  # s between two due times of the schedule
# Environment variables: where the file is; the true time when the monotonic clock was at 0, in ns.
VARIABLE, CLOCK = "GAUNTLET_LEDGER", "GAUNTLET_CLOCK"


def now_ns() -> int:
    """The true time in ns, even in a worker whose clock has jumped."""
    zero = os.environ.get(CLOCK)
    return time.time_ns() if zero is None else int(zero) + time.monotonic_ns()


def write(what: str, **fields: Any) -> None:
    """Append a line, with the process and the time."""
    line = {"what": what, "at": now_ns(), "pid": os.getpid(), **fields}
    file = os.open(os.environ[VARIABLE], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def running(kind: str, call: str, job: str, **fields: Any) -> Iterator[None]:
    """Mark the start of a run, and its end unless it raises or dies."""
    write("start", kind=kind, call=call, job=job, **fields)
    yield
    write("end", kind=kind, call=call, job=job, **fields)


@dataclass(slots=True)
class Call:
    """A call of a producer. ``answer`` is None while it is unknown whether it was accepted."""

    id: str
    kind: str
    begun: int  # ns
    answer: dict[str, Any] | None = None  # what the producer got back
    error: str = ""  # why it was refused
    ended: int = 0

    @property
    def jobs(self) -> list[str]:
        """The ids that the producer got back."""
        return list(self.answer["jobs"]) if self.answer else []


@dataclass(slots=True)
class Run:
    """A run of a job, from the marks that the job itself wrote. ``end`` is 0 if it raised, or if
    its process died."""

    kind: str
    call: str
    job: str
    pid: int
    start: int  # ns
    marks: dict[str, Any]
    end: int = 0


@dataclass(slots=True)
class Fault:
    """A fault that took effect. ``pids`` are the processes that it stopped or killed."""

    name: str
    begun: int  # ns
    ended: int
    pids: list[int]


Place = tuple[int, int]  # of an event in its stream


@dataclass(slots=True)
class Jump:
    """From ``at`` (ns) on, the clock of the single Redis was ``ahead`` of the true time by that
    many ms. ``before`` and ``after``: the ends of all shards' streams, read immediately before and
    after the jump. ``before_ms``: the clock's time at the first reading."""

    at: int
    ahead: int
    before_ms: int
    before: list[Place]
    after: list[Place]


class Recovery(NamedTuple):
    """In seconds: how long the fault lasted; the longest time without a job ending, from the
    fault's start until work resumed; how long after the fault's end a job had started and ended."""

    lasted: float
    stall: float
    back: float


@dataclass(slots=True)
class Ledger:
    """The parsed file."""

    calls: dict[str, Call] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))  # by call
    faults: list[Fault] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)

    @property
    def all_runs(self) -> Iterator[Run]:
        return (run for runs in self.runs.values() for run in runs)

    def accepted(self, *kinds: str) -> list[Call]:
        """Calls that were accepted, of these kinds or of all."""
        return [
            call
            for call in self.calls.values()
            if call.answer is not None and (not kinds or call.kind in kinds)
        ]

    def recoveries(self) -> Iterator[tuple[Fault, Recovery]]:
        """How long each fault kept all workers from making progress."""
        whole = sorted((run.start, run.end) for run in self.all_runs if run.end)
        ends = sorted(end for _, end in whole)
        for fault in self.faults:
            later = whole[bisect(whole, (fault.ended, 0)) :]
            if not later:
                continue
            back = min(end for _, end in later[:100])
            marks = [fault.begun, *ends[bisect(ends, fault.begun) : bisect(ends, back)]]
            stall = max((after - before for before, after in pairwise(marks)), default=0)
            yield (
                fault,
                Recovery(
                    (fault.ended - fault.begun) / 1e9, stall / 1e9, (back - fault.ended) / 1e9
                ),
            )

    def add(self, line: Mapping[str, Any]) -> None:
        rest = dict(line)
        what, at, pid = rest.pop("what"), rest.pop("at"), rest.pop("pid")
        match what:
            case "call":
                self.calls[rest["call"]] = Call(rest["call"], rest["kind"], at)
            case "accepted":
                call = self.calls[rest.pop("call")]
                call.answer, call.ended = rest, at
            case "refused":
                call = self.calls[rest["call"]]
                call.error, call.ended = rest["error"], at
            case "start":
                kind, name, job = rest.pop("kind"), rest.pop("call"), rest.pop("job")
                self.runs[name].append(Run(kind, name, job, pid, at, rest))
            case "end":
                begun = [run for run in self.runs[rest["call"]] if is_begun(run, rest["job"], pid)]
                begun[-1].end = at
            case "fault":
                self.faults.append(Fault(rest["fault"], rest["begun"], at, rest["pids"]))
            case "jump":
                before, after = ([tuple(place) for place in rest[name]] for name in ENDS)
                self.jumps.append(
                    Jump(rest["jumped"], rest["ahead"], rest["before_ms"], before, after)
                )
            case _:
                raise ValueError(f"a line of the ledger says {what!r}")


ENDS = ("before", "after")


def is_begun(run: Run, job: str, pid: int) -> bool:
    return run.job == job and run.pid == pid and not run.end


def read(lines: Iterable[str]) -> Ledger:
    ledger = Ledger()
    for line in lines:
        ledger.add(json.loads(line))
    return ledger


def read_file(path: Path) -> Ledger:
    with path.open() as file:
        return read(file)


class Tail:
    """What the ledger contains while it grows; safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._reading = Lock()
        self.workers: set[int] = set()  # processes that have run jobs
        self.ended = 0  # runs
        self.newest = 0  # when the most recently started run that has ended began, in ns
        self._begun: dict[tuple[int, str], int] = {}

    def poll(self) -> None:
        """Read what was appended since the last call."""
        with self._reading, self._path.open("rb") as file:
            file.seek(self._at)
            lines = file.read().split(b"\n")
            for text in lines[:-1]:
                self._at += len(text) + 1
                self._note(json.loads(text))

    def _note(self, line: Mapping[str, Any]) -> None:
        if line["what"] == "start":
            self.workers.add(line["pid"])
            self._begun[line["pid"], line["job"]] = line["at"]
        elif line["what"] == "end":
            self.ended += 1
            self.newest = max(self.newest, self._begun.pop((line["pid"], line["job"])))
