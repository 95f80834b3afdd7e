"""Workflows in the mirror: a record and a history each, whatever is lost or read again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror import flowreconcile
from django_redisqueue.mirror.assembly import make_bridge
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.flowchanges import Known, collapse_flows
from django_redisqueue.mirror.reconcile import Reconciler
from django_redisqueue.mirror.writer import Overtaken
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
from django_redisqueue.states import WorkflowStep
from django_redisqueue.store.events import show
from django_redisqueue.store.flowevents import FlowEvent
from django_redisqueue.store.workflows import HALF_PUSHED_MS
from tests.store.flows import Flow
from tests.store.lab import ERROR, outcome

from .scene import Scene, check_events
from .test_reconcile import begin, meanwhile, steps
from .test_signals import listening
from .theatre import Theatre

FAN = {0: (), 1: (0,), 2: (0,), 3: (1, 2)}


@pytest.fixture
def whole(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A shard on Redis's own clock, and a bridge with all that belongs to it."""
    monkeypatch.setattr(flowreconcile, "PAGE", 3)
    scene.bridge.close()
    scene.lab.store.now_ms = None
    scene.bridge = make_bridge(get_settings(), page=100)
    return scene


def counts(record: WorkflowRecord) -> tuple[int, int, int, int]:
    return record.total, record.completed, record.failed, record.cancelled


# -- a life


def test_a_record_follows_its_workflow_to_the_end(scene: Scene) -> None:
    flow = Flow(scene.lab, FAN, name="1")
    flow.push()
    scene.mirror()
    record = scene.flow(flow.id)
    assert (record.status, record.generation, counts(record)) == ("running", 0, (4, 0, 0, 0))
    assert (record.ended_at, record.cleaned_at) == (None, None)
    assert round(record.made_at.timestamp() * 1000) == flow.data().made_ms
    flow.run_all()
    scene.mirror()
    record = scene.flow(flow.id)
    assert (record.status, counts(record)) == ("completed", (4, 4, 0, 0))
    assert record.ended_at is not None
    assert round(record.ended_at.timestamp() * 1000) == flow.data().ended_ms
    assert scene.flow_story(flow.id) == ["running", "completed"]
    scene.is_complete()


@pytest.mark.parametrize("name", ["", 'a "quoted" \\ name', "<b>Nächte</b> \U0001f319", "x" * 200])
def test_its_name_arrives_as_it_was_given(scene: Scene, name: str) -> None:
    flow = Flow(scene.lab, FAN, name="1")
    flow._fields = ["name", name]
    flow.push()
    scene.mirror()
    assert scene.flow(flow.id).name == name


def test_pause_and_release_are_a_flag(scene: Scene) -> None:
    flow = Flow(scene.lab, FAN, name="1")
    flow.push()
    scene.lab.store.steer(flow.id, "pause")
    scene.mirror()
    assert (scene.flow(flow.id).status, scene.flow(flow.id).is_paused) == ("running", True)
    scene.lab.store.steer(flow.id, "release")
    scene.mirror()
    assert (scene.flow(flow.id).status, scene.flow(flow.id).is_paused) == ("running", False)
    assert scene.flow_story(flow.id) == ["running", "paused", "running"]


def test_a_paused_workflow_that_fails_and_is_taken_up_again_is_still_paused(scene: Scene) -> None:
    flow = Flow(scene.lab, {0: (), 1: ()}, name="1")
    flow.push()
    job = scene.lab.take("runner")
    scene.lab.store.steer(flow.id, "pause")
    scene.lab.finish(outcome(job, "failed", ERROR), child="runner")
    scene.mirror()
    record = scene.flow(flow.id)
    assert (record.status, record.is_paused, counts(record)) == ("failed", True, (2, 0, 1, 0))
    scene.lab.store.requeue([job.id])
    scene.mirror()
    record = scene.flow(flow.id)
    assert (record.status, record.is_paused, record.generation) == ("running", True, 1)
    assert (record.ended_at, record.cleaned_at) == (None, None)
    assert scene.flow_story(flow.id) == ["running", "paused", "failed", "running"]


