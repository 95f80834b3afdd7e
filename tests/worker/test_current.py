"""Code of a job finds its context without an argument; other code finds none."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

import django_redisqueue
from django_redisqueue import Job, current_context
from django_redisqueue.client.tasks import Task
from django_redisqueue.telemetry import JobFilter
from django_redisqueue.testing import capture_jobs, run_inline
from django_redisqueue.worker.child.context import JobContext
from django_redisqueue.worker.child.executor import Execution

from . import context_tasks as tasks
from .harness import WorkerHarness
from .processes import WorkerProcess, eventually

NAMES = ("here", "ahere")
OUTSIDE = ["-", "-", "-", "-"]


def check(job: Job) -> None:
    assert job.status == "completed", job.error
    assert set(job.result["ids"].values()) == {job.id}
    assert job.result["thread"] is None
    assert job.result["logged"] == [job.id, job.task_name, "default", 1]
    assert job.progress is not None
    assert job.progress.note == "half"


@pytest.mark.parametrize("name", NAMES)
def test_a_job_in_memory_finds_its_context(name: str) -> None:
    with run_inline():
        job = getattr(tasks, name).enqueue()
    check(job)


def test_there_is_none_outside_of_jobs() -> None:
    assert current_context() is None
    assert tasks.logged() == OUTSIDE
    with run_inline():
        assert tasks.with_context.enqueue().result is True
        assert tasks.with_acontext.enqueue().result is True
        assert current_context() is None
    assert tasks.logged() == OUTSIDE


def test_what_a_job_leaves_running_has_none() -> None:
    with run_inline():
        tasks.leave.enqueue()
    [left] = tasks.LEFT
    assert left.run(current_context) is None
    assert left.run(tasks.logged) == OUTSIDE


def test_a_chunk_has_none_and_is_logged_as_its_first_job() -> None:
    with capture_jobs() as jobs:
        first, second = tasks.together.enqueue_many([(1,), (2,)])
        jobs.drain()
    assert first.result == [None, first.id, tasks.together.name, "default", 1]
    assert second.result == first.result
    assert tasks.logged() == OUTSIDE


def test_an_application_s_own_fields_and_the_record_of_an_outcome_are_kept() -> None:
    record = logging.makeLogRecord({"task": "own", "job_id": None})
    assert JobFilter().filter(record)
    assert (record.task, record.job_id, record.queue) == ("own", None, "-")  # type: ignore[attr-defined]
    facts = {"id": "job_1", "task": "shop.tasks.charge", "queue": "mail", "attempt": 2}
    record = logging.makeLogRecord({"name": "django_redisqueue.jobs", **facts})
    assert JobFilter().filter(record)
    assert [getattr(record, fact) for fact in tasks.FACTS] == list(facts.values())


def test_threads_of_one_job_that_ask_at_once_get_one_context() -> None:
    """The second asks while the context of the first is being created."""
    task = cast(Task, tasks.here)
    run = Execution(SimpleNamespace(id="job_1"), task, [], {}, 0, 1)  # type: ignore[arg-type]
    made: list[object] = []
    asked, may_return = threading.Event(), threading.Event()

    class Slow:
        def new_context(self, _: Execution) -> JobContext:
            made.append(object())
            asked.set()
            assert may_return.wait(10)
            return cast(JobContext, made[-1])

    run.runner = Slow()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(run.get_context)
        assert asked.wait(10)
        second = threads.submit(run.get_context)
        may_return.set()
        assert [first.result(), second.result()] == made * 2


LIGHT = """
import sys
from django_redisqueue import current_context
from django_redisqueue.telemetry import JobFilter
print(current_context(), "django_redisqueue.models" in sys.modules)
try:
    from django_redisqueue import JobContext
except Exception as error:
    print(type(error).__name__)
"""


def test_settings_can_import_the_function_and_the_filter() -> None:
    """LOGGING is applied before the apps are loaded. JobContext is a type for tasks."""
    environment = {**os.environ}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, "-c", LIGHT],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["None", "False", "ImproperlyConfigured"]
    assert django_redisqueue.JobContext is JobContext
    assert "JobContext" in dir(django_redisqueue)


@pytest.fixture(params=[(), ("--threads", "3")], ids=["main thread", "threads"])
def worker(harness: WorkerHarness, request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    harness.configure(TASK_MODULES=["tests.worker.context_tasks"])
    return harness.worker("--processes", "1", *request.param).wait_until_up(2)


def test_jobs_of_a_worker_find_their_contexts(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    jobs = [getattr(tasks, name).enqueue() for _ in range(5) for name in NAMES]
    same = [tasks.with_context.enqueue(), tasks.with_acontext.enqueue()]
    chunk = tasks.together.enqueue_many([(1,), (2,)])
    for job in jobs:
        harness.ended(job)
        check(job)
    for job in same + chunk:
        harness.ended(job)
    assert [job.result for job in same] == [True, True]
    assert {job.result[0] for job in chunk} == {None}
    assert {job.result[1] for job in chunk} <= {job.id for job in chunk}


def test_a_context_that_exists_only_after_the_cancel_knows_of_it(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    job = tasks.until_cancelled.enqueue(harness.book)
    eventually(lambda: harness.runs()["started"] == 1, why=harness.report)
    job.cancel()
    harness.ended(job)
    found: Any = job.progress
    assert (job.status, found.note) == ("cancelled", "cancelled: True")
