"""A reconcile is bounded, may be interrupted or overtaken, and never declares a job lost too
early."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from django_redisqueue.broker import scan
from django_redisqueue.broker.events import EventStream
from django_redisqueue.conf import get_settings
from django_redisqueue.core.clock import real_ms
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.mirror import reconcile
from django_redisqueue.mirror.reconcile import Reconciler
from django_redisqueue.mirror.writer import Cursor, SqliteThrottle
from django_redisqueue.models import (
    JobEvent,
    JobRecord,
    MirrorState,
    OutboxJob,
    Rollup,
    WorkflowEvent,
    WorkflowRecord,
)
from tests.broker.harness import ERROR, outcome
from tests.broker.workflows import BrokerWorkflow
from tests.worker.processes import eventually

from .mirrored_shard import MirroredShard, check_records, counts


@pytest.fixture
def full_shard(shard: MirroredShard, monkeypatch: pytest.MonkeyPatch) -> MirroredShard:
    """A shard on Redis's own clock, whose mirror is reconciled in small steps."""
    monkeypatch.setattr(reconcile, "RECORDS_PER_STEP", 3)
    monkeypatch.setattr(scan, "KEYS_A_PAGE", 10)
    shard.use_full_bridge()
    return shard


def begin(shard: MirroredShard) -> tuple[Reconciler, Cursor]:
    """Mirror everything, then raise the epoch and make a reconcile due, outside the bridge."""
    shard.mirror()
    state = MirrorState.objects.get()
    MirrorState.objects.update(epoch=state.epoch + 1, unreconciled=True)
    shard.bridge.close()
    return Reconciler(shard.bridge.writer), shard.bridge.writer.cursor()


def steps(reconciler: Reconciler, cursor: Cursor) -> int:
    """Take steps until it is done; returns their number."""
    count = 0
    while reconciler(cursor):
        count += 1
        assert count < 1000
    return count


def test_every_status_is_brought_in_line_with_redis(full_shard: MirroredShard) -> None:
    broker = full_shard.broker
    broker.add("completes", "fails", "cancelled", "runs", "retries", "released", "stays")
    full_shard.mirror()
    jobs = {job.id: job for job in broker.claim(jobs=6).jobs}
    broker.finish(
        outcome(jobs["completes"], body='"' + "r" * 3000 + '"'),
        outcome(jobs["fails"], "failed", ERROR, "max_attempts"),
        outcome(jobs["cancelled"], "cancelled", ERROR),
        outcome(jobs["retries"], "retrying", ERROR, "60000"),
        outcome(jobs["released"], "queued"),
    )
    broker.add("later", when="+60000")
    broker.store.requeue(["fails"])
    broker.redis.delete(broker.keys.events)
    full_shard.mirror()
    check_records(broker)
    assert JobRecord.objects.get(pk="runs").worker == "c1"
    assert JobRecord.objects.get(pk="retries").attempts == 1
    assert JobRecord.objects.get(pk="completes").attempts == 1
    numbers = {"completes": 3, "fails": 4, "runs": 2, "released": 3, "stays": 1, "later": 1}
    assert dict(JobRecord.objects.filter(pk__in=numbers).values_list("pk", "seq")) == numbers
    assert full_shard.statuses("stays") == ["queued"]  # records that agree are left alone
    assert JobRecord.objects.get(pk="stays").epoch == 0
    assert counts()["completed"] == 1  # charts show what the gap hid


@pytest.mark.parametrize("other", [{"reason": "cleaned"}, {"finished_ms": 4_000_000_000_000}])
def test_a_different_end_with_the_same_seq_is_found(
    full_shard: MirroredShard, other: dict[str, str | int]
) -> None:
    """A failover undid the end that the mirror has, and the job ended differently."""
    broker = full_shard.broker
    broker.add("a", "same")
    broker.finish(*[outcome(job, "cancelled", ERROR) for job in broker.claim(jobs=2).jobs])
    reconciler, cursor = begin(full_shard)
    broker.redis.hset(broker.keys.job("a"), mapping=other)
    steps(reconciler, cursor)
    check_records(broker)
    assert JobRecord.objects.get(pk="a").epoch == cursor.epoch > 0
    assert JobRecord.objects.get(pk="same").epoch == 0


