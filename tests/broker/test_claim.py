"""claim: strict order of queues, priority bands, the rules about single jobs and budgets, and wake
tokens."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue.core.statuses import Status

from .harness import PAYLOAD, T0, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

KEYS_OF_A_QUEUE = [
    "queued", "priority", "scheduled", "retrying", "processing", "wake", "meta",
    "completed", "failed", "cancelled", "waiting",
]  # fmt: skip


def test_a_claim_returns_the_job_and_its_lease(broker: BrokerHarness) -> None:
    broker.add("a", payload='[["x"],{}]', options='{"max_attempts":2}')
    claim = broker.claim("c1", call=7)
    (job,) = claim.jobs
    assert (job.id, job.queue, job.task) == ("a", "default", "app.task")
    assert (job.payload, job.options) == ('[["x"],{}]', '{"max_attempts":2}')
    assert (job.lease, job.attempts, job.recoveries, job.call) == (1, 0, 0, 7)
    assert broker.job("a") | {"status": "processing", "child": "c1", "lease": "1"} == broker.job(
        "a"
    )
    assert broker.held("c1") == ["7:a"]
    assert broker.redis.zscore(broker.keys.queue("default").processing, "a") == T0
    assert broker.redis.zscore(broker.keys.workers, "c1") == T0 + 15_000
    assert (
        broker.events("a")[-1] | {"status": "processing", "workerId": "c1", "attempt": 1}
        == (broker.events("a")[-1])
    )
    invariants(broker)


def test_a_claim_of_an_empty_queue_returns_and_writes_nothing(broker: BrokerHarness) -> None:
    claim = broker.claim(jobs=10)
    assert (claim.jobs, claim.lost, claim.leave_out, claim.must_be_alone) == ([], [], [], False)
    assert broker.dump() == {}


def test_first_in_first_out(broker: BrokerHarness) -> None:
    names = [f"j{n}" for n in range(10)]
    broker.add(*names)
    assert broker.taken(jobs=4) == names[:4]
    assert broker.taken("c2", jobs=100) == names[4:]
    invariants(broker)


def test_priorities_before_age_and_age_within_a_priority(broker: BrokerHarness) -> None:
    order = [("n1", -1), ("z1", 0), ("p1", 1), ("n2", -1), ("z2", 0), ("p2", 1), ("top", 100)]
    for name, priority in [*order, ("bottom", -100)]:
        broker.add(name, priority=priority)
    expected = ["top", "p1", "p2", "z1", "z2", "n1", "n2", "bottom"]
    assert broker.queries.ids("default", Status.QUEUED, 0, 99) == expected
    assert broker.taken(jobs=8) == expected
    invariants(broker)


def test_one_at_a_time_gives_the_same_order(broker: BrokerHarness) -> None:
    for name, priority in [("n", -1), ("z", 0), ("p", 1), ("q", 1)]:
        broker.add(name, priority=priority)
    assert [broker.take().id for _ in range(4)] == ["p", "q", "z", "n"]


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
def test_min_priority(broker: BrokerHarness, floor: int, expected: list[str]) -> None:
    for name, priority in [("n100", -100), ("n1", -1), ("z", 0), ("p1", 1), ("p100", 100)]:
        broker.add(name, priority=priority)
    claim = broker.claim(jobs=9, min_priority=floor)
    assert [job.id for job in claim.jobs] == expected
    assert claim.leave_out == []
    again = broker.claim("c2", jobs=9, min_priority=floor)
    assert again.jobs == []
    assert again.leave_out == ([] if floor == -100 else ["default"])
    invariants(broker)


def test_queues_are_emptied_in_strict_order(broker: BrokerHarness) -> None:
    broker.add("l1", "l2", queue="low")
    broker.add("h1", "h2", queue="high")
    broker.add("lp", queue="low", priority=100)
    assert broker.taken(jobs=4, queues=["high", "low"]) == ["h1", "h2", "lp", "l1"]
    assert broker.taken(jobs=4, queues=["high", "low"], child="c2") == ["l2"]
    invariants(broker)


def test_a_claim_ignores_other_queues(broker: BrokerHarness) -> None:
    broker.add("a", queue="other")
    assert broker.taken(jobs=4) == []


def test_at_most_a_hundred_jobs_a_call(broker: BrokerHarness) -> None:
    for batch in range(4):
        broker.add(*[f"{batch}.{n}" for n in range(100)])
    assert len(broker.taken(jobs=2000)) == 100
    invariants(broker)


def test_a_claim_takes_at_most_a_megabyte_of_payload(broker: BrokerHarness) -> None:
    for n in range(8):
        broker.add(f"j{n}", payload="x" * 262_144)
    claim = broker.claim(jobs=64, queues=["default", "other"])
    assert [job.id for job in claim.jobs] == ["j0", "j1", "j2"]
    assert (claim.must_be_alone, claim.leave_out) == (False, [])
    assert broker.tokens() == 1
    assert broker.taken("c2", jobs=64) == ["j3", "j4", "j5"]
    invariants(broker)


def test_one_job_is_taken_however_large(broker: BrokerHarness) -> None:
    broker.add("huge", payload="x" * 1_200_000)
    broker.add("next")
    assert broker.taken(jobs=64) == ["huge"]
    assert broker.taken("c2", jobs=64) == ["next"]


def test_a_paused_queue_is_skipped(broker: BrokerHarness) -> None:
    broker.add("a", queue="stopped")
    broker.add("b", queue="going")
    broker.store.pause("stopped", True)
    claim = broker.claim(jobs=5, queues=["stopped", "going"])
    assert [job.id for job in claim.jobs] == ["b"]
    assert claim.leave_out == ["stopped"]
    broker.pop_token("stopped")
    broker.claim(jobs=5, queues=["stopped", "going"])
    # resume will leave a token; this claim's worker would spin on it
    assert broker.tokens("stopped") == 0
    invariants(broker, tokens=False)


# -- wake tokens


def test_a_claim_that_leaves_work_leaves_a_token(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    assert broker.pop_token()
    broker.take()
    assert broker.tokens() == 1
    broker.take("c2")
    assert broker.tokens() == 1


def test_a_claim_that_empties_the_queue_leaves_no_token(broker: BrokerHarness) -> None:
    broker.add("a")
    assert broker.pop_token()
    broker.take()
    assert broker.tokens() == 0


def test_a_queue_that_was_not_visited_gets_its_token_back(broker: BrokerHarness) -> None:
    broker.add("a", "b", queue="first")
    broker.add("c", queue="second")
    assert broker.pop_token("second")
    claim = broker.claim(jobs=1, queues=["first", "second"])
    assert [job.id for job in claim.jobs] == ["a"]
    assert broker.tokens("second") == 1
    assert claim.leave_out == []
    invariants(broker)


def test_a_claim_that_may_take_nothing_returns_the_token_and_skips_the_queue(
    broker: BrokerHarness,
) -> None:
    broker.add("a", priority=-5)
    assert broker.pop_token()
    claim = broker.claim(min_priority=0)
    assert (claim.jobs, claim.leave_out) == ([], ["default"])
    invariants(broker)


def test_a_claim_of_no_jobs_only_returns_tokens(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("b", queue="other", when="+0")
    with broker.unchanged():
        assert broker.pop_token()
        assert broker.pop_token("other")
        assert broker.claim(jobs=0, queues=["default", "other", "none"]).jobs == []


# -- resent calls


def test_a_resent_call_returns_the_jobs_of_the_first_time(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", "d")
    first = broker.claim(jobs=2, call=5)
    before = broker.dump()
    assert broker.claim(jobs=2, call=5, resent=True) == first
    assert broker.dump() == before | {broker.keys.resent("c1"): ("string", "5")}
    assert 0 < broker.redis.pttl(broker.keys.resent("c1")) <= 3_600_000


def test_a_resent_call_that_never_arrived_claims(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.claim(call=55)
    assert broker.taken(call=5, resent=True) == ["b"]
    invariants(broker)


def test_a_resent_call_after_a_reap_claims_anew(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.claim("c1", call=5)
    broker.store.reap("c1", [])
    again = broker.take("c1", call=5, resent=True)
    assert again.lease == 2
    invariants(broker)


def test_a_resent_call_leaves_out_a_job_whose_hash_has_gone(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    broker.claim(jobs=3, call=5)
    broker.redis.delete(broker.keys.job("b"))
    assert broker.taken(jobs=3, call=5, resent=True) == ["a", "c"]


def test_a_job_claimed_twice_has_a_higher_lease(broker: BrokerHarness) -> None:
    broker.add("a")
    first = broker.take("c1")
    broker.finish(outcome(first, "queued"))
    assert broker.take("c1").lease == 2


def test_a_claim_renews_the_childs_lease_and_never_shortens_it(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.take()
    broker.advance(20_000)
    broker.take()
    assert broker.redis.zscore(broker.keys.workers, "c1") == T0 + 35_000
    broker.redis.zadd(broker.keys.workers, {"c1": T0 + 99_000})
    broker.add("c")
    broker.take()
    assert broker.redis.zscore(broker.keys.workers, "c1") == T0 + 99_000


# -- jobs that have taken a worker down run alone


def _crash(broker: BrokerHarness, job_id: str) -> None:
    """Let a job's worker die once; the job ends up at the head of its queue."""
    broker.add(job_id)
    job = broker.take("dead")
    assert job.id == job_id
    broker.store.reap("dead", [job_id])


