"""Workflows and gathers through the outbox: a row in the transaction, sent after the commit or by
the relay."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from redis import Redis

from django_redisqueue import Gather, JobQueue, Workflow, chain, get_job, get_workflow
from django_redisqueue.broker import durability
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.entries import EventFeed, format_position
from django_redisqueue.client import transport, workflow_graph
from django_redisqueue.client.enqueue import through_outbox
from django_redisqueue.client.workflows import push_many
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.exceptions import PayloadTooLarge, WorkflowNotFound
from django_redisqueue.models import MirrorState, OutboxJob, WorkflowRecord
from tests.app.tasks import add, noop
from tests.client.gather.tasks import merge
from tests.client.test_transactions import queued, rolled_back
from tests.support import shards
from tests.worker.processes import eventually, holds_for

from .conftest import OutboxHarness
from .tasks import charge

AWAY = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}
in_database = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def configure(
    settings: Any, queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """OUTBOX is on, without a mirror; call it to change the settings."""
    monkeypatch.setattr(durability, "FSYNCED_MS", 0)

    def change(**changes: Any) -> None:
        settings.REDISQUEUE = {**queue_settings, "OUTBOX": True, **changes}

    change()
    return change


def row_ids() -> list[str]:
    return list(OutboxJob.objects.order_by("created_at").values_list("pk", flat=True))


def relay(age: timedelta = timedelta(minutes=1)) -> list[str]:
    """A relay pass for which each row has this age; returns the remaining rows."""
    OutboxJob.objects.update(created_at=timezone.now() - age)
    shards.relay()
    return row_ids()


def of(jobs: int) -> Workflow:
    workflow = Workflow("stored")
    for n in range(jobs):
        workflow.add(noop, n)
    return workflow


# -- a producer that dies

DIE_BEFORE_SENDING = """
from django.db import transaction
from django_redisqueue import Workflow, chain
from django_redisqueue.client.transport import RedisTransport
from tests.worker.tasks import run
RedisTransport.push_workflow = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_producer_killed_between_commit_and_push(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    work = f"""
with transaction.atomic():
    bump("work")
    with Workflow("three") as flow:
        first = flow.add(run, {harness.book!r}, "one")
        flow.add(run, {harness.book!r}, "two", after=first)
        flow.add(run, {harness.book!r}, "three", after=first)
"""
    outbox_harness.run(DIE_BEFORE_SENDING + work, kill=signal.SIGKILL, OUTBOX=True)
    assert OutboxJob.objects.count() == 1
    assert harness.stats()["queued"] == 0
    harness.worker("--processes", "1")
    harness.until_done(3)
    eventually(lambda: not OutboxJob.objects.exists(), why=harness.report)
    holds_for(lambda: harness.runs() == {"one": 1, "two": 1, "three": 1}, 1)


def test_a_gather_can_be_waited_for_before_a_worker_has_started_it(
    outbox_harness: OutboxHarness,
) -> None:
    modules = ["tests.client.gather.tasks", "tests.worker.tasks", "tests.outbox.tasks"]
    outbox_harness.harness.configure(OUTBOX=True, TASK_MODULES=modules)
    gather = Gather.start("r-1", topic="report", payload={"record_id": 7}, then=merge)
    outbox_harness.harness.worker("--processes", "1")
    assert gather.wait(timeout=20).done_count == 3


@in_database
@pytest.mark.usefixtures("configure")
def test_a_workflow_whose_producer_died_during_its_push_is_completed() -> None:
    workflow = of(250)
    push = workflow._checked()._replace(stored=True)
    row = workflow_graph.to_outbox_row(push)
    OutboxJob.objects.create(id=row.id, task=row.task, payload=row.payload)
    connection = producer_connection(shard_of_id(workflow.id))
    for _, call in islice(transport._push_calls(connection, [push], True), 1):
        connection.script(*call)
    assert (workflow.data.status, workflow.data.total) == ("building", 100)
    relay()
    assert (workflow.data.status, workflow.data.total) == ("running", 250)
    assert relay() == []


# -- the row


@in_database
@pytest.mark.usefixtures("configure")
def test_a_workflow_is_a_row_of_the_transaction_until_redis_would_keep_it(
    redis: Redis, queue_settings: dict[str, Any]
) -> None:
    with transaction.atomic():
        workflow = of(3)
        workflow.push()
        assert row_ids() == [workflow.id]
        assert workflow.jobs()[0].is_deferred
        with pytest.raises(WorkflowNotFound, match="its transaction has not committed"):
            workflow.cancel()
    assert queued() == [0, 1, 2]
    assert row_ids() == [workflow.id]
    assert redis.zrange(shards.keys_with(workflow.id).outbox, 0, -1) == [workflow.id.encode()]
    assert relay() == []
    assert redis.zcard(shards.keys_with(workflow.id).outbox) == 0


@in_database
@pytest.mark.usefixtures("configure")
def test_a_rollback_leaves_nothing_of_it() -> None:
    with rolled_back():
        of(3).push()
    assert row_ids() == queued() == []


@in_database
@pytest.mark.parametrize("push", [lambda: chain(noop, noop), lambda: push_many([of(1), of(1)])])
def test_chains_and_many_workflows_have_rows_too_even_outside_a_transaction(
    push: Callable[[], object], configure: Callable[..., None]
) -> None:
    configure(OUTBOX=False)
    push()
    assert row_ids() == []
    with through_outbox():  # as in exactly_once tasks and receivers
        push()
    assert row_ids()
    assert all(row_id.startswith("flow_") for row_id in row_ids())
    assert relay() == []


@in_database
def test_while_redis_is_down_it_waits_and_says_so(
    configure: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    configure(**AWAY)
    workflow = Workflow("late")
    first = workflow.add(add, 1, b=2)
    secret = workflow.add(charge, 1, "4711", after=first)
    workflow.push()
    assert f"in the outbox until it does: {workflow.id}" in caplog.text
    configure()
    assert (workflow.status, workflow.data.total, workflow.data.waiting) == ("building", 2, 2)
    assert get_workflow(workflow.id).name == "late"
    assert (first.status, first.args, first.kwargs) == ("waiting", (1,), {"b": 2})
    assert get_job(secret.id).args == (1, "[redacted]")
    relay()
    first.refresh()
    secret.refresh()
    assert (workflow.status, first.status, secret.status) == ("running", "queued", "waiting")


@in_database
@pytest.mark.parametrize("jobs", [3, 150])
def test_a_workflow_in_the_outbox_can_be_cancelled(
    jobs: int, configure: Callable[..., None]
) -> None:
    configure(**AWAY)
    workflow = of(jobs)
    workflow.push()
    configure()
    assert workflow.cancel()
    assert workflow.status == "cancelled"
    relay()
    assert relay() == []
    assert (workflow.status, workflow.data.cancelled) == ("cancelled", jobs)
    assert queued() == []


@in_database
@pytest.mark.usefixtures("configure")
def test_a_forgotten_ended_workflow_is_not_created_again(
    redis: Redis, queue_settings: dict[str, Any]
) -> None:
    """The relay is late: only the workflow's id is left in Redis."""
    workflow = of(2)
    workflow.push()
    outbox = shards.keys_with(workflow.id).outbox.encode()
    redis.delete(*[key for key in redis.scan_iter() if key != outbox])
    with pytest.raises(WorkflowNotFound):
        workflow.data  # noqa: B018
    assert relay() == []
    assert JobQueue().get_stats()["queued"] == 0


@in_database
@pytest.mark.parametrize(("status", "reason", "again"), [
    ("running", "", True), ("completed", "", False), ("failed", "lost", True),
])  # fmt: skip
def test_a_workflow_lost_by_redis_is_pushed_again_unless_it_has_ended(
    status: str, reason: str, again: bool, redis: Redis, configure: Callable[..., None]
) -> None:
    configure(MIRROR=True)
    workflow = of(2)
    workflow.push()
    assert relay() == [workflow.id]  # until the mirror has seen it
    redis.flushdb()
    WorkflowRecord.objects.create(
        id=workflow.id, status=status, reason=reason, made_at=timezone.now()
    )
    relay()
    assert JobQueue().get_stats()["queued"] == (2 if again else 0)
    assert relay() == []


@in_database
def test_a_workflow_that_never_reaches_the_mirror_is_forgotten_after_a_day(
    redis: Redis, configure: Callable[..., None]
) -> None:
    """Its events were trimmed before they were read, and then it was cleaned up. Otherwise it would
    be pushed again whenever Redis loses its data."""
    configure(MIRROR=True)
    gone, runs = of(1), of(1)
    gone.push()
    runs.push()
    connection = transport.connection_of(gone.id)
    redis.delete(shards.keys_with(gone.id).workflow(gone.id))
    both = {gone.id, runs.id}
    assert set(relay(timedelta(hours=23))) == both
    assert set(relay(timedelta(hours=25))) == both, "the mirror may read its events later"
    _, last = EventFeed(connection).ends()
    MirrorState.objects.create(shard=connection.shard, position=format_position(last))
    assert relay(timedelta(hours=25)) == [runs.id]


@in_database
@pytest.mark.usefixtures("configure")
def test_a_job_that_waits_for_a_workflow_job_is_sent_after_it(
    configure: Callable[..., None],
) -> None:
    configure(**AWAY)
    with transaction.atomic():
        workflow = Workflow()
        first = workflow.add(noop, 1)
        workflow.push()
        after = noop.using(after=first).enqueue(2)
    OutboxJob.objects.filter(pk=after.id).update(created_at=timezone.now() - timedelta(hours=1))
    configure()
    rows = OutboxJob.objects.filter(pk=workflow.id)
    rows.update(created_at=timezone.now() - timedelta(minutes=1))
    shards.relay()
    shards.relay()
    assert (first.status, after.status) == ("queued", "waiting")


@in_database
@pytest.mark.usefixtures("configure")
def test_a_workflow_that_is_too_large_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workflow_graph, "MAX_ROW_BYTES", 1000)
    with pytest.raises(PayloadTooLarge, match="with its 50 jobs is too large for the outbox"):
        of(50).push()
    assert row_ids() == queued() == []
