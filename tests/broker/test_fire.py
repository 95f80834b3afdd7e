"""fire: a schedule advances and its job is created, both once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import RedisConnection
from django_redisqueue.core.schedules import Every
from django_redisqueue.exceptions import RedisFull

from .harness import BrokerHarness, invariants, outcome
from .schedules import FIRST, MINUTE, define, definition, fire, fire_one, job_id, read


def test_a_due_time_gets_its_job(broker: BrokerHarness) -> None:
    job = {"task": "app.report", "payload": '[["a"],{}]', "queue": "reports", "priority": 5}
    define(broker, definition(options='{"tags":["tenant","42"]}', **job))
    broker.advance(FIRST - broker.now)
    assert fire(broker, FIRST) == 1
    made = broker.job(job_id(FIRST))
    expected = {**job, "priority": "5", "status": "queued", "options": '{"tags":["tenant","42"]}'}
    assert expected.items() <= made.items()
    assert "previous_due_ms" not in made
    found = read(broker)
    assert (found.next_ms, found.last_due_ms, found.last_job, found.fired) == (
        FIRST + MINUTE, FIRST, job_id(FIRST), 1,
    )  # fmt: skip
    assert broker.take(queues=["reports"]).id == job_id(FIRST)
    assert fire(broker, FIRST + MINUTE) == 1
    assert broker.job(job_id(FIRST + MINUTE))["previous_due_ms"] == str(FIRST)
    invariants(broker, tokens=False)


def test_a_resent_call_does_nothing(broker: BrokerHarness) -> None:
    define(broker, definition())
    schedule = read(broker)
    call = (schedule, FIRST, FIRST + MINUTE, FIRST)
    assert fire_one(broker.store, *call) == 1
    with broker.unchanged():
        assert fire_one(broker.store, *call) == 0


def test_a_job_whose_unique_key_belongs_to_another_is_skipped(broker: BrokerHarness) -> None:
    define(broker, definition(unique="k until_finished - -"))
    assert (fire(broker, FIRST), fire(broker, FIRST + MINUTE)) == (1, 2)
    assert read(broker).last_job == job_id(FIRST)
    assert (read(broker).fired, read(broker).skipped) == (1, 1)
    broker.finish(outcome(broker.take()))
    assert fire(broker, FIRST + 2 * MINUTE) == 1
    invariants(broker, tokens=False)


def test_a_schedule_that_redis_rewound_creates_no_job_twice(broker: BrokerHarness) -> None:
    """Redis lost its last writes to the schedule, but not the job."""
    define(broker, definition())
    fire(broker, FIRST)
    broker.redis.hset(broker.keys.schedule("report"), "next_ms", FIRST)
    assert fire(broker, FIRST) == 3
    assert len(broker.ids("queued")) == 1
    assert read(broker).next_ms == FIRST + MINUTE


def test_simultaneous_leaders_create_one_job(broker: BrokerHarness) -> None:
    define(broker, definition())
    schedule = read(broker)

    def lead(_: int) -> list[int]:
        connection = RedisConnection(broker.connection.redis_url, 5.0, 2.0)
        store = Commands(connection)
        store.now_ms = broker.now
        due = range(FIRST, FIRST + 20 * MINUTE, MINUTE)
        replies = [fire_one(store, schedule, due_ms, due_ms + MINUTE, due_ms) for due_ms in due]
        connection.close()
        return replies

    with ThreadPoolExecutor(4) as leaders:
        replies = [reply for found in leaders.map(lead, range(4)) for reply in found]
    assert set(replies) <= {0, 1}
    assert replies.count(1) == read(broker).fired == len(broker.ids("queued"))
    assert read(broker).next_ms == FIRST + read(broker).fired * MINUTE


def test_due_times_without_a_job_are_counted(broker: BrokerHarness) -> None:
    define(broker, definition())
    assert fire_one(broker.store, read(broker), FIRST, FIRST + 9 * MINUTE, None, 9) == 3
    found = read(broker)
    assert (found.next_ms, found.missed, found.fired) == (FIRST + 9 * MINUTE, 9, 0)
    assert broker.ids("queued") == []


def test_a_schedule_without_further_due_times_stops(broker: BrokerHarness) -> None:
    define(broker, definition())
    assert fire_one(broker.store, read(broker), FIRST, None, FIRST) == 1
    assert read(broker).next_ms is None
    assert broker.store.promote([]).schedule_ms == -1


def test_a_schedule_changed_or_paused_meanwhile_is_left_alone(broker: BrokerHarness) -> None:
    define(broker, definition())
    old = read(broker)
    define(broker, definition(task="app.other"))
    assert fire_one(broker.store, old, FIRST, FIRST + MINUTE, FIRST) == 0
    now = read(broker)
    broker.store.pause_schedule("report", True)
    assert fire_one(broker.store, now, FIRST, FIRST + MINUTE, FIRST) == 0
    assert broker.store.remove_schedules("set-1", ["report"]) == [1]
    assert fire_one(broker.store, now, FIRST, FIRST + MINUTE, FIRST) == 0
    assert broker.ids("queued") == []


@pytest.mark.parametrize("place", ["queued", "processing", "retrying"])
def test_a_run_is_skipped_while_the_previous_one_is_running(
    broker: BrokerHarness, place: str
) -> None:
    define(broker, definition(schedule=Every("1m", overlap="skip")))
    fire(broker, FIRST)
    if place != "queued":
        job = broker.take()
        if place == "retrying":
            broker.finish(outcome(job, "retrying", '{"type":"E","message":"no"}', "600000"))
    assert fire(broker, FIRST + MINUTE) == 2
    assert (read(broker).skipped, read(broker).fired) == (1, 1)
    assert read(broker).next_ms == FIRST + 2 * MINUTE
    broker.store.cancel([job_id(FIRST)])
    if place == "processing":
        broker.finish(outcome(job))
    assert fire(broker, FIRST + 2 * MINUTE) == 1
    assert broker.job(job_id(FIRST + 2 * MINUTE))["previous_due_ms"] == str(FIRST)


def test_the_previous_run_can_be_cancelled(broker: BrokerHarness) -> None:
    define(broker, definition(schedule=Every("1m", overlap="cancel")))
    fire(broker, FIRST)
    assert fire(broker, FIRST + MINUTE) == 1
    assert broker.status(job_id(FIRST)) == "cancelled"
    running = broker.take()
    assert running.id == job_id(FIRST + MINUTE)
    assert fire(broker, FIRST + 2 * MINUTE) == 1
    assert "cancel_ms" in broker.job(running.id)  # it was asked to stop
    broker.finish(outcome(running, "cancelled"))
    assert broker.taken() == [job_id(FIRST + 2 * MINUTE)]
    broker.redis.delete(broker.keys.job(job_id(FIRST + 2 * MINUTE)))  # retention has removed it
    assert fire(broker, FIRST + 3 * MINUTE) == 1


def test_a_unique_run_waits_for_the_end_of_the_cancelled_one(broker: BrokerHarness) -> None:
    overlap = Every("1m", overlap="cancel")
    define(broker, definition(schedule=overlap, unique="k until_finished - -"))
    fire(broker, FIRST)
    running = broker.take()
    for at in (1, 2):  # the second one replaces the first, which is still waiting
        assert fire(broker, FIRST + at * MINUTE) == 1
        assert broker.status(job_id(FIRST + at * MINUTE)) == "waiting"
    assert broker.status(job_id(FIRST + MINUTE)) == "cancelled"
    assert read(broker).skipped == 0
    broker.finish(outcome(running, "cancelled"))
    assert broker.taken() == [job_id(FIRST + 2 * MINUTE)]
    invariants(broker, tokens=False)


def test_jitter_schedules_the_job_later(broker: BrokerHarness) -> None:
    define(broker, definition(when="+7000"))
    broker.advance(FIRST - broker.now)
    fire(broker, FIRST)
    assert broker.status(job_id(FIRST)) == "scheduled"
    assert broker.job(job_id(FIRST))["due_ms"] == str(FIRST + 7000)
    broker.advance(7000)
    assert broker.store.promote([]).moved == 1


def test_conditions_of_the_job_are_passed_on(broker: BrokerHarness) -> None:
    define(broker, definition(lane="l1"))
    fire(broker, FIRST)
    assert broker.job(job_id(FIRST))["lane"] == "l1"


def test_the_limits_of_its_lane_are_kept(broker: BrokerHarness) -> None:
    define(broker, definition(lane="|c:t:1 c:t=1"))
    assert [fire(broker, FIRST), fire(broker, FIRST + MINUTE)] == [1, 1]
    assert [job.id for job in broker.claim(jobs=2).jobs] == [job_id(FIRST)]
    invariants(broker, tokens=False)


def test_a_run_whose_unique_key_is_taken_is_skipped(broker: BrokerHarness) -> None:
    define(broker, definition(unique="k until_finished - -"))
    assert fire(broker, FIRST) == 1
    assert fire(broker, FIRST + MINUTE) == 2
    assert read(broker).skipped == 1
    job = broker.take()
    broker.finish(outcome(job))
    assert fire(broker, FIRST + 2 * MINUTE) == 1


def test_a_full_redis_refuses_it_and_nothing_is_half_done(broker: BrokerHarness) -> None:
    define(broker, definition(schedule=Every("1m", overlap="cancel")))
    fire(broker, FIRST)
    with broker.unchanged(), broker.full(), pytest.raises(RedisFull):
        fire(broker, FIRST + MINUTE)
    assert fire(broker, FIRST + MINUTE) == 1


def test_keys_of_another_type_are_named(broker: BrokerHarness) -> None:
    define(broker, definition())
    schedule = read(broker)
    for key in (broker.keys.schedules, broker.keys.queue("default").queued):
        if broker.redis.exists(key):
            broker.redis.rename(key, "kept")
        with broker.refused_over(key):
            fire_one(broker.store, schedule, FIRST, FIRST + MINUTE, FIRST)
        broker.redis.delete(key)
        if broker.redis.exists("kept"):
            broker.redis.rename("kept", key)
    assert fire_one(broker.store, schedule, FIRST, FIRST + MINUTE, FIRST) == 1
