"""What an application's own tests use: no Redis, but the same rules."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from django_redisqueue import (
    JobQueue,
    Retry,
    Workflow,
    chain,
    find_jobs,
    get_job,
    get_workflow,
    push_many,
    task,
)
from django_redisqueue.broker.scripts import LUA
from django_redisqueue.core.ids import new_workflow_id
from django_redisqueue.core.job_data import HASH_FIELDS, NewJob, Progress
from django_redisqueue.core.ports import ports
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import (
    ConfigurationError,
    InvalidArguments,
    JobFailed,
    JobNotFound,
    NotCommitted,
    PayloadTooLarge,
    WaitTimeout,
    WorkflowError,
    WorkflowFailed,
    WorkflowNotFound,
    WrongState,
)
from django_redisqueue.testing import InMemoryQueue, capture_jobs, run_inline, use_redis
from django_redisqueue.testing.hashes import OF_A_RUN
from tests.app import tasks
from tests.app.models import Counter

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@task
def see(x: Any) -> None:
    SEEN.append(x)


@task
def see_after_another(x: Any) -> None:
    see.enqueue("child")
    SEEN.append(x)


@task(exactly_once=True)
def see_once(x: Any) -> None:
    transaction.on_commit(lambda: SEEN.append("hook"))
    see.enqueue("child")
    with suppress(ZeroDivisionError), transaction.atomic():
        see.enqueue("rolled back")
        raise ZeroDivisionError
    SEEN.append(x)


@task
def see_again_later(x: int) -> None:
    SEEN.append(x)
    see_again_later.using(run_after=60).enqueue(x + 1)


@task
def see_for_ever() -> None:
    see_for_ever.enqueue()


@task(max_attempts=3, backoff=600)
def see_and_fail(x: Any) -> None:
    SEEN.append(x)
    raise Retry("once more")


@task(takes_context=True)
def cancel_myself(context: Any) -> str:
    context.job.cancel()
    return "stopped" if context.cancelled else "went on"


# --- capture_jobs ---------------------------------------------------------------------------------


def test_captured_jobs_are_kept_and_not_run() -> None:
    with capture_jobs() as queue:
        job = see.using(priority=3).enqueue((1, 2))
        assert isinstance(queue, InMemoryQueue)
        assert queue.jobs == [job]
        kept = queue.jobs[0]
        assert (kept.task_name, kept.args, kept.priority) == (see.name, ([1, 2],), 3)
        assert kept.status is job.status is Status.QUEUED
        assert not job.is_deferred
        assert SEEN == []
    assert ports.replacement is None


def test_drain_runs_everything_and_returns_what_ran() -> None:
    with capture_jobs() as queue:
        tasks.add.enqueue(1, 2)
        see_after_another.using(priority=5).enqueue("parent")
        see.using(run_after=timedelta(days=1)).enqueue("tomorrow")
        ran = queue.drain()
        assert [(job.task_name.rpartition(".")[2], job.result) for job in ran] == [
            ("see_after_another", None), ("add", 3), ("see", None), ("see", None),
        ]  # fmt: skip
        assert SEEN == ["parent", "tomorrow", "child"]
        assert queue.drain() == []
        assert {job.status for job in queue.jobs} == {Status.COMPLETED}


def test_drain_can_leave_jobs_that_are_not_due() -> None:
    with capture_jobs() as queue:
        see_again_later.enqueue(1)
        assert len(queue.drain(scheduled=False)) == 1
        assert SEEN == [1]
        assert queue.jobs[1].status is Status.SCHEDULED
        assert queue.jobs[1].run_after is not None


def test_drain_after_the_block_also_runs_jobs_enqueued_by_jobs() -> None:
    with capture_jobs() as queue:
        see_after_another.enqueue("parent")
    (parent, child) = queue.drain()
    assert SEEN == ["parent", "child"]
    assert (parent.status, child.status) == (Status.COMPLETED, Status.COMPLETED)
    assert ports.replacement is None


def test_an_endless_drain_is_reported() -> None:
    with capture_jobs() as queue:
        see_for_ever.enqueue()
        with pytest.raises(
            AssertionError, match=r"no end after \d+ runs, the last of \S+see_for_ever: does a job"
        ):
            queue.drain()


def test_one_id_is_one_job() -> None:
    with capture_jobs() as queue:
        see.enqueue(1)
        assert ports.replacement is queue
        new = NewJob("job_1_a_0", "default", see.name, "[[2],{}]")
        queue.enqueue([new, new])
        queue.enqueue([new])
        assert len(queue.jobs) == 2
        queue.drain()
        assert SEEN == [1, 2]


def test_bad_input_is_refused_as_usual(settings: Any) -> None:
    settings.REDISQUEUE = {"MAX_PAYLOAD_BYTES": 50}
    with capture_jobs() as queue:
        with pytest.raises(InvalidArguments, match="argument 1"):
            see.enqueue(object())
        with pytest.raises(PayloadTooLarge, match="MAX_PAYLOAD_BYTES"):
            see.enqueue("x" * 50)
        assert queue.jobs == []


def test_handles_work_without_redis() -> None:
    with capture_jobs() as queue:
        job = tasks.add.enqueue(1, 2)
        assert get_job(job.id) == job
        with pytest.raises(WaitTimeout, match="it is queued; run it first"):
            job.wait(timeout=5)
        queue.drain()
        assert job.wait() == 3
        assert asyncio.run(job.await_result()) == 3
        assert job.cancel() is False
        with pytest.raises(WrongState, match="is completed"):
            job.requeue()
        other = tasks.add.enqueue(1, 2)
        assert other.cancel() is True
        assert other.status is Status.CANCELLED
        assert queue.drain() == []
        other.requeue()
        assert (other.status, other.data.generation) == (Status.QUEUED, 1)
        with pytest.raises(JobNotFound, match="no job job_1_x_0 was enqueued in this test"):
            get_job("job_1_x_0")


# --- run_inline -----------------------------------------------------------------------------------


def test_inline_runs_at_once() -> None:
    with run_inline() as queue:
        job = tasks.add.enqueue(1, 2)
        assert (job.status, job.result, job.attempts) == (Status.COMPLETED, 3, 0)
        assert job.wait() == 3
        assert tasks.noop.enqueue((1, (2,))).result == [1, [2]]
        assert [job.result for job in tasks.add.enqueue_many([(1, 1), (2, 2)])] == [2, 4]
        assert JobQueue().add_job("tests.app.tasks.add", 5, 5).result == 10
        assert len(queue.jobs) == 5


@run_inline()
def test_inline_is_a_decorator_too() -> None:
    assert tasks.add.enqueue(1, 2).result == 3


@run_inline()
def test_a_failure_is_recorded_and_does_not_reach_the_caller() -> None:
    job = tasks.fail.enqueue("no luck")
    assert job.status is Status.FAILED
    assert job.error is not None
    assert (job.error.type, job.error.message) == ("ValueError", "no luck")
    assert "raise ValueError(message)" in job.error.traceback
    assert job.attempts == 1
    with pytest.raises(JobFailed, match="no luck"):
        job.wait()


def test_a_failure_can_be_raised() -> None:
    with (
        run_inline(raises=True),
        pytest.raises(JobFailed, match="is failed: ValueError: no luck") as caught,
    ):
        tasks.fail.enqueue("no luck")
    assert isinstance(caught.value.__cause__, ValueError)


@run_inline()
def test_attempts_are_made_without_delay() -> None:
    job = see_and_fail.enqueue(1)
    assert SEEN == [1, 1, 1]
    assert (job.status, job.attempts) == (Status.FAILED, 3)
    assert job.error is not None
    assert job.error.message == "once more"
    assert see_and_fail.using(max_attempts=1).enqueue(2).attempts == 1
    assert tasks.retry_later.enqueue(60).result == 3


@run_inline()
def test_jobs_enqueued_by_a_job_run_after_it() -> None:
    see_after_another.enqueue("parent")
    assert SEEN == ["parent", "child"]


def test_jobs_that_are_not_due_are_kept() -> None:
    with run_inline() as queue:
        see_again_later.enqueue(1)
        assert SEEN == [1]
        assert [job.status.value for job in queue.jobs] == ["completed", "scheduled"]


@run_inline()
def test_a_result_that_cannot_be_serialised_fails_the_job() -> None:
    job = tasks.bad_result.enqueue()
    assert job.status is Status.FAILED
    assert "the result of tests.app.tasks.bad_result is a builtins.object" in str(job.error)


@run_inline()
def test_context_progress_and_cancel() -> None:
    job = tasks.context_info.enqueue()
    assert job.result["job"] == job.id
    assert job.result["attempt"] == 1
    assert tasks.progress.enqueue(3).progress == Progress(3, 3, "step 3")
    assert cancel_myself.enqueue().result == "stopped"


@run_inline()
def test_async_tasks_run_too() -> None:
    assert tasks.async_sleep.enqueue(0).result == 0
    assert tasks.async_fail.enqueue("no luck").status is Status.FAILED
    assert asyncio.run(tasks.async_sleep.aenqueue(0)).result == 0


@run_inline()
def test_exit_in_a_job_is_a_failure() -> None:
    assert tasks.exit_softly.enqueue().status is Status.FAILED
    assert await_cancelled.enqueue().status is Status.FAILED


@task
async def await_cancelled() -> None:
    raise asyncio.CancelledError


@run_inline()
def test_exceptions_meant_for_the_test_are_raised() -> None:
    with pytest.raises(pytest.fail.Exception):
        give_up.enqueue()


@task
def give_up() -> None:
    pytest.fail("from inside the job")


# --- workflows ------------------------------------------------------------------------------------


def test_a_chain_is_kept_and_drained() -> None:
    with capture_jobs() as queue:
        workflow = chain(tasks.add.s(1, 2), tasks.add.s(10), on_complete=see.s("done"))
        queue.assert_enqueued(tasks.add, args=(1, 2), count=1)
        assert [job.status for job in workflow.jobs()] == ["queued", "waiting"]
        with pytest.raises(WaitTimeout, match="did not end in time"):
            workflow.wait(timeout=5)
        assert [job.result for job in queue.drain()] == [3, 13, None]
        assert workflow.wait().completed == 2
        assert SEEN == ["done"]
        assert get_workflow(workflow.id).jobs() == workflow.jobs()
        assert find_jobs(workflow=workflow, task=tasks.add) == workflow.jobs()[::-1]
    unknown = new_workflow_id()
    with (
        capture_jobs(),
        pytest.raises(WorkflowNotFound, match=f"workflow {unknown} is not in Redis"),
    ):
        get_workflow(unknown)


@run_inline()
def test_a_workflow_runs_inline_and_so_do_jobs_that_a_call_releases() -> None:
    workflow = chain(tasks.add.s(1, 2), tasks.fail.s(), see.s(), on_failure=see.s("failed"))
    assert (workflow.status, SEEN) == ("failed", ["failed"])
    with pytest.raises(WorkflowFailed, match="1 of 3 jobs completed, 1 failed"):
        workflow.wait()
    with Workflow(on_failure=see.s("cancelled")) as later:
        first = later.add(see.using(run_after=60), "first")
        later.add(see, "second", after=first)
    assert first.cancel()
    assert SEEN[1:] == ["cancelled"]
    first.requeue()
    assert SEEN[2:] == ["first", "second"]
    assert later.wait().generation == 1


@run_inline()
def test_jobs_held_back_by_a_pause_run_inline_at_its_release() -> None:
    with Workflow() as workflow:
        workflow.add(see, 2, after=workflow.add(pause_workflow, workflow.id))
    assert workflow.data.is_paused
    assert (SEEN, workflow.data.waiting) == ([], 1)
    assert workflow.release()
    assert (SEEN, workflow.status) == ([2], "completed")


@task
def pause_workflow(workflow_id: str) -> None:
    get_workflow(workflow_id).pause()


def test_a_failure_in_a_workflow_can_be_raised() -> None:
    with run_inline(raises=True) as queue:
        with pytest.raises(JobFailed, match="is failed: ValueError: boom"):
            chain(tasks.fail.s(), see.s())
        assert [job.status for job in queue.jobs] == ["failed", "waiting"]


@run_inline()
def test_many_workflows_are_pushed_in_memory() -> None:
    workflows = [Workflow(), Workflow()]
    for n, workflow in enumerate(workflows):
        workflow.add(see, n)
    assert push_many(workflows) == 2
    assert SEEN == [0, 1]
    with pytest.raises(WorkflowError, match="push_many accepts workflows, not 3"):
        push_many([3])  # type: ignore[list-item]


# --- transactions ---------------------------------------------------------------------------------


class InTestCase(TestCase):
    def test_inline_after_the_commit(self) -> None:
        with run_inline(), self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic():
                job = tasks.count.enqueue("a")
                assert job.is_deferred
                with pytest.raises(NotCommitted):
                    job.refresh()
            assert not Counter.objects.exists()
        assert Counter.objects.get(name="a").value == 1

    def test_work_committed_by_a_job_is_committed(self) -> None:
        with capture_jobs() as queue, self.captureOnCommitCallbacks(execute=True):
            see_once.enqueue("a")
        queue.drain()
        assert SEEN == ["a", "hook", "child"]
        with run_inline(), self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            see_once.enqueue("b")
        assert SEEN[3:] == ["b", "hook", "child"]

    def test_a_hook_waits_for_a_transaction_around_the_run(self) -> None:
        with capture_jobs() as queue, self.captureOnCommitCallbacks(execute=True):
            see_once.enqueue("a")
            with transaction.atomic():
                queue.drain()
                assert SEEN == ["a"]
        assert SEEN == ["a", "hook"]
        queue.drain()
        assert SEEN == ["a", "hook", "child"]

    def test_a_rollback_runs_nothing(self) -> None:
        with run_inline() as queue, self.captureOnCommitCallbacks(execute=True):
            try:
                with transaction.atomic():
                    see.enqueue(1)
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        assert SEEN == queue.jobs == []

    def test_a_workflow_is_pushed_after_the_commit(self) -> None:
        with run_inline():
            with self.captureOnCommitCallbacks(execute=True):
                with transaction.atomic():
                    workflow = chain(tasks.count.s("a"), tasks.noop.s())
                    with pytest.raises(NotCommitted):
                        workflow.jobs()[0].refresh()
                    with pytest.raises(WorkflowNotFound, match="has not committed"):
                        workflow.wait()
                assert not Counter.objects.exists()
            assert [job.result for job in workflow.jobs()] == [1, 1]

    def test_a_rollback_pushes_no_workflow(self) -> None:
        with capture_jobs() as queue, self.captureOnCommitCallbacks(execute=True):
            with pytest.raises(ZeroDivisionError), transaction.atomic(), Workflow() as workflow:
                workflow.add(see, 1 // len(workflow))
            with transaction.atomic():
                chain(see.s(1))
                transaction.set_rollback(True)
        assert queue.jobs == []

    def test_the_orm_of_async_tasks_sees_the_transaction(self) -> None:
        Counter.objects.create(name="a")
        with run_inline():
            assert tasks.async_query.enqueue().result == 1

    def test_a_message_lists_jobs_that_wait_for_their_commit(self) -> None:
        with capture_jobs() as queue, transaction.atomic():
            see.enqueue(1)
            with pytest.raises(AssertionError) as caught:
                queue.assert_enqueued(see)
        text = str(caught.value)
        assert "Enqueued:\n  nothing\n" in text
        assert "Waiting for a commit (see captureOnCommitCallbacks):\n" in text
        assert f"  {see.name}(1) on default, queued" in text


class InTransactionTestCase(TransactionTestCase):
    def test_inline_after_the_commit(self) -> None:
        with run_inline():
            with transaction.atomic():
                tasks.count.enqueue("a")
                assert not Counter.objects.exists()
            assert Counter.objects.get(name="a").value == 1


class WithEnterContext(SimpleTestCase):
    def setUp(self) -> None:
        self.queue = self.enterContext(capture_jobs())

    def test_once(self) -> None:
        see.enqueue(1)
        self.queue.assert_enqueued(see, count=1)

    def test_twice(self) -> None:
        see.enqueue(1)
        self.queue.assert_enqueued(see, count=1)


# --- Redis only when asked for --------------------------------------------------------------------


@pytest.mark.parametrize(
    "reach",
    [see.enqueue, JobQueue("default").get_stats, lambda: get_job("job_1_a_0")],
    ids=["enqueue", "stats", "get_job"],
)
def test_a_test_that_did_not_request_redis_does_not_reach_it(reach: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match="this test has not requested Redis"):
        reach(*([1] if reach == see.enqueue else []))


def test_functions_that_do_not_work_in_memory_say_so() -> None:
    with run_inline(), pytest.raises(ConfigurationError) as caught:
        JobQueue("default").get_stats()
    words = (
        "keep jobs, gathers and workflows in memory, but this (a queue as a whole) is only in Redis"
    )
    assert words in str(caught.value)
    assert "override_settings(REDISQUEUE=...)" in str(caught.value)


def test_a_test_that_requests_redis_reaches_it(redis: Any, redis_server: Any) -> None:
    with override_settings(REDISQUEUE={"CONNECTION": {"URL": redis_server.url}}):
        assert see.enqueue(1).status is Status.QUEUED
    with pytest.raises(ConfigurationError, match="has not requested"):
        see.enqueue(1)


def test_use_redis_requests_the_one_in_the_settings() -> None:
    with use_redis(), pytest.raises(ConnectionError, match="nonexistent"):
        see.enqueue(1)
    with pytest.raises(ConfigurationError, match="has not requested"):
        see.enqueue(1)


def test_a_requeue_forgets_the_fields_that_it_forgets_in_redis() -> None:
    found = re.search(r"'HDEL', key, ([^)]+)\)", (LUA / "requeue.lua").read_text())
    assert found
    deleted = {*re.findall(r"\w+", found[1])} - {"recoveries"}  # in memory nothing crashes
    assert deleted & {*HASH_FIELDS} <= {*OF_A_RUN} <= deleted


@task
def large() -> str:
    return "x" * 2_000_000


@task(takes_context=True)
def measure(context: Any) -> list[int]:
    return [len(result) for result in context.parent_results.values()]


def test_a_follower_reads_a_large_result() -> None:
    with run_inline():
        alone = large.enqueue()
        assert (alone.status, alone.reason) == ("failed", "result")
    with capture_jobs() as jobs:
        parent = large.enqueue()
        follower = measure.using(after=parent).enqueue()
        jobs.drain()
        follower.refresh()
        assert follower.result == [2_000_000]
        assert len(parent.result) == 2_000_000
