"""What a run prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from .evidence import Evidence
from .ledger import Ledger, Recovery
from .run import Course
from .verdict import Ruling

PASSED, BROKEN, VOID = 0, 1, 3  # exit codes; 2 is a wrong command line


def exit_code(course: Course, rulings: Sequence[Ruling], missing: Sequence[str]) -> int:
    if course.problem or any(ruling.count for ruling in rulings):
        return BROKEN
    return VOID if missing else PASSED


def table(course: Course, chosen: Sequence[str], ledger: Ledger) -> Iterator[str]:
    """One line per fault. ``stall``: the longest time in which no job ended; ``back``: how long
    after the fault's end a job had started and ended."""
    by_name: dict[str, list[Recovery]] = defaultdict(list)
    for fault, recovery in ledger.recoveries():
        by_name[fault.name].append(recovery)
    columns = ("fired", "lasted", "stall", "longest", "back", "longest")
    yield f"{'seconds (medians)':<20}" + "".join(f"{name:>9}" for name in columns)
    for name in chosen:
        yield f"{name:<20}{course.fired[name]:>9}" + row(by_name[name])
    yield f"{'all':<20}{course.fired.total():>9}"


def row(found: Sequence[Recovery]) -> str:
    if not found:
        return ""
    lasted, stalls, backs = zip(*found, strict=True)
    figures = (median(lasted), median(stalls), max(stalls), median(backs), max(backs))
    return "".join(f"{figure:9.2f}" for figure in figures)


def load(found: Evidence) -> Iterator[str]:
    """How much was requested, and what became of it."""
    calls = found.ledger.calls.values()
    kinds = Counter(call.kind for call in found.ledger.accepted())
    refused = sum(bool(call.error) for call in calls)
    unknown = len(calls) - kinds.total() - refused
    yield (
        f"{len(calls)} calls: {kinds.total()} accepted, {refused} refused, {unknown} whose "
        "producer was killed"
    )
    yield ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    runs = sum(map(len, found.ledger.runs.values()))
    ends = Counter(found.status(job) for job in found.stories)
    yield f"{len(found.stories)} jobs in {runs} runs: " + ", ".join(
        f"{count} {status}" for status, count in sorted(ends.items())
    )
    yield f"{sum(found.left.values())} bytes in {len(found.left)} keys once all jobs are deleted"


def promises(rulings: Sequence[Ruling]) -> Iterator[str]:
    for ruling in rulings:
        yield f"{'BROKEN' if ruling.count else 'kept':<7} {ruling.promise.replace('_', ' ')}"
        yield from (f"        {line}" for line in ruling.shown)
        if ruling.count > len(ruling.shown):
            yield f"        and {ruling.count - len(ruling.shown)} more"


def summary(
    course: Course, rulings: Sequence[Ruling], missing: Sequence[str], seed: int
) -> Iterator[str]:
    code = exit_code(course, rulings, missing)
    if course.problem:
        yield f"the run could not go on: {course.problem}"
    if missing:
        yield f"VOID: these never happened: {', '.join(missing)}"
    said = {PASSED: "every promise was kept", BROKEN: "A PROMISE WAS BROKEN", VOID: "void"}[code]
    yield f"{course.fired.total()} faults, seed {seed}: {said}"
