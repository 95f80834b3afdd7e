"""set_aging: in queues with this option, waiting raises a job's priority."""

from __future__ import annotations

import pytest

from .lab import ERROR, T0, Lab, invariants, outcome

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


def waited_ms(lab: Lab, lanes: tuple[str, str], low: int) -> int | None:
    """Jobs of priority 5 arrive as fast as jobs end: after how many ms does a job of a low priority
    start? None: not within 5 s."""
    lab.add("low", priority=low, lane=lanes[1])
    lab.add("h0", "h1", priority=5, lane=lanes[0])
    for n in range(2, 52):
        job = lab.take()
        if "c:t=1" in lanes[0]:
            assert lab.taken("c2") == []  # all lanes wait for the limit now
        if job.id == "low":
            return 100 * (n - 2)
        lab.add(f"h{n}", priority=5, lane=lanes[0])
        lab.finish(outcome(job))
        lab.advance(100)
        invariants(lab, tokens=False)
    return None


@pytest.mark.parametrize("low", [3, 0, -2])
@pytest.mark.parametrize("which", LANES)
def test_a_low_priority_starts_although_higher_ones_keep_arriving(
    lab: Lab, which: str, low: int
) -> None:
    lab.store.set_aging({"default": 200})
    found = waited_ms(lab, LANES[which], low)
    due = 200 * (5 - low)
    assert found is not None
    assert due <= found <= due + 400  # of those with the same time, one per share goes first


@pytest.mark.parametrize("which", LANES)
def test_without_aging_it_does_not_start(lab: Lab, which: str) -> None:
    lab.store.set_aging({"other": 200})
    assert waited_ms(lab, LANES[which], 3) is None


def test_the_order_does_not_depend_on_the_size_of_a_claim(lab: Lab) -> None:
    priorities = {f"j{n}": (0, 2, 5, -1)[n * 7 % 4] for n in range(40)}
    orders = []
    for size in (1, 3, 64):
        lab.redis.flushdb()
        lab.store.now_ms = T0
        lab.store.set_aging({"default": SECOND})
        for name, priority in priorities.items():
            lab.add(name, priority=priority)
            lab.advance(300)
        found: list[str] = []
        while ids := lab.taken(jobs=size):
            found += ids
        orders.append(found)
    assert orders[0] == orders[1] == orders[2]
    instants = {name: 300 * n - SECOND * priorities[name] for n, name in enumerate(priorities)}
    assert orders[0] == sorted(instants, key=lambda name: (instants[name], -priorities[name]))


def test_at_equal_times_the_higher_priority_goes_first(lab: Lab) -> None:
    lab.store.set_aging({"default": SECOND})
    lab.add("zero", "next")
    lab.advance(2 * SECOND)
    lab.add("two", priority=2)
    assert lab.taken(jobs=8) == ["two", "zero", "next"]


def test_a_child_takes_no_priority_below_its_own(lab: Lab) -> None:
    lab.store.set_aging({"default": 1})
    for lane in ("", "a", "|c:t: c:t=9"):
        lab.add(f"low{lane[:1]}", priority=-3, lane=lane)
        lab.add(f"zero{lane[:1]}", lane=lane)
    lab.advance(60 * SECOND)
    for lane in ("", "a", "|c:t: c:t=9"):
        lab.add(f"high{lane[:1]}", priority=1, lane=lane)
    assert sorted(lab.taken(jobs=8, min_priority=1)) == ["high", "higha", "high|"]
    assert sorted(lab.taken(jobs=8, min_priority=0)) == ["zero", "zeroa", "zero|"]
    assert sorted(lab.taken(jobs=8)) == ["low", "lowa", "low|"]
    invariants(lab)


def test_a_returning_job_is_first_within_its_priority(lab: Lab) -> None:
    lab.store.set_aging({"default": SECOND})
    lab.add("a", "b", priority=1)
    job = lab.take()
    lab.advance(10 * SECOND)
    lab.add("c", priority=5)
    lab.store.release("c1", [(job.id, job.lease)])
    assert lab.taken(jobs=8) == ["a", "b", "c"]


