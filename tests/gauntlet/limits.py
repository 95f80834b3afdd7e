"""When runs held which slots, according to their own marks.

A job holds its slot from its claim until its end is reported, or until Redis takes it from a child
that is dead or silent. Its marks are made in between, so runs that overlap by their marks held
slots at the same time, and no tolerance is needed. A run without an end held its slot until Redis
took the job away. If a child was stopped or cut off for longer than a lease, its run continues when
the child is back, although another job has its slot by then; no lease can prevent that. Such a run
counts until Redis took the job away, and only if a fault explains it.

A start counts towards a rate at the time of its claim. Its mark comes later, with a delay that
varies, so marks may be closer together than their claims. Therefore the marks only tell which
claims became starts, and the event of the claim tells when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .evidence import Event, Evidence
from .ledger import Run

NS = 1_000_000  # in a ms


@dataclass(frozen=True, slots=True)
class Holding:
    """A run from its start until it released its slot, in ns. ``problem``: what no fault
    explains."""

    start: int
    end: int
    problem: str = ""


def holdings(runs: Iterable[Run], found: Evidence) -> Iterator[Holding]:
    for run in runs:
        claim, after = claim_of(run, found)
        if claim is None:
            yield Holding(run.start, run.start, f"{run.job} ran without a claim")
        elif after is None or (run.end and after.at * NS >= run.end // NS * NS):
            yield Holding(run.start, run.end or run.start)
        else:
            is_told = not run.end or is_explained(claim.at, after.at, found)
            problem = (
                "" if is_told else f"{run.job} was taken from a child that nothing had stopped"
            )
            yield Holding(run.start, max(run.start, after.at * NS), problem)


def claim_of(run: Run, found: Evidence) -> tuple[Event | None, Event | None]:
    """The event of the claim under which the run started, and the event after it."""
    events = found.events.get(run.job, [])
    earlier = [
        at
        for at, event in enumerate(events)
        if event.status == "processing" and event.at <= run.start // NS
    ]
    if not earlier:
        return None, None
    at = earlier[-1]
    return events[at], events[at + 1] if at + 1 < len(events) else None


def is_explained(claim_ms: int, taken_ms: int, found: Evidence) -> bool:
    """Whether a fault silenced a process while the job was held, or shortly before it was taken
    away."""
    return any(
        fault.begun // NS <= taken_ms and fault.ended // NS >= claim_ms
        for fault in found.ledger.faults
    )


def most_at_once(held: Sequence[Holding]) -> int:
    """The highest number held at the same time."""
    changes = [(one.start, 1) for one in held] + [(one.end, -1) for one in held]
    count = most = 0
    for _, change in sorted(changes):
        count += change
        most = max(most, count)
    return most


def claims(runs: Iterable[Run], found: Evidence) -> list[list[int]]:
    """The times of the claims that became starts, in ms, in order: one list for each period between
    two jumps of Redis's clock. A jump over a rate's window refills its bucket."""
    events = ((run.job, claim_of(run, found)[0]) for run in runs)
    starts: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for job, event in events:
        if event is not None:
            starts[event.era].add((job, event.at))
    return [sorted(at for _, at in of_era) for of_era in starts.values()]
