"""Workflow and chain as an application writes them; nothing runs here."""

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
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.replies import Outcome
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

pytestmark = pytest.mark.usefixtures("queue_settings")


def test_a_workflow_is_pushed_at_the_end_of_its_block() -> None:
    with Workflow("nightly", priority=10) as flow:
        extract = flow.add(noop, 1)
        loads = [flow.add(noop, n, after=extract) for n in range(3)]
        report = flow.add(noop, after=loads)
        with pytest.raises(NotCommitted):
            extract.refresh()
    assert flow.data.total == 5
    assert (extract.status, report.status) == ("queued", "waiting")
    assert extract.priority == 10
    assert [job.id for job in flow.jobs()] == [f"{flow.id}.{n}" for n in range(5)]
    assert JobQueue().get_stats()["queued"] == 1


def test_nothing_is_written_when_its_block_raises() -> None:
    flow = Workflow()
    with pytest.raises(ZeroDivisionError), flow:
        flow.add(noop, 1 // len(flow))
    with pytest.raises(WorkflowNotFound, match="was not pushed"):
        _ = flow.data
    assert JobQueue().get_stats()["queued"] == 0


def test_it_is_found_again_by_its_id() -> None:
    with Workflow("again") as flow:
        flow.add(noop)
    found = get_workflow(flow.id)
    assert (found.name, found.data) == ("again", flow.data)
    with pytest.raises(InvalidName, match="workflow id"):
        get_workflow("job_1")
    with pytest.raises(WorkflowNotFound, match="no workflow flow_gone"):
        get_workflow("flow_gone")


def test_options_of_a_call_go_before_those_of_the_workflow() -> None:
    with Workflow(priority=5) as flow:
        plain = flow.add(noop)
        own = flow.add(noop.using(priority=7))
    assert (plain.priority, own.priority) == (5, 7)


def test_an_empty_workflow_is_refused() -> None:
    with pytest.raises(WorkflowError, match="workflow 'bare' is empty; add at least one job"):
        Workflow("bare").push()


def test_a_cycle_is_named() -> None:
    flow = Workflow("round")
    first = flow.add(noop)
    second = flow.add(add, 1, 2, after=first)
    flow.link(second, first)
    with pytest.raises(WorkflowError, match=r"cycle.*app\.tasks") as caught:
        flow.push()
    assert ".0" in str(caught.value)
    assert ".1" in str(caught.value)
    with pytest.raises(WorkflowNotFound):
        _ = flow.data


def test_a_parent_of_another_workflow_is_named() -> None:
    stranger = Workflow().add(noop)
    flow = Workflow("mine")
    with pytest.raises(WorkflowError, match=f"<Job {stranger.id}> is not a job of <Workflow"):
        flow.add(noop, after=stranger)
    with pytest.raises(WorkflowError, match="'text' is not a job"):
        flow.add(noop, after=["text"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Workflow(name=5), InvalidOption, "a string of at most 200"),  # type: ignore[arg-type]
        (lambda: Workflow("a\ud800"), InvalidOption, "printable characters, not 'a\\\\ud800'"),
        (lambda: Workflow("a\nb"), InvalidOption, "at most 200 printable"),
        (lambda: Workflow().add(noop, on_failure="stop"), InvalidOption, "fail, skip, go_on"),
        (lambda: Workflow().add(len, []), WorkflowError, "a task with its arguments"),  # type: ignore[arg-type]
        (lambda: Workflow().add(noop.s(1), 2), WorkflowError, "alone"),
        (lambda: Workflow().add(noop, object()), InvalidArguments, "noop"),
        (lambda: Workflow(ttl=-1), InvalidOption, "ttl"),
        (lambda: Workflow().add(noop, after=42), WorkflowError, "what add.. returned.*not 42"),  # type: ignore[arg-type]
        (lambda: Workflow().add(noop, after="job_1"), WorkflowError, "not 'job_1'"),
        (lambda: Workflow(on_complete="app.done"), InvalidOption, "on_complete .* not 'app.done'"),  # type: ignore[arg-type]
        (lambda: Workflow(on_failure=len), InvalidOption, "on_failure is a task"),  # type: ignore[arg-type]
        (
            lambda: Workflow(on_failure=noop.using(after="job_1")),
            InvalidOption,
            "noop has after=.*on_failure.*remove it",
        ),
        (lambda: chain("app.one"), WorkflowError, "a task with its arguments"),  # type: ignore[arg-type]
        (lambda: chain(noop, 5), WorkflowError, "not 5"),  # type: ignore[arg-type]
        (lambda: push_many([5]), WorkflowError, "push_many takes workflows, not 5"),  # type: ignore[list-item]
        (lambda: noop.using(after=Workflow()), InvalidOption, "<Workflow flow_.* is none; .*jobs"),
    ],
)
def test_bad_input_is_named(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_tasks_without_arguments_make_a_chain() -> None:
    flow = chain(noop, add.s(1))
    assert [job.task_name for job in flow.jobs()] == [noop.name, add.name]


def test_what_its_end_calls_for_keeps_its_options(settings: Any, redis: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "INDEXED": ["workflow"]}
    announce = noop.using(run_after=60, priority=3, tags={"tenant": "42"})
    with Workflow(on_complete=announce.s(1), on_failure=noop) as flow:
        flow.add(noop)
    with Workflow(on_complete=noop) as plain:
        plain.add(noop, after=None)
    assert_ends(flow, plain)
    (later,) = find_jobs(workflow=flow, status="unfinished")
    assert (later.id, later.status) == (f"{flow.id}.complete0", "scheduled")
    assert (later.priority, later.tags, later.args) == (3, {"tenant": "42"}, (1,))
    assert get_job(f"{plain.id}.complete0").status == "queued"


def assert_ends(*flows: Workflow) -> None:
    """Runs all that is queued."""
    store = Commands(producer_connection())
    claim_request = ClaimRequest("runner", ("default",))
    jobs = store.claim(claim_request, 1, 10).jobs
    assert len(jobs) == len(flows)
    done = [Outcome(job.id, job.lease, job.call, "completed", "null", "") for job in jobs]
    assert store.finish(claim_request, 2, done, 0)[0] == [1] * len(jobs)
    assert [flow.status for flow in flows] == ["completed"] * len(flows)


def test_a_pushed_workflow_takes_no_more_jobs() -> None:
    with Workflow() as flow:
        flow.add(noop)
    with pytest.raises(WorkflowError, match="pushed already; make another"):
        flow.add(noop)
    with pytest.raises(WorkflowError, match="pushed already; make another"):
        flow.link(*flow.jobs() * 2)
    with pytest.raises(WorkflowError, match="pushed already"):
        flow.push()


@pytest.mark.django_db(transaction=True)
def test_it_waits_for_the_commit() -> None:
    with transaction.atomic():
        with Workflow() as flow:
            job = flow.add(noop)
        with pytest.raises(WorkflowNotFound, match="its transaction has not committed"):
            _ = flow.data
        assert job.is_deferred
    assert flow.data.total == 1
    assert not job.is_deferred


@pytest.mark.django_db(transaction=True)
def test_a_rollback_leaves_nothing() -> None:
    with transaction.atomic():
        with Workflow() as flow:
            flow.add(noop)
        transaction.set_rollback(True)
    with pytest.raises(WorkflowNotFound):
        _ = flow.data


def test_a_large_workflow_goes_in_batches() -> None:
    with Workflow() as flow:
        first = flow.add(noop)
        middle = [flow.add(noop, n, after=first) for n in range(450)]
        flow.add(noop, after=middle)
    assert flow.data.total == 452
    assert flow.data.status == "running"
    flow.pause()  # goes on with what the push left for later
    assert get_job(f"{flow.id}.0").status == "queued"


def test_a_chain_is_a_workflow_of_its_parts() -> None:
    flow = chain(add.s(1, 2), add.s(10), noop.s(), name="sum")
    first, second, third = flow.jobs()
    assert [job.status for job in (first, second, third)] == ["queued", "waiting", "waiting"]
    assert second.data.options == {"takes_result": True}


def test_pause_release_and_cancel_by_hand() -> None:
    with Workflow() as flow:
        jobs = [flow.add(noop, n) for n in range(3)]
    assert [flow.pause(), flow.pause(), flow.data.is_paused] == [True, False, True]
    assert [flow.release(), flow.release(), flow.data.is_paused] == [True, False, False]
    assert [flow.cancel(), flow.cancel()] == [True, False]
    assert flow.status == "cancelled"
    with pytest.raises(WrongState, match="cannot be requeued: its workflow is cancelled or"):
        jobs[0].requeue()
    assert flow.cleanup()
    with pytest.raises(WorkflowNotFound):
        flow.pause()
    assert all(job.status == "cancelled" for job in jobs)


@pytest.mark.django_db(transaction=True)
def test_one_that_redis_does_not_take_after_the_commit_is_kept_in_the_outbox(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": {"URL": "unix:///nonexistent/redis"}}
    with transaction.atomic(), Workflow("kept") as flow:
        flow.add(noop, 1)
    row = OutboxJob.objects.get()
    assert (row.id, row.task) == (flow.id, "django_redisqueue.send_workflow")
    settings.REDISQUEUE = queue_settings
    args, kwargs = decode_payload(row.payload)
    for _ in range(2):  # relayed twice: made once
        send_workflow(*args, **kwargs)
    assert (flow.data.name, flow.data.total) == ("kept", 1)
    assert JobQueue().get_stats()["queued"] == 1
    flow.cancel()
    assert flow.cleanup()
    message = f"{flow.id} was cleaned up .* push it as a new one"
    with pytest.raises(WorkflowError, match=message) as refused:
        send_workflow(*args, **kwargs)  # a third time, late
    assert isinstance(refused.value, send_workflow.options.no_retry_on)  # one attempt is enough
    assert flow.jobs()[0].status == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_one_that_is_too_large_for_the_outbox_is_told_of(
    settings: Any, queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow_graph, "MAX_ROW_BYTES", 2000)
    away = {**queue_settings, "CONNECTION": {"URL": "unix:///nonexistent/redis"}}
    settings.REDISQUEUE = away
    flow = Workflow()
    for n in range(50):
        flow.add(noop, n)
    with pytest.raises(RedisUnavailable) as caught, transaction.atomic():
        flow.push()
    assert "with its 50 jobs is too large for the outbox" in caught.value.__notes__[0]
    assert not OutboxJob.objects.exists()
