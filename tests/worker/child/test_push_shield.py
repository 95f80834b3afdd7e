"""No interrupt hits the push of a job's enqueued jobs, once its transaction has committed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.db import connection, transaction

from django_redisqueue import JobQueue, task
from django_redisqueue.broker.replies import Outcome, OutcomeKind
from django_redisqueue.client.transport import RedisTransport
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.worker.child.executor import Execution, Executor
from django_redisqueue.worker.child_state import ChildState
from tests.app import tasks
from tests.worker.parts import claimed
from tests.worker.test_interrupts import installed, nap

from .test_thread_runner import PIPELINE, RunnerHarness

pytestmark = [
    pytest.mark.usefixtures("queue_settings"),
    pytest.mark.django_db(transaction=True, databases="__all__"),
]
TIMEOUT_MS = 300


@task
def enqueue_at_commit() -> None:
    try:
        with transaction.atomic():
            tasks.noop.enqueue()
        nap(10)
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def slow_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that begins in time, and ends after its job's timeout."""
    push = RedisTransport.enqueue

    def slow(transport: RedisTransport, jobs: Sequence[NewJob]) -> None:
        nap(2 * TIMEOUT_MS / 1000)
        push(transport, jobs)

    monkeypatch.setattr(RedisTransport, "enqueue", slow)


def assert_timed_out_and_pushed(outcome: Outcome) -> None:
    assert outcome.kind == OutcomeKind.FAILED
    assert "JobTimeout" in outcome.body
    assert JobQueue().get_stats()["queued"] == 1


def test_in_the_main_thread() -> None:
    state = ChildState(0, 1)
    with installed(state) as interrupts:
        executor = Executor(PIPELINE, state, interrupts, job_redis=None)  # type: ignore[arg-type]
        job = claimed()
        state.offer([job])
        execution = Execution(job, enqueue_at_commit, [], {}, TIMEOUT_MS, 1)
        assert_timed_out_and_pushed(executor.run(execution, state.take() or b""))


def test_in_a_thread() -> None:
    harness = RunnerHarness()
    harness.start("job_1", enqueue_at_commit, timeout_ms=TIMEOUT_MS)
    assert_timed_out_and_pushed(harness.outcome())
    harness.runner.close()