def test_a_cleaned_workflow_has_its_counts_for_good(scene: Scene) -> None:
    flow = Flow(scene.lab, FAN, name="1")
    flow.push()
    flow.run_one()
    scene.lab.store.steer(flow.id, "cancel")
    scene.mirror()
    record = scene.flow(flow.id)
    assert (record.status, counts(record)) == ("cancelled", (4, 1, 0, 0)), "it has just begun to"
    flow.advance()
    scene.lab.store.steer(flow.id, "clean")
    flow.advance()
    scene.mirror()
    record = scene.flow(flow.id)
    assert (record.status, counts(record)) == ("cancelled", (4, 1, 0, 3))
    assert record.cleaned_at is not None
    assert scene.flow_story(flow.id) == ["running", "cancelled", "cleaned"]
    scene.mirror()
    check_events(scene.lab)


def test_a_push_that_was_never_finished_leaves_no_record(scene: Scene) -> None:
    flow = Flow(scene.lab, FAN, name="1")
    flow.push_batch(0, 2, first=True)
    scene.mirror()
    scene.lab.advance(HALF_PUSHED_MS)
    flow.advance()
    scene.mirror()
    assert not WorkflowRecord.objects.exists()
    assert scene.flow_story(flow.id) == ["cleaned"]
    paused = Flow(scene.lab, FAN, name="2")
    paused.push_batch(0, 2, first=True)
    scene.lab.store.steer(paused.id, "pause")
    scene.mirror()
    assert scene.flow(paused.id).is_paused
    scene.lab.advance(HALF_PUSHED_MS)
    paused.advance()
    scene.mirror()
    assert scene.flow(paused.id).status == "cancelled"
    assert scene.flow(paused.id).ended_at is not None


# -- once


def test_a_page_is_applied_once_however_often_it_is_read(scene: Scene) -> None:
    flow = Flow(scene.lab, FAN, name="1")
    flow.push()
    flow.run_all()
    scene.mirror()
    stale = scene.bridge.writer.cursor()
    page = scene.bridge.events.read((0, 0))
    MirrorState.objects.update(position="0-1")
    with pytest.raises(Overtaken):
        scene.bridge.writer.write(page.events, stale, page.last, page.flows)
    assert scene.flow_story(flow.id) == ["running", "completed"]


def test_many_in_one_page_and_over_pages(scene: Scene) -> None:
    flows = [Flow(scene.lab, {0: ()}, name=str(n)) for n in range(30)]
    for flow in flows:
        flow.push()
    small = Bridge(get_settings(), page=7)
    scene.mirror(small)
    small.close()
    assert flows[0].lab.claim("w", 100).jobs
    assert WorkflowRecord.objects.filter(status="running").count() == 30
    scene.mirror()
    check_events(scene.lab)


def test_a_full_page_is_not_the_end_because_some_of_it_tells_of_workflows(scene: Scene) -> None:
    for n in range(6):
        Flow(scene.lab, {0: ()}, name=str(n)).push()
    events = len(scene.lab.written())
    bridge = Bridge(get_settings(), page=6)
    assert bridge.run_once()
    assert not bridge.is_at_the_end
    assert bridge.applied == 6
    scene.mirror(bridge)
    assert bridge.applied == events
    bridge.close()


