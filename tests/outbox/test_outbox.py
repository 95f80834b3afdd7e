"""The outbox in one process: a row commits with the work, and stays until Redis or the mirror has
the job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis import Redis

from django_redisqueue import Job, JobQueue, get_job
from django_redisqueue.broker import durability
from django_redisqueue.client import enqueue
from django_redisqueue.client.enqueue import send_to_cancel
from django_redisqueue.core.clock import real_ms
from django_redisqueue.exceptions import (
    ConfigurationError,
    InvalidOption,
    JobNotFound,
    NotCommitted,
    RedisQueueError,
    WrongState,
)
from django_redisqueue.models import JobRecord, OutboxJob
from django_redisqueue.models.tables import has_table
from django_redisqueue.outbox.relay import Relay
from django_redisqueue.testing import capture_jobs
from tests.app import tasks
from tests.client.test_enqueue import script_calls
from tests.client.test_transactions import queued, rolled_back
from tests.support.shards import all_stores
from tests.support.stopwatch import Stopwatch

BOTH = ["default", "other"]
pytestmark = [
    pytest.mark.usefixtures("with_outbox"),
    pytest.mark.django_db(transaction=True, databases=BOTH),
]
AWAY = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}


@pytest.fixture(autouse=True)
def _durable_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "FSYNCED_MS", 0)


@pytest.fixture
def with_outbox(settings: Any, queue_settings: dict[str, Any]) -> Callable[..., None]:
    """OUTBOX is on, without a mirror; call it to change the settings."""

    def configure(**changes: Any) -> None:
        settings.REDISQUEUE = {**queue_settings, "OUTBOX": True, **changes}

    configure()
    return configure


@pytest.fixture
def away(with_outbox: Callable[..., None]) -> Iterator[Callable[[], None]]:
    """Redis does not answer until this is called."""
    with_outbox(**AWAY)
    return with_outbox


def rows(alias: str = "default") -> list[str]:
    return list(OutboxJob.objects.using(alias).order_by("created_at").values_list("id", flat=True))


def relay() -> None:
    """A relay pass for which no row is too recent."""
    for alias in BOTH:
        old = timezone.now() - timedelta(minutes=1)
        OutboxJob.objects.using(alias).filter(created_at__gt=old).update(created_at=old)
    with all_stores() as stores:
        for store in stores:
            for alias in BOTH:
                while Relay(store, alias).run_once():
                    pass


def left(alias: str = "default") -> list[str]:
    """The rows that are left in the outbox after a relay pass."""
    relay()
    return rows(alias)


def test_a_row_in_the_transaction_and_nothing_in_redis(key_count: Callable[[], int]) -> None:
    with transaction.atomic():
        job = tasks.add.using(priority=3, timeout=9).enqueue(1, b=2)
        row = OutboxJob.objects.get(pk=job.id)
        assert job.is_deferred
        with pytest.raises(NotCommitted):
            job.refresh()
        assert key_count() == 0
    assert (row.task, row.queue, row.payload) == ("tests.app.tasks.add", "default", '[[1],{"b":2}]')
    assert (row.priority, row.options, row.due_ms) == (3, '{"timeout_ms":9000}', None)
    assert (row.relayed_at, row.problem, row.aliases) == (None, "", "")
    assert rows() == [job.id]  # until it is known to be on Redis's disk
    assert left() == []
    assert job.status == "queued"


def test_a_rollback_leaves_nothing(key_count: Callable[[], int]) -> None:
    with rolled_back():
        tasks.noop.enqueue(1)
        tasks.noop.enqueue_many([(2,), (3,)])
        assert len(rows()) == 3
    assert rows() == []
    assert key_count() == 0


def test_a_savepoint_rolled_back_takes_its_rows() -> None:
    with transaction.atomic():
        before = tasks.noop.enqueue("before")
        with rolled_back():
            tasks.noop.enqueue("inside")
        after = tasks.noop.enqueue("after")
        assert rows() == [before.id, after.id]
    assert queued() == ["before", "after"]


@pytest.mark.one_server("looks at its server's clients and commands")
def test_enqueue_many_takes_one_statement_per_slice_and_one_round_trip(redis: Redis) -> None:
    assert has_table(OutboxJob, "default")  # each process asks once
    with transaction.atomic():
        with CaptureQueriesContext(connections["default"]) as queries:
            tasks.noop.enqueue_many([(n,) for n in range(60)])
        assert len(queries) == 1
        assert len(rows()) == 60
        redis.config_resetstat()
    assert script_calls(redis) == 1
    assert left() == []
    assert JobQueue().get_stats()["queued"] == 60


@pytest.mark.one_server("looks at its server's clients and commands")
def test_many_enqueues_of_a_transaction_are_one_call_and_are_sent_together(redis: Redis) -> None:
    with transaction.atomic():
        for n in range(40):
            tasks.noop.enqueue(n)
        redis.config_resetstat()
        queries = CaptureQueriesContext(connections["default"])
        queries.__enter__()
    queries.__exit__(None, None, None)
    assert [query["sql"] for query in queries.captured_queries if "outbox" in query["sql"]] == []
    assert script_calls(redis) == 1
    with CaptureQueriesContext(connections["default"]) as queries:
        assert left() == []
    assert len([query for query in queries if query["sql"].startswith("DELETE")]) == 1


def test_jobs_with_and_without_rows_keep_their_order() -> None:
    with transaction.atomic():
        tasks.noop.enqueue(1)
        tasks.noop.using(outbox=False).enqueue(2)
        tasks.noop.enqueue(3)
    assert queued() == [1, 2, 3]


def test_a_delay_becomes_a_fixed_time() -> None:
    with transaction.atomic():
        soon = tasks.noop.using(run_after=60).enqueue()
        row = OutboxJob.objects.get(pk=soon.id)
        assert 59_000 < (row.due_ms or 0) - time.time() * 1000 <= 60_000
    assert soon.status == "scheduled"
    assert abs((soon.data.due_ms or 0) - time.time() * 1000 - 60_000) < 1000


def test_with_a_mirror_the_row_stays_until_the_job_is_mirrored(
    with_outbox: Callable[..., None],
) -> None:
    with_outbox(MIRROR=True)
    with transaction.atomic():
        one, two = tasks.noop.enqueue(1), tasks.noop.enqueue(2)
    assert queued() == [1, 2]
    assert left() == [one.id, two.id]
    JobRecord.objects.create(id=one.id, task="t", queue="q", enqueued_at=timezone.now())
    assert left() == [two.id]


@pytest.mark.parametrize("audit", ["none", "failed", "final"])
def test_a_job_without_early_events_does_not_wait_for_the_mirror(
    audit: str, with_outbox: Callable[..., None]
) -> None:
    with_outbox(MIRROR=True)
    with transaction.atomic():
        replace(tasks.noop, audit=audit).enqueue(1)
        assert len(rows()) == 1
    assert left() == []
    assert queued() == [1]


# -- by call, by task, by setting


@pytest.mark.parametrize(
    ("setting", "task", "call", "in_outbox"),
    [
        (False, None, None, False),
        (False, None, True, True),
        (False, True, None, True),
        (True, None, None, True),
        (True, None, False, False),
        (True, False, None, False),
        (False, True, False, False),
    ],
)
def test_the_call_overrides_the_task_and_the_task_overrides_the_setting(
    setting: bool,
    task: bool | None,
    call: bool | None,
    in_outbox: bool,
    with_outbox: Callable[..., None],
) -> None:
    with_outbox(OUTBOX=setting)
    with transaction.atomic():
        replace(tasks.noop, outbox=task).using(outbox=call).enqueue(1)
        assert len(rows()) == in_outbox
    assert queued() == [1]


@pytest.mark.parametrize("outbox", [None, True])
def test_with_on_commit_off_a_job_is_sent_at_once_and_without_a_row(outbox: bool | None) -> None:
    with rolled_back():
        replace(tasks.noop, outbox=outbox).using(on_commit=False).enqueue(1)
        assert rows() == []
        assert queued() == [1]


def test_enqueue_on_commit_off_in_the_settings_does_not_bypass_the_outbox(
    with_outbox: Callable[..., None],
) -> None:
    with_outbox(ENQUEUE_ON_COMMIT=False)
    with rolled_back():
        tasks.noop.enqueue(1)
    assert queued() == rows() == []


def test_the_outbox_and_on_commit_off_exclude_each_other() -> None:
    with pytest.raises(
        InvalidOption, match="outbox=True stores the job in the transaction, but on_c"
    ):
        tasks.noop.using(outbox=True).using(on_commit=False)
    with pytest.raises(InvalidOption, match="outbox must be True or False, not 'yes'"):
        tasks.noop.using(outbox="yes")


# -- outside a transaction


def test_outside_a_transaction_the_job_is_sent_at_once() -> None:
    job = tasks.noop.enqueue(1)
    assert not job.is_deferred
    assert (queued(), left()) == ([1], [])


def test_outside_a_transaction_without_redis_the_row_stays(
    away: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    watch = Stopwatch()
    job = tasks.noop.enqueue(1)
    assert watch.seconds < 1
    assert rows() == [job.id]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "does not answer" in record.getMessage()
    assert f"in the outbox until it does: {job.id}" in record.getMessage()


def test_many_outside_a_transaction(away: Callable[[], None]) -> None:
    jobs = tasks.noop.enqueue_many([(n,) for n in range(1200)])
    assert len(rows()) == len(jobs) == 1200


def test_async_code(away: Callable[[], None]) -> None:
    def in_transaction() -> None:
        with transaction.atomic():
            asyncio_job.append(tasks.noop.enqueue(1))

    asyncio_job: list[Job] = []

    async def view() -> None:
        await sync_to_async(in_transaction)()
        asyncio_job.append(await tasks.noop.aenqueue(2))

    asyncio.run(view())
    assert rows() == [job.id for job in asyncio_job]


# -- Redis is down


def test_without_redis_the_commit_succeeds_and_the_rows_stay(
    away: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    with transaction.atomic():
        one = tasks.noop.enqueue(1)
        plain = tasks.noop.using(outbox=False).enqueue(2)
        transaction.on_commit(lambda: seen.append("the hook behind"))
        assert rows() == [one.id]
    assert seen == ["the hook behind"]
    assert rows() == [one.id, plain.id]  # the job without a row now has one
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_handle_knows_that_its_job_was_put_into_the_outbox(away: Callable[..., None]) -> None:
    away(OUTBOX=False, **AWAY)
    with transaction.atomic():
        job = tasks.noop.enqueue(1)
    away(OUTBOX=False)
    job.refresh()
    assert (job.status, job.is_deferred) == ("waiting", False)
    with pytest.raises(JobNotFound):
        get_job(job.id)  # without a mirror and an outbox, no database is queried


def test_a_job_in_the_outbox_waits_and_can_be_found(away: Callable[..., None]) -> None:
    with transaction.atomic():
        job = tasks.add.using(run_after=60, priority=2).enqueue(1, b=2)
    away()
    found = get_job(job.id)
    assert (found.status, found.args, found.kwargs) == ("waiting", (1,), {"b": 2})
    assert (found.priority, found.task_name) == (2, "tests.app.tasks.add")
    assert found.run_after is not None
    assert found.enqueued_at is not None
    with pytest.raises(JobNotFound):
        get_job("job_1_unknown000_0")


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_wait_for_a_job_in_the_outbox_continues(
    way: str, away: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction.atomic():
        job = tasks.noop.enqueue(1)
    away()
    wait = job.wait if way == "sync" else async_to_sync(job.await_result)
    with pytest.raises(TimeoutError, match=f"job {job.id} had not finished after 0.1 s"):
        wait(timeout=0.1)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("mirror", [True, False])
def test_a_job_in_the_outbox_can_be_cancelled(
    away: Callable[..., None], mirror: bool, how: str
) -> None:
    job = tasks.add.enqueue(1, 2)
    away(MIRROR=mirror)  # Redis is back, and the job has not been sent yet
    handle = Job(job.id)
    assert async_to_sync(handle.acancel)() if how == "async" else handle.cancel()
    assert (handle.status, get_job(job.id).status) == ("cancelled", "cancelled")
    assert left() == ([job.id] if mirror else [])  # until the mirror has seen it
    assert get_job(job.id).status == "cancelled"
    assert JobQueue("default").get_stats()["scheduled"] == 0
    assert queued() == []


def test_a_job_in_the_outbox_cannot_be_requeued(away: Callable[..., None]) -> None:
    job = tasks.add.enqueue(1, 2)
    away()
    with pytest.raises(WrongState, match=f"job {job.id} is waiting; only failed or cancelled"):
        Job(job.id).requeue()


@pytest.mark.parametrize("own", [timedelta(0), timedelta(days=1)])
def test_a_job_whose_canceller_dies_half_way_runs_later_and_never_before_its_time(
    away: Callable[..., None], own: timedelta
) -> None:
    job = tasks.noop.using(run_after=own).enqueue(1)
    away()
    assert send_to_cancel(job.id, in_outbox=True)  # and no cancel follows
    found = get_job(job.id)
    assert found.status == "scheduled"
    assert found.run_after is not None
    least = max(own, timedelta(minutes=10)) - timedelta(minutes=1)
    assert least < found.run_after - timezone.now() <= least + timedelta(minutes=1)


def test_a_job_does_not_start_before_its_cancel_by_a_clock_that_is_behind(
    away: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tasks.noop.enqueue(1)
    away()
    hour_ago = real_ms() - 3_600_000
    monkeypatch.setattr(enqueue, "real_ms", lambda: hour_ago, raising=False)
    assert send_to_cancel(job.id, in_outbox=True)  # and a cancel is about to follow
    assert get_job(job.id).status == "scheduled"


def test_a_handle_cancels_its_kept_job_whatever_the_settings(
    away: Callable[..., None],
) -> None:
    away(OUTBOX=False, **AWAY)
    with transaction.atomic():
        job = tasks.noop.enqueue(1)
    away(OUTBOX=False)
    with pytest.raises(JobNotFound):
        Job(job.id).cancel()
    assert job.cancel()
    assert (job.status, left()) == ("cancelled", [])


def test_cancelling_an_unknown_job_raises_an_error() -> None:
    with pytest.raises(JobNotFound, match="it never existed"):
        Job("job_1700000000000_abcdefghij_0").cancel()


def test_a_job_in_the_outbox_cannot_be_cancelled_while_redis_is_down(
    away: Callable[..., None],
) -> None:
    job = tasks.add.enqueue(1, 2)
    with pytest.raises(RedisQueueError, match="does not answer"):
        job.cancel()
    assert rows() == [job.id]


def test_a_misconfigured_redis_raises_an_error_at_once(with_outbox: Callable[..., None]) -> None:
    with_outbox(CONNECTION={"CACHE": "nope"})
    with pytest.raises(ConfigurationError, match="nope"):
        tasks.noop.enqueue(1)


# -- several databases


def test_the_row_is_on_the_alias_of_the_transaction() -> None:
    with transaction.atomic(using="other"):
        job = tasks.noop.enqueue(1)
        assert (rows("default"), rows("other")) == ([], [job.id])
    assert (left("default"), rows("other")) == ([], [])
    assert queued() == [1]


def test_two_databases_each_have_a_row_and_the_job_waits_for_both() -> None:
    with transaction.atomic(using="other"):
        with transaction.atomic():
            job = tasks.noop.enqueue(1)
            (row,) = OutboxJob.objects.all()
            assert row.aliases == "default,other"
        assert queued() == []
        assert rows("default") == rows("other") == [job.id]
    assert queued() == [1]
    assert left("default") == rows("other") == []


def test_two_aliases_of_one_database_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second transaction would wait forever for the row of the first."""
    name = connections["default"].settings_dict["NAME"]
    monkeypatch.setitem(connections["other"].settings_dict, "NAME", name)
    tasks.noop.enqueue(1)
    with transaction.atomic(), transaction.atomic(using="other"):
        with pytest.raises(ConfigurationError, match="'default' and 'other' are one database"):
            tasks.noop.enqueue("never")
        tasks.noop.using(outbox=False).enqueue(2)
    assert queued() == [1, 2]
    assert OutboxJob.objects.using("other").count() == 0


