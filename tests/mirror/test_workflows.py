"""Each workflow has a record and a history, whatever is lost or read again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from django_redisqueue.broker.entries import format_position
from django_redisqueue.broker.events import WorkflowCounts, WorkflowStreamEvent
from django_redisqueue.broker.workflows import HALF_PUSHED_MS
from django_redisqueue.core.statuses import WorkflowTransition
from django_redisqueue.mirror import reconcile
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.changes import KnownWorkflow, collapse_workflows
from django_redisqueue.mirror.reconcile import Reconciler
from django_redisqueue.mirror.writer import CursorMoved
from django_redisqueue.models import (
    JobEvent,
    JobRecord,
    MirrorState,
    OutboxJob,
    WorkflowEvent,
    WorkflowRecord,
)
from django_redisqueue.signals import (
    WORKFLOW_SIGNALS,
    workflow_completed,
    workflow_failed,
    workflow_running,
)
from tests.broker.harness import ERROR, outcome
from tests.broker.workflows import BrokerWorkflow

from .mirror_processes import MirrorProcesses
from .mirrored_shard import MirroredShard, check_events
from .test_reconcile import begin, meanwhile, steps
from .test_signals import listening

FAN = {0: (), 1: (0,), 2: (0,), 3: (1, 2)}


@pytest.fixture
def full_shard(full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch) -> MirroredShard:
    monkeypatch.setattr(reconcile, "RECORDS_PER_STEP", 3)
    return full_shard


def counts(record: WorkflowRecord) -> tuple[int, int, int, int]:
    return record.total, record.completed, record.failed, record.cancelled


# -- a life


def test_a_record_follows_its_workflow_to_the_end(shard: MirroredShard) -> None:
    workflow = BrokerWorkflow(shard.broker, FAN, name="1")
    workflow.push()
    shard.mirror()
    record = shard.workflow(workflow.id)
    assert (record.status, record.generation, counts(record)) == ("running", 0, (4, 0, 0, 0))
    assert (record.ended_at, record.cleaned_at) == (None, None)
    assert round(record.made_at.timestamp() * 1000) == workflow.data().made_ms
    workflow.run_all()
    shard.mirror()
    record = shard.workflow(workflow.id)
    assert (record.status, counts(record)) == ("completed", (4, 4, 0, 0))
    assert record.ended_at is not None
    assert round(record.ended_at.timestamp() * 1000) == workflow.data().ended_ms
    assert shard.workflow_statuses(workflow.id) == ["running", "completed"]
    shard.assert_complete()


@pytest.mark.parametrize("name", ["", 'a "quoted" \\ name', "<b>Nächte</b> \U0001f319", "x" * 200])
def test_its_name_arrives_as_it_was_given(shard: MirroredShard, name: str) -> None:
    workflow = BrokerWorkflow(shard.broker, FAN, name="1")
    workflow._fields = ["name", name]
    workflow.push()
    shard.mirror()
    assert shard.workflow(workflow.id).name == name


def test_pause_and_release_are_a_flag(shard: MirroredShard) -> None:
    workflow = BrokerWorkflow(shard.broker, FAN, name="1")
    workflow.push()
    shard.broker.store.control_workflow(workflow.id, "pause")
    shard.mirror()
    assert (shard.workflow(workflow.id).status, shard.workflow(workflow.id).is_paused) == (
        "running",
        True,
    )
    shard.broker.store.control_workflow(workflow.id, "release")
    shard.mirror()
    assert (shard.workflow(workflow.id).status, shard.workflow(workflow.id).is_paused) == (
        "running",
        False,
    )
    assert shard.workflow_statuses(workflow.id) == ["running", "paused", "running"]


def test_a_paused_workflow_that_fails_and_is_retried_is_still_paused(
    shard: MirroredShard,
) -> None:
    workflow = BrokerWorkflow(shard.broker, {0: (), 1: ()}, name="1")
    workflow.push()
    job = shard.broker.take("runner")
    shard.broker.store.control_workflow(workflow.id, "pause")
    shard.broker.finish(outcome(job, "failed", ERROR), child="runner")
    shard.mirror()
    record = shard.workflow(workflow.id)
    assert (record.status, record.is_paused, counts(record)) == ("failed", True, (2, 0, 1, 0))
    shard.broker.store.requeue([job.id])
    shard.mirror()
    record = shard.workflow(workflow.id)
    assert (record.status, record.is_paused, record.generation) == ("running", True, 1)
    assert (record.ended_at, record.cleaned_at) == (None, None)
    assert shard.workflow_statuses(workflow.id) == ["running", "paused", "failed", "running"]


def test_a_cleaned_workflow_keeps_its_counts(shard: MirroredShard) -> None:
    workflow = BrokerWorkflow(shard.broker, FAN, name="1")
    workflow.push()
    workflow.run_one()
    shard.broker.store.control_workflow(workflow.id, "cancel")
    shard.mirror()
    record = shard.workflow(workflow.id)
    assert (record.status, counts(record)) == ("cancelled", (4, 1, 0, 0)), "it has just begun to"
    workflow.advance()
    shard.broker.store.control_workflow(workflow.id, "clean")
    workflow.advance()
    shard.mirror()
    record = shard.workflow(workflow.id)
    assert (record.status, counts(record)) == ("cancelled", (4, 1, 0, 3))
    assert record.cleaned_at is not None
    assert shard.workflow_statuses(workflow.id) == ["running", "cancelled", "cleaned"]
    shard.mirror()
    check_events(shard.broker)


def test_a_push_that_was_never_finished_leaves_no_record(shard: MirroredShard) -> None:
    workflow = BrokerWorkflow(shard.broker, FAN, name="1")
    workflow.push_batch(0, 2, first=True)
    shard.mirror()
    shard.broker.advance(HALF_PUSHED_MS)
    workflow.advance()
    shard.mirror()
    assert not WorkflowRecord.objects.exists()
    assert shard.workflow_statuses(workflow.id) == ["cleaned"]
    paused = BrokerWorkflow(shard.broker, FAN, name="2")
    paused.push_batch(0, 2, first=True)
    shard.broker.store.control_workflow(paused.id, "pause")
    shard.mirror()
    assert shard.workflow(paused.id).is_paused
    shard.broker.advance(HALF_PUSHED_MS)
    paused.advance()
    shard.mirror()
    assert shard.workflow(paused.id).status == "cancelled"
    assert shard.workflow(paused.id).ended_at is not None


# -- once


def test_a_page_is_applied_once_however_often_it_is_read(shard: MirroredShard) -> None:
    workflow = BrokerWorkflow(shard.broker, FAN, name="1")
    workflow.push()
    workflow.run_all()
    shard.mirror()
    stale = shard.bridge.writer.cursor()
    page = shard.bridge.events.read((0, 0))
    MirrorState.objects.update(position="0-1")
    with pytest.raises(CursorMoved):
        shard.bridge.writer.write(page.events, stale, page.last, page.workflows)
    assert shard.workflow_statuses(workflow.id) == ["running", "completed"]


def test_many_in_one_page_and_over_pages(shard: MirroredShard) -> None:
    workflows = [BrokerWorkflow(shard.broker, {0: ()}, name=str(n)) for n in range(30)]
    for workflow in workflows:
        workflow.push()
    small = Bridge(page=7)
    shard.mirror(small)
    small.close()
    assert workflows[0].broker.claim("w", 100).jobs
    assert WorkflowRecord.objects.filter(status="running").count() == 30
    shard.mirror()
    check_events(shard.broker)


def test_a_full_page_with_events_of_workflows_is_not_the_end(
    shard: MirroredShard,
) -> None:
    for n in range(6):
        BrokerWorkflow(shard.broker, {0: ()}, name=str(n)).push()
    events = len(shard.broker.written())
    bridge = Bridge(page=6)
    assert bridge.run_once()
    assert not bridge.is_caught_up
    assert bridge.applied == 6
    shard.mirror(bridge)
    assert bridge.applied == events
    bridge.close()


def test_an_entry_that_is_not_a_workflow_event_is_left_out(
    shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    strange = ['{"workflowId":"flow_x_0","status":"dancing"}', "[]", "no JSON"]
    for text in strange:
        shard.broker.redis.xadd(shard.broker.keys.events, {"workflow": text})
    workflow = BrokerWorkflow(shard.broker, FAN, name="1")
    workflow.push()
    shard.mirror()
    assert caplog.text.count("is no event") == len(strange)
    assert shard.workflow(workflow.id).status == "running"


def test_a_name_that_is_too_long_affects_no_other_workflow(
    shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    workflows = [BrokerWorkflow(shard.broker, {0: ()}, name=str(n)) for n in range(3)]
    workflows[1]._fields = ["name", "x" * 201]
    for workflow in workflows:
        workflow.push()
    shard.mirror()
    names = dict(WorkflowRecord.objects.values_list("pk", "name"))
    assert names == {workflows[0].id: "", workflows[1].id: "x" * 200, workflows[2].id: ""}
    assert JobEvent.objects.count() == 3
    assert caplog.text.count("name is 'xxx") == 1
    assert (MirrorState.objects.get().left_out, MirrorState.objects.get().incomplete) == (0, 1)


@pytest.mark.parametrize(
    ("order", "moves"),
    [
        ((0, 9, 9), True),
        ((1, 4, 9), True),
        ((1, 5, 0), True),
        ((1, 5, 1), False),
        ((2, 0, 0), False),
    ],
)
def test_an_older_event_changes_nothing(order: tuple[int, int, int], moves: bool) -> None:
    counts = WorkflowCounts(generation=0, total=1, completed=1, failed=0, cancelled=0)
    event = WorkflowStreamEvent(
        (5, 0), "flow_1_0", WorkflowTransition.COMPLETED, 5, 1, "", counts, False
    )
    known = {"flow_1_0": KnownWorkflow(order, "running", "", None, None)}
    changes = collapse_workflows([event], known, epoch=1)
    assert list(changes) == (["flow_1_0"] if moves else [])


# -- lost and found


def trim_all(shard: MirroredShard) -> None:
    shard.broker.redis.xtrim(shard.broker.keys.events, maxlen=1, approximate=False)


def test_a_gap_is_reconciled_from_redis(full_shard: MirroredShard) -> None:
    ends, fails, paused, unseen = (
        BrokerWorkflow(full_shard.broker, {0: ()}, name=n) for n in "1234"
    )
    for workflow in (ends, fails, paused):
        workflow.push()
    full_shard.mirror()
    first, second = full_shard.broker.claim(jobs=2).jobs
    full_shard.broker.finish(outcome(first), outcome(second, "failed", ERROR))
    full_shard.broker.store.control_workflow(paused.id, "pause")
    unseen._fields = ["name", "unseen"]
    unseen.push()
    trim_all(full_shard)
    full_shard.mirror()
    assert MirrorState.objects.get().gaps == 1
    for workflow in (ends, fails, paused, unseen):
        record, data = full_shard.workflow(workflow.id), workflow.data()
        assert record.status == data.status
        assert record.is_paused == data.is_paused
        assert counts(record) == (data.total, data.completed, data.failed, data.cancelled)
    assert full_shard.workflow(unseen.id).name == "unseen"
    assert WorkflowEvent.objects.filter(reason="reconciled").count() >= 2


def begin_anew(shard: MirroredShard) -> None:
    """Raise the epoch and make a reconcile due, as after a gap."""
    state = MirrorState.objects.get()
    MirrorState.objects.update(epoch=state.epoch + 1, unreconciled=True)
    shard.bridge.close()


def test_a_record_that_agrees_is_unchanged(full_shard: MirroredShard) -> None:
    workflow = BrokerWorkflow(full_shard.broker, FAN, name="1")
    workflow.push()
    full_shard.mirror()
    begin_anew(full_shard)
    full_shard.mirror()
    assert full_shard.workflow_statuses(workflow.id) == ["running"]
    assert full_shard.workflow(workflow.id).epoch == 0


def test_a_workflow_that_redis_does_not_know_is_lost(
    full_shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    workflows = [BrokerWorkflow(full_shard.broker, FAN, name=f"{n}") for n in range(5)]
    for workflow in workflows:
        workflow.push()
    full_shard.mirror()
    gone = workflows[:4]
    for workflow in gone:
        full_shard.broker.redis.delete(full_shard.broker.keys.workflow(workflow.id))
    begin_anew(full_shard)
    told: list[str] = []
    with listening(workflow_failed, to=lambda record, **_: told.append(record.id)):
        full_shard.mirror()
    for workflow in gone:
        record = full_shard.workflow(workflow.id)
        assert (record.status, record.reason, record.is_paused) == ("failed", "lost", False)
        assert record.ended_at is not None
        assert f"workflow {workflow.id} is lost" in caplog.text
    assert full_shard.workflow(workflows[4].id).status == "running"
    assert sorted(told) == [workflow.id for workflow in gone]
    assert "4 workflows lost" in caplog.text


def test_no_workflow_is_declared_lost_that_an_outbox_sends_again(full_shard: MirroredShard) -> None:
    workflow = BrokerWorkflow(full_shard.broker, FAN, name="1")
    workflow.push()
    full_shard.mirror()
    OutboxJob.objects.create(id=workflow.id, queue="q", task="t", payload="[[],{}]")
    full_shard.broker.redis.delete(full_shard.broker.keys.workflow(workflow.id))
    full_shard.broker.redis.delete(*[full_shard.broker.keys.job(f"{workflow.id}.{n}") for n in FAN])
    begin_anew(full_shard)
    full_shard.mirror()
    assert full_shard.workflow(workflow.id).status == "running"
    assert not JobRecord.objects.filter(reason="lost").exists()


def test_no_workflow_is_declared_lost_before_its_end_has_been_read(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends and is cleaned up between the walk's look at Redis and its look at the records."""
    workflow = BrokerWorkflow(full_shard.broker, {0: ()}, name="1")
    workflow.push()
    reconciler, cursor = begin(full_shard)
    pages = reconcile.WorkflowReconciler.unfinished_pages
    looks: list[str] = []

    def late(self: Any) -> Iterator[list[WorkflowRecord]]:
        for records in pages(self):
            if not looks:
                looks.extend(record.pk for record in records)
                workflow.run_all()
                full_shard.broker.store.control_workflow(workflow.id, "clean")
                workflow.advance()
            yield records

    monkeypatch.setattr(reconcile.WorkflowReconciler, "unfinished_pages", late)
    for _ in range(50):
        # it waits until the events that were in the stream have been read
        assert reconciler(cursor) is True
    assert (full_shard.workflow(workflow.id).status, looks) == ("running", [workflow.id])
    read = full_shard.bridge.events.read(cursor.position)
    steps(
        reconciler, full_shard.bridge.writer.write(read.events, cursor, read.last, read.workflows)
    )
    assert (full_shard.workflow(workflow.id).status, full_shard.workflow(workflow.id).reason) == (
        "completed",
        "",
    )
    assert full_shard.workflow(workflow.id).cleaned_at is not None


