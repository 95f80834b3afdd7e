"""The number of Redis commands that jobs with lanes cost."""

from __future__ import annotations

from collections.abc import Callable

from django_redisqueue.broker.commands import ClaimRequest

from .harness import BrokerHarness, invariants, outcome

EACH = "|c:t:{} c:t=9"
OWN = 3  # HMGET and HSET for the job, and the lane's head


def _commands(broker: BrokerHarness, act: Callable[[], object]) -> int:
    broker.redis.config_resetstat()
    act()
    stats = broker.redis.info("commandstats")
    ours = {"cmdstat_evalsha", "cmdstat_config|resetstat"}
    return sum(entry["calls"] for name, entry in stats.items() if name not in ours)


def _cost_of_a_claim(broker: BrokerHarness, lanes: int, jobs_of_each: int) -> int:
    broker.redis.flushdb()
    for n in range(lanes * jobs_of_each):
        broker.add(f"j{n}", lane=EACH.format(n % lanes))
    broker.taken()  # what only a first call costs
    return _commands(broker, lambda: broker.taken(jobs=lanes))


def test_a_lane_of_one_job_costs_one_command_more_than_its_job(broker: BrokerHarness) -> None:
    assert _cost_of_a_claim(broker, 31, 1) - _cost_of_a_claim(broker, 11, 1) == 20 * OWN


def test_a_lane_with_a_next_job_costs_one_command_more(broker: BrokerHarness) -> None:
    few, many = _cost_of_a_claim(broker, 11, 3), _cost_of_a_claim(broker, 31, 3)
    assert many - few <= 20 * (OWN + 1)


def test_lanes_that_wait_cost_a_claim_nothing(broker: BrokerHarness) -> None:
    costs = []
    for lanes in (3, 60):
        broker.redis.flushdb()
        for n in range(lanes):
            broker.add(f"j{n}", lane=f"u{n}|c:all: c:all=1")
        job = broker.take()
        while broker.redis.hlen(broker.keys.queue("default").parked) < lanes - 1:
            assert broker.taken("c2", jobs=64) == []
        request, done = ClaimRequest("c1", ("default",)), [outcome(job)]
        costs.append(_commands(broker, lambda: broker.store.finish(request, 9, done, 64)))  # noqa: B023
        invariants(broker, tokens=False)
    assert costs[1] <= costs[0]


def test_limits_with_a_new_number_share_a_hundred_calls(broker: BrokerHarness) -> None:
    for n in range(400):
        broker.add(f"j{n}", lane=f"share{n}|c:t:{n % 20} c:t=0")
    parked = broker.keys.queue("default").parked
    while broker.redis.hlen(parked) < 400:
        assert broker.taken(jobs=10) == []
    broker.add("last", lane="other|c:t:0 c:t=100")
    broker.store.promote(())
    assert broker.redis.hlen(parked) == 300  # then each start calls the next lane
    while some := broker.claim(jobs=64).jobs:
        broker.finish(*map(outcome, some))
    assert broker.redis.zcard(broker.keys.queue("default").completed) == 401
    invariants(broker)


def test_a_claim_of_higher_priorities_does_not_read_the_lanes(broker: BrokerHarness) -> None:
    for n in range(5):
        broker.add(f"j{n}", lane=EACH.format(n))
    broker.redis.config_resetstat()
    assert broker.taken(jobs=10, min_priority=1) == []
    assert broker.calls("zrange") == [1]  # of the shares


def test_a_claim_does_not_read_the_pauses_of_others(broker: BrokerHarness) -> None:
    broker.add(*[f"j{n}" for n in range(8)], lane="mine")
    for n in range(100):
        broker.store.pause_lanes("default", f"s:other{n}", True)
    broker.redis.config_resetstat()
    assert len(broker.taken(jobs=8)) == 8
    assert broker.calls("hgetall") == [0]
    invariants(broker)


def test_slots_of_many_jobs_are_not_scanned(broker: BrokerHarness) -> None:
    broker.add(*[f"j{n}" for n in range(40)], lane="|c:t: c:t=99")
    broker.taken(jobs=40)
    assert broker.redis.object("encoding", broker.keys.slots) == "skiplist"
    invariants(broker)


def test_many_jobs_are_added_to_an_empty_key_as_to_a_skip_list(broker: BrokerHarness) -> None:
    broker.add(*[f"j{n}" for n in range(40)], lane="|c:t: c:t=99")
    broker.redis.config_resetstat()
    jobs = broker.taken(jobs=40)
    keys = broker.keys.slots, broker.keys.queue("default").processing
    assert [broker.redis.zcard(key) for key in keys] == [len(jobs), 40]
    # none that must be converted
    assert broker.calls("object|encoding") == [0]
    assert [broker.redis.object("encoding", key) for key in keys] == ["skiplist", "skiplist"]


def test_a_claim_of_many_lanes_counts_the_slots_of_all_at_once(broker: BrokerHarness) -> None:
    for n in range(60):
        broker.add(f"j{n}", lane=f"|c:t:{n % 20} c:t=2")
    assert len(broker.taken("c1", jobs=20)) == 20
    broker.redis.config_resetstat()
    assert len(broker.taken("c2", jobs=64)) == 20  # the second job of each lane
    [asked] = broker.calls("zlexcount")
    assert asked == 10  # 5 of 20 slots, and 10 of 40: from then on, reading them all is cheaper
    invariants(broker)


def test_a_claim_of_few_lanes_does_not_read_the_slots_of_others(broker: BrokerHarness) -> None:
    for n in range(40):
        broker.add(f"j{n}", lane=EACH.format(n))
    assert len(broker.taken("c1", jobs=36)) == 36
    broker.redis.config_resetstat()
    assert len(broker.taken("c2", jobs=64)) == 4
    assert broker.calls("zlexcount") == [4]


def test_aging_costs_a_queue_with_one_priority_almost_nothing(broker: BrokerHarness) -> None:
    for lanes, most in (([""], 0), (["", "a"], 6), (["a", "b|c:t: c:t=99"], 6)):
        costs = []
        for aging in (None, 1000):
            broker.redis.flushdb()
            broker.store.set_aging({"default": aging})
            for n in range(130):
                broker.add(f"j{n}", lane=lanes[n % len(lanes)])
            broker.taken()
            costs.append(_commands(broker, lambda: broker.taken("c2", jobs=64)))
        assert costs[1] <= costs[0] + most


def _turn_over(broker: BrokerHarness, jobs: int) -> int:
    """The commands of a call that finishes this many jobs without lanes, and claims as many."""
    broker.redis.flushdb()
    broker.add(*[f"j{n}" for n in range(2 * jobs + 1)])
    first = broker.claim(jobs=jobs)
    request, done = ClaimRequest("c1", ("default",)), [outcome(job) for job in first.jobs]
    return _commands(broker, lambda: broker.store.finish(request, 9, done, jobs))


def test_jobs_without_lanes_cost_no_more_than_before_lanes_existed(broker: BrokerHarness) -> None:
    _turn_over(broker, 1)  # what only a first call costs
    assert _turn_over(broker, 1) <= 26
    assert _turn_over(broker, 2) <= 44
    assert _turn_over(broker, 31) - _turn_over(broker, 11) == 20 * 3  # HMGET, and HSET twice