def test_it_is_bounded_and_done_once(full_shard: MirroredShard) -> None:
    full_shard.run_jobs(200)
    reconciler, cursor = begin(full_shard)
    assert steps(reconciler, cursor) >= 20
    assert not MirrorState.objects.get().unreconciled
    assert reconciler(cursor) is False
    assert JobEvent.objects.filter(epoch=1).count() == 0
    check_records(full_shard.broker)


def test_an_interrupted_reconcile_restarts_and_changes_nothing_twice(
    full_shard: MirroredShard,
) -> None:
    ids = [f"gone{n}" for n in range(10)]
    full_shard.broker.add(*ids)
    reconciler, cursor = begin(full_shard)
    full_shard.broker.redis.delete(*[full_shard.broker.keys.job(job_id) for job_id in ids])
    while not JobRecord.objects.filter(reason="lost").exists():
        reconciler(cursor)
    assert JobRecord.objects.filter(reason="lost").count() < 10
    steps(Reconciler(full_shard.bridge.writer), cursor)
    assert JobRecord.objects.filter(reason="lost").count() == 10
    assert JobEvent.objects.filter(status="failed").count() == 10


def test_no_job_is_declared_lost_before_its_end_has_been_read(full_shard: MirroredShard) -> None:
    """It ends and is deleted just when the reconciler looks at it."""
    full_shard.broker.add("a", "b")
    reconciler, cursor = begin(full_shard)
    for job in full_shard.broker.claim(jobs=2).jobs:
        full_shard.broker.finish(outcome(job))
    full_shard.broker.redis.delete(full_shard.broker.keys.job("a"), full_shard.broker.keys.job("b"))
    for _ in range(50):
        # it waits until the events that were in the stream have been read
        assert reconciler(cursor) is True
    assert set(JobRecord.objects.values_list("status", flat=True)) == {"queued"}
    page = full_shard.bridge.events.read(cursor.position)
    cursor = full_shard.bridge.writer.write(page.events, cursor, page.last)
    steps(reconciler, cursor)
    assert set(JobRecord.objects.values_list("status", flat=True)) == {"completed"}


def test_no_job_is_declared_lost_that_an_outbox_sends_again(full_shard: MirroredShard) -> None:
    full_shard.broker.add("stored", "gone")
    OutboxJob.objects.using("other").create(id="stored", queue="q", task="t", payload="[[],{}]")
    reconciler, cursor = begin(full_shard)
    full_shard.broker.redis.delete(
        full_shard.broker.keys.job("stored"), full_shard.broker.keys.job("gone")
    )
    steps(reconciler, cursor)
    assert dict(JobRecord.objects.values_list("pk", "reason")) == {"stored": "", "gone": "lost"}


