"""cancel: jobs that have not started end at once; running jobs are asked to stop."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.broker.replies import FinishCode
from django_redisqueue.exceptions import WrongKeyType

from .lab import ERROR, Lab, invariants, outcome


def test_a_queued_job_ends_and_its_id_lingers(lab: Lab) -> None:
    lab.add("a", "b")
    assert lab.store.cancel(["a"]) == [1]
    assert lab.status("a") == "cancelled"
    assert lab.ids("cancelled") == ["a"]
    assert lab.ids("queued") == ["a", "b"]
    assert lab.story("a") == ["queued", "cancelled"]
    invariants(lab)
    assert lab.taken(jobs=5) == ["b"]
    invariants(lab)


@pytest.mark.parametrize("options", [{"priority": 3}, {"priority": -3}, {"when": "+1000"}])
def test_others_leave_their_place_at_once(lab: Lab, options: dict[str, object]) -> None:
    lab.add("a", **options)
    assert lab.store.cancel(["a"]) == [1]
    assert (lab.ids("priority"), lab.ids("scheduled")) == ([], [])
    invariants(lab)
    lab.advance(1000)
    assert lab.taken() == []


def test_a_retrying_job_keeps_its_error(lab: Lab) -> None:
    lab.add("a")
    lab.finish(outcome(lab.take(), "retrying", ERROR))
    assert lab.store.cancel(["a"]) == [1]
    assert lab.job("a")["error"] == ERROR
    assert lab.events("a")[-1]["attempt"] == 1
    invariants(lab)


def test_a_running_job_is_flagged_and_its_supervisor_notified(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    with lab.redis.pubsub() as pubsub:
        pubsub.subscribe(lab.keys.control)
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        assert lab.store.cancel(["a"]) == [2]
        assert pubsub.get_message(timeout=5)["data"] == f"cancel c1 a {job.lease}"
    assert lab.job("a")["cancel_ms"] == str(lab.now)
    assert lab.status("a") == "processing"
    assert lab.held() == [f"{job.call}:a"]
    invariants(lab)


@pytest.mark.parametrize("verdict", ["completed", "failed", "cancelled"])
def test_a_finished_job_is_left_alone(lab: Lab, verdict: str) -> None:
    lab.end("a", verdict=verdict)
    before = lab.dump()
    assert lab.store.cancel(["a"]) == [0]
    assert lab.dump() == before


def test_a_repeat_changes_nothing(lab: Lab) -> None:
    lab.add("a")
    lab.store.cancel(["a"])
    before = lab.dump()
    assert lab.store.cancel(["a", "a"]) == [0, 0]
    assert lab.dump() == before


def test_an_unknown_job_is_reported_as_unknown(lab: Lab) -> None:
    assert lab.store.cancel(["never"]) == [-1]
    assert lab.dump() == {}


def test_the_codes_of_a_batch_are_in_its_order(lab: Lab) -> None:
    lab.end("done")
    lab.add("runs")
    lab.take()
    lab.add("waits")
    assert lab.store.cancel(["waits", "never", "runs", "done", "waits"]) == [1, -1, 2, 0, 0]
    invariants(lab)


def test_a_flagged_job_that_is_recovered_becomes_cancelled(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.store.cancel(["a"])
    assert lab.store.reap("c1", ["a"]).jobs == [("a", "cancelled")]
    assert lab.status("a") == "cancelled"
    invariants(lab)


def test_a_flag_concerns_one_generation_however_often_it_is_set(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    assert lab.store.cancel(["a", "a"]) == [2, 2]
    assert lab.job("a")["watched"] == "c"
    assert lab.finish(outcome(job, "retrying")) == [FinishCode.ACCEPTED_AS_CANCELLED]
    lab.store.requeue(["a"])
    assert lab.finish(outcome(lab.take(), "retrying")) == [FinishCode.ACCEPTED]
    invariants(lab)


@pytest.mark.parametrize("name", ["cancelled", "meta", "processing"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    lab.add("a", queue="sound")
    lab.add("b")
    key = getattr(lab.keys.queue("default"), name)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.cancel(["a", "b"])
    assert lab.dump() == before


def test_a_job_key_of_another_type_does_not_stop_the_other_jobs(lab: Lab) -> None:
    lab.redis.set(lab.keys.job("a"), "theirs")
    lab.add("b")
    assert lab.store.cancel(["a", "b"]) == [-1, 1]
    invariants(lab)


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a", "b")
    lab.take()
    with lab.full():
        assert lab.store.cancel(["a", "b"]) == [2, 1]
    invariants(lab)
