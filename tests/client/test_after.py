"""``using(after=...)``: jobs that wait for existing jobs, as an application sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from django_redisqueue import Job, JobQueue, OnParentFailure, Workflow, get_job, task
from django_redisqueue.broker.commands import Commands, batches
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.workflows import WorkflowQueries
from django_redisqueue.client.transport import RedisTransport
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.exceptions import (
    InvalidName,
    InvalidOption,
    JobFailed,
    ParentNotFound,
    RedisUnavailable,
    WorkflowError,
)
from django_redisqueue.models import OutboxJob
from django_redisqueue.outbox.relay import Relay
from django_redisqueue.testing import capture_jobs, run_inline
from tests.app import tasks
from tests.client.workflows.tasks import gathered

from ..support.manual_worker import ManualWorker
from ..support.shards import all_stores
from .test_transactions import rolled_back

pytestmark = pytest.mark.usefixtures("queue_settings")
in_transactions = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def results_of(job_id: str) -> dict[str, Any]:
    """What its parents returned, as a worker reads it."""
    connection = producer_connection(shard_of_id(job_id))
    return WorkflowQueries(connection).parent_results(job_id)


def test_a_job_starts_when_its_parents_have_completed(manual_worker: ManualWorker) -> None:
    first, second = tasks.noop.enqueue(), tasks.noop.enqueue()
    last = gathered.using(after=[first, second.id]).enqueue()
    assert last.status == "waiting"
    assert JobQueue().get_stats()["waiting"] == 1
    assert JobQueue().get_jobs("waiting") == [last]
    manual_worker.complete_one("1")
    manual_worker.complete_one('"two"')
    assert get_job(last.id).status == "queued"
    assert JobQueue().get_stats()["waiting"] == 0
    assert results_of(last.id) == {first.id: 1, second.id: "two"}
    assert manual_worker.complete_one() == last.id


def test_a_single_job_counts_as_a_list_of_one(manual_worker: ManualWorker) -> None:
    first = tasks.noop.enqueue()
    manual_worker.complete_one()
    assert tasks.noop.using(after=first).enqueue().status == "queued"
    assert tasks.noop.using(after=first.id).enqueue().status == "queued"


@pytest.mark.parametrize("policy", ["skip", OnParentFailure.SKIP])
def test_the_policy_is_the_childs(manual_worker: ManualWorker, policy: Any) -> None:
    first = tasks.noop.enqueue()
    skips = tasks.noop.using(after=first, on_parent_failure=policy).enqueue()
    goes = tasks.noop.using(after=first, on_parent_failure="go_on").enqueue()
    waits = tasks.noop.using(after=first).enqueue()
    manual_worker.fail_one()
    assert [job.status for job in (skips, goes, waits)] == ["cancelled", "queued", "waiting"]
    assert waits.cancel()
    assert get_job(waits.id).status == "cancelled"
    assert [get_job(job.id).reason for job in (skips, waits)] == ["skipped", ""]
    with pytest.raises(JobFailed, match="is cancelled: skipped"):
        skips.wait(1)


@pytest.mark.parametrize(
    ("after", "error", "words"),
    [
        (7, InvalidOption, "after must be jobs or ids of jobs, not 7"),
        ([None], InvalidOption, "after must be jobs or ids of jobs, not None"),
        ("a b", InvalidName, "'a b' is not a valid job id"),
        (
            [f"job_{n}" for n in range(100)],
            InvalidOption,
            "accepts at most 99 jobs, not 100; use a",
        ),
    ],
)
def test_a_parent_that_is_not_a_job_is_refused(
    after: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        tasks.noop.using(after=after)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidOption, match="must be one of wait, skip, go_on, not 'fail'"):
        tasks.noop.using(on_parent_failure="fail")


def test_an_unknown_parent_is_named_and_nothing_is_written(
    key_count: Callable[[], int],
) -> None:
    with pytest.raises(ParentNotFound, match=r"noop was to wait for job job_9, which is"):
        tasks.noop.using(after="job_9").enqueue()
    assert key_count() == 0


def test_many_at_once(manual_worker: ManualWorker) -> None:
    parents = tasks.noop.enqueue_many([(n,) for n in range(60)])
    children = tasks.noop.using(after=parents).enqueue_many([(n,) for n in range(5)])
    assert {job.status.value for job in children} == {"waiting"}
    new = [tasks.noop.using(after=parents)._new_job((), {}) for _ in range(3)]
    assert [len(batch) for batch in batches(new)] == [1, 1, 1]  # 61 jobs each


def test_a_job_of_a_workflow_takes_its_parents_from_add() -> None:
    first = tasks.noop.enqueue()
    with pytest.raises(WorkflowError, match=r"tasks\.noop has after= from using\(\), which is for"):
        Workflow().add(tasks.noop.using(after=first))


def test_a_job_waits_for_a_job_of_a_workflow(manual_worker: ManualWorker) -> None:
    with Workflow() as workflow:
        first = workflow.add(tasks.noop)
        workflow.add(tasks.noop, after=first)
    outside = tasks.noop.using(after=first).enqueue()
    manual_worker.complete_one("5")
    assert outside.status == "queued"
    assert results_of(outside.id) == {first.id: 5}


def test_jobs_that_wait_for_a_cleared_job_end(manual_worker: ManualWorker) -> None:
    first = tasks.noop.enqueue()
    manual_worker.fail_one()
    child = tasks.noop.using(after=first).enqueue()
    assert JobQueue().clear("failed") == 1
    manual_worker.claim()  # workers do the deferred work
    with pytest.raises(JobFailed, match="is cancelled"):
        child.wait(timeout=5)


# -- transactions


@in_transactions
def test_parent_and_child_of_one_transaction(manual_worker: ManualWorker) -> None:
    with transaction.atomic():
        first = tasks.noop.enqueue(1)
        last = tasks.noop.using(after=first).enqueue(3)
        tasks.noop.enqueue(2)
    assert (first.status, last.status) == ("queued", "waiting")
    assert [
        manual_worker.complete_one(),
        manual_worker.complete_one(),
        manual_worker.complete_one(),
    ][2] == last.id


@in_transactions
def test_a_parent_of_an_outer_transaction_on_another_database() -> None:
    with transaction.atomic(using="other"):
        first = tasks.noop.enqueue()
        with transaction.atomic():
            last = tasks.noop.using(after=first).enqueue()
        assert last.is_deferred
    assert (first.status, last.status) == ("queued", "waiting")


@in_transactions
def test_a_child_that_does_not_wait_for_the_commit_is_refused() -> None:
    with transaction.atomic():
        first = tasks.noop.enqueue()
        with pytest.raises(ParentNotFound, match="its transaction has not committed"):
            tasks.noop.using(after=first, on_commit=False).enqueue()


def relay(times: int = 1) -> None:
    """What maintenance does with rows that are old enough."""
    with all_stores() as stores:
        roles = [Relay(store, "default") for store in stores]
        for _ in range(times):
            OutboxJob.objects.update(created_at=F("created_at") - timedelta(hours=1))
            for role in roles:
                role.run_once()


@in_transactions
def test_the_child_of_a_parent_that_was_rolled_back_is_cancelled_by_the_relay() -> None:
    with transaction.atomic():
        with rolled_back():
            first = tasks.noop.enqueue()
        child = tasks.noop.using(after=first).enqueue()
        other = tasks.noop.enqueue()
    assert other.status == "queued"
    relay()
    child.refresh()
    assert (
        child.status,
        Commands(producer_connection(shard_of_id(child.id))).requeue([child.id]),
    ) == (
        "cancelled",
        [1],
    )


@in_transactions
def test_through_the_outbox(manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after the commit: the relay finds the rows, and sends the parent first."""
    monkeypatch.setattr(RedisTransport, "enqueue", lambda *_: 1 / 0)
    with suppress(ZeroDivisionError), transaction.atomic():
        first = tasks.noop.using(outbox=True).enqueue()
        last = tasks.noop.using(outbox=True, after=first).enqueue()
    monkeypatch.undo()
    assert OutboxJob.objects.get(pk=last.id).after == f"wait {first.id}"
    OutboxJob.objects.filter(pk=last.id).update(created_at=timezone.now() - timedelta(days=1))
    relay()
    assert [job.id for job in JobQueue().get_jobs("queued")] == [first.id]
    assert JobQueue().get_jobs("waiting") == []
    relay()
    assert [job.id for job in JobQueue().get_jobs("waiting")] == [last.id]
    assert [manual_worker.complete_one(), manual_worker.complete_one()] == [first.id, last.id]


