"""claim: strict order of queues, priority bands, the rules about single jobs and budgets, and wake
tokens."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import WrongKeyType

from .lab import PAYLOAD, T0, Lab, invariants, outcome
from .workflows import LabWorkflow

KEYS_OF_A_QUEUE = [
    "queued", "priority", "scheduled", "retrying", "processing", "wake", "meta",
    "completed", "failed", "cancelled", "waiting",
]  # fmt: skip


def test_a_claim_returns_the_job_and_its_lease(lab: Lab) -> None:
    lab.add("a", payload='[["x"],{}]', options='{"max_attempts":2}')
    claim = lab.claim("c1", call=7)
    (job,) = claim.jobs
    assert (job.id, job.queue, job.task) == ("a", "default", "app.task")
    assert (job.payload, job.options) == ('[["x"],{}]', '{"max_attempts":2}')
    assert (job.lease, job.attempts, job.recoveries, job.call) == (1, 0, 0, 7)
    assert lab.job("a") | {"status": "processing", "child": "c1", "lease": "1"} == lab.job("a")
    assert lab.held("c1") == ["7:a"]
    assert lab.redis.zscore(lab.keys.queue("default").processing, "a") == T0
    assert lab.redis.zscore(lab.keys.workers, "c1") == T0 + 15_000
    assert (
        lab.events("a")[-1] | {"status": "processing", "workerId": "c1", "attempt": 1}
        == (lab.events("a")[-1])
    )
    invariants(lab)


def test_a_claim_of_an_empty_queue_returns_and_writes_nothing(lab: Lab) -> None:
    claim = lab.claim(jobs=10)
    assert (claim.jobs, claim.lost, claim.leave_out, claim.must_be_alone) == ([], [], [], False)
    assert lab.dump() == {}


def test_first_in_first_out(lab: Lab) -> None:
    names = [f"j{n}" for n in range(10)]
    lab.add(*names)
    assert lab.taken(jobs=4) == names[:4]
    assert lab.taken("c2", jobs=100) == names[4:]
    invariants(lab)


def test_priorities_before_age_and_age_within_a_priority(lab: Lab) -> None:
    order = [("n1", -1), ("z1", 0), ("p1", 1), ("n2", -1), ("z2", 0), ("p2", 1), ("top", 100)]
    for name, priority in [*order, ("bottom", -100)]:
        lab.add(name, priority=priority)
    expected = ["top", "p1", "p2", "z1", "z2", "n1", "n2", "bottom"]
    assert lab.queries.ids("default", Status.QUEUED, 0, 99) == expected
    assert lab.taken(jobs=8) == expected
    invariants(lab)


def test_one_at_a_time_gives_the_same_order(lab: Lab) -> None:
    for name, priority in [("n", -1), ("z", 0), ("p", 1), ("q", 1)]:
        lab.add(name, priority=priority)
    assert [lab.take().id for _ in range(4)] == ["p", "q", "z", "n"]


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        (-100, ["p100", "p1", "z", "n1", "n100"]),
        (-99, ["p100", "p1", "z", "n1"]),
        (-1, ["p100", "p1", "z", "n1"]),
        (0, ["p100", "p1", "z"]),
        (1, ["p100", "p1"]),
        (2, ["p100"]),
        (100, ["p100"]),
    ],
)
def test_min_priority(lab: Lab, floor: int, expected: list[str]) -> None:
    for name, priority in [("n100", -100), ("n1", -1), ("z", 0), ("p1", 1), ("p100", 100)]:
        lab.add(name, priority=priority)
    claim = lab.claim(jobs=9, min_priority=floor)
    assert [job.id for job in claim.jobs] == expected
    assert claim.leave_out == []
    again = lab.claim("c2", jobs=9, min_priority=floor)
    assert again.jobs == []
    assert again.leave_out == ([] if floor == -100 else ["default"])
    invariants(lab)


def test_queues_are_emptied_in_strict_order(lab: Lab) -> None:
    lab.add("l1", "l2", queue="low")
    lab.add("h1", "h2", queue="high")
    lab.add("lp", queue="low", priority=100)
    assert lab.taken(jobs=4, queues=["high", "low"]) == ["h1", "h2", "lp", "l1"]
    assert lab.taken(jobs=4, queues=["high", "low"], child="c2") == ["l2"]
    invariants(lab)


def test_a_claim_ignores_other_queues(lab: Lab) -> None:
    lab.add("a", queue="other")
    assert lab.taken(jobs=4) == []


def test_at_most_a_hundred_jobs_a_call(lab: Lab) -> None:
    for batch in range(4):
        lab.add(*[f"{batch}.{n}" for n in range(100)])
    assert len(lab.taken(jobs=2000)) == 100
    invariants(lab)


def test_a_claim_takes_at_most_a_megabyte_of_payload(lab: Lab) -> None:
    for n in range(8):
        lab.add(f"j{n}", payload="x" * 262_144)
    claim = lab.claim(jobs=64, queues=["default", "other"])
    assert [job.id for job in claim.jobs] == ["j0", "j1", "j2"]
    assert (claim.must_be_alone, claim.leave_out) == (False, [])
    assert lab.tokens() == 1
    assert lab.taken("c2", jobs=64) == ["j3", "j4", "j5"]
    invariants(lab)


def test_one_job_is_taken_however_large(lab: Lab) -> None:
    lab.add("huge", payload="x" * 1_200_000)
    lab.add("next")
    assert lab.taken(jobs=64) == ["huge"]
    assert lab.taken("c2", jobs=64) == ["next"]


def test_a_paused_queue_is_skipped(lab: Lab) -> None:
    lab.add("a", queue="stopped")
    lab.add("b", queue="going")
    lab.store.pause("stopped", True)
    claim = lab.claim(jobs=5, queues=["stopped", "going"])
    assert [job.id for job in claim.jobs] == ["b"]
    assert claim.leave_out == ["stopped"]
    lab.pop_token("stopped")
    lab.claim(jobs=5, queues=["stopped", "going"])
    # resume will leave a token; this claim's worker would spin on it
    assert lab.tokens("stopped") == 0
    invariants(lab, tokens=False)


# -- wake tokens


def test_a_claim_that_leaves_work_leaves_a_token(lab: Lab) -> None:
    lab.add("a", "b", "c")
    assert lab.pop_token()
    lab.take()
    assert lab.tokens() == 1
    lab.take("c2")
    assert lab.tokens() == 1


def test_a_claim_that_empties_the_queue_leaves_no_token(lab: Lab) -> None:
    lab.add("a")
    assert lab.pop_token()
    lab.take()
    assert lab.tokens() == 0


def test_a_queue_that_was_not_visited_gets_its_token_back(lab: Lab) -> None:
    lab.add("a", "b", queue="first")
    lab.add("c", queue="second")
    assert lab.pop_token("second")
    claim = lab.claim(jobs=1, queues=["first", "second"])
    assert [job.id for job in claim.jobs] == ["a"]
    assert lab.tokens("second") == 1
    assert claim.leave_out == []
    invariants(lab)


def test_a_claim_that_may_take_nothing_returns_the_token_and_skips_the_queue(lab: Lab) -> None:
    lab.add("a", priority=-5)
    assert lab.pop_token()
    claim = lab.claim(min_priority=0)
    assert (claim.jobs, claim.leave_out) == ([], ["default"])
    invariants(lab)


def test_a_claim_of_no_jobs_only_returns_tokens(lab: Lab) -> None:
    lab.add("a")
    lab.add("b", queue="other", when="+0")
    before = lab.dump()
    assert lab.pop_token()
    assert lab.pop_token("other")
    assert lab.claim(jobs=0, queues=["default", "other", "none"]).jobs == []
    assert lab.dump() == before


# -- resent calls


def test_a_resent_call_returns_the_jobs_of_the_first_time(lab: Lab) -> None:
    lab.add("a", "b", "c", "d")
    first = lab.claim(jobs=2, call=5)
    before = lab.dump()
    assert lab.claim(jobs=2, call=5, resent=True) == first
    assert lab.dump() == before | {lab.keys.resent("c1"): ("string", "5")}
    assert 0 < lab.redis.pttl(lab.keys.resent("c1")) <= 3_600_000


def test_a_resent_call_that_never_arrived_claims(lab: Lab) -> None:
    lab.add("a", "b")
    lab.claim(call=55)
    assert lab.taken(call=5, resent=True) == ["b"]
    invariants(lab)


def test_a_resent_call_after_a_reap_claims_anew(lab: Lab) -> None:
    lab.add("a")
    lab.claim("c1", call=5)
    lab.store.reap("c1", [])
    again = lab.take("c1", call=5, resent=True)
    assert again.lease == 2
    invariants(lab)


def test_a_resent_call_leaves_out_a_job_whose_hash_has_gone(lab: Lab) -> None:
    lab.add("a", "b", "c")
    lab.claim(jobs=3, call=5)
    lab.redis.delete(lab.keys.job("b"))
    assert lab.taken(jobs=3, call=5, resent=True) == ["a", "c"]


def test_a_job_claimed_twice_has_a_higher_lease(lab: Lab) -> None:
    lab.add("a")
    first = lab.take("c1")
    lab.finish(outcome(first, "queued"))
    assert lab.take("c1").lease == 2


def test_a_claim_renews_the_childs_lease_and_never_shortens_it(lab: Lab) -> None:
    lab.add("a", "b")
    lab.take()
    lab.advance(20_000)
    lab.take()
    assert lab.redis.zscore(lab.keys.workers, "c1") == T0 + 35_000
    lab.redis.zadd(lab.keys.workers, {"c1": T0 + 99_000})
    lab.add("c")
    lab.take()
    assert lab.redis.zscore(lab.keys.workers, "c1") == T0 + 99_000


# -- jobs that have taken a worker down run alone


def _crash(lab: Lab, job_id: str) -> None:
    """Let a job's worker die once; the job ends up at the head of its queue."""
    lab.add(job_id)
    job = lab.take("dead")
    assert job.id == job_id
    lab.store.reap("dead", [job_id])


