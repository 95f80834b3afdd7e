"""promote: due jobs move to the tail of their queue, and the timer learns when to run next."""

from __future__ import annotations

import pytest

from .harness import ERROR, BrokerHarness, invariants, outcome


def test_due_jobs_move_and_wake_a_worker(broker: BrokerHarness) -> None:
    broker.add("later", when="+2000")
    broker.add("due", when="+1000")
    broker.advance(1000)
    assert broker.store.promote(["default"])[:2] == (1, 1000)
    assert broker.ids("queued") == ["due"]
    assert broker.tokens() == 1
    assert "due_ms" not in broker.job("due")
    assert broker.event_statuses("due") == ["scheduled", "queued"]
    assert broker.events("due")[-1]["seq"] == 2
    invariants(broker)


def test_retries_move_too_with_their_attempts(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.finish(outcome(broker.take(), "retrying", ERROR, "500"))
    broker.advance(500)
    assert broker.store.promote(["default"])[:2] == (1, -1)
    assert broker.events("a")[-1]["attempt"] == 1
    assert broker.job("a")["error"] == ERROR
    invariants(broker)


def test_not_a_millisecond_early(broker: BrokerHarness) -> None:
    broker.add("a", when="+1000")
    broker.advance(999)
    assert broker.store.promote(["default"])[:2] == (0, 1)
    broker.advance(1)
    assert broker.store.promote(["default"])[:2] == (1, -1)


def test_nothing_to_do(broker: BrokerHarness) -> None:
    assert broker.store.promote(["default", "other"])[:2] == (0, -1)
    assert list(broker.dump()) == [broker.keys.queues]


def test_due_jobs_move_in_the_order_of_their_time_and_keep_their_priority(
    broker: BrokerHarness,
) -> None:
    broker.add("b", when="+20")
    broker.add("a", when="+10")
    broker.add("p", when="+30", priority=4)
    broker.advance(30)
    broker.store.promote(["default"])
    assert broker.taken(jobs=3) == ["p", "a", "b"]


def test_at_most_a_hundred_per_call_over_all_queues(broker: BrokerHarness) -> None:
    broker.add(*[f"a{n}" for n in range(80)], queue="x", when="+5")
    broker.add(*[f"b{n}" for n in range(80)], queue="y", when="+5")
    broker.advance(5)
    assert broker.store.promote(["x", "y"])[:2] == (100, 0)
    invariants(broker)
    assert broker.store.promote(["x", "y"])[:2] == (60, -1)
    assert (len(broker.ids("queued", "x")), len(broker.ids("queued", "y"))) == (80, 80)
    invariants(broker)


def test_only_queues_with_new_work_get_a_token(broker: BrokerHarness) -> None:
    broker.add("a", queue="x", when="+5")
    broker.advance(5)
    broker.store.promote(["x", "y"])
    assert (broker.tokens("x"), broker.tokens("y")) == (1, 0)


def test_the_timer_is_woken_once_and_only_for_what_is_due_first(broker: BrokerHarness) -> None:
    broker.add("later", when="+20")
    broker.add("soon", when="+10")
    assert broker.redis.lpop(broker.keys.timer, 5) == ["1"]
    broker.add("between", when="+15")
    assert not broker.redis.exists(broker.keys.timer)


def test_the_timers_token_is_taken(broker: BrokerHarness) -> None:
    broker.add("a", when="+1000")
    broker.store.promote(["default"])
    assert broker.redis.exists(broker.keys.timer) == 0


def test_a_second_call_changes_nothing(broker: BrokerHarness) -> None:
    broker.add("a", when="+5")
    broker.advance(5)
    broker.store.promote(["default"])
    with broker.unchanged():
        assert broker.store.promote(["default"])[:2] == (0, -1)


def test_a_job_without_a_hash_moves_on_and_the_claim_reports_it(broker: BrokerHarness) -> None:
    broker.add("gone", "b", when="+5")
    broker.redis.delete(broker.keys.job("gone"))
    broker.advance(5)
    assert broker.store.promote(["default"])[:2] == (2, -1)
    claim = broker.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], ["gone"])


@pytest.mark.parametrize("name", ["scheduled", "retrying", "queued", "priority", "wake", "meta"])
def test_only_a_queue_with_a_key_of_another_type_is_blocked(
    broker: BrokerHarness, name: str
) -> None:
    for queue in ("first", "default", "last"):
        broker.add(queue, queue=queue, when="+5")
    broker.advance(5)
    with broker.broken(name) as words:
        promoted = broker.store.promote(["first", "default", "last"])
        assert promoted[:2] == (2, -1)
        assert list(promoted.broken) == ["default"]
        assert words in promoted.broken["default"]
        assert [broker.status(queue) for queue in ("first", "default", "last")] == [
            "queued", "scheduled", "queued",
        ]  # fmt: skip
    assert broker.store.promote(["first", "default", "last"]) == (1, -1, {}, -1)
    invariants(broker)


def test_a_queue_that_is_not_named_is_served_too(broker: BrokerHarness) -> None:
    """It was removed from QUEUES, and still has jobs."""
    broker.add("a", queue="former", when="+5")
    broker.store.promote(["default"])
    broker.advance(5)
    assert broker.store.promote(["default"])[:2] == (1, -1)
    assert broker.ids("queued", "former") == ["a"]
    assert broker.redis.smembers(broker.keys.queues) == {"default", "former"}


def test_each_queue_gets_its_share_of_a_call(broker: BrokerHarness) -> None:
    for n in range(5):
        broker.add(*[f"a{n}.{m}" for m in range(100)], queue="a", when="+5")
    broker.add("b", queue="b", when="+6")
    broker.add(*[f"c{n}" for n in range(40)], queue="c", when="+7")
    broker.advance(7)
    assert broker.store.promote(["a", "b", "c"])[:2] == (33 + 1 + 40, 0)
    assert [len(broker.ids("queued", queue)) for queue in "abc"] == [33, 1, 40]
    moved = [broker.store.promote(["a", "b", "c"]).moved for _ in range(5)]
    assert moved == [100, 100, 100, 100, 67]
    invariants(broker)


def test_of_very_many_queues_those_due_first_are_promoted_first(broker: BrokerHarness) -> None:
    for n in range(150):
        broker.add(f"j{n}", f"k{n}", queue=f"q{n}", when=f"+{1 + n}")
    broker.advance(200)
    for _ in range(3):
        assert broker.store.promote([]).moved == 100
    assert all(len(broker.ids("queued", f"q{n}")) == 2 for n in range(150))


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a", when="+5")
    broker.advance(5)
    with broker.full():
        assert broker.store.promote(["default"])[:2] == (1, -1)
    invariants(broker)
