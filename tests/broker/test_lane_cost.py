"""The number of Redis commands that jobs with lanes cost."""

from __future__ import annotations

from collections.abc import Callable

from django_redisqueue.broker.commands import ClaimRequest

from .lab import Lab, invariants, outcome

EACH = "|c:t:{} c:t=9"
OWN = 3  # HMGET and HSET for the job, and the lane's head


def _commands(lab: Lab, act: Callable[[], object]) -> int:
    lab.redis.config_resetstat()
    act()
    stats = lab.redis.info("commandstats")
    ours = {"cmdstat_evalsha", "cmdstat_config|resetstat"}
    return sum(entry["calls"] for name, entry in stats.items() if name not in ours)


def _cost_of_a_claim(lab: Lab, lanes: int, jobs_of_each: int) -> int:
    lab.redis.flushdb()
    for n in range(lanes * jobs_of_each):
        lab.add(f"j{n}", lane=EACH.format(n % lanes))
    lab.taken()  # what only a first call costs
    return _commands(lab, lambda: lab.taken(jobs=lanes))


def test_a_lane_of_one_job_costs_one_command_more_than_its_job(lab: Lab) -> None:
    assert _cost_of_a_claim(lab, 31, 1) - _cost_of_a_claim(lab, 11, 1) == 20 * OWN


def test_a_lane_with_a_next_job_costs_one_command_more(lab: Lab) -> None:
    few, many = _cost_of_a_claim(lab, 11, 3), _cost_of_a_claim(lab, 31, 3)
    assert many - few <= 20 * (OWN + 1)


def test_lanes_that_wait_cost_a_claim_nothing(lab: Lab) -> None:
    costs = []
    for lanes in (3, 60):
        lab.redis.flushdb()
        for n in range(lanes):
            lab.add(f"j{n}", lane=f"u{n}|c:all: c:all=1")
        job = lab.take()
        while lab.redis.hlen(lab.keys.queue("default").parked) < lanes - 1:
            assert lab.taken("c2", jobs=64) == []
        request, done = ClaimRequest("c1", ("default",)), [outcome(job)]
        costs.append(_commands(lab, lambda: lab.store.finish(request, 9, done, 64)))  # noqa: B023
        invariants(lab, tokens=False)
    assert costs[1] <= costs[0]


def test_slots_of_many_jobs_are_not_scanned(lab: Lab) -> None:
    lab.add(*[f"j{n}" for n in range(40)], lane="|c:t: c:t=99")
    lab.taken(jobs=40)
    assert lab.redis.object("encoding", lab.keys.slots) == "skiplist"
    invariants(lab)


def test_many_jobs_are_added_to_an_empty_key_as_to_a_skip_list(lab: Lab) -> None:
    lab.add(*[f"j{n}" for n in range(40)], lane="|c:t: c:t=99")
    lab.redis.config_resetstat()
    jobs = lab.taken(jobs=40)
    keys = lab.keys.slots, lab.keys.queue("default").processing
    assert [lab.redis.zcard(key) for key in keys] == [len(jobs), 40]
    # none that must be converted
    assert "cmdstat_object|encoding" not in lab.redis.info("commandstats")
    assert [lab.redis.object("encoding", key) for key in keys] == ["skiplist", "skiplist"]


def test_a_claim_of_many_lanes_counts_the_slots_of_all_at_once(lab: Lab) -> None:
    for n in range(60):
        lab.add(f"j{n}", lane=f"|c:t:{n % 20} c:t=2")
    assert len(lab.taken("c1", jobs=20)) == 20
    lab.redis.config_resetstat()
    assert len(lab.taken("c2", jobs=64)) == 20  # the second job of each lane
    asked = lab.redis.info("commandstats")["cmdstat_zlexcount"]["calls"]
    assert asked == 10  # 5 of 20 slots, and 10 of 40: from then on, reading them all is cheaper
    invariants(lab)


def test_a_claim_of_few_lanes_does_not_read_the_slots_of_others(lab: Lab) -> None:
    for n in range(40):
        lab.add(f"j{n}", lane=EACH.format(n))
    assert len(lab.taken("c1", jobs=36)) == 36
    lab.redis.config_resetstat()
    assert len(lab.taken("c2", jobs=64)) == 4
    assert lab.redis.info("commandstats")["cmdstat_zlexcount"]["calls"] == 4


def test_aging_costs_a_queue_with_one_priority_almost_nothing(lab: Lab) -> None:
    for lanes, most in (([""], 0), (["", "a"], 6), (["a", "b|c:t: c:t=99"], 6)):
        costs = []
        for aging in (None, 1000):
            lab.redis.flushdb()
            lab.store.set_aging({"default": aging})
            for n in range(130):
                lab.add(f"j{n}", lane=lanes[n % len(lanes)])
            lab.taken()
            costs.append(_commands(lab, lambda: lab.taken("c2", jobs=64)))
        assert costs[1] <= costs[0] + most


def _turn_over(lab: Lab, jobs: int) -> int:
    """The commands of a call that finishes this many jobs without lanes, and claims as many."""
    lab.redis.flushdb()
    lab.add(*[f"j{n}" for n in range(2 * jobs + 1)])
    first = lab.claim(jobs=jobs)
    request, done = ClaimRequest("c1", ("default",)), [outcome(job) for job in first.jobs]
    return _commands(lab, lambda: lab.store.finish(request, 9, done, jobs))


def test_jobs_without_lanes_cost_no_more_than_before_lanes_existed(lab: Lab) -> None:
    _turn_over(lab, 1)  # what only a first call costs
    assert _turn_over(lab, 1) <= 26
    assert _turn_over(lab, 2) <= 44
    assert _turn_over(lab, 31) - _turn_over(lab, 11) == 20 * 3  # HMGET, and HSET twice