def test_a_recovered_job_is_taken_alone_when_it_is_first(lab: Lab) -> None:
    _crash(lab, "bad")
    lab.add("a", "b")
    claim = lab.claim(jobs=10, queues=["default", "other"])
    assert [(job.id, job.recoveries) for job in claim.jobs] == [("bad", 1)]
    assert (claim.must_be_alone, claim.leave_out) == (False, [])
    assert lab.tokens() == 1
    invariants(lab)


def test_other_jobs_overtake_a_recovered_job(lab: Lab) -> None:
    """Both its own queue's jobs of any priority, and those of lower queues."""
    _crash(lab, "bad")
    lab.add("a", priority=1)
    lab.add("b")
    lab.add("c", priority=-1)
    lab.add("d", queue="other")
    claim = lab.claim(jobs=10, queues=["default", "other"])
    assert [job.id for job in claim.jobs] == ["a", "b", "c", "d"]
    assert (claim.must_be_alone, claim.leave_out) == (True, [])
    assert lab.queries.ids("default", Status.QUEUED, 0, 9) == ["bad"]
    assert lab.tokens() == 1
    invariants(lab)
    assert lab.taken("c2", jobs=10, queues=["default", "other"]) == ["bad"]


def test_a_recovered_job_waits_until_its_child_holds_nothing(lab: Lab) -> None:
    lab.add("a")
    first = lab.take()
    _crash(lab, "bad")
    for _ in range(2):  # it is moved aside, and found there
        claim = lab.claim(jobs=10)
        assert (claim.jobs, claim.must_be_alone, claim.leave_out) == ([], True, ["default"])
        assert lab.tokens() == 1
        invariants(lab)
    lab.add("b")
    second = lab.take()
    assert second.id == "b"
    lab.finish(outcome(first), outcome(second))
    lab.add("c")
    assert lab.taken(jobs=10) == ["bad"]  # as if it had stayed at the head
    assert lab.taken("c2", jobs=10) == ["c"]
    invariants(lab)