@pytest.mark.parametrize("options", [{"service": "b"}, {"options": "-c search_path=b"}])
def test_two_schemas_or_services_are_two_databases(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    name = connections["default"].settings_dict["NAME"]
    with transaction.atomic(), transaction.atomic(using="other"), monkeypatch.context() as patch:
        patch.setitem(connections["other"].settings_dict, "NAME", name)
        patch.setitem(connections["other"].settings_dict, "OPTIONS", options)
        job = tasks.noop.enqueue(1)
        assert rows("default") == rows("other") == [job.id]
    assert queued() == [1]


@pytest.mark.parametrize("failing", BOTH)
def test_one_of_two_databases_rolls_back(failing: str) -> None:
    holding = next(alias for alias in BOTH if alias != failing)
    with transaction.atomic(using=holding), rolled_back(failing):
        tasks.noop.enqueue(1)
    assert queued() == []
    assert (len(rows(holding)), rows(failing)) == (1, [])  # the relay will not send it


def test_an_alias_without_the_table_leaves_it_to_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "django_redisqueue.outbox.rows.has_table", lambda _, alias: alias == "other"
    )
    with transaction.atomic(), transaction.atomic(using="other"):
        job = tasks.noop.enqueue(1)
        assert (rows("default"), rows("other")) == ([], [job.id])
    assert queued() == [1]


def test_missing_tables_are_reported_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, key_count: Callable[[], int]
) -> None:
    monkeypatch.setattr("django_redisqueue.outbox.rows.has_table", lambda _, alias: False)
    with suppress(ZeroDivisionError), transaction.atomic(using="other"):
        with pytest.raises(
            ConfigurationError,
            match=r"no table django_redisqueue_outboxjob for the outbox on 'other': run migrate",
        ):
            tasks.noop.enqueue(1)
        raise ZeroDivisionError
    with pytest.raises(ConfigurationError, match="on 'default'"):
        tasks.noop.enqueue(1)
    assert key_count() == 0


# -- an application's own tests


def test_in_memory_there_are_no_rows() -> None:
    with capture_jobs() as jobs, transaction.atomic():
        tasks.noop.enqueue(1)
        assert rows() == []
    assert [job.args for job in jobs.jobs] == [(1,)]
