"""The backend for Django's own Tasks: its contract, over Redis and in memory."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_redisqueue import get_job
from django_redisqueue.client.registry import get_task
from django_redisqueue.exceptions import (
    Interrupt,
    InvalidArguments,
    JobAbandoned,
    JobCancelled,
    JobTimeout,
)
from django_redisqueue.testing import capture_jobs, run_inline
from django_redisqueue.worker.child.async_runner import AsyncRun
from tests.app import tasks as our_tasks
from tests.support.commands import manage
from tests.support.servers import RedisServer

from ..support.manual_worker import ManualWorker
from ..worker.child.test_async_runner import RunnerHarness, end

if django.VERSION < (6, 0) and not os.environ.get("CI"):
    pytest.importorskip("django_tasks", reason="Django 5.2 needs the django-tasks package")

from django_redisqueue.backend import RedisQueueBackend
from tests.app import django_tasks as tasks
from tests.app.django_api import (
    LOGGER,
    TAKES_OPTIONS,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)

OURS = "django_redisqueue.backend.RedisQueueBackend"
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


@pytest.fixture(autouse=True)
def two_queues(queue_settings: dict[str, Any], settings: Any) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str, str]]]:
    """The signals that were sent: name, id, status at that moment."""
    found: list[tuple[str, str, str]] = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = []
    for name, signal in signals.items():

        def receive(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            assert sender is RedisQueueBackend
            found.append((name, task_result.id, task_result.status))

        receivers.append(receive)
        signal.connect(receive)
    yield found
    for signal, receive in zip(signals.values(), receivers, strict=True):
        signal.disconnect(receive)


def test_the_backend_can_do_everything() -> None:
    backend = default_task_backend
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_enqueue_returns_a_ready_result() -> None:
    result = tasks.add.enqueue(1, b=2)
    assert result.task == tasks.add
    assert result.status is READY
    assert (result.args, result.kwargs) == ([1], {"b": 2})
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert result.backend == "default"
    assert len(result.id) < 64
    assert result.started_at is result.finished_at is result.last_attempted_at is None
    assert abs(result.enqueued_at - timezone.now()) < timedelta(seconds=5)
    with pytest.raises(ValueError, match="not finished"):
        result.return_value  # noqa: B018
    assert default_task_backend.get_result(result.id) == result
    job = get_job(result.id)
    assert (job.task_name, job.args, job.kwargs) == ("tests.app.django_tasks.add", (1,), {"b": 2})


def test_a_result_follows_its_job(manual_worker: ManualWorker) -> None:
    result = tasks.add.enqueue(1, 2)
    claimed = manual_worker.claim_one()
    result.refresh()
    assert result.status is RUNNING
    assert result.worker_ids == [manual_worker.claim_request.child]
    assert result.started_at == result.last_attempted_at is not None
    assert result.finished_at is None

    manual_worker.settle(claimed, "completed", "3")
    asyncio.run(result.arefresh())
    assert result.status is SUCCESSFUL
    assert result.is_finished
    assert result.return_value == 3
    assert result.finished_at >= result.started_at >= result.enqueued_at
    assert result.attempts == 1
    assert tasks.add.get_result(result.id) == result
    assert asyncio.run(tasks.add.aget_result(result.id)) == result


def test_a_failure_carries_its_class_and_traceback(manual_worker: ManualWorker) -> None:
    result = tasks.fail.enqueue("no luck")
    manual_worker.fail_one("no luck")
    result.refresh()
    assert result.status is FAILED
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert error.traceback == "Traceback ..."
    assert result.attempts == 1
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("WorkerLost", "django_redisqueue.exceptions.WorkerLost"),
        ("shop.errors.Refused", "shop.errors.Refused"),
        ("TimeoutError", "builtins.TimeoutError"),
    ],
)
def test_exception_class_paths(manual_worker: ManualWorker, kind: str, path: str) -> None:
    result = tasks.add.enqueue(1, 2)
    body = f'{{"type":"{kind}","message":"m","traceback":""}}'
    manual_worker.settle(manual_worker.claim_one(), "failed", body, "poison")
    result.refresh()
    assert result.errors[0].exception_class_path == path
    assert result.errors[0].traceback == f"{kind}: m"


def test_a_cancelled_job_is_a_failed_result() -> None:
    result = tasks.add.enqueue(1, 2)
    get_job(result.id).cancel()
    result.refresh()
    assert result.status is FAILED
    assert result.errors[0].exception_class_path == "django_redisqueue.exceptions.JobCancelled"
    assert result.errors[0].exception_class.__name__ == "JobCancelled"
    assert result.attempts == 0


def test_a_recovered_job_is_ready_again(manual_worker: ManualWorker) -> None:
    result = tasks.add.enqueue(1, 2)
    claimed = manual_worker.claim_one()
    manual_worker.store.release(manual_worker.claim_request.child, [(claimed.id, claimed.lease)])
    result.refresh()
    assert result.status is READY
    assert result.started_at is None
    assert result.worker_ids == []


def test_unknown_and_foreign_results() -> None:
    for result_id in ("job_1_aaaaaaaaaa_0", "no such id", ""):
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist, match="not a Django task"):
        default_task_backend.get_result(our_tasks.noop.enqueue().id)
    with pytest.raises(TaskResultMismatch):
        tasks.fail.get_result(tasks.add.enqueue(1, 2).id)


def test_options_reach_the_job_and_are_returned() -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    result = tasks.urgent.using(run_after=later, priority=-3, queue_name="low").enqueue()
    job = get_job(result.id)
    assert (job.queue_name, job.priority, job.run_after) == ("low", -3, later)
    again = tasks.urgent.get_result(result.id)
    assert again.task == result.task != tasks.urgent
    assert again.status is READY
    assert get_job(tasks.urgent.enqueue().id).priority == 7
    assert get_job(tasks.urgent.using(priority=0).enqueue().id).priority == 0


@pytest.mark.parametrize("delay", [timedelta(hours=1), 3600, "1h"], ids=repr)
def test_a_delay_becomes_a_time(delay: Any) -> None:
    job = get_job(tasks.add.using(run_after=delay).enqueue(1, 2).id)
    assert abs(job.run_after - timezone.now() - timedelta(hours=1)) < timedelta(seconds=5)


def test_aenqueue() -> None:
    result = asyncio.run(tasks.add.aenqueue(1, 2))
    assert get_job(result.id).args == (1, 2)


# --- validation -----------------------------------------------------------------------------------


def test_invalid_tasks_are_refused_and_not_registered() -> None:
    with pytest.raises(InvalidTask, match="module level"):
        task(lambda: None)
    with pytest.raises(InvalidTask, match="priority must be a whole number"):
        tasks.add.using(priority=101)
    for wrong in ("soon", -1, True):
        with pytest.raises(InvalidTask, match="run_after, unless a datetime, must be"):
            tasks.add.using(run_after=wrong)
    with pytest.raises(InvalidTask, match="aware"):
        tasks.add.using(run_after=datetime(2100, 1, 1))
    assert not get_task("tests.app.django_tasks.add").name.endswith("<lambda>")


def test_only_the_queues_of_the_backend_are_allowed() -> None:
    assert default_task_backend.queues == {"default", "low"}
    one = {"default": {"BACKEND": OURS, "QUEUES": ["default"]}}
    with override_settings(TASKS=one), pytest.raises(InvalidTask, match="Queue 'low'"):
        tasks.add.using(queue_name="low")
    with pytest.raises(InvalidTask, match=r"Queue 'lwo' is not valid.*did you mean 'low'"):
        tasks.add.using(queue_name="lwo")


def test_an_unknown_queue_is_reported_by_a_check() -> None:
    wrong = {"default": {"BACKEND": OURS, "QUEUES": ["default", "lwo"]}}
    with override_settings(TASKS=wrong):
        (message,) = [m for m in run_checks(databases=[]) if m.id == "django_redisqueue.E005"]
    assert "names 'lwo', which is not in REDISQUEUE" in message.msg
    assert "did you mean 'low'?" in message.msg
    assert message.hint == "Add it there; it now has default, low."


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "argument 1 of tests.app.django_tasks.urgent is a builtins.object"),
        (float("nan"), "argument 1 of tests.app.django_tasks.urgent is nan"),
        (b"\xff", "builtins.bytes: use text"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_arguments_that_cannot_be_serialised(value: Any, words: str) -> None:
    with capture_jobs() as queue:
        with pytest.raises(InvalidArguments) as caught:
            tasks.urgent.enqueue(value)
        assert words in str(caught.value)
        assert queue.jobs == []


def test_a_test_may_expect_a_django_task() -> None:
    with capture_jobs() as queue:
        tasks.add.enqueue(1, 2)
        (job,) = queue.assert_enqueued(tasks.add, args=(1, 2))
        assert job.task_name == "tests.app.django_tasks.add"


def test_arguments_are_normalised_as_django_does() -> None:
    result = tasks.urgent.enqueue((1, range(2), b"abc", {1: 2}))
    assert result.args == [[1, [0, 1], "abc", {"1": 2}]]
    assert get_job(result.id).args == ([1, [0, 1], "abc", {"1": 2}],)


# --- running --------------------------------------------------------------------------------------


@run_inline()
def test_a_run_sends_its_signals(heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    result = tasks.add.enqueue(1, 2)
    assert heard == [
        ("started", result.id, RUNNING), ("finished", result.id, SUCCESSFUL),
        ("enqueued", result.id, READY),
    ]  # fmt: skip
    result.refresh()
    assert result.return_value == 3
    assert f"Task id={result.id} path=tests.app.django_tasks.add enqueued" in caplog.text


@pytest.mark.parametrize("failing", [tasks.fail, tasks.async_fail], ids=["sync", "async"])
@run_inline()
def test_a_failing_run(failing: Any, heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    result = failing.enqueue("no luck")
    assert heard[1] == ("finished", result.id, FAILED)
    result.refresh()
    assert result.status is FAILED
    assert result.errors[0].exception_class is ValueError
    assert "raise ValueError(message)" in result.errors[0].traceback
    assert "thread_handler" not in result.errors[0].traceback  # of receivers in asgiref's thread
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    if failing is tasks.fail:  # Django 6.0 runs receivers of asend in another thread
        assert record.exc_info is not None  # it was sent inside the except block
        assert isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize("signal", [task_enqueued, task_started, task_finished])
@pytest.mark.parametrize("made", [tasks.urgent, tasks.sleep], ids=["sync", "async"])
@run_inline()
def test_a_receiver_that_raises_changes_no_outcome(
    made: Any, signal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a job whose work is done would be retried."""

    def receive(**_: Any) -> None:
        raise RuntimeError("the receiver is broken")

    signal.connect(receive)
    try:
        result = made.enqueue(0)
    finally:
        signal.disconnect(receive)
    result.refresh()
    assert result.return_value == 0
    assert "the receiver is broken" in caplog.text


