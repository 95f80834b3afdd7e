"""cancel: jobs that have not started end at once; running jobs are asked to stop."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import FinishCode

from .harness import ERROR, BrokerHarness, invariants, outcome


def test_a_queued_job_ends_and_its_id_lingers(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    assert broker.store.cancel(["a"]) == [1]
    assert broker.status("a") == "cancelled"
    assert broker.ids("cancelled") == ["a"]
    assert broker.ids("queued") == ["a", "b"]
    assert broker.event_statuses("a") == ["queued", "cancelled"]
    invariants(broker)
    assert broker.taken(jobs=5) == ["b"]
    invariants(broker)


@pytest.mark.parametrize("options", [{"priority": 3}, {"priority": -3}, {"when": "+1000"}])
def test_others_leave_their_place_at_once(
    broker: BrokerHarness, options: dict[str, object]
) -> None:
    broker.add("a", **options)
    assert broker.store.cancel(["a"]) == [1]
    assert (broker.ids("priority"), broker.ids("scheduled")) == ([], [])
    invariants(broker)
    broker.advance(1000)
    assert broker.taken() == []


def test_a_retrying_job_keeps_its_error(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.finish(outcome(broker.take(), "retrying", ERROR))
    assert broker.store.cancel(["a"]) == [1]
    assert broker.job("a")["error"] == ERROR
    assert broker.events("a")[-1]["attempt"] == 1
    invariants(broker)


def test_a_running_job_is_flagged_and_its_supervisor_notified(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    with broker.redis.pubsub() as pubsub:
        pubsub.subscribe(broker.keys.control)
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        assert broker.store.cancel(["a"]) == [2]
        assert pubsub.get_message(timeout=5)["data"] == f"cancel c1 a {job.lease}"
    assert broker.job("a")["cancel_ms"] == str(broker.now)
    assert broker.status("a") == "processing"
    assert broker.held() == [f"{job.call}:a"]
    invariants(broker)


@pytest.mark.parametrize("kind", ["completed", "failed", "cancelled"])
def test_a_finished_job_is_left_alone(broker: BrokerHarness, kind: str) -> None:
    broker.end("a", kind=kind)
    with broker.unchanged():
        assert broker.store.cancel(["a"]) == [0]


def test_a_repeat_changes_nothing(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.store.cancel(["a"])
    with broker.unchanged():
        assert broker.store.cancel(["a", "a"]) == [0, 0]


def test_an_unknown_job_is_reported_as_unknown(broker: BrokerHarness) -> None:
    assert broker.store.cancel(["never"]) == [-1]
    assert broker.dump() == {}


def test_the_codes_of_a_batch_are_in_its_order(broker: BrokerHarness) -> None:
    broker.end("done")
    broker.add("runs")
    broker.take()
    broker.add("waits")
    assert broker.store.cancel(["waits", "never", "runs", "done", "waits"]) == [1, -1, 2, 0, 0]
    invariants(broker)


def test_a_flagged_job_that_is_recovered_becomes_cancelled(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.store.cancel(["a"])
    assert broker.store.reap("c1", ["a"]).jobs == [("a", "cancelled")]
    assert broker.status("a") == "cancelled"
    invariants(broker)


def test_a_flag_concerns_one_generation_however_often_it_is_set(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    assert broker.store.cancel(["a", "a"]) == [2, 2]
    assert broker.job("a")["watched"] == "c"
    assert broker.finish(outcome(job, "retrying")) == [FinishCode.ACCEPTED_AS_CANCELLED]
    broker.store.requeue(["a"])
    assert broker.finish(outcome(broker.take(), "retrying")) == [FinishCode.ACCEPTED]
    invariants(broker)


@pytest.mark.parametrize("name", ["cancelled", "meta", "processing"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str
) -> None:
    broker.add("a", queue="sound")
    broker.add("b")
    with broker.refused_over(getattr(broker.keys.queue("default"), name)):
        broker.store.cancel(["a", "b"])


def test_a_job_key_of_another_type_does_not_stop_the_other_jobs(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.job("a"), "theirs")
    broker.add("b")
    assert broker.store.cancel(["a", "b"]) == [-1, 1]
    invariants(broker)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.take()
    with broker.full():
        assert broker.store.cancel(["a", "b"]) == [2, 1]
    invariants(broker)
