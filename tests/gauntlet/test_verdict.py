"""The verdict detects each broken promise, planted once in an otherwise sound history."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from . import report
from .evidence import Event, Evidence, RedisClock
from .ledger import Fault, Jump, read
from .limits import NS
from .plan import make_plan
from .run import RunResult
from .verdict import (
    MEMORY,
    ONE_REDIS,
    CheckedPromise,
    check_promises,
    never_accepted,
    no_job_falls_due_early,
    no_job_runs_early,
    promises_of,
)

T0 = 1_700_000_000_000  # ms


class History:
    """Builds a history of calls, runs and events, line by line, with its own clock."""

    def __init__(self) -> None:
        self.now = T0
        self.lines: list[dict[str, Any]] = []
        self.events: dict[str, list[Event]] = {}
        self.hashes: dict[str, dict[str, str]] = {}

    def line(self, what: str, pid: int = 1, **fields: Any) -> None:
        self.now += 1
        self.lines.append({"what": what, "at": self.now * NS, "pid": pid, **fields})

    def call(self, call: str, kind: str, *jobs: str, **answer: Any) -> None:
        self.line("call", call=call, kind=kind)
        self.line("accepted", call=call, jobs=list(jobs), **answer)

    def event(self, job: str, *statuses: str) -> None:
        for status in statuses:
            self.now += 1
            events = self.events.setdefault(job, [])
            events.append(Event(len(events) + 1, status, self.now))

    def starts(self, job: str, call: str, kind: str = "plain", pid: int = 10, **marks: Any) -> None:
        self.event(job, "processing")
        self.line("start", pid, kind=kind, call=call, job=job, **marks)

    def ends(self, job: str, call: str, status: str = "completed", pid: int = 10) -> None:
        self.line("end", pid, kind="", call=call, job=job)
        self.event(job, status)

    def runs(self, job: str, call: str, kind: str = "plain", task: str = "", **marks: Any) -> None:
        """The whole life of a job that completes."""
        self.event(job, "queued")
        self.starts(job, call, kind, **marks)
        self.ends(job, call)
        self.hash(job, call, task or kind)

    def hash(self, job: str, call: str, task: str) -> None:
        self.hashes[job] = {
            "status": self.events[job][-1].status,
            "task": f"tests.gauntlet.tasks.{task}",
            "payload": json.dumps([[call], {}]),
            "bytes": "400",
            "finished_ms": str(self.now),
            "seq": str(len(self.events[job])),
        }

    def evidence(self) -> Evidence:
        found = Evidence(read(map(json.dumps, self.lines)), events=self.events)
        keys, queue = found.keys, found.keys.queue("default")
        for job, hash_ in self.hashes.items():
            found.keyspace[keys.job(job)] = ("hash", dict(hash_))
            listed = found.keyspace.setdefault(getattr(queue, hash_["status"]), ("zset", []))[1]
            listed.append((job, float(hash_["finished_ms"])))
        size = sum(int(hash_["bytes"]) for hash_ in self.hashes.values())
        found.keyspace[queue.meta] = ("hash", {"finished_bytes": str(size)})
        found.keyspace[keys.queues] = ("set", {"default"})
        found.counters = {"once": 1, "once+": 1}
        return found


def a_sound_history() -> History:
    """A small sound history with some of everything."""
    history = History()
    history.call("one", "plain", "j1")
    history.runs("j1", "one")
    history.call("once", "exactly_once", "j2")
    history.runs("j2", "once", "exactly_once", "counted")
    history.runs("j3", "once+", "exactly_once", "counted_too")
    history.call("undone", "rolled_back")
    for n in range(4):
        history.call(f"l{n}", "limited", f"l{n}")
        history.runs(f"l{n}", f"l{n}", "limited", limit="all")
    for n in range(6):
        history.call(f"r{n}", "rated", f"r{n}")
        history.now += 200
        history.runs(f"r{n}", f"r{n}", "rated")
    history.call("u1", "unique", "u1", duplicate=False)
    history.event("u1", "queued")
    history.call("u2", "unique", "u1", duplicate=True)
    history.starts("u1", "u1", "unique", limit="a")
    history.ends("u1", "u1")
    history.hash("u1", "u1", "unique")
    history.call("n1", "newest", "n1", duplicate=False, key="a", number=1)
    history.runs("n1", "n1", "newest", key="a", number=1)
    history.call("flow", "workflow", "f.0")
    history.runs("f.0", "flow", "workflow", "part", part="top", parents=[])
    history.runs("f.c", "flow", "callback", "ended")
    for n in range(3):
        history.runs(f"s{n}", "schedule", "schedule", "due", due=str(100.0 + 2 * n))
        history.hashes[f"s{n}"]["payload"] = "[[],{}]"
    return history


def broken(found: Evidence) -> dict[str, list[str]]:
    """The broken promises, with the evidence against each."""
    return {one.promise: one.shown for one in check_promises(found, ONE_REDIS) if one.count}


def test_a_sound_history_keeps_every_promise() -> None:
    assert broken(a_sound_history().evidence()) == {}


def lost(history: History) -> None:
    history.call("gone", "plain", "gone")


def unfinished(history: History) -> None:
    history.call("stuck", "plain", "stuck")
    history.event("stuck", "queued", "processing")


def failed(history: History) -> None:
    history.call("bad", "plain", "bad")
    history.event("bad", "queued")
    history.starts("bad", "bad")
    history.event("bad", "failed")


def ended_twice(history: History) -> None:
    history.event("j1", "completed")


def a_gap(history: History) -> None:
    del history.events["j1"][1]


def never_ran(history: History) -> None:
    history.lines = [line for line in history.lines if line.get("job") != "j1"]


def unasked(history: History) -> None:
    history.runs("odd", "nobody")


def rolled_back(history: History) -> None:
    history.runs("undone", "undone")


def early(history: History) -> None:
    history.call("later", "delayed", "later")
    history.event("later", "scheduled")
    history.runs("later", "later")


def before_its_parents(history: History) -> None:
    history.runs("f.3", "flow", "workflow", "part", part="end", parents=["left"])


def a_callback_fails(history: History) -> None:
    history.hashes["f.c"]["status"] = "failed"


def two_callbacks(history: History) -> None:
    history.runs("f.d", "flow", "callback", "ended")


def over_the_limit(history: History) -> None:
    for n in range(4):
        history.call(f"m{n}", "limited", f"m{n}")
        history.event(f"m{n}", "queued")
        history.starts(f"m{n}", f"m{n}", "limited", pid=20 + n, limit="all")
    for n in range(4):
        history.ends(f"m{n}", f"m{n}", pid=20 + n)
        history.hash(f"m{n}", f"m{n}", "limited")


def taken_from_the_living(history: History) -> None:
    history.call("m", "limited", "m")
    history.event("m", "queued")
    history.starts("m", "m", "limited", limit="all")
    history.event("m", "queued")
    history.starts("m", "m", "limited", pid=11, limit="all")
    history.line("end", 10, kind="", call="m", job="m")
    history.ends("m", "m", pid=11)
    history.hash("m", "m", "limited")


def too_fast(history: History) -> None:
    for n in range(6):
        history.call(f"q{n}", "rated", f"q{n}")
        history.now += 50
        history.runs(f"q{n}", f"q{n}", "rated")


def a_duplicate_of_the_dead(history: History) -> None:
    history.call("u3", "unique", "u1", duplicate=True)


def the_last_write_is_lost(history: History) -> None:
    history.call("n2", "newest", "n1", duplicate=True, key="a", number=2)


def due_twice(history: History) -> None:
    history.runs("again", "schedule", "schedule", "due", due="102.0")
    history.hashes["again"]["payload"] = "[[],{}]"


def not_due(history: History) -> None:
    history.lines = [line for line in history.lines if line.get("job") != "s1"]


@pytest.mark.parametrize(
    ("plant", "promise", "said"),
    [
        (lost, "nothing_is_lost", "gone of the call gone (plain) is unheard of, not completed"),
        (unfinished, "nothing_is_lost", "stuck of the call stuck (plain) is processing"),
        (unfinished, "each_job_ends_once", "it has not ended but is processing"),
        (failed, "nothing_is_lost", "bad of the call bad (plain) is failed, not completed"),
        (ended_twice, "each_job_ends_once", "completed follows completed"),
        (a_gap, "each_job_ends_once", "event 2 has the number 3"),
        (never_ran, "nothing_completes_unrun", "j1 (tests.gauntlet.tasks.plain) has completed"),
        (unasked, "nothing_runs_unasked", "odd ran for the call nobody, which nobody made"),
        (rolled_back, "nothing_runs_unasked", "the transaction of undone was rolled back"),
        (early, "no_job_runs_early", "later of the call later ran 395 ms early"),
        (before_its_parents, "no_job_runs_early", "ran with the results ['left']"),
        (a_callback_fails, "workflows_and_gathers_end_once", "'ended (failed)': 1"),
        (two_callbacks, "workflows_and_gathers_end_once", "(workflow) has made {'part': 1, 'en"),
        (over_the_limit, "limits_hold", "4 jobs ran at once under the limit limited all of 3"),
        (taken_from_the_living, "limits_hold", "m was taken from a child that nothing had stop"),
        (too_fast, "rates_hold", "6 jobs started in the"),
        (a_duplicate_of_the_dead, "unique_keys_hold", "answered with u1, which had ended"),
        (the_last_write_is_lost, "unique_keys_hold", "the last arguments of a (2) never ran"),
        (due_twice, "schedules_fire_once", "the due time 102 has the jobs ['again', 's1']"),
        (not_due, "schedules_fire_once", "the due time 102 has no job"),
    ],
)
def test_what_breaks_a_promise_is_found(
    plant: Callable[[History], None], promise: str, said: str
) -> None:
    history = a_sound_history()
    plant(history)
    found = broken(history.evidence())
    assert promise in found, found
    assert said in "\n".join(found[promise])


def doubled(found: Evidence) -> None:
    found.counters["once"] = 2


def missing(found: Evidence) -> None:
    del found.counters["once+"]


def not_rolled_back(found: Evidence) -> None:
    found.counters["undone"] = 1


def another_mirror(found: Evidence) -> None:
    found.differences.append("j1 is only in Redis")


def a_row(found: Evidence) -> None:
    found.outbox = 1


def an_orphan(found: Evidence) -> None:
    found.keyspace[found.keys.unique("key")] = ("string", "j1")


def a_strange_key(found: Evidence) -> None:
    found.keyspace["elsewhere"] = ("string", "")


def a_job_in_no_list(found: Evidence) -> None:
    queue = found.keys.queue("default")
    found.keyspace[queue.completed][1].pop()


def left_over(found: Evidence) -> None:
    found.left[found.keys.job("j1")] = 400


def grown(found: Evidence) -> None:
    found.left[found.keys.limits] = 70_000


def a_held_job(found: Evidence) -> None:
    found.keyspace[found.keys.child_processing("c")] = ("list", ["1:j1"])


def a_resend_that_is_kept(found: Evidence) -> None:
    found.keyspace[found.keys.base + "child:c:resent"] = ("string", "7")


@pytest.mark.parametrize(
    ("plant", "promise", "said"),
    [
        (a_resend_that_is_kept, "every_key_has_an_owner", "child:c:resent (string)"),
        (doubled, "effects_happen_once", "once (exactly_once) has had its effect 2 times"),
        (missing, "effects_happen_once", "once+ (exactly_once) has had its effect 0 times"),
        (not_rolled_back, "effects_happen_once", "the effect of undone is there"),
        (another_mirror, "the_mirror_is_redis", "j1 is only in Redis"),
        (a_row, "the_mirror_is_redis", "1 rows are left in the outbox"),
        (an_orphan, "every_key_has_an_owner", "job_queue:{0}:unique:key (string)"),
        (a_strange_key, "every_key_has_an_owner", "elsewhere (string)"),
        (a_job_in_no_list, "every_key_has_an_owner", "job_queue:{0}:job:s2 (hash)"),
        (left_over, "memory_is_given_back", "job_queue:{0}:job:j1 is left when all jobs are"),
        (grown, "memory_is_given_back", "70000 bytes are left when all jobs are deleted"),
        (a_held_job, "every_key_has_an_owner", "job_queue:{0}:child:c:processing (list)"),
    ],
)
def test_contradictions_in_redis_and_the_database_are_found(
    plant: Callable[[Evidence], None], promise: str, said: str
) -> None:
    found = a_sound_history().evidence()
    plant(found)
    assert said in "\n".join(broken(found)[promise])


def test_a_key_that_expires_needs_no_owner() -> None:
    found = a_sound_history().evidence()
    an_orphan(found)
    found.expiring.add(found.keys.unique("key"))
    assert broken(found) == {}


def test_a_child_with_a_lease_owns_its_resent_calls() -> None:
    found = a_sound_history().evidence()
    a_resend_that_is_kept(found)
    found.keyspace[found.keys.workers] = ("zset", [("c", 1.0)])
    assert broken(found) == {}


def test_a_fault_explains_why_a_job_was_taken_from_its_child() -> None:
    history = a_sound_history()
    begun = history.now
    taken_from_the_living(history)
    found = history.evidence()
    found.ledger.faults.append(Fault("child_frozen", begun * NS, history.now * NS, [10]))
    assert broken(found) == {}


def test_a_fault_that_never_fired_makes_the_run_void() -> None:
    result = RunResult()
    result.fired["redis_killed"] += 1
    kept = [CheckedPromise("nothing_is_lost", [], 0)]
    broken_one = [CheckedPromise("nothing_is_lost", ["j1 is lost"], 1)]
    assert result.missing(["redis_killed"]) == []
    gone = result.missing(["connections_cut", "redis_killed"])
    assert gone == ["connections_cut"]
    assert report.exit_code(result, kept, []) == report.PASSED
    assert report.exit_code(result, kept, gone) == report.VOID
    assert report.exit_code(result, broken_one, gone) == report.BROKEN
    said = "\n".join(report.summary(result, kept, gone, 7))
    assert said == "VOID: these never happened: connections_cut\n1 faults, seed 7: void"


def test_a_verb_that_was_never_accepted_makes_the_run_void() -> None:
    said = never_accepted(a_sound_history().evidence())
    assert "steps (a call)" in said
    assert "plain (a call)" not in said


def test_how_long_a_fault_kept_all_workers_from_working() -> None:
    history = History()
    for name in "abc":
        history.call(name, "plain", name)
        history.runs(name, name)
        history.now += 1000
    found = history.evidence()
    begun = found.ledger.runs["b"][0].end - 1
    found.ledger.faults.append(Fault("redis_killed", begun, begun + 500 * NS, []))
    ((_, recovery),) = found.ledger.recoveries()
    assert recovery.lasted == 0.5
    assert recovery.stall == pytest.approx(1.007, abs=0.001)
    assert recovery.back == pytest.approx(0.507, abs=0.001)


def test_a_run_that_could_not_continue_has_not_passed() -> None:
    result = RunResult(problem="no job ran")
    assert report.exit_code(result, [], []) == report.BROKEN


def test_the_same_seed_gives_the_same_plan() -> None:
    def first(seed: int) -> list[Any]:
        plan = make_plan(seed, ["b", "a", "c"])
        return [next(plan) for _ in range(30)]

    assert first(7) == first(7) != first(8)
    assert {planned.fault for planned in first(7) if planned.round == 4} == {"a", "b", "c"}


def test_an_unknown_line_in_the_ledger_is_refused() -> None:
    with pytest.raises(ValueError, match="a line of the ledger says 'odd'"):
        read(['{"what": "odd", "at": 1, "pid": 1}'])


def test_where_clocks_jump_delays_are_checked_by_the_clock_of_redis() -> None:
    assert promises_of("redis") == ONE_REDIS
    jumping = promises_of("redis", clock_jumps=True, memory=False)
    assert len(jumping) == len(ONE_REDIS) - 1
    assert set(ONE_REDIS) - set(jumping) == {no_job_runs_early, MEMORY}
    assert set(jumping) - set(ONE_REDIS) == {no_job_falls_due_early}


@pytest.mark.parametrize(("waited_ms", "said"), [(400, []), (399, ["later", "399 ms"])])
def test_a_delay_by_the_clock_of_redis(waited_ms: int, said: list[str]) -> None:
    """The clock jumped ahead in between, so the true wait was shorter."""
    history = a_sound_history()
    history.call("later", "delayed", "later")
    at = history.now
    history.events["later"] = [
        Event(1, "scheduled", at), Event(2, "queued", at + 100, ahead=waited_ms - 100, era=1)
    ]  # fmt: skip
    told = list(no_job_falls_due_early(history.evidence()))
    assert len(told) == bool(said)
    assert all(word in told[0] for word in said)


def test_a_rate_is_only_checked_between_two_jumps() -> None:
    history = a_sound_history()
    too_fast(history)
    for events in history.events.values():
        events[:] = [event._replace(era=event.at % 2) for event in events]
    assert "rates_hold" not in broken(history.evidence())


@pytest.mark.parametrize(
    ("place", "at_ms", "era"),
    [
        ((100, 999), T0 + 5, 0),  # before the first reading
        ((101, 0), T0 + 9, 0),  # between both readings, by the old clock
        ((101, 0), T0 + 5010, 1),
        ((105, 0), T0 + 5020, 1),
        ((201, 0), T0 + 13_998, 1),
        ((201, 0), T0 + 5021, 2),  # the clock is back at a time that it had shown long before
        ((205, 0), T0 + 5021, 2),
    ],
)
def test_the_position_of_an_event_tells_which_clock_it_is_by(
    place: tuple[int, int], at_ms: int, era: int
) -> None:
    jumps = [
        Jump((T0 + 10) * NS, 5000, T0 + 5, [(100, 999)], [(102, 999)]),
        Jump((T0 + 9000) * NS, -3980, T0 + 13_995, [(200, 999)], [(202, 999)]),
    ]
    assert RedisClock(jumps).read(0, place, at_ms) == (era, [0, 5000, -3980][era])