@pytest.mark.skipif(not TAKES_OPTIONS, reason="Django 6.0 does not pass options on")
@pytest.mark.parametrize("name", ["final", "async_final"])
@run_inline()
def test_no_line_or_signal_of_django_shows_a_redacted_argument(
    name: str, heard: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    shown: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        shown.append((task_result.args, task_result.kwargs))

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(receive)
    result = getattr(tasks, name).enqueue(message="eve-s card")
    for signal in (task_enqueued, task_started, task_finished):
        signal.disconnect(receive)
    assert shown == [([], {"message": "[redacted]"})] * 3
    assert heard[1] == ("finished", result.id, FAILED)
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.name == LOGGER
    assert not any(line.exc_info or ())
    assert "eve-s card" not in caplog.text


@run_inline()
def test_async_tasks(heard: list[Any]) -> None:
    result = tasks.sleep.enqueue(0)
    result.refresh()
    assert result.return_value == 0
    assert [name for name, *_ in heard] == ["started", "finished", "enqueued"]


@pytest.mark.parametrize(
    ("interrupt", "error"),
    [(JobTimeout, "JobTimeout"), (JobCancelled, "JobCancelled"), (JobAbandoned, None)],
)
def test_an_interrupted_async_run_finishes_with_what_the_job_gets(
    monkeypatch: pytest.MonkeyPatch, interrupt: type[Interrupt], error: str | None
) -> None:
    """asyncio raises a CancelledError instead. If the job was abandoned, another worker has it, so
    this run has no result."""
    errors: list[str] = []
    runner = RunnerHarness()

    async def interrupted(seconds: float) -> None:
        (run,) = runner.in_flight.running()
        assert isinstance(run, AsyncRun)
        run.stop(interrupt())
        await asyncio.sleep(seconds)

    def note(task_result: Any, **_: Any) -> None:
        errors.append(task_result.errors[0].exception_class_path.rpartition(".")[2])

    monkeypatch.setattr(tasks, "asyncio", SimpleNamespace(sleep=interrupted))
    task_finished.connect(note)
    try:
        runner.start("job_1_aaaaaaaaaa_0", 60, task=get_task(tasks.sleep.module_path))
        runner.wait(lambda: not runner.in_flight.running())
    finally:
        task_finished.disconnect(note)
        runner.redis.open()
        end(runner.runner)
    assert errors == ([error] if error else [])


@run_inline()
def test_the_context_of_a_task() -> None:
    result = tasks.with_context.enqueue(1, task=2, b=[3])
    result.refresh()
    assert result.status is SUCCESSFUL, result.errors
    value = result.return_value
    (worker,) = value.pop("workers")
    assert worker
    assert value == {
        "attempt": 1,
        "id": result.id,
        "status": "RUNNING",
        "args": [1],
        "kwargs": {"task": 2, "b": [3]},
        "got": [[1], {"task": 2, "b": [3]}],
    }


@run_inline()
def test_results_are_normalised_or_fail_the_job(heard: list[Any]) -> None:
    keys = {"1": "a", "null": [{"true": [1, 2]}], "0.5": "x"}
    for kind, value in (("range", [0, 1, 2]), ("bytes", "abc"), ("keys", keys)):
        result = tasks.return_odd_value.enqueue(kind)
        result.refresh()
        assert result.return_value == value
    for kind in ("object", "nan"):
        result = tasks.return_odd_value.using(max_attempts=3).enqueue(kind)
        result.refresh()
        assert (result.status, result.attempts) == (FAILED, 1), "no retry would help"
        assert get_job(result.id).reason == "result"
        assert ("finished", result.id, FAILED) in heard
        assert ("finished", result.id, SUCCESSFUL) not in heard


# --- transactions ---------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_task_and_its_signal_wait_for_the_commit(heard: list[Any]) -> None:
    with transaction.atomic():
        result = tasks.add.enqueue(1, 2)
        assert heard == []
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(result.id)
    assert heard == [("enqueued", result.id, READY)]
    assert tasks.add.get_result(result.id).status is READY


@pytest.mark.django_db(transaction=True)
def test_a_rollback_sends_nothing(heard: list[Any]) -> None:
    with capture_jobs() as queue:
        try:
            with transaction.atomic():
                tasks.add.enqueue(1, 2)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert heard == queue.jobs == []


# --- import and process ---------------------------------------------------------------------------


def test_a_backend_can_be_created_without_settings_or_redis() -> None:
    with override_settings(REDISQUEUE={"CONNECTION": {"URL": "unix:///nonexistent"}}):
        backend = RedisQueueBackend("other", {"QUEUES": []})
        assert backend.check() == []
    assert task_backends["default"].alias == "default"
    with (
        override_settings(TASKS={"default": {"BACKEND": "django_redisqueue.nothing"}}),
        pytest.raises(ImproperlyConfigured),
    ):
        task_backends["default"]


def test_defining_tasks_loads_no_models_and_opens_no_connection() -> None:
    program = """
import sys
from django.conf import settings
settings.configure(TASKS={"default": {"BACKEND": "%s", "QUEUES": []}})
from tests.app.django_api import task
import types
module = types.ModuleType("made_up")
sys.modules["made_up"] = module
exec("def f(): pass", module.__dict__)
made = task(module.f)
from django_redisqueue.client.registry import task_names
print("made_up.f" in task_names(), "django_redisqueue.models" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program % OURS],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "True False"


def test_a_real_worker_runs_them(redis: Any, redis_server: RedisServer, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": redis_server.url}}
    results = [
        tasks.add.enqueue(1, 2), tasks.sleep.enqueue(0.01), tasks.with_context.enqueue(),
        tasks.fail.enqueue("no luck"),
    ]  # fmt: skip
    manage("runworker", "--burst", "--processes", "1", REDISQUEUE_TEST_URL=redis_server.url)
    for result in results:
        result.refresh()
    assert [result.status for result in results] == [SUCCESSFUL, SUCCESSFUL, SUCCESSFUL, FAILED]
    assert results[0].return_value == 3
    # What the task saw of its worker is what Redis stores about it.
    assert results[2].return_value["workers"] == results[2].worker_ids
    assert results[3].errors[0].exception_class is ValueError