@pytest.fixture
def aside(lab: Lab) -> Lab:
    """Jobs that are aside, named after their priority."""
    lab.add("busy", queue="other")
    held = lab.take("busy", queues=["other"])
    for priority in (0, -5, 5):
        lab.add(f"p{priority}", priority=priority)
    dead = {child: lab.take(child).id for child in ("d1", "d2", "d3")}
    for child, job_id in dead.items():
        lab.store.reap(child, [job_id])
    assert lab.taken("busy", jobs=9) == []
    lab.finish(outcome(held), child="busy")
    assert (len(lab.ids("priority")), lab.ids("queued")) == (3, [])
    return lab


def test_jobs_aside_are_taken_by_priority_one_at_a_time(aside: Lab) -> None:
    assert aside.queries.ids("default", Status.QUEUED, 0, 9) == ["p5", "p0", "p-5"]
    assert [aside.taken(f"c{n}", jobs=10) for n in range(4)] == [["p5"], ["p0"], ["p-5"], []]
    invariants(aside)


def test_jobs_of_a_higher_priority_go_before_those_aside(aside: Lab) -> None:
    aside.add("a", priority=6)
    aside.add("b", priority=1)
    assert aside.taken("c1", jobs=1) == ["a"]
    assert aside.taken("c2", jobs=9) == ["p5"]
    assert aside.taken("c3", jobs=1) == ["b"]
    aside.add("c")
    assert aside.taken("c4", jobs=1) == ["p0"]
    assert aside.taken("c5", jobs=1) == ["c"]  # 0 is more than -5
    assert aside.taken("c6", jobs=9) == ["p-5"]