def test_a_cursor_on_a_workflows_entry_is_recognised(full_shard: MirroredShard) -> None:
    workflow = BrokerWorkflow(full_shard.broker, {0: ()}, name="1")
    workflow.push()
    full_shard.broker.store.control_workflow(workflow.id, "pause")  # the last entry
    full_shard.mirror()
    _, last = full_shard.bridge.events.ends()
    assert last is not None
    assert MirrorState.objects.get().position == format_position(last)
    full_shard.bridge.close()
    full_shard.mirror()
    assert MirrorState.objects.get().epoch == 0
    # Redis goes back in time, and another entry is now in its place.
    key, (*_, event) = full_shard.broker.keys.events, full_shard.broker.written()
    assert event.place == last
    full_shard.broker.redis.delete(key)
    other = event.text.replace("paused", "running")
    full_shard.broker.redis.xadd(key, {"workflow": other, "name": ""}, id=event.entry)
    full_shard.bridge.close()
    full_shard.mirror()
    assert MirrorState.objects.get().epoch == 1


# -- signals


def test_all_statuses_but_two_have_a_signal() -> None:
    assert set(WorkflowTransition) - set(WORKFLOW_SIGNALS) == {
        WorkflowTransition.BUILDING, WorkflowTransition.CLEANED,
    }  # fmt: skip


