"""Checks whether each promise was kept. Each promise is a function that yields what contradicts
it."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from tests.broker.harness import check_keyspace
from tests.support.history import flaw

from . import tasks
from .evidence import Evidence, call_of
from .feed import DELAY, KINDS
from .ledger import EVERY, Call, Run
from .limits import claims, holdings, most_at_once
from .owners import Owners, is_permanent

Promise = Callable[[Evidence], Iterator[str]]

EXPECTED = {"failing": "failed", "cancelled": "cancelled"}  # any other call: completed
PARENTS = {
    "parent": [], "child": ["parent"], "top": [], "left": ["top"], "right": ["top"],
    "end": ["left", "right"],
}  # fmt: skip
# The kinds whose calls raise a counter, and the suffixes of the counters' names.
COUNTED = {"exactly_once": ("", "+"), "steps": ("",), "outbox": ("",)}
LEFT_BYTES = 64 * 1024  # in each shard
SHOWN = 5  # contradictions of one promise that are printed


def nothing_is_lost(found: Evidence) -> Iterator[str]:
    """Every accepted job has ended with the expected status."""
    for call in found.ledger.accepted():
        want = EXPECTED.get(call.kind, "completed")
        for job in call.jobs:
            if (status := found.status(job)) != want:
                yield f"{job} of the call {call.id} ({call.kind}) is {status}, not {want}"


def nothing_completes_unrun(found: Evidence) -> Iterator[str]:
    """Every completed job has run to its end, according to its own marks."""
    ended = {run.job for run in found.ledger.all_runs if run.end}
    for job, hash_ in found.jobs.items():
        if hash_["status"] == "completed" and job not in ended:
            yield f"{job} ({hash_['task']}) has completed, and no run of it has ended"


def each_job_ends_once(found: Evidence) -> Iterator[str]:
    """The events of each job lead to one end, without a gap."""
    for job, events in found.events.items():
        wrong = flaw((event.seq, event.status) for event in events)
        if wrong or len(found.ends(job)) > 1:
            told = " ".join(event.status for event in events)
            yield f"{job}: {wrong or 'it has ended more than once'} ({told})"


def nothing_runs_unasked(found: Evidence) -> Iterator[str]:
    """Every job that ran was asked for, and none by a transaction that was rolled back."""
    calls = found.ledger.calls
    for name, runs in found.ledger.runs.items():
        call = calls.get(name.removesuffix("+"))
        if call is None and name != "schedule":
            yield f"{runs[0].job} ran for the call {name}, which nobody made"
        elif call is not None and call.kind == "rolled_back":
            yield f"{runs[0].job} ran, although the transaction of {name} was rolled back"


def no_job_runs_early(found: Evidence) -> Iterator[str]:
    """A job with a delay starts after it, and a dependant after its parents."""
    for call in found.ledger.accepted("delayed"):
        for run in found.ledger.runs[call.id]:
            early_ms = (call.begun - run.start) / 1e6 + DELAY * 1000
            if early_ms > 2:  # Redis counts whole ms
                yield f"{run.job} of the call {call.id} ran {early_ms:.0f} ms early"
    yield from dependants_that_ran_early(found)


def no_job_falls_due_early(found: Evidence) -> Iterator[str]:
    """The same where clocks jump, by Redis's own clock: a delayed job only leaves its list after
    its delay."""
    for call in found.ledger.accepted("delayed"):
        for before, after in pairwise(found.events.get(call.jobs[0], ())):
            is_next = after.seq == before.seq + 1 and not (before.reconciled or after.reconciled)
            waited_ms = after.at_redis - before.at_redis
            if before.status == "scheduled" and is_next and waited_ms < DELAY * 1000:
                yield f"{call.jobs[0]} of the call {call.id} was due after {waited_ms} ms"
    yield from dependants_that_ran_early(found)


def dependants_that_ran_early(found: Evidence) -> Iterator[str]:
    for call in found.ledger.accepted("workflow", "after"):
        for run in found.ledger.runs[call.id]:
            if run.kind == "workflow" and run.marks["parents"] != PARENTS[run.marks["part"]]:
                yield f"{run.job} ran with the results {run.marks['parents']} of its parents"


def workflows_and_gathers_end_once(found: Evidence) -> Iterator[str]:
    """A workflow has one callback, which completes; a gather has one callback, which has all
    results."""
    by_call: dict[str, Counter[str]] = defaultdict(Counter)
    for hash_ in found.jobs.values():
        name, status = hash_["task"].rpartition(".")[2], hash_["status"]
        by_call[call_of(hash_)][name if status == "completed" else f"{name} ({status})"] += 1
    for call in found.ledger.accepted("workflow", "gather"):
        made = by_call[call.id]
        name = "ended" if call.kind == "workflow" else "merged"
        callbacks = [one for one in made if one.startswith((name, "late"))]
        if callbacks != [name] or made[name] != 1:
            yield f"the call {call.id} ({call.kind}) has made {dict(made)}"
        for run in found.ledger.runs[call.id]:
            if run.kind == "merged" and len(run.marks["results"]) != tasks.LISTENERS:
                yield f"{run.job} found only the results {run.marks['results']}"


def effects_happen_once(found: Evidence) -> Iterator[str]:
    """The effects of exactly_once jobs, atomic steps and transactions with the outbox happened
    once."""
    for call in found.ledger.calls.values():
        for suffix in COUNTED.get(call.kind, ()):
            done = found.counters.get(call.id + suffix, 0)
            if done > 1 or (done == 0 and call.answer is not None):
                yield f"the call {call.id}{suffix} ({call.kind}) has had its effect {done} times"
        if call.kind == "rolled_back" and call.id in found.counters:
            yield f"the effect of {call.id} is there, although it was rolled back"


def the_mirror_is_redis(found: Evidence) -> Iterator[str]:
    """Every job in Redis has its record, and the two agree; the outbox has been emptied."""
    yield from found.differences
    if found.outbox:
        yield f"{found.outbox} rows are left in the outbox"


def limits_hold(found: Evidence) -> Iterator[str]:
    """According to the jobs' own marks, no limit was exceeded, and no two jobs with the same unique
    key ran at the same time."""
    by_limit: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in found.ledger.all_runs:
        if "limit" in run.marks:
            by_limit[run.kind, run.marks["limit"]].append(run)
    for (kind, limit), runs in sorted(by_limit.items()):
        held = list(holdings(runs, found))
        yield from (holding.problem for holding in held if holding.problem)
        most = tasks.LIMIT if kind == "limited" else 1
        if (peak := most_at_once(held)) > most:
            yield f"{peak} jobs ran at once under the limit {kind} {limit} of {most}"


def rates_hold(found: Evidence) -> Iterator[str]:
    """No window of a rate has more starts than it allows."""
    runs = [run for run in found.ledger.all_runs if run.kind == "rated"]
    for starts in claims(runs, found):
        for begun, over in zip(starts, starts[tasks.RATE :], strict=False):
            if over - begun < tasks.WINDOW_MS:
                yield f"{tasks.RATE + 1} jobs started in the {over - begun} ms from {begun}"


def unique_keys_hold(found: Evidence) -> Iterator[str]:
    """Every duplicate was answered with a job that had not ended; the newest arguments were run."""
    for call in found.ledger.accepted("unique"):
        assert call.answer is not None
        ends = found.ends(call.jobs[0])
        if call.answer["duplicate"] and ends and ends[0].at < call.begun // 1_000_000:
            yield f"the call {call.id} was answered with {call.jobs[0]}, which had ended"
    last: dict[str, Call] = {}
    for call in found.ledger.accepted("newest"):
        assert call.answer is not None
        last[call.answer["key"]] = call
    ran: dict[str, int] = defaultdict(int)
    for run in found.ledger.all_runs:
        if run.kind == "newest" and run.end:
            ran[run.marks["key"]] = max(ran[run.marks["key"]], run.marks["number"])
    for key, call in last.items():
        assert call.answer is not None
        if ran[key] < call.answer["number"]:
            yield f"the last arguments of {key} ({call.answer['number']}) never ran"


def schedules_fire_once(found: Evidence) -> Iterator[str]:
    """Each due time between the first and the last has exactly one job."""
    jobs: dict[float, set[str]] = defaultdict(set)
    for run in found.ledger.runs["schedule"]:
        jobs[float(run.marks["due"])].add(run.job)
    for due, made in jobs.items():
        if len(made) > 1:
            yield f"the due time {due:.0f} has the jobs {sorted(made)}"
    if jobs:
        due, last = min(jobs), max(jobs)
        while due < last:
            if due not in jobs:
                yield f"the due time {due:.0f} has no job"
            due += EVERY


def every_key_has_an_owner(found: Evidence) -> Iterator[str]:
    """No key is left that nothing would ever delete, and each id is in one place."""
    rest = dict(found.keyspace)
    for keys in found.shards:
        own = {key: rest.pop(key) for key in found.keyspace if key.startswith(keys.base)}
        yield from Owners(own, found.expiring, keys).orphans()
        try:
            check_keyspace(own, keys, tokens=False)
        except AssertionError as error:
            yield f"the keyspace contradicts itself: {str(error) or _failed_line(error)}"
    yield from (f"{key} ({kind}) is in no shard" for key, (kind, _) in rest.items())


def _failed_line(error: AssertionError) -> str:
    """The assertion that failed: outside pytest its message is empty."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name}: {frame.line}"


