"""Queries of limits: used, holders, parked lanes, and when a rate allows the next start."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue.broker import sums
from django_redisqueue.broker.entries import START
from django_redisqueue.broker.health import HealthQueries
from django_redisqueue.broker.policies import CHUNK, Holder, LimitQueries, LimitState, limit_name
from django_redisqueue.broker.shards import AllShards
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import InvalidOption

from .harness import PAYLOAD, BrokerHarness

STRIPE = "|c:stripe:42 c:stripe=2"


def add(broker: BrokerHarness, lane: str, *names: str) -> None:
    broker.store.enqueue([NewJob(name, "default", "t", PAYLOAD, lane=lane) for name in names])


def queries(broker: BrokerHarness) -> LimitQueries:
    return LimitQueries(broker.connection)


def page(broker: BrokerHarness, after: str = "", count: int = 100) -> tuple[list[LimitState], str]:
    return sums.limits(AllShards(broker.connection.at, [broker.connection.shard]), after, count)


def test_a_limit_with_its_holders_and_who_waits(broker: BrokerHarness) -> None:
    assert page(broker) == ([], "")
    add(broker, STRIPE, "a", "b", "c", "d")
    assert page(broker) == ([], "")
    broker.take()
    broker.take()
    assert broker.taken() == []
    ((state,), following) = page(broker)
    assert (state.name, state.used, state.most, following) == ("stripe:42", 2, 2, "")
    assert state.holders == [Holder("a"), Holder("b")]
    assert (state.parked, state.queues, state.is_rate, state.next_ms) == (
        1,
        ["default"],
        False,
        None,
    )
    assert state.oldest_ms is not None
    assert queries(broker).parked_at("default", "|c:stripe:42") == "c:stripe:42"
    assert queries(broker).parked_at("default", "|c:other:") == ""


def test_the_number_of_one_key_overrides_that_of_the_limit(broker: BrokerHarness) -> None:
    add(broker, STRIPE, "a")
    broker.take()
    broker.redis.hset(broker.keys.limits, mapping={"=c:stripe:42": "7", "set": "1"})
    assert queries(broker).states(["c:stripe:42"])[0].most == 7
    broker.redis.hset(broker.keys.limits, "=c:stripe:42", "")
    assert queries(broker).states(["c:stripe:42"])[0].most is None


def test_a_rate_without_waiting_jobs(broker: BrokerHarness) -> None:
    add(broker, "|r:api:7 r:api=2/60000000/1", "a")
    broker.take()
    ((state,), _) = page(broker)
    assert (state.name, state.parked, state.is_full) == ("api:7", 0, False)
    assert state.next_ms is not None
    broker.redis.delete(broker.keys.tat("r:api:7"))  # it has expired, so the bucket is full
    assert page(broker) == ([], "")


def test_a_rate_says_when_it_allows_the_next_start(broker: BrokerHarness) -> None:
    add(broker, "|r:api: r:api=2/60000000/1", "a", "b")
    broker.take()
    assert broker.taken() == []
    ((state,), _) = page(broker)
    assert (state.name, str(state.rate), state.used, state.most) == ("api", "2 in 1m", 0, None)
    assert state.parked == 1
    broker.redis.set(broker.keys.tat("r:api:"), f"{(queries(broker).now_ms() + 30_000) * 1000} 1")
    (state,) = queries(broker).states(["r:api:"])
    assert 25_000 < (state.next_ms or 0) <= 30_000
    broker.redis.delete(broker.keys.tat("r:api:"))
    assert queries(broker).states(["r:api:"])[0].next_ms == 0


def test_a_slot_of_a_job_that_does_not_run_is_stuck(broker: BrokerHarness) -> None:
    add(broker, STRIPE, "a", "b")
    broker.take()
    broker.redis.zadd(broker.keys.slots, {"c:stripe:42 gone": 0, "c:stripe:42 b": 0})
    (state,) = queries(broker).states(["c:stripe:42"])
    assert state.stuck == ["b", "gone"]
    assert state.used == 3


def test_a_slot_that_is_freed_meanwhile_is_not_stuck(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(broker, STRIPE, "a")
    broker.take()
    ask = broker.connection.pipeline

    def pipeline(commands: Any, **how: Any) -> list[Any]:
        replies = ask(commands, **how)
        broker.redis.zrem(broker.keys.slots, "c:stripe:42 a")
        broker.redis.hset(broker.keys.job("a"), "status", "completed")
        return replies

    monkeypatch.setattr(broker.connection, "pipeline", pipeline)
    (state,) = queries(broker).states(["c:stripe:42"])
    assert state.holders == [Holder("a")]


def test_pages_have_every_limit_once(broker: BrokerHarness) -> None:
    broker.redis.zadd(
        broker.keys.slots, {f"c:a{n:04}: job_{m}": 0 for n in range(30) for m in range(3)}
    )
    broker.redis.zadd(broker.keys.slots, {f"c:b: job_{m}": 0 for m in range(CHUNK + 10)})
    broker.redis.zadd(broker.keys.slots, {"c:c: job_1": 0})
    broker.redis.zadd(broker.keys.waiting_limits, {f"r:a{n:04}: default": 0 for n in range(30)})
    seen, after = [], ""
    while True:
        found, after = page(broker, after, 20)
        seen += [state.key for state in found]
        if not after:
            break
    expected = [f"c:a{n:04}:" for n in range(30)] + ["c:b:", "c:c:"]
    assert seen == expected + [f"r:a{n:04}:" for n in range(30)]
    with pytest.raises(InvalidOption, match="after must be the value that the previous page"):
        page(broker, "x" * 1001)


def test_the_limits_with_the_most_parked_lanes(broker: BrokerHarness) -> None:
    queue = broker.keys.queue("default")
    for n in range(5):
        broker.redis.zadd(broker.keys.waiting_limits, {f"c:{n}: default": 0})
        broker.redis.zadd(queue.parked_at(f"c:{n}:"), {f"lane{m}": 0 for m in range(n + 1)})
    broker.redis.set(queue.parked_at("c:9:"), "theirs")
    broker.redis.zadd(broker.keys.waiting_limits, {"c:9: default": 0})
    policies = HealthQueries(broker.connection).shard_state([], START).policies
    assert policies.most_parked(2) == ["c:4:", "c:3:"]
    states = queries(broker).states(policies.most_parked(9))
    assert [state.parked for state in states] == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("key", "name"), [("c:stripe:a%2Fb", "stripe:a/b"), ("r:app.t:", "app.t"), ("c:x:~", "x")]
)
def test_limits_have_a_readable_name(key: str, name: str) -> None:
    assert limit_name(key) == name