def test_a_recovered_job_is_taken_alone_when_it_is_first(broker: BrokerHarness) -> None:
    _crash(broker, "bad")
    broker.add("a", "b")
    claim = broker.claim(jobs=10, queues=["default", "other"])
    assert [(job.id, job.recoveries) for job in claim.jobs] == [("bad", 1)]
    assert (claim.must_be_alone, claim.leave_out) == (False, [])
    assert broker.tokens() == 1
    invariants(broker)


def test_other_jobs_overtake_a_recovered_job(broker: BrokerHarness) -> None:
    """Both its own queue's jobs of any priority, and those of lower queues."""
    _crash(broker, "bad")
    broker.add("a", priority=1)
    broker.add("b")
    broker.add("c", priority=-1)
    broker.add("d", queue="other")
    claim = broker.claim(jobs=10, queues=["default", "other"])
    assert [job.id for job in claim.jobs] == ["a", "b", "c", "d"]
    assert (claim.must_be_alone, claim.leave_out) == (True, [])
    assert broker.queries.ids("default", Status.QUEUED, 0, 9) == ["bad"]
    assert broker.tokens() == 1
    invariants(broker)
    assert broker.taken("c2", jobs=10, queues=["default", "other"]) == ["bad"]


def test_a_recovered_job_waits_until_its_child_holds_nothing(broker: BrokerHarness) -> None:
    broker.add("a")
    first = broker.take()
    _crash(broker, "bad")
    for _ in range(2):  # it is moved aside, and found there
        claim = broker.claim(jobs=10)
        assert (claim.jobs, claim.must_be_alone, claim.leave_out) == ([], True, ["default"])
        assert broker.tokens() == 1
        invariants(broker)
    broker.add("b")
    second = broker.take()
    assert second.id == "b"
    broker.finish(outcome(first), outcome(second))
    broker.add("c")
    assert broker.taken(jobs=10) == ["bad"]  # as if it had stayed at the head
    assert broker.taken("c2", jobs=10) == ["c"]
    invariants(broker)


