"""What a monitor reads: counts, ages and rates of queues, and what each child is running."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from django_redisqueue.broker.overview import QueueOverview, rates
from django_redisqueue.worker.identity import this_worker
from tests.support.round_trips import round_trips

from .harness import BrokerHarness


@pytest.fixture(autouse=True)
def by_the_real_clock(broker: BrokerHarness) -> None:
    broker.store.now_ms = None


def look(broker: BrokerHarness, queue: str = "default") -> QueueOverview:
    (found,) = broker.queries.overview([queue])
    return found


def set_age(broker: BrokerHarness, job_id: str, seconds: float, field: str = "enqueued_ms") -> None:
    broker.redis.hset(broker.keys.job(job_id), field, int((time.time() - seconds) * 1000) - 2)


def test_an_empty_queue(broker: BrokerHarness) -> None:
    found = look(broker)
    assert set(found.counts.values()) == {0}
    assert (found.totals, found.is_paused, found.oldest_ms) == ({}, False, None)
    assert broker.queries.overview([]) == []


def test_numbers_corrupted_by_hand_hide_nothing_else(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.take()
    broker.redis.hset(
        broker.keys.queue("default").meta, mapping={"failed_total": "?", "paused": "1.5"}
    )
    broker.redis.hset(broker.keys.job("a"), "started_ms", "?")
    broker.redis.hset(broker.keys.job("b"), "enqueued_ms", "?")
    found = look(broker)
    assert (found.counts["processing"], found.totals["enqueued"]) == (1, 2)
    assert (found.totals["failed"], found.is_paused, found.oldest_ms) == (0, True, 0)
    assert broker.queries.meta("default")["enqueued_total"] == 2
    (child,) = broker.fleet().children
    assert (child.held, child.since_ms) == (1, None)


def test_each_queue_has_its_own_row(broker: BrokerHarness) -> None:
    broker.end("done")
    broker.end("bad", kind="failed", body='{"type":"E","message":"","traceback":""}')
    broker.add("a", "b", queue="low", priority=5)
    broker.add("c", queue="low")
    broker.store.pause("low", True)
    first, second = broker.queries.overview(["default", "low"])
    assert (first.name, second.name) == ("default", "low")
    assert first.counts["completed"] == first.totals["completed"] == 1
    assert (first.totals["failed"], first.finished, first.arrived) == (1, 2, 2)
    assert (second.counts["queued"], second.arrived, second.is_paused) == (3, 3, True)
    assert (first.unfinished, second.unfinished) == (0, 3)
    assert abs(second.now_ms - (second.paused_ms or 0)) < 10_000


def test_the_oldest_job_is_found_in_the_list_and_at_both_ends_of_the_priorities(
    broker: BrokerHarness,
) -> None:
    broker.add("plain", "behind")
    set_age(broker, "plain", 100)
    assert 100_000 <= (look(broker).oldest_ms or 0) < 110_000
    broker.add("urgent", priority=9)
    broker.add("idle", priority=-9)
    set_age(broker, "idle", 300)
    assert 300_000 <= (look(broker).oldest_ms or 0) < 310_000


def test_waiting_begins_when_a_job_enters_its_queue(broker: BrokerHarness) -> None:
    broker.add("later", when="+100")
    broker.end("bad", kind="failed", body='{"type":"E","message":"","traceback":""}')
    set_age(broker, "later", 86_400)
    set_age(broker, "bad", 86_400)
    assert look(broker).oldest_ms is None
    broker.store.now_ms = round(time.time() * 1000) + 200
    broker.store.promote(["default"])
    broker.store.now_ms = None
    broker.store.requeue(["bad"])
    found = look(broker)
    assert (found.counts["queued"], found.counts["scheduled"]) == (2, 0)
    assert (found.oldest_ms or 0) < 10_000


def test_a_cancelled_id_that_lingers_has_no_age(broker: BrokerHarness) -> None:
    broker.add("gone")
    set_age(broker, "gone", 500)
    broker.store.cancel(["gone"])
    assert (look(broker).counts["queued"], look(broker).oldest_ms) == (0, None)
    broker.add("here")
    set_age(broker, "here", 100)
    assert (look(broker).counts["queued"], look(broker).counts["cancelled"]) == (1, 1)
    broker.redis.hset(broker.keys.queue("default").meta, "lingering", 9)
    assert look(broker).counts["queued"] == 0, "whatever a wrong count says"


def test_a_key_of_another_type_hides_no_other(broker: BrokerHarness) -> None:
    broker.add("strange", queue="low")
    broker.redis.set(broker.keys.job("strange"), "no hash")
    broker.add("fine")
    first, second = broker.queries.overview(["default", "low"])
    assert first.oldest_ms is not None
    assert second.oldest_ms is None


@pytest.mark.parametrize("name", ["queued", "wake", "meta", "priority", "retrying", "failed"])
def test_a_queue_with_a_key_of_another_type_is_named_and_hides_no_other(
    broker: BrokerHarness, name: str
) -> None:
    broker.add("a", "b", queue="low")
    broker.add("c")
    with broker.broken(name, "low"):
        sound, broken = broker.queries.overview(["default", "low"])
    assert (sound.wrong_keys, sound.counts["queued"]) == ((), 1)
    assert broken.wrong_keys == (getattr(broker.keys.queue("low"), name),)
    assert broken.counts["queued"] == (0 if name == "queued" else 2)


def overview_at(now_ms: int, **totals: int) -> QueueOverview:
    return QueueOverview("q", now_ms, {}, totals, None)


def test_rates_count_enqueued_and_ended_jobs() -> None:
    before = overview_at(0, enqueued=5, completed=4, failed=1)
    after = overview_at(2000, enqueued=25, requeued=2, completed=10, failed=4, cancelled=1)
    found = rates(before, after)
    assert found is not None
    assert (found.arrived, found.ended) == (11, 5)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (overview_at(5), overview_at(5, completed=1)),
        (overview_at(0, completed=9), overview_at(1000, completed=1)),
        (overview_at(0, enqueued=9), overview_at(1000, enqueued=1)),
    ],
)
def test_rates_over_no_time_or_lost_data_are_unknown(before: Any, after: Any) -> None:
    assert rates(before, after) is None


def test_a_new_job_is_counted_once_however_often_it_is_sent(broker: BrokerHarness) -> None:
    broker.add("a", "b", "a")
    broker.add("a", "c", when="+60000")
    broker.add("d", queue="low", priority=3)
    assert (broker.meta()["enqueued_total"], broker.meta("low")["enqueued_total"]) == (3, 1)


def test_running_jobs_of_each_child_with_the_dead_first(broker: BrokerHarness) -> None:
    broker.store.heartbeat(["alive"])
    broker.store.now_ms = round(time.time() * 1000) - 3_600_000
    broker.store.heartbeat(["dead"])
    broker.store.now_ms = None
    broker.add("a", "b")
    broker.claim("alive", jobs=2)
    fleet = broker.fleet()
    assert (fleet.total, fleet.alive) == (2, 1)
    dead, alive = fleet.children
    assert (dead.child, dead.held, dead.job, dead.since_ms) == ("dead", 0, "", None)
    assert dead.lease_ms < -3_000_000
    assert (alive.child, alive.held, alive.job, alive.task) == ("alive", 2, "a", "app.task")
    assert 0 < alive.lease_ms <= 15_000
    assert 0 <= (alive.since_ms or 0) < 10_000
    assert [child.child for child in broker.fleet(1).children] == ["dead"]


def test_a_child_that_claims_no_jobs_is_not_counted(broker: BrokerHarness) -> None:
    worker = this_worker("w")
    roles = ["jobs", "maintenance", "bridge"]
    broker.store.heartbeat([worker.child(n, role) for n, role in enumerate(roles)])
    fleet = broker.fleet()
    assert (fleet.total, fleet.alive) == (1, 1)
    assert [child.child for child in fleet.children] == [worker.child(0)]
    assert len(broker.queries.workers()) == 3, "each has a lease"


def test_without_workers(broker: BrokerHarness) -> None:
    assert (broker.fleet().total, broker.fleet().children) == (0, [])


def test_the_cost_is_a_fixed_number_of_round_trips(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any number of queues and children."""
    broker.store.heartbeat([f"child{n}" for n in range(50)])
    for n in range(20):
        broker.add(f"job{n}", queue=f"q{n}")
    trips: list[int] = []
    ask = broker.connection.pipeline

    def count(todo: Sequence[Any], **how: Any) -> list[Any]:
        trips.append(len(todo))
        return ask(todo, **how)

    monkeypatch.setattr(broker.connection, "pipeline", count)
    broker.queries.overview([f"q{n}" for n in range(20)])
    assert (len(trips), max(trips)) == (2, 17 * 20)
    with round_trips(monkeypatch) as made:
        broker.fleet()
    assert len(made) <= 3
