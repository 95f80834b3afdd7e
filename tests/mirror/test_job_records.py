"""A record follows its job through every status."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db.models.signals import post_init

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.metrics.histograms import decode, percentile
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.models import JobEvent, JobRecord, Rollup
from tests.broker.harness import ERROR, T0, outcome

from .mirrored_shard import MirroredShard, check_records, counts


def at(ms: int) -> datetime:
    return datetime.fromtimestamp((T0 + ms) / 1000, UTC)


def test_an_ordinary_job_step_by_step(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.add("a", payload='[[1,"é"],{"k":null}]', queue="default")
    shard.mirror()
    record = shard.record("a")
    assert (record.task, record.queue, record.status) == ("app.task", "default", "queued")
    assert record.args == (1, "é")
    assert record.kwargs == {"k": None}
    assert (record.enqueued_at, record.queued_at, record.seq) == (at(0), at(0), 1)
    broker.advance(1500)
    job = broker.take("c1")
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.worker, record.attempts) == ("processing", "c1", 1)
    assert (record.started_at, record.finished_at) == (at(1500), None)
    assert broker.store.progress("c1", "a", 1, '{"done":1,"total":4,"note":"x"}')
    shard.mirror()
    progress = shard.record("a").job_progress
    assert progress is not None
    assert (progress.done, progress.total, progress.note) == (1, 4, "x")
    assert shard.record("a").started_at == at(1500)
    broker.advance(700)
    broker.finish(outcome(job, body='{"n":[]}'))
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.result_value) == ("completed", {"n": []})
    assert (record.finished_at, record.seq, record.epoch) == (at(2200), 4, 0)
    assert shard.statuses("a") == ["queued", "processing", "processing", "completed"]
    shard.assert_complete()


def test_events_of_one_batch_collapse_to_one_row(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.end("a")
    broker.add("b")
    broker.finish(outcome(broker.take()))
    shard.mirror()
    assert shard.statuses("a") == shard.statuses("b") == ["queued", "processing", "completed"]
    assert JobRecord.objects.count() == 2
    shard.assert_complete()


def test_a_retry_and_its_error(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.add("a")
    broker.finish(outcome(broker.take(), "retrying", ERROR, "5000"))
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.error_type, record.due_at) == ("retrying", "E", at(5000))
    assert record.job_error is not None
    assert record.job_error.message == "no"
    detail = json.loads(JobEvent.objects.get(status="retrying").detail)
    assert detail == {"dueMs": T0 + 5000, "error": json.loads(ERROR)}
    broker.advance(5000)
    broker.finish(outcome(broker.take()))
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.error, record.error_type) == ("completed", "", "")
    assert (record.attempts, record.due_at) == (2, None)
    shard.assert_complete()


def test_a_requeued_failed_job_moves_on(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.end("a", kind="failed", body=ERROR)
    shard.mirror()
    assert shard.record("a").finished_at == at(0)
    broker.advance(1000)
    broker.store.requeue(["a"])
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.requeues, record.attempts) == ("queued", 1, 0)
    assert (record.error, record.error_type, record.reason, record.worker) == ("", "", "", "")
    assert (record.started_at, record.finished_at) == (None, None)
    shard.assert_complete()
    broker.finish(outcome(broker.take()))
    shard.mirror()
    assert shard.record("a").status == "completed"
    shard.assert_complete()


def test_a_requeue_inside_one_batch(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.end("a", kind="failed", body=ERROR)
    broker.store.requeue(["a"])
    broker.finish(outcome(broker.take()))
    shard.mirror()
    assert (shard.record("a").status, shard.record("a").requeues) == ("completed", 1)
    shard.assert_complete()


def test_cancelled_before_and_while_it_runs(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.add("b")
    job = broker.take()
    broker.add("a", "p", priority=5)
    broker.add("s", when="+60000")
    assert broker.store.cancel(["a", "b", "p", "s"]) == [1, 2, 1, 1]
    shard.mirror()
    broker.finish(outcome(job, "cancelled", ERROR))
    shard.mirror()
    assert {record.status for record in JobRecord.objects.all()} == {"cancelled"}
    assert shard.record("b").error_type == "E"
    assert shard.record("p").priority == 5
    shard.assert_complete()


def test_the_reason_why_a_job_was_cancelled(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.add("p")
    broker.add("f", after="skip p")
    broker.finish(outcome(broker.take(), "failed", ERROR))
    shard.mirror()
    assert (shard.record("f").status, shard.record("f").reason) == ("cancelled", "skipped")
    check_records(broker)
    broker.store.requeue(["p"])
    broker.store.requeue(["f"])
    shard.mirror()
    assert shard.record("f").reason == ""
    check_records(broker)


def test_a_scheduled_job_with_a_priority(shard: MirroredShard) -> None:
    shard.broker.add("s", when="+60000", priority=-7)
    shard.mirror()
    record = shard.record("s")
    assert (record.status, record.due_at, record.priority) == ("scheduled", at(60_000), -7)
    shard.assert_complete()
    shard.broker.advance(60_000)
    shard.broker.store.promote(["default"])
    shard.mirror()
    record = shard.record("s")
    assert (record.status, record.due_at, record.queued_at) == ("queued", None, at(60_000))


def test_large_bodies_come_from_the_hash(shard: MirroredShard) -> None:
    broker, large = shard.broker, "x" * 3000
    broker.add("a", payload=json.dumps([[large], {}]))
    shard.mirror()
    assert shard.record("a").args == (large,)
    broker.finish(outcome(broker.take(), body=json.dumps(large + "r")))
    broker.add("b", payload=json.dumps([[large], {}]))
    error = json.dumps({"type": "Big", "message": large, "traceback": ""})
    broker.finish(outcome(broker.take(), "failed", error, "max_attempts"))
    shard.mirror()
    assert shard.record("a").result_value == large + "r"
    assert (shard.record("b").args, shard.record("b").error_type) == ((large,), "Big")
    assert shard.record("b").reason == "max_attempts"
    shard.assert_complete()


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_large_body_whose_hash_is_gone_leaves_the_field(
    shard: MirroredShard, is_foreign: bool
) -> None:
    broker = shard.broker
    broker.add("a", "b", payload=json.dumps([["x" * 3000], {}]))
    broker.redis.delete(broker.keys.job("a"))
    if is_foreign:
        broker.redis.set(broker.keys.job("a"), "somebody else's")
    shard.mirror()
    assert (shard.record("a").status, shard.record("a").payload) == ("queued", "")
    assert len(shard.record("b").payload) > 3000


def test_the_error_of_a_later_attempt_is_not_taken_for_an_earlier_one(shard: MirroredShard) -> None:
    """The hash is ahead of the last event of the page."""
    broker = shard.broker
    broker.add("a")
    for word in ("first", "second"):
        error = json.dumps({"type": word, "message": "x" * 2000, "traceback": ""})
        broker.finish(outcome(broker.take(), "retrying", error, "0"))
        if word == "first":
            events = len(broker.events())
    shard.bridge = Bridge(page=events)
    assert shard.bridge.run_once()
    assert (shard.record("a").status, shard.record("a").error) == ("retrying", "")
    shard.mirror()
    assert shard.record("a").error_type == "second"


def test_audit_levels(shard: MirroredShard) -> None:
    """Except at the level ``all``, the first event is the end of the job."""
    broker = shard.broker
    broker.add("f", audit="final", priority=3, payload="[[5],{}]")
    broker.advance(100)
    job = broker.take()
    broker.advance(100)
    broker.finish(outcome(job))
    broker.end("x", audit="failed", kind="failed", body=ERROR)
    broker.end("y", audit="failed")
    broker.end("z", audit="none")
    shard.mirror()
    assert set(JobRecord.objects.values_list("id", flat=True)) == {"f", "x"}
    record = shard.record("f")
    assert (record.status, record.args, record.priority) == ("completed", (5,), 3)
    assert (record.enqueued_at, record.started_at, record.finished_at) == (at(0), at(100), at(200))
    assert shard.statuses("f") == ["completed"]


def test_rollups_count_and_time(shard: MirroredShard) -> None:
    broker = shard.broker
    for n in range(10):
        broker.add(f"a{n}")
        broker.advance(40)
        job = broker.take()
        broker.advance(400)
        broker.finish(outcome(job))
        shard.mirror()  # existing rows grow
    broker.add("r")
    broker.finish(outcome(broker.take(), "retrying", ERROR, "60000"))
    broker.store.cancel(["r"])
    broker.end("f", kind="failed", body=ERROR, queue="other")
    shard.mirror()
    found = counts()
    assert found == {"enqueued": 12, "completed": 10, "failed": 1, "retried": 1, "cancelled": 1}
    assert Rollup.objects.count() == 2
    row = Rollup.objects.get(queue="default")
    assert (row.task, row.minute.second) == ("app.task", 0)
    assert sum(decode(row.wait)) == 11
    assert 30 < (percentile(decode(row.wait), 0.5) or 0) <= 50
    assert 300 < (percentile(decode(row.run), 0.5) or 0) <= 500
    assert sum(decode(Rollup.objects.get(queue="other").run)) == 1


def test_rollup_rows_of_other_tasks_are_not_read(shard: MirroredShard) -> None:
    read: list[str] = []

    def note(instance: Rollup, **_: Any) -> None:
        if instance.pk is not None:
            read.append(instance.task)

    post_init.connect(note, Rollup)
    try:
        for n, task in enumerate(("first", "second", "first")):
            shard.broker.store.enqueue([NewJob(f"{task}_{n}", "default", task, "[[],{}]")])
            shard.mirror()
    finally:
        post_init.disconnect(note, Rollup)
    assert read == ["first"]
    assert counts()["enqueued"] == 3


def test_a_job_requeued_while_another_parent_has_not_ended(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.add("p", "q")
    broker.add("f", after="skip p q")
    broker.finish(outcome(broker.take(), "failed", ERROR))
    assert broker.store.requeue(["f"]) == [1]
    shard.mirror()
    assert (shard.record("f").status, shard.record("f").requeues) == ("waiting", 1)


def test_newer_arguments_for_a_job_that_has_failed(shard: MirroredShard) -> None:
    """It starts over."""
    broker = shard.broker
    replaces = {"unique": "k replace 1000 60000", "when": "+1000"}
    broker.add("a", **replaces)
    broker.advance(1000)
    broker.store.promote(["default"])
    broker.finish(outcome(broker.take(), "retrying", ERROR))
    shard.mirror()
    assert shard.record("a").error == ERROR
    broker.add("b", **replaces)
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.error, record.error_group) == ("scheduled", "", None)
    assert (record.started_at, record.worker, record.attempts) == (None, "", 0)