def test_the_lowest_priority_applies_to_jobs_aside(aside: Lab) -> None:
    claims = [aside.taken(f"c{n}", jobs=9, min_priority=0) for n in range(3)]
    assert claims == [["p5"], ["p0"], []]
    assert not aside.claim("c4", jobs=9, min_priority=0).must_be_alone
    assert aside.claim("c4", jobs=9, min_priority=0).leave_out == ["default"]


def test_jobs_aside_can_be_cancelled_requeued_and_cleared(aside: Lab) -> None:
    assert aside.store.cancel(["p5", "p0"]) == [1, 1]
    assert aside.ids("priority") == ["p-5"]
    invariants(aside)
    assert aside.store.requeue(["p0"]) == [1]
    invariants(aside)
    assert aside.taken("c1", jobs=9) == ["p0"]
    assert aside.store.clear("default", "queued").done == 1
    assert aside.status("p-5") == "cancelled"
    invariants(aside)


def test_a_job_that_was_aside_is_released_to_the_head(aside: Lab) -> None:
    job = aside.take()
    aside.store.release("c1", [(job.id, job.lease)])
    assert aside.queries.ids("default", Status.QUEUED, 0, 9) == ["p5", "p0", "p-5"]
    invariants(aside)
    assert aside.taken(jobs=9) == ["p5"]


def test_while_a_recovered_job_runs_its_child_gets_no_other(lab: Lab) -> None:
    _crash(lab, "bad")
    lab.add("a", "b")
    bad = lab.take()
    claim = lab.claim(jobs=10)
    assert (claim.jobs, claim.must_be_alone, claim.leave_out) == ([], True, [])
    assert lab.taken("c2") == ["a"]
    lab.finish(outcome(bad))
    assert lab.taken(jobs=10) == ["b"]
    invariants(lab)


# -- due jobs