@in_transactions
def test_redis_was_down_when_the_parent_committed(
    manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child waits in the outbox until the relay has sent its parent."""

    def refuse(*_: Any) -> None:
        raise RedisUnavailable("away")

    monkeypatch.setattr(RedisTransport, "enqueue", refuse)
    with transaction.atomic():
        first = tasks.noop.enqueue()
    monkeypatch.undo()
    with transaction.atomic():
        last = tasks.noop.using(after=first).enqueue()
    assert OutboxJob.objects.count() == 2
    relay(2)
    assert [manual_worker.complete_one(), manual_worker.complete_one()] == [first.id, last.id]


# -- in memory


def test_in_memory_a_job_waits_and_gets_the_results() -> None:
    with capture_jobs() as jobs:
        last = None
        first = tasks.noop.enqueue(1)
        last = gathered.using(after=[first, tasks.noop.enqueue(2)]).enqueue()
        assert last.status == "waiting"
        jobs.drain()
        last.refresh()
        assert last.result == [1, 2]


@pytest.mark.parametrize(
    ("policy", "status"), [("wait", "waiting"), ("skip", "cancelled"), ("go_on", "completed")]
)
def test_in_memory_a_failed_parent(policy: str, status: str) -> None:
    with run_inline():
        first = tasks.fail.enqueue()
        assert tasks.noop.using(after=first, on_parent_failure=policy).enqueue().status == status


def test_in_memory_a_retry_revives_waiting_jobs() -> None:
    with capture_jobs() as jobs:
        first = tasks.noop.enqueue()
        child = tasks.noop.using(after=first).enqueue(7)
        later = tasks.noop.using(after=child, run_after=60).enqueue(8)
        first.cancel()
        jobs.drain()
        assert get_job(child.id).status == "waiting"
        first.requeue()
        jobs.drain(scheduled=False)
        assert get_job(child.id).result == 7
        assert get_job(later.id).status == "scheduled"


def test_in_memory_a_parent_must_be_known() -> None:
    with capture_jobs(), pytest.raises(ParentNotFound, match="which was not enqueued in this test"):
        tasks.noop.using(after="job_9").enqueue()


@task(unique="until_finished")
def once() -> int:
    return 7


def follow_a_duplicate() -> tuple[Job, Job]:
    """A job, and a follower of its duplicate, whose id is given out before the commit."""
    first = once.enqueue()
    with transaction.atomic():
        duplicate = once.enqueue()
        follower = gathered.using(after=duplicate).enqueue()
    assert duplicate.id != first.id
    assert (duplicate.is_duplicate, follower.status) == (True, "waiting")
    return first, follower


@in_transactions
def test_a_duplicate_stands_for_the_job_that_it_leads_to(manual_worker: ManualWorker) -> None:
    first, follower = follow_a_duplicate()
    assert manual_worker.complete_one("7") == first.id
    assert results_of(follower.id) == {first.id: 7}
    assert manual_worker.complete_one() == follower.id


@in_transactions
def test_a_duplicate_in_memory_stands_for_the_job_that_it_leads_to() -> None:
    with capture_jobs() as jobs:
        first, follower = follow_a_duplicate()
        assert jobs.drain() == [first, follower]
        assert jobs.parent_results(follower.id) == {first.id: 7}
