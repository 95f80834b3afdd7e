"""sleep and wait_for: a job gives up its child and continues later, from its steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_redisqueue import send_event, task
from django_redisqueue.broker.replies import WaitReply, WaitState
from django_redisqueue.exceptions import (
    EventTimeout,
    InvalidArguments,
    InvalidName,
    InvalidOption,
    JobAbandoned,
    JobSuspended,
    PayloadTooLarge,
    StepError,
)
from django_redisqueue.models import OutboxJob
from django_redisqueue.testing import capture_jobs, run_inline
from django_redisqueue.worker.child.context import JobContext
from django_redisqueue.worker.child.retry_policy import resolve_error
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.parts import claimed
from tests.worker.processes import eventually

from .test_steps import Memory

RUNS: list[str] = []


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    RUNS.clear()


@task(takes_context=True, max_attempts=2)
def order(context: Any) -> Any:
    RUNS.append("run")
    context.step("ask", RUNS.append, "ask")
    paid = context.wait_for("paid:42", timeout="3d")
    context.sleep(timedelta(hours=1))
    context.sleep("2h", name="again")
    return context.step("ship", lambda: ["shipped", paid])


@task(takes_context=True)
async def aorder(context: Any) -> Any:
    paid = await context.await_for("paid:42")
    await context.asleep(60)
    return paid


@task(takes_context=True, max_attempts=3)
def reminded(context: Any) -> str:
    try:
        context.wait_for("paid:42", timeout=60)
    except EventTimeout:
        context.sleep(5)
        return "reminded"
    return "paid"


@task(takes_context=True, max_attempts=3)
def impatient(context: Any) -> None:
    context.wait_for("paid:42", timeout=60)


def test_it_continues_when_the_event_arrives_and_the_time_has_passed() -> None:
    with capture_jobs() as jobs:
        job = order.enqueue()
        jobs.run_due()
        job.refresh()
        assert (job.status, job.data.waits_for, job.attempts) == ("scheduled", "paid:42", 0)
        send_event("paid:43")
        jobs.run_due()
        assert RUNS == ["run", "ask"]
        send_event("paid:42", {"amount": 7})
        jobs.run_due()
        job.refresh()
        assert (job.status, job.data.waits_for) == ("scheduled", "")
        jobs.travel(minutes=59)
        jobs.run_due()
        assert RUNS == ["run", "ask", "run"]
        jobs.travel(minutes=1)
        jobs.run_due()
        jobs.travel(hours=2)
        jobs.run_due()
        job.refresh()
        assert (job.status, job.attempts) == ("completed", 0)
        assert job.result == ["shipped", {"amount": 7}]
    assert RUNS == ["run", "ask", "run", "run", "run"]


@pytest.mark.parametrize("which", [order, aorder])
def test_an_event_sent_before_its_wait_and_a_drain_that_does_not_sleep(which: Any) -> None:
    with capture_jobs() as jobs:
        send_event("paid:42", 7)
        job = which.enqueue()
        jobs.drain()
        assert job.status == "completed"


def test_a_job_gets_the_event_that_woke_it() -> None:
    with capture_jobs() as jobs:
        job = aorder.enqueue()
        jobs.run_due()
        send_event("paid:42", "first")
        send_event("paid:42", "second")
        jobs.drain()
        assert job.result == "first"


def test_an_event_is_kept_for_a_while() -> None:
    with capture_jobs() as jobs:
        send_event("paid:42", 7)
        jobs.travel(days=1, seconds=1)
        job = order.enqueue()
        jobs.drain()
        assert job.status == "scheduled"
        jobs.drain()
        jobs.travel(days=3)
        jobs.run_due()
        job.refresh()
        assert (job.status, job.attempts) == ("failed", 1)


def test_a_timeout_is_an_error_that_the_task_may_handle() -> None:
    with capture_jobs() as jobs:
        handled, failed = reminded.enqueue(), impatient.enqueue()
        jobs.run_due()
        jobs.travel(seconds=60)
        jobs.drain()
        assert handled.result == "reminded"
        assert failed.error is not None
        assert failed.error.type.endswith("EventTimeout")
        assert "event 'paid:42' did not come in time" in failed.error.message
        assert (failed.status, failed.attempts) == ("failed", 1)  # a retry would raise it again
        send_event("paid:42")
        failed.requeue()
        jobs.drain()
        failed.refresh()
        assert failed.status == "completed"


def test_a_parked_job_can_be_cancelled() -> None:
    with capture_jobs() as jobs:
        job = order.enqueue()
        jobs.drain()
        assert job.cancel()
        send_event("paid:42")
        jobs.drain()
        job.refresh()
        assert job.status == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_an_event_waits_for_the_commit() -> None:
    with run_inline():
        job = order.enqueue()
        with transaction.atomic():
            send_event("paid:42")
            job.refresh()
            assert job.data.waits_for == "paid:42"
        job.refresh()
        assert job.data.waits_for == ""
        with transaction.atomic():
            send_event("other", on_commit=False)


@pytest.mark.django_db(transaction=True)
def test_through_the_outbox_an_event_is_a_separate_job(settings: Any, redis_server: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": redis_server.url}, "OUTBOX": True}
    with transaction.atomic():
        send_event("paid:42", {"secret": 1})
        assert OutboxJob.objects.get().task == "django_redisqueue.send_event"


# -- what a run sees


def run(reply: WaitReply, lease: int = 1) -> JobContext:
    memory = Memory()
    memory.check_wait = lambda *_, **__: reply  # type: ignore[attr-defined]
    return JobContext(claimed(lease=lease), lambda _: True, memory)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wait", "event"),
    [(lambda c: c.wait_for("e"), "e"), (lambda c: c.sleep(5), "")],
)
def test_a_wait_that_is_not_over_parks_the_job(
    wait: Callable[[JobContext], Any], event: str
) -> None:
    with pytest.raises(JobSuspended) as parked:
        wait(run(WaitReply(WaitState.GOES_ON, "123")))
    nothing: Any = None
    assert resolve_error(parked.value, nothing, 0, 1, nothing) == ("parked", event, "123")


STATES: list[tuple[WaitState, type[BaseException], str]] = [
    (WaitState.LATE, EventTimeout, "event 'e' did not come in time for a.task"),
    (WaitState.TOO_LARGE, PayloadTooLarge, "the wait e of a.task is too large"),
    (WaitState.LEASE_LOST, JobAbandoned, "taken over by another worker"),
]


@pytest.mark.parametrize(("state", "kind", "words"), STATES)
def test_other_replies_are_errors(state: WaitState, kind: type[BaseException], words: str) -> None:
    with pytest.raises(kind, match=words):
        run(WaitReply(state)).wait_for("e")


OVER = WaitReply(WaitState.OVER, "null")


def twice(context: JobContext) -> None:
    context.sleep(1)
    context.sleep(1)
    context.wait_for("e")
    context.wait_for("e")


BAD: list[tuple[Callable[[JobContext], object], type[Exception], str]] = [
    (twice, StepError, "the wait 'e' occurs twice"),
    (lambda c: c.wait_for(""), InvalidName, "event's name must be a string of 1 to 100 letters"),
    (lambda c: c.wait_for("a\tb"), InvalidName, r"not 'a\\tb'"),
    (lambda c: c.wait_for("approval:x"), InvalidName, "are reserved for context.approval"),
    (lambda c: c.wait_for("e", timeout="soon"), InvalidOption, "timeout must be seconds"),
    (lambda c: c.wait_for("e", timeout=0), InvalidOption, "timeout must be more than 0"),
    (lambda c: c.sleep(-1), InvalidOption, "sleep must be"),
    (lambda c: c.sleep(1, name="a\n"), StepError, "name of a step"),
]


@pytest.mark.parametrize(("bad", "kind", "words"), BAD)
def test_incorrect_use_is_reported(
    bad: Callable[[JobContext], object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        bad(run(OVER))


@pytest.mark.parametrize(
    ("name", "payload", "kind", "words"),
    [
        (5, None, InvalidName, "not 5"),
        ("approval:x", None, InvalidName, "are reserved for context.approval"),
        ("e", object(), InvalidArguments, "the payload of event 'e' is a"),
        (
            "e",
            "x" * 300_000,
            PayloadTooLarge,
            r"the payload of event 'e' would be .* REDISQUEUE\['",
        ),
    ],
)
def test_what_cannot_be_sent(name: Any, payload: Any, kind: type[Exception], words: str) -> None:
    with capture_jobs(), pytest.raises(kind, match=words):
        send_event(name, payload)


@pytest.mark.parametrize("task", [tasks.wait_for_an_event, tasks.await_an_event])
def test_a_parked_job_occupies_no_child(harness: WorkerHarness, task: Any) -> None:
    harness.configure(LEASE=30)
    harness.worker("--processes", "1", "--async-concurrency", "1")
    jobs = [task.enqueue(harness.book, f"e{n}") for n in range(3)]

    def all_wait() -> bool:
        for n, job in enumerate(jobs):
            job.refresh()
            if job.status != "scheduled" or job.data.waits_for != f"e{n}":
                return False
        return True

    eventually(all_wait, why=harness.report)
    for n, job in reversed(list(enumerate(jobs))):
        send_event(f"e{n}", {"n": n})
        harness.ended(job)
        assert (job.status, job.result, job.attempts) == ("completed", {"n": n}, 0)
    assert harness.runs() == {f"e{n}": 3 for n in range(3)}