def memory_is_given_back(found: Evidence) -> Iterator[str]:
    """Once all finished jobs are deleted, only what a fresh Redis also has is left."""
    for key in found.left:
        if not is_permanent(key.partition("}:")[2]):
            yield f"{key} is left when all jobs are deleted"
    size = sum(found.left.values())
    if size > LEFT_BYTES * len(found.shards):
        yield f"{size} bytes are left when all jobs are deleted: {found.left}"


# A failover may undo a claim or a finish that no replica had received. Promises that this can break
# are not checked behind Sentinel, where one of two replicas confirms and the other may be promoted,
# nor on a cluster, where each master has only one replica.
ONE_REDIS: list[Promise] = [
    nothing_is_lost, nothing_completes_unrun, each_job_ends_once, nothing_runs_unasked,
    no_job_runs_early, workflows_and_gathers_end_once, effects_happen_once, the_mirror_is_redis,
    limits_hold, rates_hold, unique_keys_hold, schedules_fire_once, every_key_has_an_owner,
    memory_is_given_back,
]  # fmt: skip
SENTINEL: list[Promise] = [
    nothing_is_lost, nothing_completes_unrun, nothing_runs_unasked, no_job_runs_early,
    effects_happen_once, the_mirror_is_redis, every_key_has_an_owner, memory_is_given_back,
]  # fmt: skip
CLUSTER = [
    *SENTINEL, each_job_ends_once, workflows_and_gathers_end_once, schedules_fire_once,
]  # fmt: skip
PROMISES = {"redis": ONE_REDIS, "sentinel": SENTINEL, "cluster": CLUSTER}
MEMORY = memory_is_given_back
# This promise compares Redis's clock with the true time; where clocks jump, another one replaces
# it.
BY_THE_CLOCK = {no_job_runs_early: no_job_falls_due_early}


def promises_of(on: str, *, memory: bool = True, clock_jumps: bool = False) -> list[Promise]:
    """The promises that are checked for a run."""
    asked = [promise for promise in PROMISES[on] if memory or promise is not MEMORY]
    return [BY_THE_CLOCK.get(promise, promise) for promise in asked] if clock_jumps else asked


@dataclass(frozen=True, slots=True)
class CheckedPromise:
    """A promise, and what contradicts it: the first few contradictions, and their number."""

    promise: str
    shown: list[str]
    count: int


def never_accepted(found: Evidence) -> list[str]:
    """The kinds of calls none of which was accepted: nothing can be said about them."""
    accepted = {call.kind for call in found.ledger.accepted()}
    return [f"{kind} (a call)" for kind in KINDS if kind not in accepted]


def check_promises(
    found: Evidence, promises: Iterable[Promise] = ONE_REDIS
) -> list[CheckedPromise]:
    """Check every promise."""
    checked = []
    for promise in promises:
        contradictions = promise(found)
        shown = list(islice(contradictions, SHOWN))
        count = len(shown) + sum(1 for _ in contradictions)
        checked.append(CheckedPromise(promise.__name__, shown, count))
    return checked