def test_a_retry_and_a_requeue_start_a_new_wait(lab: Lab) -> None:
    lab.store.set_aging({"default": SECOND})
    lab.add("retry", "again", "fresh", priority=1)
    first, second = lab.claim(jobs=2).jobs
    lab.finish(outcome(first, "retrying"), outcome(second, "failed", ERROR))
    lab.advance(10 * SECOND)
    lab.store.promote(["default"])
    lab.store.requeue(["again"])
    lab.add("high", priority=3)
    assert lab.taken(jobs=8) == ["fresh", "high", "retry", "again"]


def test_aging_can_be_changed_while_jobs_are_queued(lab: Lab) -> None:
    lab.add("old0", "old1")
    lab.add("kept", lane="s")
    lab.advance(60 * SECOND)
    lab.add("high0", "high1", "high2", priority=9)
    assert lab.taken() == ["high0"]
    lab.store.set_aging({"default": SECOND})
    assert sorted(lab.taken(jobs=2)) == ["kept", "old0"]
    lab.store.set_aging({"default": None})
    assert lab.taken(jobs=8) == ["high1", "high2", "old1"]
    invariants(lab)


def test_shares_take_their_turns_within_a_priority(lab: Lab) -> None:
    lab.store.set_aging({"default": SECOND})
    lab.add(*[f"noisy{n}" for n in range(20)], lane="noisy")
    lab.advance(60 * SECOND)
    lab.add("quiet0", "quiet1", lane="quiet")
    lab.add("plain0", "plain1")
    lab.add("vip", priority=50, lane="noisy")
    order = [name for _ in range(9) for name in lab.taken()]
    assert order[:2] == ["noisy0", "vip"]  # its 50 steps are worth less than the 60 s of noisy0
    assert {"plain0", "plain1", "quiet0", "quiet1"} <= set(order[2:8])


def test_a_job_that_must_run_alone_has_had_its_turn(lab: Lab) -> None:
    lab.store.set_aging({"default": 60 * SECOND})
    lab.add("suspect", priority=-1)
    lab.take()
    lab.store.reap("c1", ["suspect"])
    lab.add("a", "b", priority=-1)
    assert lab.taken("c2", jobs=2) == ["suspect"]
    lab.store.reap("c2", ["suspect"])
    lab.add("high", priority=1)
    assert lab.taken("c3", jobs=2) == ["high", "a"]
    assert lab.claim("c3", jobs=1).must_be_alone or lab.ids("priority")
    lab.add("higher", priority=2)
    assert lab.taken("c4", jobs=2) == ["suspect"]


def test_the_cost_of_many_priorities_is_bounded(lab: Lab) -> None:
    lab.store.set_aging({"default": SECOND})
    for priority in range(-100, 101):
        lab.add(f"p{priority}", f"q{priority}", priority=priority)
    assert len(lab.taken(jobs=64)) == 64
    lab.advance(300 * SECOND)
    lab.add("new", priority=100)
    assert lab.taken()[0].startswith(("p", "q"))


def test_a_full_redis_and_a_wrong_type(lab: Lab) -> None:
    with lab.full():
        assert lab.store.set_aging({"default": SECOND}) == 1
    with lab.broken("meta"):
        assert lab.store.set_aging({"default": 5, "other": 5}) == 1
    assert lab.store.set_aging({"default": SECOND, "other": None}) == 1


def test_an_aging_number_changed_by_hand_is_ignored(lab: Lab) -> None:
    lab.redis.hset(lab.keys.queue("default").meta, "aging", "theirs")
    lab.add("low")
    lab.advance(60 * SECOND)
    lab.add("high", priority=1)
    assert lab.taken(jobs=2) == ["high", "low"]