@pytest.fixture
def aside(broker: BrokerHarness) -> BrokerHarness:
    """Jobs that are aside, named after their priority."""
    broker.add("busy", queue="other")
    held = broker.take("busy", queues=["other"])
    for priority in (0, -5, 5):
        broker.add(f"p{priority}", priority=priority)
    dead = {child: broker.take(child).id for child in ("d1", "d2", "d3")}
    for child, job_id in dead.items():
        broker.store.reap(child, [job_id])
    assert broker.taken("busy", jobs=9) == []
    broker.finish(outcome(held), child="busy")
    assert (len(broker.ids("priority")), broker.ids("queued")) == (3, [])
    return broker


def test_jobs_aside_are_taken_by_priority_one_at_a_time(aside: BrokerHarness) -> None:
    assert aside.queries.ids("default", Status.QUEUED, 0, 9) == ["p5", "p0", "p-5"]
    assert [aside.taken(f"c{n}", jobs=10) for n in range(4)] == [["p5"], ["p0"], ["p-5"], []]
    invariants(aside)


def test_a_claim_drops_a_limited_number_of_lost_jobs_that_are_aside(aside: BrokerHarness) -> None:
    key = aside.keys.queue("default").priority
    aside.redis.zadd(key, {f"lost{n:03}": 202 * 2**45 + n for n in range(150)})
    assert len(aside.claim(jobs=10).lost) == 100
    assert aside.taken(jobs=10) == ["p5"]


