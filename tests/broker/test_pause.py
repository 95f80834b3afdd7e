"""pause: claims stop, running jobs finish, and resuming wakes a worker."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.policies import LimitQueries, PauseChange

from .harness import T0, BrokerHarness, invariants, outcome


def test_pausing_and_resuming_report_whether_they_changed_anything(broker: BrokerHarness) -> None:
    pause = broker.store.pause
    assert [pause("default", on) for on in (True, True, False, False)] == [True, False, True, False]


def test_the_time_is_stored_and_a_repeat_keeps_it(broker: BrokerHarness) -> None:
    broker.store.pause("default", True)
    broker.advance(500)
    broker.store.pause("default", True)
    assert broker.meta()["paused"] == T0


def test_who_paused_is_stored_until_the_queue_is_resumed(broker: BrokerHarness) -> None:
    key = broker.keys.queue("default").meta
    broker.store.pause("default", True, "ann")
    broker.store.pause("default", True, "bob")
    assert broker.redis.hget(key, "paused_by") == "ann"
    broker.store.pause("default", False)
    assert broker.redis.hget(key, "paused_by") is None
    broker.store.pause("default", True)
    assert broker.redis.hget(key, "paused_by") is None


def test_changes_are_in_the_history_newest_first(broker: BrokerHarness) -> None:
    broker.store.pause("default", True, "ann")
    broker.store.pause("default", True, "bob")
    broker.advance(500)
    broker.store.pause("default", False)
    broker.store.pause_lanes("default", "s:gold", True, "eve")
    broker.store.pause_lanes("default", "s:gold", True, "eve")
    found = LimitQueries(broker.connection).pause_history("default")
    assert found == [
        PauseChange(T0 + 500, True, "share gold", "eve"),
        PauseChange(T0 + 500, False, "", ""),
        PauseChange(T0, True, "", "ann"),
    ]


def test_running_jobs_finish_and_others_wait(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    job = broker.take()
    broker.store.pause("default", True)
    assert broker.finish(outcome(job)) == [1]
    assert broker.taken() == []
    broker.add("c")
    broker.store.pause("default", False)
    assert broker.taken(jobs=5) == ["b", "c"]
    invariants(broker)


@pytest.mark.parametrize("priority", [0, 3])
def test_resuming_leaves_a_token_when_there_is_work(broker: BrokerHarness, priority: int) -> None:
    broker.add("a", priority=priority)
    broker.store.pause("default", True)
    broker.pop_token()
    broker.store.pause("default", False)
    assert broker.tokens() == 1
    invariants(broker)


def test_resuming_an_empty_queue_leaves_no_token(broker: BrokerHarness) -> None:
    broker.store.pause("default", True)
    broker.store.pause("default", False)
    assert broker.tokens() == 0


def test_resuming_twice_restores_a_lost_token(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.pop_token()
    assert broker.store.pause("default", False) is False
    assert broker.tokens() == 1


@pytest.mark.parametrize("name", ["meta", "wake", "pause_history"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str
) -> None:
    with broker.refused_over(getattr(broker.keys.queue("default"), name)):
        broker.store.pause("default", False)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    with broker.full():
        assert broker.store.pause("default", True) is True
