"""Law 9: by default, no path puts a job into Redis before its transaction has committed."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase
from redis import Redis

from django_redisqueue import Job, JobQueue, chain
from django_redisqueue.client.enqueue import _hooks
from django_redisqueue.client.transport import RedisTransport
from django_redisqueue.core.ports import ports
from django_redisqueue.exceptions import (
    ConfigurationError,
    NotCommitted,
    ParentNotFound,
    RedisUnavailable,
)
from django_redisqueue.models import OutboxJob
from tests.app import tasks
from tests.app.models import Counter
from tests.support.postgres import PostgresServer

from .test_enqueue import script_calls

BOTH = ["default", "other"]
pytestmark = [
    pytest.mark.usefixtures("queue_settings"),
    pytest.mark.django_db(transaction=True, databases=BOTH),
]


def queued() -> list[Any]:
    """The first argument of every queued job, the next to run first."""
    jobs = JobQueue().get_jobs("queued", 0, 99)
    return [job.args[0] for job in jobs if isinstance(job, Job)]


@contextmanager
def rolled_back(using: str = "default") -> Iterator[None]:
    with suppress(ZeroDivisionError), transaction.atomic(using=using):
        yield
        raise ZeroDivisionError


def test_a_job_waits_for_the_commit(key_count: Callable[[], int]) -> None:
    with transaction.atomic():
        job = tasks.noop.enqueue(1)
        assert job.is_deferred
        assert job.id.startswith("job_")
        assert key_count() == 0
    assert not job.is_deferred
    assert queued() == [1]
    assert job.args == (1,)


@pytest.mark.parametrize("aliases", [["default"], BOTH])
def test_a_commit_hook_that_raises_before_ours_does_not_prevent_sending(
    aliases: list[str],
) -> None:
    """Django skips the hooks that follow."""
    called: list[str] = []

    def fail() -> None:
        called.append("second")
        raise LookupError("no mail server")

    def view() -> None:
        with ExitStack() as stack:
            for alias in aliases:
                stack.enter_context(transaction.atomic(using=alias))
            transaction.on_commit(lambda: called.append("first"))
            transaction.on_commit(fail)
            tasks.noop.enqueue(1)
            with rolled_back():
                tasks.noop.enqueue("never")
            transaction.on_commit(lambda: called.append("never"))
            tasks.noop.enqueue(2)

    with pytest.raises(LookupError):
        view()
    assert queued() == [1, 2]
    assert called == ["first", "second"]


def test_a_commit_hook_that_enqueues_in_a_transaction_and_raises_does_not_prevent_sending() -> None:
    """Its own transaction is committed or rolled back while the jobs after it are still waiting."""

    def commit(number: int) -> None:
        with transaction.atomic():
            tasks.noop.enqueue(number)

    def fail() -> None:
        commit(1)
        with transaction.atomic():
            tasks.noop.enqueue("never")
            raise LookupError("no mail server")

    def view() -> None:
        with transaction.atomic():
            transaction.on_commit(lambda: commit(0))
            transaction.on_commit(fail)
            tasks.noop.enqueue(2)
            tasks.noop.enqueue(3)

    with pytest.raises(LookupError):
        view()
    assert queued() == [0, 1, 2, 3]


def test_a_robust_hook_stays_robust(caplog: pytest.LogCaptureFixture) -> None:
    """Django names it in the log, and calls the following hooks."""
    called: list[str] = []

    def fail() -> None:
        raise LookupError("no mail server")

    with transaction.atomic():
        transaction.on_commit(fail, robust=True)
        tasks.noop.enqueue(1)
        transaction.on_commit(lambda: called.append("behind"))
    assert called == ["behind"]
    assert queued() == [1]
    assert "fail in on_commit()" in caplog.text


def test_a_callback_that_raises_does_not_prevent_sending_a_workflow() -> None:
    """Such as a receiver of Django's signal ``task_enqueued``."""

    @transaction.atomic
    def view() -> None:
        tasks.noop.enqueue(1).on_sent(lambda: 1 / 0)
        chain(tasks.noop.s(2))

    with pytest.raises(ZeroDivisionError):
        view()
    assert sorted(queued()) == [1, 2]  # perhaps in two shards