def test_due_jobs_are_promoted_inside_a_claim(lab: Lab) -> None:
    lab.add("due", when="+1000")
    lab.add("later", when="+5000")
    assert lab.taken() == []
    lab.advance(1000)
    assert lab.taken() == ["due"]
    assert lab.story("due") == ["scheduled", "queued", "processing"]
    invariants(lab)


def test_a_paused_queue_promotes_nothing(lab: Lab) -> None:
    lab.add("due", when="+1000")
    lab.store.pause("default", True)
    lab.advance(1000)
    assert lab.taken() == []
    assert lab.ids("scheduled") == ["due"]


# -- entries of a queue that are not jobs


@pytest.mark.parametrize(("jobs", "encoding"), [(32, ("ziplist", "listpack")), (33, ("skiplist",))])
def test_a_large_batch_is_kept_as_a_skip_list(
    lab: Lab, jobs: int, encoding: tuple[str, ...]
) -> None:
    ids = [f"{n:02}" for n in range(jobs)]
    lab.add(*ids)
    taken = lab.taken(jobs=jobs)
    assert taken == ids
    assert sorted(lab.ids("processing")) == ids
    key = lab.keys.queue("default").processing
    assert lab.redis.object("encoding", key) in encoding
    invariants(lab)


def test_a_cancelled_id_that_lingers_is_discarded(lab: Lab) -> None:
    lab.add("a", "b", "c")
    lab.store.cancel(["a", "b"])
    assert lab.ids("queued") == ["a", "b", "c"]
    claim = lab.claim(jobs=1)
    assert ([job.id for job in claim.jobs], claim.lost) == (["c"], [])
    assert lab.ids("queued") == []
    assert "lingers" not in lab.job("a")
    invariants(lab)


@pytest.mark.parametrize("leave", ["claim", "clear"])
def test_the_tombstone_of_a_lingering_id_stays_while_its_enqueue_may_be_repeated(
    lab: Lab, leave: str
) -> None:
    lab.add("a")
    lab.store.cancel(["a"])
    lab.advance(4000)
    lab.store.clear("default", "cancelled")
    assert lab.redis.ttl(lab.keys.job("a")) == -1  # as long as its id is in the list
    if leave == "claim":
        assert lab.claim().lost == []
    else:
        lab.store.clear("default", "queued")
    assert lab.ids("queued") == []
    assert lab.add("a") == [False]
    assert 5000 < lab.redis.pttl(lab.keys.job("a")) <= 6000
    invariants(lab)


def test_very_many_cancelled_ids_are_discarded_in_bounded_steps(lab: Lab) -> None:
    names = [f"j{n}" for n in range(100)]
    for batch in "xyz":
        lab.add(*[batch + name for name in names])
        lab.store.cancel([batch + name for name in names])
    lab.add("last")
    assert lab.pop_token()
    first = lab.claim(jobs=64)
    assert (first.jobs, first.leave_out) == ([], [])
    assert 100 <= len(lab.ids("queued")) < 300
    assert lab.tokens() == 1
    invariants(lab)
    assert lab.taken(jobs=64) + lab.taken(jobs=64) + lab.taken(jobs=64) == ["last"]
    invariants(lab)


def test_a_cancelled_and_cleared_id_is_not_called_lost(lab: Lab) -> None:
    lab.add("a", "b")
    lab.store.cancel(["a"])
    lab.store.clear("default", "cancelled")
    invariants(lab)
    lab.advance(10_000)
    claim = lab.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], [])
    assert lab.job("a") == {}
    invariants(lab)


def test_a_missing_hash_is_reported_by_name(lab: Lab) -> None:
    lab.add("a", "b")
    lab.add("p", priority=1)
    lab.redis.delete(lab.keys.job("a"), lab.keys.job("p"))
    claim = lab.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], ["p", "a"])
    invariants(lab)


