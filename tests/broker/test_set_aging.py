"""set_aging: in queues with this option, waiting raises a job's priority."""

from __future__ import annotations

import pytest

from .harness import ERROR, T0, BrokerHarness, invariants, outcome

SECOND = 1000
LANES = {
    "without lanes": ("", ""),
    "in one lane": ("|c:t: c:t=9", "|c:t: c:t=9"),
    "in two lanes": ("|c:a: c:a=9", "|c:b: c:b=9"),
    "in two shares": ("a", "b"),
    "low without a lane": ("a", ""),
    "high without a lane": ("", "b"),
    "waiting for one limit": ("a|c:t: c:t=1", "b|c:t: c:t=1"),
    "in one chunk": ("|k:t: k:t=1/0", "|k:t: k:t=1/0"),
    "with rates": ("|r:a: r:a=1000/1000000/1", "|r:b: r:b=1000/1000000/1"),
}


def waited_ms(broker: BrokerHarness, lanes: tuple[str, str], low: int) -> int | None:
    """Jobs of priority 5 arrive as fast as jobs end: after how many ms does a job of a low priority
    start? None: not within 5 s."""
    broker.add("low", priority=low, lane=lanes[1])
    broker.add("h0", "h1", priority=5, lane=lanes[0])
    for n in range(2, 52):
        job = broker.take()
        if "c:t=1" in lanes[0]:
            assert broker.taken("c2") == []  # all lanes wait for the limit now
        if job.id == "low":
            return 100 * (n - 2)
        broker.add(f"h{n}", priority=5, lane=lanes[0])
        broker.finish(outcome(job))
        broker.advance(100)
        invariants(broker, tokens=False)
    return None


@pytest.mark.parametrize("low", [3, 0, -2])
@pytest.mark.parametrize("which", LANES)
def test_a_low_priority_starts_although_higher_ones_keep_arriving(
    broker: BrokerHarness, which: str, low: int
) -> None:
    broker.store.set_aging({"default": 200})
    found = waited_ms(broker, LANES[which], low)
    due = 200 * (5 - low)
    assert found is not None
    assert due <= found <= due + 400  # of those with the same time, one per share goes first


@pytest.mark.parametrize("which", LANES)
def test_without_aging_it_does_not_start(broker: BrokerHarness, which: str) -> None:
    broker.store.set_aging({"other": 200})
    assert waited_ms(broker, LANES[which], 3) is None


def test_the_order_does_not_depend_on_the_size_of_a_claim(broker: BrokerHarness) -> None:
    priorities = {f"j{n}": (0, 2, 5, -1)[n * 7 % 4] for n in range(40)}
    orders = []
    for size in (1, 3, 64):
        broker.redis.flushdb()
        broker.store.now_ms = T0
        broker.store.set_aging({"default": SECOND})
        for name, priority in priorities.items():
            broker.add(name, priority=priority)
            broker.advance(300)
        found: list[str] = []
        while ids := broker.taken(jobs=size):
            found += ids
        orders.append(found)
    assert orders[0] == orders[1] == orders[2]
    instants = {name: 300 * n - SECOND * priorities[name] for n, name in enumerate(priorities)}
    assert orders[0] == sorted(instants, key=lambda name: (instants[name], -priorities[name]))


def test_at_equal_times_the_higher_priority_goes_first(broker: BrokerHarness) -> None:
    broker.store.set_aging({"default": SECOND})
    broker.add("zero", "next")
    broker.advance(2 * SECOND)
    broker.add("two", priority=2)
    assert broker.taken(jobs=8) == ["two", "zero", "next"]


def test_a_child_takes_no_priority_below_its_own(broker: BrokerHarness) -> None:
    broker.store.set_aging({"default": 1})
    for lane in ("", "a", "|c:t: c:t=9"):
        broker.add(f"low{lane[:1]}", priority=-3, lane=lane)
        broker.add(f"zero{lane[:1]}", lane=lane)
    broker.advance(60 * SECOND)
    for lane in ("", "a", "|c:t: c:t=9"):
        broker.add(f"high{lane[:1]}", priority=1, lane=lane)
    assert sorted(broker.taken(jobs=8, min_priority=1)) == ["high", "higha", "high|"]
    assert sorted(broker.taken(jobs=8, min_priority=0)) == ["zero", "zeroa", "zero|"]
    assert sorted(broker.taken(jobs=8)) == ["low", "lowa", "low|"]
    invariants(broker)


def test_a_returning_job_is_first_within_its_priority(broker: BrokerHarness) -> None:
    broker.store.set_aging({"default": SECOND})
    broker.add("a", "b", priority=1)
    job = broker.take()
    broker.advance(10 * SECOND)
    broker.add("c", priority=5)
    broker.store.release("c1", [(job.id, job.lease)])
    assert broker.taken(jobs=8) == ["a", "b", "c"]