def test_a_missing_job_is_looked_for_again_after_reading_to_the_end(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends and is deleted between the look at its record and the look at Redis."""
    full_shard.broker.add("a")
    reconciler, cursor = begin(full_shard)
    knows, calls = scan.Scanner.knows, []

    def late(self: Any, ids: Any) -> Any:
        if not calls:
            full_shard.broker.finish(outcome(full_shard.broker.take()))
            full_shard.broker.redis.delete(full_shard.broker.keys.job("a"))
        calls.append(ids)
        return knows(self, ids)

    monkeypatch.setattr(scan.Scanner, "knows", late)
    for _ in range(50):
        assert reconciler(cursor) is True
    assert (full_shard.record("a").status, calls) == ("queued", [["a"]])
    page = full_shard.bridge.events.read(cursor.position)
    steps(reconciler, full_shard.bridge.writer.write(page.events, cursor, page.last))
    assert full_shard.record("a").status == "completed"


def test_no_job_is_declared_lost_that_moves_between_the_two_looks(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_shard.broker.add("a")
    reconciler, cursor = begin(full_shard)
    full_shard.broker.redis.delete(full_shard.broker.keys.job("a"))
    looks = []
    knows = scan.Scanner.knows

    def counted(self: Any, ids: Any) -> Any:
        looks.append(list(ids))
        if len(looks) == 1:
            found = knows(self, ids)
            JobRecord.objects.update(seq=7)  # the bridge has read its event meanwhile
            return found
        return knows(self, ids)

    monkeypatch.setattr(scan.Scanner, "knows", counted)
    steps(reconciler, cursor)
    assert looks == [["a"], []]
    assert JobRecord.objects.get().status == "queued"


def before_the_first_page(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Does something after the reconcile has begun and before it sees the first job."""
    page, calls = scan.Scanner.page, []

    def late(self: Any, at: str) -> Any:
        if not calls:
            act()
        calls.append(at)
        return page(self, at)

    monkeypatch.setattr(scan.Scanner, "page", late)


def test_a_job_enqueued_meanwhile_is_left_to_its_events(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciler, cursor = begin(full_shard)
    before_the_first_page(monkeypatch, lambda: full_shard.broker.add("new"))
    for _ in range(50):
        assert reconciler(cursor) is True  # it waits until the events in the stream have been read
    assert not JobRecord.objects.exists()
    assert not Rollup.objects.exists()
    full_shard.mirror()
    assert full_shard.statuses("new") == ["queued"]
    assert counts()["enqueued"] == 1


def test_a_job_that_continues_meanwhile_is_left_to_its_events(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_shard.broker.add("a", "b")
    _, cursor = begin(full_shard)
    before_the_first_page(
        monkeypatch, lambda: full_shard.broker.finish(outcome(full_shard.broker.take()))
    )
    full_shard.mirror()
    assert full_shard.statuses("a") == ["queued", "processing", "completed"]
    assert full_shard.statuses("b") == ["queued"]
    assert (full_shard.record("a").epoch, full_shard.record("b").epoch) == (cursor.epoch, 0)
    assert not MirrorState.objects.get().unreconciled
    check_records(full_shard.broker)


def test_a_workflow_that_ends_meanwhile_is_left_to_its_events(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = BrokerWorkflow(full_shard.broker, {0: []})
    workflow.push()
    begin(full_shard)
    before_the_first_page(monkeypatch, workflow.run_all)
    full_shard.mirror()
    assert full_shard.workflow_statuses(workflow.id) == ["running", "completed"]
    assert full_shard.statuses(workflow.job(0)) == ["queued", "processing", "completed"]
    assert not MirrorState.objects.get().unreconciled
    check_records(full_shard.broker)


def test_a_start_that_was_mirrored_is_not_written_again(full_shard: MirroredShard) -> None:
    """Only the end of the job is lost in the gap."""
    broker = full_shard.broker
    broker.add("a")
    job = broker.take()
    full_shard.mirror()
    broker.finish(outcome(job))
    broker.redis.delete(broker.keys.events)
    full_shard.mirror()
    assert full_shard.statuses("a") == ["queued", "processing", "completed"]
    check_records(broker)


def test_the_due_time_and_the_progress_follow_redis_through_a_gap(
    full_shard: MirroredShard,
) -> None:
    broker = full_shard.broker
    broker.add("runs", "ends", "stays", "progresses", "requeued", "fails")
    jobs = {job.id: job for job in broker.claim(jobs=6).jobs}
    for job_id in ("ends", "progresses", "requeued"):
        broker.store.progress("c1", job_id, jobs[job_id].lease, '{"done":1,"total":4}')
    retried = [outcome(jobs[one], "retrying", ERROR, "60000") for one in ("runs", "ends", "fails")]
    broker.finish(*retried, outcome(jobs["requeued"], "failed", ERROR, "max_attempts"))
    broker.add("gone", when="+60000")
    full_shard.mirror()
    due_at = full_shard.record("gone").due_at
    assert due_at is not None
    broker.store.progress("c1", "progresses", jobs["progresses"].lease, '{"done":3,"total":4}')
    broker.store.run_now(["runs", "ends", "fails"])
    jobs = {job.id: job for job in broker.claim(jobs=3).jobs}
    broker.finish(outcome(jobs["ends"]), outcome(jobs["fails"], "failed", ERROR, "max_attempts"))
    broker.store.requeue(["requeued"])
    broker.add("scheduled", when="+60000")
    broker.redis.delete(broker.keys.events, broker.keys.job("gone"))
    full_shard.mirror()
    record = full_shard.record("gone")
    # docs/recover-redis.md sends it again for that time.
    assert (record.reason, record.due_at) == ("lost", due_at)
    record.delete()
    check_records(broker)
    progress = full_shard.record("progresses").job_progress
    assert progress is not None
    assert progress.done == 3


def test_a_requeue_is_counted(full_shard: MirroredShard) -> None:
    broker = full_shard.broker
    broker.end("a", kind="failed", body=ERROR)
    full_shard.mirror()
    broker.store.requeue(["a"])
    broker.finish(outcome(broker.take()))
    broker.redis.delete(broker.keys.events)
    full_shard.mirror()
    assert full_shard.record("a").requeues == 1
    check_records(broker)


def test_a_job_that_has_moved_in_this_epoch_is_left_to_its_events(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_shard.broker.end("a", kind="failed", body=ERROR)
    _, cursor = begin(full_shard)
    full_shard.broker.store.requeue(["a"])
    page = full_shard.bridge.events.read(cursor.position)
    cursor = full_shard.bridge.writer.write(page.events, cursor, page.last)
    before_the_first_page(monkeypatch, full_shard.broker.take)
    steps(Reconciler(full_shard.bridge.writer), cursor)
    assert full_shard.statuses("a") == ["queued", "processing", "failed", "queued"]
    full_shard.mirror()
    check_records(full_shard.broker)


def test_a_job_that_moved_before_a_failed_start_is_left_to_its_events(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = full_shard.broker
    reconciler, cursor = begin(full_shard)
    broker.add("unread")
    added_ms = broker.queries.now_ms()
    eventually(lambda: broker.queries.now_ms() > added_ms)
    with monkeypatch.context() as patch:
        patch.setattr(EventStream, "ends", Mock(side_effect=RedisUnavailable("cut off")))
        with pytest.raises(RedisUnavailable):
            reconciler(cursor)
    for _ in range(50):
        # it waits until the events that were in the stream have been read
        assert reconciler(cursor) is True
    assert not JobRecord.objects.exists()
    full_shard.mirror()
    assert full_shard.statuses("unread") == ["queued"]
    assert counts()["enqueued"] == 1


def test_on_a_new_connection_it_restarts(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may lead to another server, which has other cursors."""
    full_shard.run_jobs(100)
    reconciler, cursor = begin(full_shard)
    page, pages = scan.Scanner.page, []

    def noted(self: Any, at: str) -> Any:
        pages.append(at)
        return page(self, at)

    monkeypatch.setattr(scan.Scanner, "page", noted)
    for _ in range(3):
        reconciler(cursor)
    full_shard.bridge.connection.close()
    reconciler(cursor)
    assert [at == scan.SCAN_START for at in pages] == [True, False, False, True]


def test_another_bridge_overtakes_it(full_shard: MirroredShard) -> None:
    full_shard.broker.add("a", "gone")
    reconciler, cursor = begin(full_shard)
    full_shard.broker.redis.delete(full_shard.broker.keys.job("gone"))
    full_shard.broker.add("b")
    MirrorState.objects.update(position="9-9", epoch=5)
    for _ in range(20):
        reconciler(cursor)
    assert JobRecord.objects.get(pk="gone").status == "queued"
    assert MirrorState.objects.get().unreconciled


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Does something after a write has read what it needs and before it begins."""
    wait, calls = SqliteThrottle.wait, []

    def late(self: SqliteThrottle) -> None:
        calls.append(self)
        if len(calls) == 1:
            act()
        wait(self)

    monkeypatch.setattr(SqliteThrottle, "wait", late)


def test_of_two_simultaneous_reconciles_only_one_writes(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_shard.broker.add("gone", "unseen")
    reconciler, cursor = begin(full_shard)
    full_shard.broker.redis.delete(full_shard.broker.keys.job("gone"))
    for model in (JobRecord, JobEvent):
        model.objects.filter(**{"pk" if model is JobRecord else "job_id": "unseen"}).delete()
    other = Reconciler(full_shard.bridge.writer)
    meanwhile(monkeypatch, lambda: steps(other, cursor))
    steps(reconciler, cursor)
    assert full_shard.statuses("gone") == ["queued", "failed"]
    assert full_shard.statuses("unseen") == ["queued"]
    assert counts()["failed"] == 1
    assert not MirrorState.objects.get().unreconciled


def test_a_job_just_declared_lost_by_another_is_not_declared_lost_again(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_shard.broker.add("gone")
    reconciler, cursor = begin(full_shard)
    full_shard.broker.redis.delete(full_shard.broker.keys.job("gone"))
    other = Reconciler(full_shard.bridge.writer)
    meanwhile(monkeypatch, lambda: steps(other, cursor))
    steps(reconciler, cursor)
    assert full_shard.statuses("gone") == ["queued", "failed"]


def test_a_new_epoch_in_between_restarts_it(full_shard: MirroredShard) -> None:
    full_shard.run_jobs(50)
    reconciler, cursor = begin(full_shard)
    for _ in range(5):
        reconciler(cursor)
    MirrorState.objects.update(epoch=2)
    later = Cursor(cursor.position, 2)
    assert steps(reconciler, later) >= 5
    assert not MirrorState.objects.get().unreconciled


def test_audit_levels_are_kept_and_foreign_keys_left_alone(full_shard: MirroredShard) -> None:
    broker = full_shard.broker
    levels = ("final", "failed", "none")
    for level in levels:
        for kind in ("completed", "failed"):
            broker.add(f"{level}.{kind}", audit=level)
            broker.finish(outcome(broker.take(), kind, ERROR))
    for level in levels:
        broker.add(f"{level}.waits", audit=level)
    broker.redis.set(broker.keys.job("theirs"), "a string")
    broker.redis.hset(broker.keys.job("tombstone"), "lingers", 1)
    broker.redis.delete(broker.keys.events)
    full_shard.mirror()
    assert set(JobRecord.objects.values_list("pk", flat=True)) == {
        "final.completed", "final.failed", "failed.failed",
    }  # fmt: skip


def test_a_job_whose_key_holds_a_foreign_value_is_lost(full_shard: MirroredShard) -> None:
    full_shard.broker.add("a", "b")
    reconciler, cursor = begin(full_shard)
    full_shard.broker.redis.delete(full_shard.broker.keys.job("a"))
    full_shard.broker.redis.set(full_shard.broker.keys.job("a"), "a string")
    steps(reconciler, cursor)
    assert dict(JobRecord.objects.values_list("id", "reason")) == {"a": "lost", "b": ""}
    assert not MirrorState.objects.get().unreconciled


def test_a_lost_job_is_signalled_like_any_event(full_shard: MirroredShard) -> None:
    full_shard.broker.add("a")
    reconciler, cursor = begin(full_shard)
    full_shard.broker.redis.delete(full_shard.broker.keys.job("a"))
    steps(reconciler, cursor)
    event = JobEvent.objects.latest("id")
    detail = json.loads(event.detail)
    assert (event.job_id, event.status, detail["reason"]) == ("a", "failed", "lost")
    assert detail["error"]["type"] == "JobLost"
    assert f"{event.entry_ms}-{event.entry_no}" == MirrorState.objects.get().position


def test_records_older_than_the_retention_do_not_return(full_shard: MirroredShard) -> None:
    """Redis may keep a failed job or an ended workflow for longer than the database keeps its
    record. If it were written again, its signals would be sent again."""
    broker = full_shard.broker
    flows = [BrokerWorkflow(broker, {0: []}, name=name, ttl_ms="0") for name in ("old", "young")]
    for flow in flows:
        flow.push()
    broker.add("old", "young")
    broker.finish(
        *[outcome(job, "failed", ERROR, "max_attempts") for job in broker.claim(jobs=4).jobs]
    )
    reconciler, cursor = begin(full_shard)
    for model in (JobRecord, JobEvent, WorkflowRecord, WorkflowEvent):
        model._default_manager.all().delete()
    old_ms = real_ms() - get_settings().audit_retention_ms - 1000
    for job_id in ("old", flows[0].job(0)):
        broker.redis.hset(broker.keys.job(job_id), "finished_ms", old_ms)
    broker.redis.hset(broker.keys.workflow(flows[0].id), "ended_ms", old_ms)
    steps(reconciler, cursor)
    assert set(JobRecord.objects.values_list("pk", flat=True)) == {"young", flows[1].job(0)}
    assert [one.pk for one in WorkflowRecord.objects.all()] == [flows[1].id]
    events = JobEvent.objects.values_list("job_id", flat=True)
    assert set(events) == {"young", flows[1].job(0)}
    assert [one.workflow_id for one in WorkflowEvent.objects.all()] == [flows[1].id]
