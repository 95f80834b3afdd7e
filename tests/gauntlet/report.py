"""What a run prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from .evidence import Evidence
from .ledger import Ledger, Recovery
from .run import RunResult
from .verdict import CheckedPromise

PASSED, BROKEN, VOID = 0, 1, 3  # exit codes; 2 is a wrong command line


def exit_code(result: RunResult, checked: Sequence[CheckedPromise], missing: Sequence[str]) -> int:
    if result.problem or any(one.count for one in checked):
        return BROKEN
    return VOID if missing else PASSED


def table(result: RunResult, chosen: Sequence[str], ledger: Ledger) -> Iterator[str]:
    """One line per fault. ``stall``: the longest time in which no job ended; ``back``: how long
    after the fault's end a job had started and ended."""
    by_name: dict[str, list[Recovery]] = defaultdict(list)
    for fault, recovery in ledger.recoveries():
        by_name[fault.name].append(recovery)
    columns = ("fired", "lasted", "stall", "longest", "back", "longest")
    yield f"{'seconds (medians)':<20}" + "".join(f"{name:>9}" for name in columns)
    for name in chosen:
        yield f"{name:<20}{result.fired[name]:>9}" + row(by_name[name])
    yield f"{'all':<20}{result.fired.total():>9}"


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
    ends = Counter(found.status(job) for job in found.events)
    yield f"{len(found.events)} jobs in {runs} runs: " + ", ".join(
        f"{count} {status}" for status, count in sorted(ends.items())
    )
    yield f"{sum(found.left.values())} bytes in {len(found.left)} keys once all jobs are deleted"


def promises(checked: Sequence[CheckedPromise]) -> Iterator[str]:
    for one in checked:
        yield f"{'BROKEN' if one.count else 'kept':<7} {one.promise.replace('_', ' ')}"
        yield from (f"        {line}" for line in one.shown)
        if one.count > len(one.shown):
            yield f"        and {one.count - len(one.shown)} more"


def summary(
    result: RunResult, checked: Sequence[CheckedPromise], missing: Sequence[str], seed: int
) -> Iterator[str]:
    code = exit_code(result, checked, missing)
    if result.problem:
        yield f"the run could not go on: {result.problem}"
    if missing:
        yield f"VOID: these never happened: {', '.join(missing)}"
    said = {PASSED: "every promise was kept", BROKEN: "A PROMISE WAS BROKEN", VOID: "void"}[code]
    yield f"{result.fired.total()} faults, seed {seed}: {said}"