def test_a_retry_and_a_requeue_start_a_new_wait(broker: BrokerHarness) -> None:
    broker.store.set_aging({"default": SECOND})
    broker.add("retry", "again", "fresh", priority=1)
    first, second = broker.claim(jobs=2).jobs
    broker.finish(outcome(first, "retrying"), outcome(second, "failed", ERROR))
    broker.advance(10 * SECOND)
    broker.store.promote(["default"])
    broker.store.requeue(["again"])
    broker.add("high", priority=3)
    assert broker.taken(jobs=8) == ["fresh", "high", "retry", "again"]


def test_a_requeued_job_has_not_waited_since_it_was_enqueued(broker: BrokerHarness) -> None:
    broker.store.set_aging({"default": SECOND})
    broker.end("again", kind="failed", priority=1)
    broker.advance(10 * SECOND)
    broker.store.requeue(["again"])
    broker.add("high", priority=3)
    assert broker.taken(jobs=2) == ["high", "again"]


def test_aging_can_be_changed_while_jobs_are_queued(broker: BrokerHarness) -> None:
    broker.add("old0", "old1")
    broker.add("kept", lane="s")
    broker.advance(60 * SECOND)
    broker.add("high0", "high1", "high2", priority=9)
    assert broker.taken() == ["high0"]
    broker.store.set_aging({"default": SECOND})
    assert sorted(broker.taken(jobs=2)) == ["kept", "old0"]
    broker.store.set_aging({"default": None})
    assert broker.taken(jobs=8) == ["high1", "high2", "old1"]
    invariants(broker)


def test_shares_take_their_turns_within_a_priority(broker: BrokerHarness) -> None:
    broker.store.set_aging({"default": SECOND})
    broker.add(*[f"noisy{n}" for n in range(20)], lane="noisy")
    broker.advance(60 * SECOND)
    broker.add("quiet0", "quiet1", lane="quiet")
    broker.add("plain0", "plain1")
    broker.add("vip", priority=50, lane="noisy")
    order = [name for _ in range(9) for name in broker.taken()]
    assert order[:2] == ["noisy0", "vip"]  # its 50 steps are worth less than the 60 s of noisy0
    assert {"plain0", "plain1", "quiet0", "quiet1"} <= set(order[2:8])


@pytest.mark.parametrize("lane", ["noisy", ""])
def test_idling_earns_no_credit(broker: BrokerHarness, lane: str) -> None:
    broker.store.set_aging({"default": 3600 * SECOND})
    broker.add("low", priority=-1, lane="low")
    broker.add(*[f"n{n}" for n in range(60)], lane=lane)
    assert len(broker.taken(jobs=20)) == 20
    broker.add(*[f"q{n}" for n in range(60)], lane="quiet")
    assert sum(name[0] == "q" for name in broker.taken("c2", jobs=20)) in (10, 11)


@pytest.mark.parametrize("aging", [None, 10 * SECOND])
def test_a_claim_calls_the_lanes_of_rates_that_are_due(
    broker: BrokerHarness, aging: int | None
) -> None:
    broker.store.set_aging({"default": aging})
    broker.add("a", "b", lane="|r:r: r:r=60/60000000/1")
    broker.add("low0", "low1", priority=-5)
    assert [broker.taken(), broker.taken()] == [["a"], ["low0"]]
    broker.advance(1001)
    assert broker.taken() == ["b"]


def test_a_job_that_must_run_alone_has_had_its_turn(broker: BrokerHarness) -> None:
    broker.store.set_aging({"default": 60 * SECOND})
    broker.add("suspect", priority=-1)
    broker.take()
    broker.store.reap("c1", ["suspect"])
    broker.add("a", "b", priority=-1)
    assert broker.taken("c2", jobs=2) == ["suspect"]
    broker.store.reap("c2", ["suspect"])
    broker.add("high", priority=1)
    assert broker.taken("c3", jobs=2) == ["high", "a"]
    assert broker.claim("c3", jobs=1).must_be_alone or broker.ids("priority")
    broker.add("higher", priority=2)
    assert broker.taken("c4", jobs=2) == ["suspect"]


def test_the_cost_of_many_priorities_is_bounded(broker: BrokerHarness) -> None:
    broker.store.set_aging({"default": SECOND})
    for priority in range(-100, 101):
        broker.add(f"p{priority}", f"q{priority}", priority=priority)
    assert len(broker.taken(jobs=64)) == 64
    broker.advance(300 * SECOND)
    broker.add("new", priority=100)
    assert broker.taken()[0].startswith(("p", "q"))


def test_a_full_redis_and_a_wrong_type(broker: BrokerHarness) -> None:
    with broker.full():
        assert broker.store.set_aging({"default": SECOND}) == 1
    with broker.broken("meta"):
        assert broker.store.set_aging({"default": 5, "other": 5}) == 1
    assert broker.store.set_aging({"default": SECOND, "other": None}) == 1


def test_an_aging_number_changed_by_hand_is_ignored(broker: BrokerHarness) -> None:
    broker.redis.hset(broker.keys.queue("default").meta, "aging", "theirs")
    broker.add("low")
    broker.advance(60 * SECOND)
    broker.add("high", priority=1)
    assert broker.taken(jobs=2) == ["high", "low"]
