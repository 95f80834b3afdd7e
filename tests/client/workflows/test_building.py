"""Workflows and chains as an application writes them; nothing runs here."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_redisqueue import (
    JobQueue,
    Workflow,
    WorkflowError,
    chain,
    find_jobs,
    get_job,
    get_workflow,
)
from django_redisqueue.client import workflow_graph
from django_redisqueue.client.workflow_graph import send_workflow
from django_redisqueue.client.workflows import push_many
from django_redisqueue.core.codec import decode_payload
from django_redisqueue.exceptions import (
    InvalidArguments,
    InvalidName,
    InvalidOption,
    NotCommitted,
    RedisUnavailable,
    WorkflowNotFound,
    WrongState,
)
from django_redisqueue.models import OutboxJob
from tests.app.tasks import add, noop
from tests.support.manual_worker import ManualWorker

pytestmark = pytest.mark.usefixtures("queue_settings")


def test_a_workflow_is_pushed_at_the_end_of_its_block() -> None:
    with Workflow("nightly", priority=10) as workflow:
        extract = workflow.add(noop, 1)
        loads = [workflow.add(noop, n, after=extract) for n in range(3)]
        report = workflow.add(noop, after=loads)
        with pytest.raises(NotCommitted):
            extract.refresh()
    assert workflow.data.total == 5
    assert (extract.status, report.status) == ("queued", "waiting")
    assert extract.priority == 10
    assert [job.id for job in workflow.jobs()] == [f"{workflow.id}.{n}" for n in range(5)]
    assert JobQueue().get_stats()["queued"] == 1


def test_nothing_is_written_when_its_block_raises() -> None:
    workflow = Workflow()
    with pytest.raises(ZeroDivisionError), workflow:
        workflow.add(noop, 1 // len(workflow))
    with pytest.raises(WorkflowNotFound, match="was not pushed"):
        _ = workflow.data
    assert JobQueue().get_stats()["queued"] == 0


def test_a_workflow_is_found_by_its_id() -> None:
    with Workflow("again") as workflow:
        workflow.add(noop)
    found = get_workflow(workflow.id)
    assert (found.name, found.data) == ("again", workflow.data)
    with pytest.raises(InvalidName, match="workflow id"):
        get_workflow("job_1")
    with pytest.raises(WorkflowNotFound, match="workflow flow_gone is not in Redis"):
        get_workflow("flow_gone")


def test_options_of_a_call_override_those_of_the_workflow() -> None:
    with Workflow(priority=5) as workflow:
        plain = workflow.add(noop)
        own = workflow.add(noop.using(priority=7))
    assert (plain.priority, own.priority) == (5, 7)


def test_an_empty_workflow_is_refused() -> None:
    with pytest.raises(WorkflowError, match="workflow 'bare' is empty; add at least one job"):
        Workflow("bare").push()
    with pytest.raises(WorkflowError, match="workflow is empty"):
        Workflow().push()


def test_a_cycle_is_named() -> None:
    workflow = Workflow("round")
    first = workflow.add(noop)
    second = workflow.add(add, 1, 2, after=first)
    workflow.link(second, first)
    with pytest.raises(WorkflowError, match=r"cycle.*app\.tasks") as caught:
        workflow.push()
    assert ".0" in str(caught.value)
    assert ".1" in str(caught.value)
    with pytest.raises(WorkflowNotFound):
        _ = workflow.data


def test_a_parent_of_another_workflow_is_named() -> None:
    stranger = Workflow().add(noop)
    workflow = Workflow("mine")
    with pytest.raises(WorkflowError, match=f"<Job {stranger.id}> is not a job of <Workflow"):
        workflow.add(noop, after=stranger)
    with pytest.raises(WorkflowError, match="'text' is not a job"):
        workflow.add(noop, after=["text"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Workflow(name=5), InvalidOption, "a string of at most 200"),  # type: ignore[arg-type]
        (lambda: Workflow("a\ud800"), InvalidOption, "printable characters, not 'a\\\\ud800'"),
        (lambda: Workflow("a\nb"), InvalidOption, "at most 200 printable"),
        (lambda: Workflow().add(noop, on_failure="stop"), InvalidOption, "fail, skip, go_on"),
        (lambda: Workflow().add(len, []), WorkflowError, "a task and its arguments"),  # type: ignore[arg-type]
        (
            lambda: Workflow().add(noop.s(1), 2),
            WorkflowError,
            "pass the arguments to the signature",
        ),
        (lambda: chain(add.call(1, 2), add), WorkflowError, r"accepts a task.* signature.*not 3"),
        (lambda: Workflow().add(noop, object()), InvalidArguments, "noop"),
        (lambda: Workflow(ttl=-1), InvalidOption, "ttl"),
        (lambda: Workflow().add(noop, after=42), WorkflowError, "jobs that add.. returned.*not 42"),  # type: ignore[arg-type]
        (lambda: Workflow().add(noop, after="job_1"), WorkflowError, "not 'job_1'"),
        (lambda: Workflow(on_complete="app.done"), InvalidOption, "on_complete .* not 'app.done'"),  # type: ignore[arg-type]
        (lambda: Workflow(on_failure=len), InvalidOption, "on_failure must be a task"),  # type: ignore[arg-type]
        (
            lambda: Workflow(on_failure=noop.using(after="job_1")),
            InvalidOption,
            "noop has after=.*on_failure.*remove after=",
        ),
        (lambda: chain("app.one"), WorkflowError, "a task and its arguments"),  # type: ignore[arg-type]
        (lambda: chain(noop, 5), WorkflowError, "not 5"),  # type: ignore[arg-type]
        (lambda: push_many([5]), WorkflowError, "push_many accepts workflows, not 5"),  # type: ignore[list-item]
        (
            lambda: noop.using(after=Workflow()),
            InvalidOption,
            "<Workflow flow_.* is not one; .*jobs",
        ),
    ],
)
def test_bad_input_is_named(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_tasks_without_arguments_make_a_chain() -> None:
    workflow = chain(noop, add.s(1))
    assert [job.task_name for job in workflow.jobs()] == [noop.name, add.name]


def test_the_callback_keeps_its_options(settings: Any, redis: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "INDEXED": ["workflow"]}
    announce = noop.using(run_after=60, priority=3, tags={"tenant": "42"})
    with Workflow(on_complete=announce.s(1), on_failure=noop) as workflow:
        workflow.add(noop)
    with Workflow(on_complete=noop) as plain:
        plain.add(noop, after=None)
    assert_ends(workflow, plain)
    (later,) = find_jobs(workflow=workflow, status="unfinished")
    assert (later.id, later.status) == (f"{workflow.id}.complete0", "scheduled")
    assert (later.priority, later.tags, later.args) == (3, {"tenant": "42"}, (1,))
    assert get_job(f"{plain.id}.complete0").status == "queued"


def assert_ends(*workflows: Workflow) -> None:
    """Run everything that is queued."""
    manual_worker = ManualWorker()
    for job in manual_worker.claim(10):
        manual_worker.settle(job, "completed", "null")
    manual_worker.close()
    assert [workflow.status for workflow in workflows] == ["completed"] * len(workflows)


def test_a_pushed_workflow_accepts_no_more_jobs() -> None:
    with Workflow() as workflow:
        workflow.add(noop)
    with pytest.raises(WorkflowError, match="already been pushed; create another"):
        workflow.add(noop)
    with pytest.raises(WorkflowError, match="already been pushed; create another"):
        workflow.link(*workflow.jobs() * 2)
    with pytest.raises(WorkflowError, match="already been pushed"):
        workflow.push()


@pytest.mark.django_db(transaction=True)
def test_it_waits_for_the_commit() -> None:
    with transaction.atomic():
        with Workflow() as workflow:
            job = workflow.add(noop)
        with pytest.raises(WorkflowNotFound, match="its transaction has not committed"):
            _ = workflow.data
        assert job.is_deferred
    assert workflow.data.total == 1
    assert not job.is_deferred


@pytest.mark.django_db(transaction=True)
def test_a_rollback_leaves_nothing() -> None:
    with transaction.atomic():
        with Workflow() as workflow:
            workflow.add(noop)
        transaction.set_rollback(True)
    with pytest.raises(WorkflowNotFound):
        _ = workflow.data


def test_a_large_workflow_is_pushed_in_batches() -> None:
    with Workflow() as workflow:
        first = workflow.add(noop)
        middle = [workflow.add(noop, n, after=first) for n in range(450)]
        workflow.add(noop, after=middle)
    assert workflow.data.total == 452
    assert workflow.data.status == "running"
    workflow.pause()  # does what the push deferred
    assert get_job(f"{workflow.id}.0").status == "queued"


def test_a_chain_is_a_workflow_of_its_parts() -> None:
    workflow = chain(add.s(1, 2), add.s(10), noop.s(), name="sum")
    first, second, third = workflow.jobs()
    assert [job.status for job in (first, second, third)] == ["queued", "waiting", "waiting"]
    assert second.data.options == {"takes_result": True}


def test_pause_release_and_cancel_by_hand() -> None:
    with Workflow() as workflow:
        jobs = [workflow.add(noop, n) for n in range(3)]
    assert [workflow.pause(), workflow.pause(), workflow.data.is_paused] == [True, False, True]
    assert [workflow.release(), workflow.release(), workflow.data.is_paused] == [True, False, False]
    assert [workflow.cancel(), workflow.cancel()] == [True, False]
    assert workflow.status == "cancelled"
    with pytest.raises(WrongState, match="cannot be requeued: its workflow is cancelled or"):
        jobs[0].requeue()
    assert workflow.cleanup()
    with pytest.raises(WorkflowNotFound):
        workflow.pause()
    assert all(job.status == "cancelled" for job in jobs)


@pytest.mark.django_db(transaction=True)
def test_a_call_that_redis_does_not_accept_after_the_commit_is_kept_in_the_outbox(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": {"URL": "unix:///nonexistent/redis"}}
    with transaction.atomic(), Workflow("kept") as workflow:
        workflow.add(noop, 1)
    row = OutboxJob.objects.get()
    assert (row.id, row.task) == (workflow.id, "django_redisqueue.send_workflow")
    settings.REDISQUEUE = queue_settings
    args, kwargs = decode_payload(row.payload)
    for _ in range(2):  # relayed twice, created once
        send_workflow(*args, **kwargs)
    assert (workflow.data.name, workflow.data.total) == ("kept", 1)
    assert JobQueue().get_stats()["queued"] == 1
    workflow.cancel()
    assert workflow.cleanup()
    message = f"{workflow.id} was cleaned up .* push it as a new one"
    with pytest.raises(WorkflowError, match=message) as refused:
        send_workflow(*args, **kwargs)  # a third time, late
    assert isinstance(refused.value, send_workflow.options.no_retry_on)  # one attempt is enough
    assert workflow.jobs()[0].status == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_a_workflow_too_large_for_the_outbox_is_reported(
    settings: Any, queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow_graph, "MAX_ROW_BYTES", 2000)
    away = {**queue_settings, "CONNECTION": {"URL": "unix:///nonexistent/redis"}}
    settings.REDISQUEUE = away
    workflow = Workflow()
    for n in range(50):
        workflow.add(noop, n)
    with pytest.raises(RedisUnavailable) as caught, transaction.atomic():
        workflow.push()
    assert "with its 50 jobs is too large for the outbox" in caught.value.__notes__[0]
    assert not OutboxJob.objects.exists()
