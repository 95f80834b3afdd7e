"""No interrupt hits a commit, or the push of what the job has enqueued in the transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from django.db import connection, transaction

from django_redisqueue import JobQueue, task
from django_redisqueue.broker.replies import Outcome, OutcomeKind
from django_redisqueue.client.transport import RedisTransport
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.worker.child.executor import Execution, Executor
from django_redisqueue.worker.child_state import ChildState
from tests.app import tasks
from tests.app.models import Counter
from tests.support.postgres import PostgresServer
from tests.worker.parts import claimed
from tests.worker.test_interrupts import installed, nap

from .test_thread_runner import PIPELINE, RunnerHarness

pytestmark = pytest.mark.usefixtures("queue_settings")
on_sqlite = pytest.mark.django_db(transaction=True, databases="__all__")
TIMEOUT_MS = 300
SLOW_COMMIT = f"""
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN PERFORM pg_sleep({2 * TIMEOUT_MS / 1000}); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON {Counter._meta.db_table}
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION nap()
"""


@task
def enqueue_at_commit() -> None:
    try:
        with transaction.atomic():
            Counter.objects.create(name="changed")
            tasks.noop.enqueue()
        nap(10)
    finally:
        connection.close()


@pytest.fixture
def slow_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that begins in time, and ends after its job's timeout."""
    push = RedisTransport.enqueue

    def slow(transport: RedisTransport, jobs: Sequence[NewJob]) -> None:
        nap(2 * TIMEOUT_MS / 1000)
        push(transport, jobs)

    monkeypatch.setattr(RedisTransport, "enqueue", slow)


@pytest.fixture
def slow_commit(on_postgres: PostgresServer) -> None:
    """The same for a commit."""
    with connection.cursor() as cursor:
        cursor.execute(SLOW_COMMIT)
    connection.close()


def run_in_main_thread() -> Outcome:
    state = ChildState(0, 1)
    with installed(state) as interrupts:
        executor = Executor(PIPELINE, state, interrupts, job_redis=None)  # type: ignore[arg-type]
        job = claimed()
        state.offer([job])
        execution = Execution(job, enqueue_at_commit, [], {}, TIMEOUT_MS, 1)
        return executor.run(execution, state.take() or b"")


def run_in_thread() -> Outcome:
    harness = RunnerHarness()
    harness.start("job_1", enqueue_at_commit, timeout_ms=TIMEOUT_MS)
    outcome = harness.outcome()
    harness.runner.close()
    return outcome


in_both = pytest.mark.parametrize("run", [run_in_main_thread, run_in_thread])


def assert_timed_out_and_pushed(outcome: Outcome) -> None:
    assert outcome.kind == OutcomeKind.FAILED
    assert "JobTimeout" in outcome.body
    assert Counter.objects.count() == 1
    assert JobQueue().get_stats()["queued"] == 1


@on_sqlite
@pytest.mark.usefixtures("slow_push")
@in_both
def test_a_timeout_during_the_push(run: Callable[[], Outcome]) -> None:
    assert_timed_out_and_pushed(run())


@pytest.mark.usefixtures("slow_commit")
@in_both
def test_a_timeout_during_the_commit(run: Callable[[], Outcome]) -> None:
    """It would leave open whether the transaction has committed, and psycopg would refuse to leave
    it, so the job would fail with its error."""
    assert_timed_out_and_pushed(run())
