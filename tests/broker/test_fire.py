"""fire: a schedule advances and its job is created, both once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import RedisConnection
from django_redisqueue.core.schedules import Every
from django_redisqueue.exceptions import RedisFull, WrongKeyType

from .lab import Lab, invariants, outcome
from .schedules import FIRST, MINUTE, define, definition, fire, job_id, read


def test_a_due_time_gets_its_job(lab: Lab) -> None:
    job = {"task": "app.report", "payload": '[["a"],{}]', "queue": "reports", "priority": 5}
    define(lab, definition(options='{"tags":["tenant","42"]}', **job))
    lab.advance(FIRST - lab.now)
    assert fire(lab, FIRST) == 1
    made = lab.job(job_id(FIRST))
    expected = {**job, "priority": "5", "status": "queued", "options": '{"tags":["tenant","42"]}'}
    assert expected.items() <= made.items()
    assert "previous_due_ms" not in made
    found = read(lab)
    assert (found.next_ms, found.last_due_ms, found.last_job, found.fired) == (
        FIRST + MINUTE, FIRST, job_id(FIRST), 1,
    )  # fmt: skip
    assert lab.take(queues=["reports"]).id == job_id(FIRST)
    assert fire(lab, FIRST + MINUTE) == 1
    assert lab.job(job_id(FIRST + MINUTE))["previous_due_ms"] == str(FIRST)
    invariants(lab, tokens=False)


def test_a_resent_call_does_nothing(lab: Lab) -> None:
    define(lab, definition())
    schedule = read(lab)
    call = (schedule, FIRST, FIRST + MINUTE, FIRST)
    assert lab.store.fire(*call) == 1
    before = lab.dump()
    assert lab.store.fire(*call) == 0
    assert lab.dump() == before


def test_a_job_whose_unique_key_belongs_to_another_is_skipped(lab: Lab) -> None:
    define(lab, definition(unique="k until_finished - -"))
    assert (fire(lab, FIRST), fire(lab, FIRST + MINUTE)) == (1, 2)
    assert read(lab).last_job == job_id(FIRST)
    assert (read(lab).fired, read(lab).skipped) == (1, 1)
    lab.finish(outcome(lab.take()))
    assert fire(lab, FIRST + 2 * MINUTE) == 1
    invariants(lab, tokens=False)


def test_a_schedule_that_redis_rewound_creates_no_job_twice(lab: Lab) -> None:
    """Redis lost its last writes to the schedule, but not the job."""
    define(lab, definition())
    fire(lab, FIRST)
    lab.redis.hset(lab.keys.schedule("report"), "next_ms", FIRST)
    assert fire(lab, FIRST) == 3
    assert len(lab.ids("queued")) == 1
    assert read(lab).next_ms == FIRST + MINUTE


def test_simultaneous_leaders_create_one_job(lab: Lab) -> None:
    define(lab, definition())
    schedule = read(lab)

    def lead(_: int) -> list[int]:
        connection = RedisConnection(lab.connection.redis_url, 5.0, 2.0)
        store = Commands(connection)
        store.now_ms = lab.now
        due = range(FIRST, FIRST + 20 * MINUTE, MINUTE)
        replies = [store.fire(schedule, due_ms, due_ms + MINUTE, due_ms) for due_ms in due]
        connection.close()
        return replies

    with ThreadPoolExecutor(4) as leaders:
        replies = [reply for found in leaders.map(lead, range(4)) for reply in found]
    assert set(replies) <= {0, 1}
    assert replies.count(1) == read(lab).fired == len(lab.ids("queued"))
    assert read(lab).next_ms == FIRST + read(lab).fired * MINUTE


def test_due_times_without_a_job_are_counted(lab: Lab) -> None:
    define(lab, definition())
    assert lab.store.fire(read(lab), FIRST, FIRST + 9 * MINUTE, None, 9) == 3
    found = read(lab)
    assert (found.next_ms, found.missed, found.fired) == (FIRST + 9 * MINUTE, 9, 0)
    assert lab.ids("queued") == []


def test_a_schedule_without_further_due_times_stops(lab: Lab) -> None:
    define(lab, definition())
    assert lab.store.fire(read(lab), FIRST, None, FIRST) == 1
    assert read(lab).next_ms is None
    assert lab.store.promote([]).schedule_ms == -1


def test_a_schedule_changed_or_paused_meanwhile_is_left_alone(lab: Lab) -> None:
    define(lab, definition())
    old = read(lab)
    define(lab, definition(task="app.other"))
    assert lab.store.fire(old, FIRST, FIRST + MINUTE, FIRST) == 0
    now = read(lab)
    lab.store.pause_schedule("report", True)
    assert lab.store.fire(now, FIRST, FIRST + MINUTE, FIRST) == 0
    assert lab.store.remove_schedules("set-1", ["report"]) == [1]
    assert lab.store.fire(now, FIRST, FIRST + MINUTE, FIRST) == 0
    assert lab.ids("queued") == []


@pytest.mark.parametrize("place", ["queued", "processing", "retrying"])
def test_a_run_is_skipped_while_the_previous_one_is_running(lab: Lab, place: str) -> None:
    define(lab, definition(schedule=Every("1m", overlap="skip")))
    fire(lab, FIRST)
    if place != "queued":
        job = lab.take()
        if place == "retrying":
            lab.finish(outcome(job, "retrying", '{"type":"E","message":"no"}', "600000"))
    assert fire(lab, FIRST + MINUTE) == 2
    assert (read(lab).skipped, read(lab).fired) == (1, 1)
    assert read(lab).next_ms == FIRST + 2 * MINUTE
    lab.store.cancel([job_id(FIRST)])
    if place == "processing":
        lab.finish(outcome(job))
    assert fire(lab, FIRST + 2 * MINUTE) == 1
    assert lab.job(job_id(FIRST + 2 * MINUTE))["previous_due_ms"] == str(FIRST)


def test_the_previous_run_can_be_cancelled(lab: Lab) -> None:
    define(lab, definition(schedule=Every("1m", overlap="cancel")))
    fire(lab, FIRST)
    assert fire(lab, FIRST + MINUTE) == 1
    assert lab.status(job_id(FIRST)) == "cancelled"
    running = lab.take()
    assert running.id == job_id(FIRST + MINUTE)
    assert fire(lab, FIRST + 2 * MINUTE) == 1
    assert "cancel_ms" in lab.job(running.id)  # it was asked to stop
    lab.finish(outcome(running, "cancelled"))
    assert lab.taken() == [job_id(FIRST + 2 * MINUTE)]
    lab.redis.delete(lab.keys.job(job_id(FIRST + 2 * MINUTE)))  # retention has removed it
    assert fire(lab, FIRST + 3 * MINUTE) == 1


def test_a_unique_run_waits_for_the_end_of_the_cancelled_one(lab: Lab) -> None:
    overlap = Every("1m", overlap="cancel")
    define(lab, definition(schedule=overlap, unique="k until_finished - -"))
    fire(lab, FIRST)
    running = lab.take()
    for at in (1, 2):  # the second one replaces the first, which is still waiting
        assert fire(lab, FIRST + at * MINUTE) == 1
        assert lab.status(job_id(FIRST + at * MINUTE)) == "waiting"
    assert lab.status(job_id(FIRST + MINUTE)) == "cancelled"
    assert read(lab).skipped == 0
    lab.finish(outcome(running, "cancelled"))
    assert lab.taken() == [job_id(FIRST + 2 * MINUTE)]
    invariants(lab, tokens=False)


def test_jitter_schedules_the_job_later(lab: Lab) -> None:
    define(lab, definition(when="+7000"))
    lab.advance(FIRST - lab.now)
    fire(lab, FIRST)
    assert lab.status(job_id(FIRST)) == "scheduled"
    assert lab.job(job_id(FIRST))["due_ms"] == str(FIRST + 7000)
    lab.advance(7000)
    assert lab.store.promote([]).moved == 1


def test_conditions_of_the_job_are_passed_on(lab: Lab) -> None:
    define(lab, definition(lane="l1"))
    fire(lab, FIRST)
    assert lab.job(job_id(FIRST))["lane"] == "l1"


def test_a_run_whose_unique_key_is_taken_is_skipped(lab: Lab) -> None:
    define(lab, definition(unique="k until_finished - -"))
    assert fire(lab, FIRST) == 1
    assert fire(lab, FIRST + MINUTE) == 2
    assert read(lab).skipped == 1
    job = lab.take()
    lab.finish(outcome(job))
    assert fire(lab, FIRST + 2 * MINUTE) == 1


def test_a_full_redis_refuses_it_and_nothing_is_half_done(lab: Lab) -> None:
    define(lab, definition(schedule=Every("1m", overlap="cancel")))
    fire(lab, FIRST)
    before = lab.dump()
    with lab.full(), pytest.raises(RedisFull):
        fire(lab, FIRST + MINUTE)
    assert lab.dump() == before
    assert fire(lab, FIRST + MINUTE) == 1


def test_keys_of_another_type_are_named(lab: Lab) -> None:
    define(lab, definition())
    schedule = read(lab)
    for key in (lab.keys.schedules, lab.keys.queue("default").queued):
        if lab.redis.exists(key):
            lab.redis.rename(key, "kept")
        lab.redis.set(key, "theirs")
        before = lab.dump()
        with pytest.raises(WrongKeyType, match=re.escape(f"{key} holds a string")):
            lab.store.fire(schedule, FIRST, FIRST + MINUTE, FIRST)
        assert lab.dump() == before
        lab.redis.delete(key)
        if lab.redis.exists("kept"):
            lab.redis.rename("kept", key)
    assert lab.store.fire(schedule, FIRST, FIRST + MINUTE, FIRST) == 1