def test_an_entry_that_is_no_event_of_a_workflow_is_left_out(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    strange = ['{"workflowId":"flow_x_0","status":"dancing"}', "[]", "no JSON"]
    for text in strange:
        scene.lab.redis.xadd(scene.lab.keys.events, {"workflow": text})
    flow = Flow(scene.lab, FAN, name="1")
    flow.push()
    scene.mirror()
    assert caplog.text.count("is no event") == len(strange)
    assert scene.flow(flow.id).status == "running"


def test_one_with_a_name_that_is_too_long_harms_no_other(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    flows = [Flow(scene.lab, {0: ()}, name=str(n)) for n in range(3)]
    flows[1]._fields = ["name", "x" * 201]
    for flow in flows:
        flow.push()
    scene.mirror()
    names = dict(WorkflowRecord.objects.values_list("pk", "name"))
    assert names == {flows[0].id: "", flows[1].id: "x" * 200, flows[2].id: ""}
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
def test_what_is_older_than_what_is_known_changes_nothing(
    order: tuple[int, int, int], moves: bool
) -> None:
    event = FlowEvent((5, 0), "flow_1_0", WorkflowStep.COMPLETED, 5, 1, "", 0, 1, 1, 0, 0, False)
    known = {"flow_1_0": Known(order, "running", "", None, None)}
    changes = collapse_flows([event], known, epoch=1)
    assert list(changes) == (["flow_1_0"] if moves else [])


# -- lost and found


def trim_all(scene: Scene) -> None:
    scene.lab.redis.xtrim(scene.lab.keys.events, maxlen=1, approximate=False)


def test_a_gap_is_made_good_from_what_redis_has(whole: Scene) -> None:
    ends, fails, paused, unseen = (Flow(whole.lab, {0: ()}, name=n) for n in "1234")
    for flow in (ends, fails, paused):
        flow.push()
    whole.mirror()
    first, second = whole.lab.claim(jobs=2).jobs
    whole.lab.finish(outcome(first), outcome(second, "failed", ERROR))
    whole.lab.store.steer(paused.id, "pause")
    unseen._fields = ["name", "unseen"]
    unseen.push()
    trim_all(whole)
    whole.mirror()
    assert MirrorState.objects.get().gaps == 1
    for flow in (ends, fails, paused, unseen):
        record, data = whole.flow(flow.id), flow.data()
        assert record.status == data.status
        assert record.is_paused == data.is_paused
        assert counts(record) == (data.total, data.completed, data.failed, data.cancelled)
    assert whole.flow(unseen.id).name == "unseen"
    assert WorkflowEvent.objects.filter(reason="reconciled").count() >= 2


def begin_anew(scene: Scene) -> None:
    """The epoch rises and a reconcile is due, as behind a gap."""
    state = MirrorState.objects.get()
    MirrorState.objects.update(epoch=state.epoch + 1, unreconciled=True)
    scene.bridge.close()


def test_what_agrees_is_left_as_it_is(whole: Scene) -> None:
    flow = Flow(whole.lab, FAN, name="1")
    flow.push()
    whole.mirror()
    begin_anew(whole)
    whole.mirror()
    assert whole.flow_story(flow.id) == ["running"]
    assert whole.flow(flow.id).epoch == 0


def test_a_workflow_that_redis_does_not_know_is_lost(
    whole: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    flows = [Flow(whole.lab, FAN, name=f"{n}") for n in range(5)]
    for flow in flows:
        flow.push()
    whole.mirror()
    gone = flows[:4]
    for flow in gone:
        whole.lab.redis.delete(whole.lab.keys.workflow(flow.id))
    begin_anew(whole)
    told: list[str] = []
    with listening(workflow_failed, to=lambda record, **_: told.append(record.id)):
        whole.mirror()
    for flow in gone:
        record = whole.flow(flow.id)
        assert (record.status, record.reason, record.is_paused) == ("failed", "lost", False)
        assert record.ended_at is not None
        assert f"workflow {flow.id} is lost" in caplog.text
    assert whole.flow(flows[4].id).status == "running"
    assert sorted(told) == [flow.id for flow in gone]
    assert "4 workflows lost" in caplog.text


def test_none_is_lost_that_an_outbox_sends_again(whole: Scene) -> None:
    flow = Flow(whole.lab, FAN, name="1")
    flow.push()
    whole.mirror()
    OutboxJob.objects.create(id=flow.id, queue="q", task="t", payload="[[],{}]")
    whole.lab.redis.delete(whole.lab.keys.workflow(flow.id))
    whole.lab.redis.delete(*[whole.lab.keys.job(f"{flow.id}.{n}") for n in FAN])
    begin_anew(whole)
    whole.mirror()
    assert whole.flow(flow.id).status == "running"
    assert not JobRecord.objects.filter(reason="lost").exists()


def test_none_is_lost_before_its_end_has_been_read(
    whole: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends and is cleaned up between the walk's look at Redis and its look at the records."""
    flow = Flow(whole.lab, {0: ()}, name="1")
    flow.push()
    reconciler, cursor = begin(whole)
    page = flowreconcile.FlowReconciler._page
    looks: list[str] = []

    def late(self: Any, after: str) -> list[str]:
        ids = page(self, after)
        if not looks:
            looks.extend(ids)
            flow.run_all()
            whole.lab.store.steer(flow.id, "clean")
            flow.advance()
        return ids

    monkeypatch.setattr(flowreconcile.FlowReconciler, "_page", late)
    for _ in range(50):
        assert reconciler(cursor) is True  # it waits for what was in the stream to be read
    assert (whole.flow(flow.id).status, looks) == ("running", [flow.id])
    read = whole.bridge.events.read(cursor.position)
    steps(reconciler, whole.bridge.writer.write(read.events, cursor, read.last, read.flows))
    assert (whole.flow(flow.id).status, whole.flow(flow.id).reason) == ("completed", "")
    assert whole.flow(flow.id).cleaned_at is not None


def test_a_cursor_on_a_workflows_entry_is_recognised(whole: Scene) -> None:
    flow = Flow(whole.lab, {0: ()}, name="1")
    flow.push()
    whole.lab.store.steer(flow.id, "pause")  # the last entry
    whole.mirror()
    last = whole.bridge.events.last()
    assert last is not None
    assert MirrorState.objects.get().position == show(last)
    whole.bridge.close()
    whole.mirror()
    assert MirrorState.objects.get().epoch == 0
    # Redis goes back in time, and something else now stands there.
    key, (*_, event) = whole.lab.keys.events, whole.lab.written()
    assert event.place == last
    whole.lab.redis.delete(key)
    other = event.text.replace("paused", "running")
    whole.lab.redis.xadd(key, {"workflow": other, "name": ""}, id=event.entry)
    whole.bridge.close()
    whole.mirror()
    assert MirrorState.objects.get().epoch == 1


# -- signals


def test_every_step_but_two_has_its_signal() -> None:
    assert set(WorkflowStep) - set(WORKFLOW_SIGNALS) == {
        WorkflowStep.BUILDING, WorkflowStep.CLEANED,
    }  # fmt: skip


def test_signals_are_told_in_order_once_and_not_again(whole: Scene) -> None:
    told: list[tuple[str, str, str]] = []

    def hear(*, sender: Any, record: WorkflowRecord, event: WorkflowEvent, **_: Any) -> None:
        assert sender is WorkflowRecord
        told.append((record.id, event.status, record.status))

    flow = Flow(whole.lab, FAN, name="1")
    flow.push()
    with listening(workflow_running, workflow_completed, to=hear):
        whole.mirror()
        flow.run_all()
        whole.mirror()
        whole.bridge.close()
        whole.mirror()
    assert told == [(flow.id, "running", "running"), (flow.id, "completed", "completed")]
    state = MirrorState.objects.get()
    assert state.flows_signalled == WorkflowEvent.objects.latest("id").id


def test_a_receiver_that_raises_is_logged_with_the_workflow(
    whole: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError

    flow = Flow(whole.lab, {0: ()}, name="1")
    with listening(workflow_running, to=broken), caplog.at_level(logging.ERROR):
        flow.push()
        whole.mirror()
    assert f"workflow {flow.id}: the receiver" in caplog.text
    assert "of workflow_running raised ZeroDivisionError()" in caplog.text


@pytest.mark.slow
def test_a_sleeping_bridge_hears_of_a_workflow_alone(theatre: Theatre) -> None:
    """Pausing one tells of no job; the bridge would look by itself only after 30 s."""
    flow = Flow(theatre.lab, {0: ()}, name="1")
    flow.push()
    theatre.bridge_process()
    theatre.until_at_the_end()
    theatre.lab.store.steer(flow.id, "pause")
    theatre.until_at_the_end(timeout=10)
    assert theatre.flow(flow.id).is_paused


def test_of_two_that_reconcile_at_once_one_loses_a_workflow(
    whole: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(whole.lab, FAN, name="1")
    flow.push()
    reconciler, cursor = begin(whole)
    story = whole.flow_story(flow.id)
    whole.lab.redis.delete(whole.lab.keys.workflow(flow.id))
    other = Reconciler(whole.bridge.link, get_settings())
    meanwhile(monkeypatch, lambda: steps(other, cursor))
    steps(reconciler, cursor)
    assert whole.flow_story(flow.id) == [*story, "failed"]
