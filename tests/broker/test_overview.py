"""What a monitor reads: counts, ages and rates of queues, and what each child is running."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from django_redisqueue.broker.overview import QueueOverview, rates
from django_redisqueue.worker.identity import this_worker
from tests.support.round_trips import round_trips

from .lab import Lab


@pytest.fixture(autouse=True)
def by_the_real_clock(lab: Lab) -> None:
    lab.store.now_ms = None


def look(lab: Lab, queue: str = "default") -> QueueOverview:
    (found,) = lab.queries.overview([queue])
    return found


def set_age(lab: Lab, job_id: str, seconds: float, field: str = "enqueued_ms") -> None:
    lab.redis.hset(lab.keys.job(job_id), field, int((time.time() - seconds) * 1000) - 2)


def test_an_empty_queue(lab: Lab) -> None:
    found = look(lab)
    assert set(found.counts.values()) == {0}
    assert (found.totals, found.is_paused, found.oldest_ms) == ({}, False, None)
    assert lab.queries.overview([]) == []


def test_numbers_corrupted_by_hand_hide_nothing_else(lab: Lab) -> None:
    lab.add("a", "b")
    lab.take()
    lab.redis.hset(lab.keys.queue("default").meta, mapping={"failed_total": "?", "paused": "1.5"})
    lab.redis.hset(lab.keys.job("a"), "started_ms", "?")
    lab.redis.hset(lab.keys.job("b"), "enqueued_ms", "?")
    found = look(lab)
    assert (found.counts["processing"], found.totals["enqueued"]) == (1, 2)
    assert (found.totals["failed"], found.is_paused, found.oldest_ms) == (0, True, 0)
    assert lab.queries.meta("default")["enqueued_total"] == 2
    (child,) = lab.fleet().children
    assert (child.held, child.since_ms) == (1, None)


def test_each_queue_has_its_own_row(lab: Lab) -> None:
    lab.end("done")
    lab.end("bad", verdict="failed", body='{"type":"E","message":"","traceback":""}')
    lab.add("a", "b", queue="low", priority=5)
    lab.add("c", queue="low")
    lab.store.pause("low", True)
    first, second = lab.queries.overview(["default", "low"])
    assert (first.name, second.name) == ("default", "low")
    assert first.counts["completed"] == first.totals["completed"] == 1
    assert (first.totals["failed"], first.finished, first.arrived) == (1, 2, 2)
    assert (second.counts["queued"], second.arrived, second.is_paused) == (3, 3, True)
    assert (first.unfinished, second.unfinished) == (0, 3)
    assert abs(second.now_ms - (second.paused_ms or 0)) < 10_000


def test_the_oldest_job_is_found_in_the_list_and_at_both_ends_of_the_priorities(lab: Lab) -> None:
    lab.add("plain", "behind")
    set_age(lab, "plain", 100)
    assert 100_000 <= (look(lab).oldest_ms or 0) < 110_000
    lab.add("urgent", priority=9)
    lab.add("idle", priority=-9)
    set_age(lab, "idle", 300)
    assert 300_000 <= (look(lab).oldest_ms or 0) < 310_000


def test_waiting_begins_when_a_job_enters_its_queue(lab: Lab) -> None:
    lab.add("later", when="+100")
    lab.end("bad", verdict="failed", body='{"type":"E","message":"","traceback":""}')
    set_age(lab, "later", 86_400)
    set_age(lab, "bad", 86_400)
    assert look(lab).oldest_ms is None
    lab.store.now_ms = round(time.time() * 1000) + 200
    lab.store.promote(["default"])
    lab.store.now_ms = None
    lab.store.requeue(["bad"])
    found = look(lab)
    assert (found.counts["queued"], found.counts["scheduled"]) == (2, 0)
    assert (found.oldest_ms or 0) < 10_000


def test_a_cancelled_id_that_lingers_has_no_age(lab: Lab) -> None:
    lab.add("gone")
    set_age(lab, "gone", 500)
    lab.store.cancel(["gone"])
    assert (look(lab).counts["queued"], look(lab).oldest_ms) == (0, None)
    lab.add("here")
    set_age(lab, "here", 100)
    assert (look(lab).counts["queued"], look(lab).counts["cancelled"]) == (1, 1)
    lab.redis.hset(lab.keys.queue("default").meta, "lingering", 9)
    assert look(lab).counts["queued"] == 0, "whatever a wrong count says"


def test_a_key_of_another_type_hides_no_other(lab: Lab) -> None:
    lab.add("strange", queue="low")
    lab.redis.delete(lab.keys.job("strange"))
    lab.redis.set(lab.keys.job("strange"), "no hash")
    lab.add("fine")
    first, second = lab.queries.overview(["default", "low"])
    assert first.oldest_ms is not None
    assert second.oldest_ms is None


@pytest.mark.parametrize("name", ["queued", "wake", "meta", "priority", "retrying", "failed"])
def test_a_queue_with_a_key_of_another_type_is_named_and_hides_no_other(
    lab: Lab, name: str
) -> None:
    lab.add("a", "b", queue="low")
    lab.add("c")
    with lab.broken(name, "low"):
        sound, broken = lab.queries.overview(["default", "low"])
    assert (sound.wrong_keys, sound.counts["queued"]) == ((), 1)
    assert broken.wrong_keys == (getattr(lab.keys.queue("low"), name),)
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


def test_a_new_job_is_counted_once_however_often_it_is_sent(lab: Lab) -> None:
    lab.add("a", "b", "a")
    lab.add("a", "c", when="+60000")
    lab.add("d", queue="low", priority=3)
    assert (lab.meta()["enqueued_total"], lab.meta("low")["enqueued_total"]) == (3, 1)


def test_running_jobs_of_each_child_with_the_dead_first(lab: Lab) -> None:
    lab.store.heartbeat(["alive"])
    lab.store.now_ms = round(time.time() * 1000) - 3_600_000
    lab.store.heartbeat(["dead"])
    lab.store.now_ms = None
    lab.add("a", "b")
    lab.claim("alive", jobs=2)
    fleet = lab.fleet()
    assert (fleet.total, fleet.alive) == (2, 1)
    dead, alive = fleet.children
    assert (dead.child, dead.held, dead.job, dead.since_ms) == ("dead", 0, "", None)
    assert dead.lease_ms < -3_000_000
    assert (alive.child, alive.held, alive.job, alive.task) == ("alive", 2, "a", "app.task")
    assert 0 < alive.lease_ms <= 15_000
    assert 0 <= (alive.since_ms or 0) < 10_000
    assert [child.child for child in lab.fleet(1).children] == ["dead"]


def test_a_child_that_claims_no_jobs_is_not_counted(lab: Lab) -> None:
    worker = this_worker("w")
    roles = ["jobs", "maintenance", "bridge"]
    lab.store.heartbeat([worker.child(n, role) for n, role in enumerate(roles)])
    fleet = lab.fleet()
    assert (fleet.total, fleet.alive) == (1, 1)
    assert [child.child for child in fleet.children] == [worker.child(0)]
    assert len(lab.queries.workers()) == 3, "each has a lease"


def test_without_workers(lab: Lab) -> None:
    assert (lab.fleet().total, lab.fleet().children) == (0, [])


def test_the_cost_is_a_fixed_number_of_round_trips(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any number of queues and children."""
    lab.store.heartbeat([f"child{n}" for n in range(50)])
    for n in range(20):
        lab.add(f"job{n}", queue=f"q{n}")
    trips: list[int] = []
    ask = lab.connection.pipeline

    def count(todo: Sequence[Any], **how: Any) -> list[Any]:
        trips.append(len(todo))
        return ask(todo, **how)

    monkeypatch.setattr(lab.connection, "pipeline", count)
    lab.queries.overview([f"q{n}" for n in range(20)])
    assert (len(trips), max(trips)) == (2, 17 * 20)
    with round_trips(monkeypatch) as made:
        lab.fleet()
    assert len(made) <= 3