def test_a_job_aside_runs_without_jobs_that_have_lanes(aside: BrokerHarness) -> None:
    aside.add("a", "b", lane="gold|c:t: c:t=9")
    assert [aside.taken(f"c{n}", jobs=10) for n in range(4)] == [
        ["p5"],
        ["p0"],
        ["p-5"],
        ["a", "b"],
    ]
    invariants(aside)


def test_jobs_of_the_same_priority_go_after_those_aside(aside: BrokerHarness) -> None:
    aside.add("a", priority=5)
    assert [aside.taken(f"c{n}") for n in range(2)] == [["p5"], ["a"]]


def test_jobs_of_a_higher_priority_go_before_those_aside(aside: BrokerHarness) -> None:
    aside.add("a", priority=6)
    aside.add("b", priority=1)
    assert aside.taken("c1", jobs=1) == ["a"]
    assert aside.taken("c2", jobs=9) == ["p5"]
    assert aside.taken("c3", jobs=1) == ["b"]
    aside.add("c")
    assert aside.taken("c4", jobs=1) == ["p0"]
    assert aside.taken("c5", jobs=1) == ["c"]  # 0 is more than -5
    assert aside.taken("c6", jobs=9) == ["p-5"]


def test_the_lowest_priority_applies_to_jobs_aside(aside: BrokerHarness) -> None:
    claims = [aside.taken(f"c{n}", jobs=9, min_priority=0) for n in range(3)]
    assert claims == [["p5"], ["p0"], []]
    assert not aside.claim("c4", jobs=9, min_priority=0).must_be_alone
    assert aside.claim("c4", jobs=9, min_priority=0).leave_out == ["default"]


def test_jobs_aside_can_be_cancelled_requeued_and_cleared(aside: BrokerHarness) -> None:
    assert aside.store.cancel(["p5", "p0"]) == [1, 1]
    assert aside.ids("priority") == ["p-5"]
    invariants(aside)
    assert aside.store.requeue(["p0"]) == [1]
    invariants(aside)
    assert aside.taken("c1", jobs=9) == ["p0"]
    assert aside.store.clear("default", "queued").done == 1
    assert aside.status("p-5") == "cancelled"
    invariants(aside)


def test_a_job_that_was_aside_is_released_to_the_head(aside: BrokerHarness) -> None:
    job = aside.take()
    aside.store.release("c1", [(job.id, job.lease)])
    assert aside.queries.ids("default", Status.QUEUED, 0, 9) == ["p5", "p0", "p-5"]
    invariants(aside)
    assert aside.taken(jobs=9) == ["p5"]