def test_jobs_that_are_lost_do_not_prevent_sending_a_workflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis does not accept a job whose parent is unknown, and there is no outbox."""
    monkeypatch.setattr(ports, "outbox", None)
    called: list[str] = []

    @transaction.atomic
    def view() -> None:
        job = tasks.noop.using(after="job_1_aaaaaaaaaa_0").enqueue(1)
        job.on_sent(lambda: called.append("never"))
        chain(tasks.noop.s(2))

    with pytest.raises(ParentNotFound):
        view()
    assert queued() == [2]
    assert called == []


@pytest.mark.parametrize("first", [tasks.noop.enqueue, lambda: chain(tasks.noop.s())])
def test_a_commit_waits_only_once_for_a_redis_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[], object]
) -> None:
    """Each further wait would keep the request for another second."""
    asked: list[object] = []

    def hang(transport: RedisTransport, what: object) -> None:
        asked.append(what)
        raise RedisUnavailable("timed out")

    for name in ("enqueue", "push_workflow"):
        monkeypatch.setattr(RedisTransport, name, hang)
    for _ in range(2):
        with transaction.atomic():
            first()
            for _ in range(3):
                chain(tasks.noop.s(2))
    assert len(asked) == 2
    assert OutboxJob.objects.count() == 8


def test_a_hook_that_raises_before_the_last_commit_sends_nothing() -> None:
    @transaction.atomic
    @transaction.atomic(using="other")
    def view() -> None:
        transaction.on_commit(lambda: 1 / 0, using="other")
        tasks.noop.enqueue(1)

    with pytest.raises(ZeroDivisionError):
        view()
    assert queued() == []


@pytest.mark.parametrize("outbox", [False, True])
@pytest.mark.parametrize("submit", [tasks.noop.enqueue, lambda: chain(tasks.noop).push()])
def test_wrong_settings_are_reported_while_the_transaction_can_be_rolled_back(
    settings: Any, submit: Callable[[], object], outbox: bool
) -> None:
    """After the commit, no one would be left to keep the job."""
    url = "redis://:s3cret/x@shop"
    settings.REDISQUEUE = {**settings.REDISQUEUE, "CONNECTION": {"URL": url}, "OUTBOX": outbox}

    @transaction.atomic
    def view() -> None:
        Counter.objects.create()
        submit()

    with pytest.raises(ConfigurationError, match="cannot be read"):
        view()
    assert not Counter.objects.exists()
    assert not OutboxJob.objects.exists()


@pytest.mark.parametrize("verb", ["refresh", "cancel", "requeue", "wait"])
def test_a_job_cannot_be_queried_before_the_commit(verb: str) -> None:
    with transaction.atomic():
        job = tasks.noop.enqueue()
        with pytest.raises(
            NotCommitted,
            match=f"{verb}: job {job.id} is not in Redis, because .* call this after captureOn",
        ):
            getattr(job, verb)()
        with pytest.raises(NotCommitted):
            job.status  # noqa: B018 - reading it is the point


@pytest.mark.parametrize(
    "enqueue",
    [
        lambda: tasks.noop.enqueue(1),
        lambda: tasks.noop.enqueue_many([(1,), (2,)]),
        lambda: tasks.noop.using(run_after=60).enqueue(1),
        lambda: tasks.noop.using(priority=7).enqueue(1),
        lambda: JobQueue().add_job("tests.app.tasks.noop", 1),
        lambda: async_to_sync(tasks.noop.aenqueue)(1),
    ],
    ids=["enqueue", "enqueue_many", "run_after", "priority", "add_job", "aenqueue"],
)
def test_a_rollback_leaves_nothing_on_every_path(
    enqueue: Callable[[], object], key_count: Callable[[], int]
) -> None:
    with rolled_back():
        enqueue()
    assert key_count() == 0
    with transaction.atomic():
        pass
    assert key_count() == 0


def test_rolling_back_a_savepoint_only_discards_its_own_jobs() -> None:
    with transaction.atomic():
        tasks.noop.enqueue("before")
        with rolled_back():
            lost = tasks.noop.enqueue("inside")
        with transaction.atomic():
            tasks.noop.enqueue("kept savepoint")
        tasks.noop.enqueue("after")
    assert queued() == ["before", "kept savepoint", "after"]
    assert lost.is_deferred  # forever: its transaction never commits


def test_an_inner_commit_does_not_send() -> None:
    with transaction.atomic():
        with transaction.atomic():
            tasks.noop.enqueue(1)
        assert queued() == []
        with transaction.atomic(savepoint=False):
            tasks.noop.enqueue(2)
        assert queued() == []
    assert queued() == [1, 2]


@pytest.mark.one_server("looks at its server's clients and commands")
def test_all_enqueues_of_a_transaction_are_sent_in_one_round_trip(redis: Redis) -> None:
    with transaction.atomic():
        for n in range(40):
            tasks.noop.enqueue(n)
            with transaction.atomic():
                tasks.add.using(priority=n).enqueue(n, n)
        redis.config_resetstat()
    assert script_calls(redis) == 1
    assert JobQueue().get_stats()["queued"] == 80


def test_the_hooks_of_others_keep_their_place() -> None:
    seen: list[Any] = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(list(queued())))
        tasks.noop.enqueue(1)
        transaction.on_commit(lambda: seen.append(list(queued())))
        tasks.noop.enqueue(2)
    assert seen == [[], [1, 2]]


def test_a_hook_may_enqueue_again() -> None:
    with transaction.atomic():
        tasks.noop.enqueue(1)
        transaction.on_commit(lambda: tasks.noop.enqueue("from a hook"))
        tasks.noop.enqueue(2)
    assert queued() == [1, 2, "from a hook"]


def test_a_hook_may_open_its_own_transaction() -> None:
    def again() -> None:
        with transaction.atomic():
            tasks.noop.enqueue("inner")
            assert queued() == ["first"]

    with transaction.atomic():
        tasks.noop.enqueue("first")
        transaction.on_commit(again)
    assert queued() == ["first", "inner"]


@pytest.mark.parametrize(("outer", "inner"), [BOTH, BOTH[::-1]])
def test_two_databases_nested(outer: str, inner: str) -> None:
    with transaction.atomic(using=outer):
        tasks.noop.enqueue("outer only")
        with transaction.atomic(using=inner):
            job = tasks.noop.enqueue("both")
        assert queued() == []
        assert job.is_deferred
        tasks.noop.enqueue("outer again")
    assert queued() == ["outer only", "both", "outer again"]


@pytest.mark.parametrize(("first", "second"), [BOTH, BOTH[::-1]])
def test_two_databases_in_any_commit_order(first: str, second: str) -> None:
    one, two = transaction.atomic(using=first), transaction.atomic(using=second)
    one.__enter__()
    two.__enter__()
    job = tasks.noop.enqueue("both")
    one.__exit__(None, None, None)
    assert job.is_deferred
    assert queued() == []
    two.__exit__(None, None, None)
    assert not job.is_deferred
    assert queued() == ["both"]


@pytest.mark.parametrize("failing", BOTH)
def test_two_databases_one_of_which_rolls_back(failing: str, key_count: Callable[[], int]) -> None:
    holding = next(alias for alias in BOTH if alias != failing)
    with rolled_back(holding), rolled_back(failing):
        tasks.noop.enqueue()
    with transaction.atomic(using=holding):
        with rolled_back(failing):
            tasks.noop.enqueue()
        transaction.on_commit(lambda: None, using=holding)
    assert key_count() == 0


@pytest.mark.parametrize("outbox", [False, True])
def test_a_transaction_that_the_application_commits_by_hand(outbox: bool) -> None:
    """Django calls no hook at its commit, and refuses on_commit() in it as well."""
    add = tasks.noop.using(outbox=outbox)
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError, match=r"atomic\(\), or after commit\(\)"):
            add.enqueue("never")
        with transaction.atomic():
            add.enqueue(1)
        tasks.noop.using(on_commit=False).enqueue(2)
        transaction.commit()
        assert queued() == [2]
    finally:
        transaction.set_autocommit(True)
    assert queued() == [2, 1]
    add.enqueue(3)
    assert queued() == [2, 1, 3]


def test_on_commit_off_by_call(key_count: Callable[[], int]) -> None:
    with rolled_back():
        job = tasks.noop.using(on_commit=False).enqueue(1)
        assert not job.is_deferred
        assert queued() == [1]
    assert queued() == [1]


def test_on_commit_off_by_setting_and_on_by_call(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "ENQUEUE_ON_COMMIT": False}
    with transaction.atomic():
        tasks.noop.enqueue(1)
        tasks.noop.using(on_commit=True).enqueue(2)
        assert queued() == [1]
    assert queued() == [1, 2]


def test_aenqueue_sees_the_transaction_of_sync_to_async_code() -> None:
    def in_transaction() -> None:
        with transaction.atomic():
            Counter.objects.create(name="a")
            job = async_to_sync(tasks.noop.aenqueue)(1)
            assert job.is_deferred
            assert queued() == []

    async def view() -> None:
        await sync_to_async(in_transaction)()

    asyncio.run(view())
    assert queued() == [1]


@pytest.fixture
def without_redis(settings: Any, queue_settings: dict[str, Any]) -> None:
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": {"URL": "unix:///nonexistent.sock"}}


@pytest.mark.usefixtures("without_redis")
@pytest.mark.parametrize("alias", BOTH)
def test_jobs_that_redis_does_not_accept_after_the_commit_go_into_the_outbox(
    alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    with transaction.atomic(using=alias):
        Counter.objects.using(alias).create(name="kept")
        one, two = tasks.noop.enqueue(1), tasks.add.using(run_after=60, priority=7).enqueue(1, b=2)
        transaction.on_commit(lambda: seen.append("the hook behind"), using=alias)
    assert seen == ["the hook behind"]
    assert Counter.objects.using(alias).filter(name="kept").exists()
    assert not one.is_deferred
    rows = {row.id: row for row in OutboxJob.objects.using(alias).all()}
    assert rows.keys() == {one.id, two.id}
    row = rows[two.id]
    assert (row.task, row.payload, row.priority) == ("tests.app.tasks.add", '[[1],{"b":2}]', 7)
    assert 59_000 < (row.due_ms or 0) - time.time() * 1000 <= 60_000
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "does not answer (Error 2" in record.getMessage()
    assert f"put into the outbox of database {alias!r}: {one.id}, {two.id}" in record.getMessage()


@pytest.mark.usefixtures("without_redis")
def test_a_push_that_fails_is_not_silent_when_there_is_no_outbox_either(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redisqueue.outbox.rows.has_table", lambda model, alias: False)
    block = transaction.atomic()
    block.__enter__()
    Counter.objects.create(name="kept")
    job = tasks.noop.enqueue()
    with pytest.raises(RedisUnavailable, match="does not answer"):
        block.__exit__(None, None, None)
    assert Counter.objects.filter(name="kept").exists()
    assert not job.is_deferred
    message = caplog.records[-1].getMessage()
    assert caplog.records[-1].levelname == "ERROR"
    assert message.startswith("jobs are lost: Redis at unix:///nonexistent.sock does not answer")
    assert (
        "no table django_redisqueue_outboxjob for the outbox on 'default': run migrate" in message
    )
    assert message.endswith(job.id)


def test_rolled_back_transactions_leave_no_memory_behind() -> None:
    for _ in range(50):
        with rolled_back():
            tasks.noop.enqueue()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # including what earlier tests left
    assert len(_hooks.get(connections["default"], [])) <= 1


class InTestCase(TestCase):
    """What an application's own tests see."""

    databases = {"default", "other"}

    def test_outside_atomic_a_job_is_sent_at_once_as_in_production(self) -> None:
        tasks.noop.enqueue(1)
        assert queued() == [1]

    def test_inside_atomic_it_waits_for_capture_on_commit_callbacks(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            with transaction.atomic():
                tasks.noop.enqueue(1)
                tasks.noop.enqueue(2)
            assert queued() == []
        assert len(callbacks) == 2
        assert queued() == [1, 2]

    def test_jobs_from_before_the_capture_are_not_sent(self) -> None:
        with transaction.atomic():
            before = tasks.noop.enqueue("before")
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            tasks.noop.enqueue("inside")
        assert queued() == ["inside"]
        assert before.is_deferred

    def test_callbacks_may_be_called_by_hand(self) -> None:
        with self.captureOnCommitCallbacks() as callbacks, transaction.atomic():
            tasks.noop.enqueue(1)
            tasks.noop.enqueue(2)
        assert queued() == []
        for callback in callbacks:
            callback()
        assert queued() == [1, 2]

    def roll_back_one(self) -> None:
        with rolled_back():
            tasks.noop.enqueue(1)

    def test_rollback_inside(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            self.roll_back_one()
        assert callbacks == []
        assert queued() == []


# -- rollbacks that Django does not notice


@pytest.mark.parametrize("outbox", [True, False])
def test_a_commit_that_postgresql_turns_into_a_rollback_raises_and_sends_nothing(
    on_postgres: PostgresServer, settings: Any, key_count: Callable[[], int], outbox: bool
) -> None:
    """Otherwise the jobs would run without the rows that they are about."""
    if connection.vendor != "postgresql":
        pytest.skip("other databases keep the rest of the transaction after most errors")
    settings.REDISQUEUE = {**settings.REDISQUEUE, "OUTBOX": outbox}

    def view(savepoint: bool) -> None:
        with transaction.atomic():
            Counter.objects.create(name="order")
            tasks.noop.enqueue(1)
            with suppress(DatabaseError), transaction.atomic() if savepoint else nullcontext():
                connection.cursor().execute("SELECT nothing")

    with pytest.raises(
        TransactionManagementError, match=r"rolls back .* into an atomic\(\) of its own"
    ):
        view(savepoint=False)
    assert (Counter.objects.count(), OutboxJob.objects.count(), key_count()) == (0, 0, 0)
    view(savepoint=True)
    assert (Counter.objects.count(), queued()) == (1, [1])