def test_a_job_key_of_another_type_is_reported_and_left_alone(lab: Lab) -> None:
    lab.add("a", "b", "c")
    lab.redis.delete(lab.keys.job("b"))
    lab.redis.set(lab.keys.job("b"), "theirs")
    claim = lab.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["a", "c"], ["b"])
    assert lab.redis.get(lab.keys.job("b")) == "theirs"
    invariants(lab)


@pytest.mark.parametrize("field", ["task", "payload"])
def test_a_job_with_a_missing_field_is_claimed_so_that_its_child_fails_it(
    lab: Lab, field: str
) -> None:
    lab.add("a")
    lab.redis.hdel(lab.keys.job("a"), field)
    assert getattr(lab.take(), field) == ""
    invariants(lab)


@pytest.mark.parametrize("name", KEYS_OF_A_QUEUE)
def test_only_a_queue_with_a_key_of_another_type_is_blocked(lab: Lab, name: str) -> None:
    lab.add("a", "b", queue="sound")
    lab.add("c", when="+1")
    lab.add("d")
    lab.advance(1)
    with lab.broken(name) as words:
        before = lab.dump()
        claim = lab.claim(jobs=5, queues=["default", "sound"])
        assert [job.id for job in claim.jobs] == ["a", "b"]
        assert list(claim.broken) == ["default"]
        assert words in claim.broken["default"]
        assert _of_queue(lab.dump(), "default") == _of_queue(before, "default")
        assert lab.finish(*map(outcome, claim.jobs)) == [1, 1]
    claim = lab.claim(jobs=5, queues=["default", "sound"])
    assert ([job.id for job in claim.jobs], claim.broken) == (["d", "c"], {})
    invariants(lab)


def _of_queue(dump: dict[str, Any], queue: str) -> dict[str, Any]:
    return {key: value for key, value in dump.items() if f"q:{queue}" in key}


def test_a_cancelled_list_of_another_type_loses_no_outcome(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: []})
    workflow.push()
    lab.redis.hset(lab.keys.workflow(workflow.id), "status", "cancelled")
    with lab.broken("cancelled"):
        before = lab.dump()
        assert lab.claim(jobs=5).broken
        assert lab.dump() == before
    assert lab.taken(jobs=5) == []
    assert sorted(lab.ids("cancelled")) == [workflow.job(0), workflow.job(1)]
    assert lab.meta()["cancelled_total"] == 2
    assert [lab.story(workflow.job(n))[-1] for n in (0, 1)] == ["cancelled", "cancelled"]


def _commands_of_a_claim(lab: Lab) -> int:
    """All its commands, including those inside the script."""
    lab.redis.delete(lab.keys.queue("default").wake)  # the claiming worker has already taken it
    lab.claim("idle")
    lab.redis.delete(lab.keys.queue("default").wake)
    lab.redis.config_resetstat()
    lab.claim("idle")
    stats = lab.redis.info("commandstats")
    return sum(
        stats[name]["calls"] for name in stats if name[:11] not in ("cmdstat_inf", "cmdstat_con")
    )


def test_a_claim_that_finds_nothing_takes_few_commands(lab: Lab) -> None:
    assert _commands_of_a_claim(lab) <= 20  # of a shard without events
    lab.end("a")
    assert _commands_of_a_claim(lab) <= 9
    lab.end("b", verdict="failed")
    lab.add("c")
    lab.store.cancel(["c"])
    assert _commands_of_a_claim(lab) <= 15
    lab.add("d")
    lab.store.pause("default", True)
    assert _commands_of_a_claim(lab) <= 24


@pytest.mark.parametrize("name", ["workers", "events", "held"])
def test_a_shared_key_of_another_type_is_named(lab: Lab, name: str) -> None:
    lab.add("a")
    key = lab.keys.child_processing("c1") if name == "held" else getattr(lab.keys, name)
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.claim()
    assert lab.dump() == before


def test_claims_work_on_a_full_redis(lab: Lab) -> None:
    lab.add("a", payload=PAYLOAD)
    with lab.full():
        assert lab.taken() == ["a"]
    invariants(lab)