def test_while_a_recovered_job_runs_its_child_gets_no_other(broker: BrokerHarness) -> None:
    _crash(broker, "bad")
    broker.add("a", "b")
    bad = broker.take()
    claim = broker.claim(jobs=10)
    assert (claim.jobs, claim.must_be_alone, claim.leave_out) == ([], True, [])
    assert broker.taken("c2") == ["a"]
    broker.finish(outcome(bad))
    assert broker.taken(jobs=10) == ["b"]
    invariants(broker)


# -- due jobs


def test_due_jobs_are_promoted_inside_a_claim(broker: BrokerHarness) -> None:
    broker.add("due", when="+1000")
    broker.add("later", when="+5000")
    assert broker.taken() == []
    broker.advance(1000)
    assert broker.taken() == ["due"]
    assert broker.event_statuses("due") == ["scheduled", "queued", "processing"]
    invariants(broker)


def test_a_paused_queue_promotes_nothing(broker: BrokerHarness) -> None:
    broker.add("due", when="+1000")
    broker.store.pause("default", True)
    broker.advance(1000)
    assert broker.taken() == []
    assert broker.ids("scheduled") == ["due"]


# -- entries of a queue that are not jobs


@pytest.mark.parametrize(("jobs", "encoding"), [(32, ("ziplist", "listpack")), (33, ("skiplist",))])
def test_a_large_batch_is_kept_as_a_skip_list(
    broker: BrokerHarness, jobs: int, encoding: tuple[str, ...]
) -> None:
    ids = [f"{n:02}" for n in range(jobs)]
    broker.add(*ids)
    taken = broker.taken(jobs=jobs)
    assert taken == ids
    assert sorted(broker.ids("processing")) == ids
    key = broker.keys.queue("default").processing
    assert broker.redis.object("encoding", key) in encoding
    invariants(broker)


def test_a_cancelled_id_that_lingers_is_discarded(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    broker.store.cancel(["a", "b"])
    assert broker.ids("queued") == ["a", "b", "c"]
    claim = broker.claim(jobs=1)
    assert ([job.id for job in claim.jobs], claim.lost) == (["c"], [])
    assert broker.ids("queued") == []
    assert "lingers" not in broker.job("a")
    invariants(broker)


@pytest.mark.parametrize("leave", ["claim", "clear"])
def test_the_tombstone_of_a_lingering_id_stays_while_its_enqueue_may_be_repeated(
    broker: BrokerHarness, leave: str
) -> None:
    broker.add("a")
    broker.store.cancel(["a"])
    broker.advance(4000)
    broker.store.clear("default", "cancelled")
    assert broker.redis.ttl(broker.keys.job("a")) == -1  # as long as its id is in the list
    if leave == "claim":
        assert broker.claim().lost == []
    else:
        broker.store.clear("default", "queued")
    assert broker.ids("queued") == []
    assert broker.add("a") == [False]
    assert 5000 < broker.redis.pttl(broker.keys.job("a")) <= 6000
    invariants(broker)


def test_very_many_cancelled_ids_are_discarded_in_bounded_steps(broker: BrokerHarness) -> None:
    names = [f"j{n}" for n in range(100)]
    for batch in "xyz":
        broker.add(*[batch + name for name in names])
        broker.store.cancel([batch + name for name in names])
    broker.add("last")
    assert broker.pop_token()
    first = broker.claim(jobs=64)
    assert (first.jobs, first.leave_out) == ([], [])
    assert 100 <= len(broker.ids("queued")) < 300
    assert broker.tokens() == 1
    invariants(broker)
    assert broker.taken(jobs=64) + broker.taken(jobs=64) + broker.taken(jobs=64) == ["last"]
    invariants(broker)


def test_a_cancelled_and_cleared_id_is_not_called_lost(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.store.cancel(["a"])
    broker.store.clear("default", "cancelled")
    invariants(broker)
    broker.advance(10_000)
    claim = broker.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], [])
    assert broker.job("a") == {}
    invariants(broker)


def test_a_missing_hash_is_reported_by_name(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.add("p", priority=1)
    broker.redis.delete(broker.keys.job("a"), broker.keys.job("p"))
    claim = broker.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], ["p", "a"])
    invariants(broker)