def test_signals_are_sent_in_order_once_and_not_again(full_shard: MirroredShard) -> None:
    told: list[tuple[str, str, str]] = []

    def hear(*, sender: Any, record: WorkflowRecord, event: WorkflowEvent, **_: Any) -> None:
        assert sender is WorkflowRecord
        told.append((record.id, event.status, record.status))

    workflow = BrokerWorkflow(full_shard.broker, FAN, name="1")
    workflow.push()
    with listening(workflow_running, workflow_completed, to=hear):
        full_shard.mirror()
        workflow.run_all()
        full_shard.mirror()
        full_shard.bridge.close()
        full_shard.mirror()
    assert told == [(workflow.id, "running", "running"), (workflow.id, "completed", "completed")]
    state = MirrorState.objects.get()
    assert state.flows_signalled == WorkflowEvent.objects.latest("id").id


def test_a_receiver_that_raises_is_logged_with_the_workflow(
    full_shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError

    workflow = BrokerWorkflow(full_shard.broker, {0: ()}, name="1")
    with listening(workflow_running, to=broken), caplog.at_level(logging.ERROR):
        workflow.push()
        full_shard.mirror()
    assert f"workflow {workflow.id}: the receiver" in caplog.text
    assert "of workflow_running raised ZeroDivisionError()" in caplog.text


@pytest.mark.slow
def test_a_workflow_event_alone_wakes_a_sleeping_bridge(processes: MirrorProcesses) -> None:
    """Pausing a workflow changes no job; otherwise the bridge would only look after 30 s."""
    workflow = BrokerWorkflow(processes.broker, {0: ()}, name="1")
    workflow.push()
    processes.bridge_process()
    processes.until_at_the_end()
    processes.broker.store.control_workflow(workflow.id, "pause")
    processes.until_at_the_end(timeout=10)
    assert processes.workflow(workflow.id).is_paused


def test_of_two_simultaneous_reconciles_only_one_declares_a_workflow_lost(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = BrokerWorkflow(full_shard.broker, FAN, name="1")
    workflow.push()
    reconciler, cursor = begin(full_shard)
    statuses = full_shard.workflow_statuses(workflow.id)
    full_shard.broker.redis.delete(full_shard.broker.keys.workflow(workflow.id))
    other = Reconciler(full_shard.bridge.writer)
    meanwhile(monkeypatch, lambda: steps(other, cursor))
    steps(reconciler, cursor)
    assert full_shard.workflow_statuses(workflow.id) == [*statuses, "failed"]
