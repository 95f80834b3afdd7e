"""What becomes of a job is what its record says, on every way through the states."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from django_redisqueue.histograms import decode, percentile
from django_redisqueue.models import JobEvent, JobRecord, Rollup
from tests.store.lab import ERROR, T0, outcome

from .scene import Scene, counts


def at(ms: int) -> datetime:
    return datetime.fromtimestamp((T0 + ms) / 1000, UTC)


def test_an_ordinary_life_step_by_step(scene: Scene) -> None:
    lab = scene.lab
    lab.add("a", payload='[[1,"é"],{"k":null}]', queue="default")
    scene.mirror()
    record = scene.record("a")
    assert (record.task, record.queue, record.status) == ("app.task", "default", "queued")
    assert record.args == (1, "é")
    assert record.kwargs == {"k": None}
    assert (record.enqueued_at, record.queued_at, record.seq) == (at(0), at(0), 1)
    lab.advance(1500)
    job = lab.take("c1")
    scene.mirror()
    record = scene.record("a")
    assert (record.status, record.worker, record.attempts) == ("processing", "c1", 1)
    assert (record.started_at, record.finished_at) == (at(1500), None)
    assert lab.store.progress("c1", "a", 1, '{"done":1,"total":4,"note":"x"}')
    scene.mirror()
    progress = scene.record("a").job_progress
    assert progress is not None
    assert (progress.done, progress.total, progress.note) == (1, 4, "x")
    assert scene.record("a").started_at == at(1500)
    lab.advance(700)
    lab.finish(outcome(job, body='{"n":[]}'))
    scene.mirror()
    record = scene.record("a")
    assert (record.status, record.result_value) == ("completed", {"n": []})
    assert (record.finished_at, record.seq, record.epoch) == (at(2200), 4, 0)
    assert scene.story("a") == ["queued", "processing", "processing", "completed"]
    scene.is_complete()


def test_events_of_one_batch_collapse_to_one_row(scene: Scene) -> None:
    lab = scene.lab
    lab.end("a")
    lab.add("b")
    lab.finish(outcome(lab.take()))
    scene.mirror()
    assert scene.story("a") == scene.story("b") == ["queued", "processing", "completed"]
    assert JobRecord.objects.count() == 2
    scene.is_complete()


def test_a_retry_and_its_error(scene: Scene) -> None:
    lab = scene.lab
    lab.add("a")
    lab.finish(outcome(lab.take(), "retrying", ERROR, "5000"))
    scene.mirror()
    record = scene.record("a")
    assert (record.status, record.error_type, record.due_at) == ("retrying", "E", at(5000))
    assert record.job_error is not None
    assert record.job_error.message == "no"
    detail = json.loads(JobEvent.objects.get(status="retrying").detail)
    assert detail == {"dueMs": T0 + 5000, "error": json.loads(ERROR)}
    lab.advance(5000)
    lab.finish(outcome(lab.take()))
    scene.mirror()
    record = scene.record("a")
    assert (record.status, record.error, record.error_type) == ("completed", "", "")
    assert (record.attempts, record.due_at) == (2, None)
    scene.is_complete()


def test_a_failed_job_requeued_moves_on(scene: Scene) -> None:
    lab = scene.lab
    lab.end("a", verdict="failed", body=ERROR)
    scene.mirror()
    assert scene.record("a").finished_at == at(0)
    lab.advance(1000)
    lab.store.requeue(["a"])
    scene.mirror()
    record = scene.record("a")
    assert (record.status, record.requeues, record.attempts) == ("queued", 1, 0)
    assert (record.error, record.error_type, record.reason, record.worker) == ("", "", "", "")
    assert (record.started_at, record.finished_at) == (None, None)
    scene.is_complete()
    lab.finish(outcome(lab.take()))
    scene.mirror()
    assert scene.record("a").status == "completed"
    scene.is_complete()


def test_a_requeue_inside_one_batch(scene: Scene) -> None:
    lab = scene.lab
    lab.end("a", verdict="failed", body=ERROR)
    lab.store.requeue(["a"])
    lab.finish(outcome(lab.take()))
    scene.mirror()
    assert (scene.record("a").status, scene.record("a").requeues) == ("completed", 1)
    scene.is_complete()


def test_cancelled_before_and_while_it_runs(scene: Scene) -> None:
    lab = scene.lab
    lab.add("b")
    job = lab.take()
    lab.add("a", "p", priority=5)
    lab.add("s", when="+60000")
    assert lab.store.cancel(["a", "b", "p", "s"]) == [1, 2, 1, 1]
    scene.mirror()
    lab.finish(outcome(job, "cancelled", ERROR))
    scene.mirror()
    assert {record.status for record in JobRecord.objects.all()} == {"cancelled"}
    assert scene.record("b").error_type == "E"
    assert scene.record("p").priority == 5
    scene.is_complete()


def test_a_scheduled_job_with_a_priority(scene: Scene) -> None:
    scene.lab.add("s", when="+60000", priority=-7)
    scene.mirror()
    record = scene.record("s")
    assert (record.status, record.due_at, record.priority) == ("scheduled", at(60_000), -7)
    scene.is_complete()
    scene.lab.advance(60_000)
    scene.lab.store.promote(["default"])
    scene.mirror()
    record = scene.record("s")
    assert (record.status, record.due_at, record.queued_at) == ("queued", None, at(60_000))


def test_large_bodies_come_from_the_hash(scene: Scene) -> None:
    lab, large = scene.lab, "x" * 3000
    lab.add("a", payload=json.dumps([[large], {}]))
    scene.mirror()
    assert scene.record("a").args == (large,)
    lab.finish(outcome(lab.take(), body=json.dumps(large + "r")))
    lab.add("b", payload=json.dumps([[large], {}]))
    error = json.dumps({"type": "Big", "message": large, "traceback": ""})
    lab.finish(outcome(lab.take(), "failed", error, "max_attempts"))
    scene.mirror()
    assert scene.record("a").result_value == large + "r"
    assert (scene.record("b").args, scene.record("b").error_type) == ((large,), "Big")
    assert scene.record("b").reason == "max_attempts"
    scene.is_complete()


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_large_body_whose_hash_is_gone_leaves_the_field(scene: Scene, is_foreign: bool) -> None:
    lab = scene.lab
    lab.add("a", "b", payload=json.dumps([["x" * 3000], {}]))
    lab.redis.delete(lab.keys.job("a"))
    if is_foreign:
        lab.redis.set(lab.keys.job("a"), "somebody else's")
    scene.mirror()
    assert (scene.record("a").status, scene.record("a").payload) == ("queued", "")
    assert len(scene.record("b").payload) > 3000


def test_an_error_of_a_later_attempt_is_not_taken_for_an_earlier_ones(scene: Scene) -> None:
    """The hash is further on than the events that this batch ends with."""
    lab = scene.lab
    lab.add("a")
    for word in ("first", "second"):
        error = json.dumps({"type": word, "message": "x" * 2000, "traceback": ""})
        lab.finish(outcome(lab.take(), "retrying", error, "0"))
        if word == "first":
            events = len(lab.events())
    scene.bridge = type(scene.bridge)(lab.store.settings, page=events)
    assert scene.bridge.run_once()
    assert (scene.record("a").status, scene.record("a").error) == ("retrying", "")
    scene.mirror()
    assert scene.record("a").error_type == "second"


def test_thinned_at_the_source(scene: Scene) -> None:
    """Of the levels but ``all`` the first that the mirror hears is how the job ended."""
    lab = scene.lab
    lab.add("f", audit="final", priority=3, payload="[[5],{}]")
    lab.advance(100)
    job = lab.take()
    lab.advance(100)
    lab.finish(outcome(job))
    lab.end("x", audit="failed", verdict="failed", body=ERROR)
    lab.end("y", audit="failed")
    lab.end("z", audit="none")
    scene.mirror()
    assert set(JobRecord.objects.values_list("id", flat=True)) == {"f", "x"}
    record = scene.record("f")
    assert (record.status, record.args, record.priority) == ("completed", (5,), 3)
    assert (record.enqueued_at, record.started_at, record.finished_at) == (at(0), at(100), at(200))
    assert scene.story("f") == ["completed"]


def test_rollups_count_and_time(scene: Scene) -> None:
    lab = scene.lab
    for n in range(10):
        lab.add(f"a{n}")
        lab.advance(40)
        job = lab.take()
        lab.advance(400)
        lab.finish(outcome(job))
        scene.mirror()  # rows that there are grow
    lab.add("r")
    lab.finish(outcome(lab.take(), "retrying", ERROR, "60000"))
    lab.store.cancel(["r"])
    lab.end("f", verdict="failed", body=ERROR, queue="other")
    scene.mirror()
    found = counts()
    assert found == {"enqueued": 12, "completed": 10, "failed": 1, "retried": 1, "cancelled": 1}
    assert Rollup.objects.count() == 2
    row = Rollup.objects.get(queue="default")
    assert (row.task, row.minute.second) == ("app.task", 0)
    assert sum(decode(row.wait)) == 11
    assert 30 < (percentile(decode(row.wait), 0.5) or 0) <= 50
    assert 300 < (percentile(decode(row.run), 0.5) or 0) <= 500
    assert sum(decode(Rollup.objects.get(queue="other").run)) == 1