def test_a_job_key_of_another_type_is_reported_and_left_alone(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    broker.redis.set(broker.keys.job("b"), "theirs")
    claim = broker.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["a", "c"], ["b"])
    assert broker.redis.get(broker.keys.job("b")) == "theirs"
    invariants(broker)


@pytest.mark.parametrize("field", ["task", "payload"])
def test_a_job_with_a_missing_field_is_claimed_so_that_its_child_fails_it(
    broker: BrokerHarness, field: str
) -> None:
    broker.add("a")
    broker.redis.hdel(broker.keys.job("a"), field)
    assert getattr(broker.take(), field) == ""
    invariants(broker)


@pytest.mark.parametrize("name", KEYS_OF_A_QUEUE)
def test_only_a_queue_with_a_key_of_another_type_is_blocked(
    broker: BrokerHarness, name: str
) -> None:
    broker.add("a", "b", queue="sound")
    broker.add("c", when="+1")
    broker.add("d")
    broker.advance(1)
    with broker.broken(name) as words:
        before = broker.dump()
        claim = broker.claim(jobs=5, queues=["default", "sound"])
        assert [job.id for job in claim.jobs] == ["a", "b"]
        assert list(claim.broken) == ["default"]
        assert words in claim.broken["default"]
        assert _of_queue(broker.dump(), "default") == _of_queue(before, "default")
        assert broker.finish(*map(outcome, claim.jobs)) == [1, 1]
    claim = broker.claim(jobs=5, queues=["default", "sound"])
    assert ([job.id for job in claim.jobs], claim.broken) == (["d", "c"], {})
    invariants(broker)


def _of_queue(dump: dict[str, Any], queue: str) -> dict[str, Any]:
    return {key: value for key, value in dump.items() if f"q:{queue}" in key}


def test_a_cancelled_list_of_another_type_loses_no_outcome(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.push()
    broker.redis.hset(broker.keys.workflow(workflow.id), "status", "cancelled")
    with broker.broken("cancelled"), broker.unchanged():
        assert broker.claim(jobs=5).broken
    assert broker.taken(jobs=5) == []
    assert sorted(broker.ids("cancelled")) == [workflow.job(0), workflow.job(1)]
    assert broker.meta()["cancelled_total"] == 2
    assert [broker.event_statuses(workflow.job(n))[-1] for n in (0, 1)] == [
        "cancelled",
        "cancelled",
    ]


def _commands_of_a_claim(broker: BrokerHarness) -> int:
    """All its commands, including those inside the script."""
    # the claiming worker has already taken it
    broker.redis.delete(broker.keys.queue("default").wake)
    broker.claim("idle")
    broker.redis.delete(broker.keys.queue("default").wake)
    broker.redis.config_resetstat()
    broker.claim("idle")
    stats = broker.redis.info("commandstats")
    return sum(
        stats[name]["calls"] for name in stats if name[:11] not in ("cmdstat_inf", "cmdstat_con")
    )


def test_a_claim_that_finds_nothing_takes_few_commands(broker: BrokerHarness) -> None:
    assert _commands_of_a_claim(broker) <= 20  # of a shard without events
    broker.end("a")
    assert _commands_of_a_claim(broker) <= 9
    broker.end("b", kind="failed")
    broker.add("c")
    broker.store.cancel(["c"])
    assert _commands_of_a_claim(broker) <= 15
    broker.add("d")
    broker.store.pause("default", True)
    assert _commands_of_a_claim(broker) <= 24


@pytest.mark.parametrize("name", ["workers", "events", "held"])
def test_a_shared_key_of_another_type_is_named(broker: BrokerHarness, name: str) -> None:
    broker.add("a")
    key = broker.keys.child_processing("c1") if name == "held" else getattr(broker.keys, name)
    with broker.refused_over(key):
        broker.claim()


def test_claims_work_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a", payload=PAYLOAD)
    with broker.full():
        assert broker.taken() == ["a"]
    invariants(broker)
