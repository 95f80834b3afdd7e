"""The relay: sends leftover jobs, once, and deletes rows that are safe in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone
from redis import Redis

from django_redisqueue import JobQueue
from django_redisqueue.broker import durability
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.entries import EventFeed, format_position
from django_redisqueue.broker.replies import Outcome, OutcomeKind
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.exceptions import JobNotFound, RedisUnavailable
from django_redisqueue.management.commands.runworker import _relay_outbox
from django_redisqueue.models import JobRecord, MirrorState, OutboxJob
from django_redisqueue.outbox import relay as relay_module
from django_redisqueue.outbox.relay import Relay, forget_ids
from django_redisqueue.outbox.rows import unrelayed
from tests.app import tasks
from tests.client.test_transactions import queued, rolled_back
from tests.support.round_trips import calls_of
from tests.support.shards import keys_of, shard_of
from tests.worker.processes import eventually

BOTH = ["default", "other"]
AWAY = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}
pytestmark = pytest.mark.django_db(transaction=True, databases=BOTH)


class Relays:
    """Relays for both databases."""

    def __init__(self, commands: Commands) -> None:
        self.relays = [Relay(commands, alias) for alias in BOTH]

    def run_once(self) -> bool:
        return max([relay.run_once() for relay in self.relays])

    @property
    def remembered(self) -> list[str]:
        """The jobs that Redis has deleted, and the mirror may not have read."""
        return [job_id for relay in self.relays for job_id in relay._gone]

    def retry_refused(self) -> None:
        for relay in self.relays:
            relay._retry_at = 0


class Lost:
    """An outbox whose enqueuing process could not send."""

    def __init__(self, settings: Any, usual: dict[str, Any]) -> None:
        self._settings = settings
        self._usual = {**usual, "OUTBOX": True}
        self.configure()

    def configure(self, **changes: Any) -> None:
        self._usual = {**self._usual, **changes}
        self._settings.REDISQUEUE = self._usual

    def enqueue(self, *args: Any, task: Any = tasks.noop, using: str = "default") -> Any:
        """Commit a job while Redis is down, some time ago."""
        self._settings.REDISQUEUE = {**self._usual, **AWAY}
        with transaction.atomic(using=using):
            job = task.enqueue(*args)
        self.configure()
        self.age(using=using)
        return job

    def age(self, by: timedelta = timedelta(minutes=1), using: str = "default") -> None:
        old = timezone.now() - by
        OutboxJob.objects.using(using).filter(created_at__gt=old).update(created_at=old)

    def commands(self) -> Commands:
        """The commands of the queue's shard."""
        return Commands(worker_connection(shard_of()))

    def relay(self) -> Relays:
        return Relays(self.commands())


@pytest.fixture
def lost(
    settings: Any, queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lost]:
    monkeypatch.setattr(durability, "FSYNCED_MS", 0)
    return Lost(settings, queue_settings)


def rows(using: str = "default", **which: Any) -> list[str]:
    found = OutboxJob.objects.using(using).filter(**which).order_by("created_at")
    return list(found.values_list("pk", flat=True))


def record(job_id: str, **fields: str) -> None:
    JobRecord.objects.create(id=job_id, task="t", queue="q", enqueued_at=timezone.now(), **fields)


@pytest.mark.parametrize("using", BOTH)
def test_leftover_jobs_are_sent_and_a_second_pass_changes_nothing(lost: Lost, using: str) -> None:
    one, two = lost.enqueue(1, using=using), lost.enqueue(2, using=using)
    relay = lost.relay()
    assert not relay.run_once()
    assert sorted(queued()) == [1, 2]
    assert rows(using) == []
    assert (one.status, two.status) == ("queued", "queued")
    assert not relay.run_once()
    assert JobQueue().get_stats()["queued"] == 2


@pytest.mark.one_server("has servers of its own")
def test_a_burst_does_not_wait_for_an_unavailable_shard(lost: Lost, settings: Any) -> None:
    url = settings.REDISQUEUE["CONNECTION"]["URL"]
    lost.configure(SHARDS=2, QUEUES={"default": {"SPREAD": True}})
    jobs = {shard_of_id(job.id): job.id for job in (lost.enqueue(1), lost.enqueue(2))}
    lost.configure(CONNECTION={"URL": [url, AWAY["CONNECTION"]["URL"]]})
    (problem,) = _relay_outbox([1])
    assert "/nonexistent.sock does not answer" in problem
    assert rows() == [jobs[1]]


def test_a_recent_row_is_left_to_its_process(lost: Lost) -> None:
    lost.enqueue("old")
    lost.enqueue("young")
    OutboxJob.objects.filter(payload__contains="young").update(created_at=timezone.now())
    lost.relay().run_once()
    assert queued() == ["old"]
    assert len(rows()) == 1


def test_a_row_from_the_future_is_sent(lost: Lost) -> None:
    """The clock of the relay's machine is behind that of the producer's."""
    lost.enqueue("ahead")
    OutboxJob.objects.update(created_at=timezone.now() + timedelta(hours=1))
    lost.relay().run_once()
    assert queued() == ["ahead"]


def test_options_priority_and_time_are_kept(lost: Lost) -> None:
    job = lost.enqueue(1, task=tasks.noop.using(priority=-4, timeout=8, run_after=3600))
    lost.relay().run_once()
    assert (job.priority, job.status, job.data.options) == (-4, "scheduled", {"timeout_ms": 8000})
    due_in = (job.run_after - timezone.now()).total_seconds()
    assert 3590 < due_in < 3600


def test_a_job_that_has_become_due_meanwhile_is_queued(lost: Lost) -> None:
    job = lost.enqueue(1, task=tasks.noop.using(run_after=30))
    OutboxJob.objects.update(due_ms=1000)
    lost.relay().run_once()
    assert job.status == "queued"


def test_more_rows_than_one_pass_handles(lost: Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "PAGE_ROWS", 7)
    jobs = [lost.enqueue(n) for n in range(20)]
    start = timezone.now() - timedelta(hours=1)
    for n, job in enumerate(jobs):
        OutboxJob.objects.filter(pk=job.id).update(created_at=start + timedelta(seconds=n))
    relay = lost.relay()
    assert [relay.run_once() for _ in range(3)] == [True, True, False]
    assert queued() == list(range(20))


@pytest.mark.one_server("looks at its server's clients and commands")
def test_with_a_mirror_rows_stay_until_their_jobs_are_mirrored(lost: Lost, redis: Redis) -> None:
    lost.configure(MIRROR=True)
    one, two = lost.enqueue(1), lost.enqueue(2)
    relay = lost.relay()
    relay.run_once()
    assert rows(relayed_at=None) == []
    assert len(rows()) == 2
    redis.config_resetstat()
    relay.run_once()  # they are not sent again
    assert calls_of(redis, "evalsha") == 0
    record(one.id)
    relay.run_once()
    assert rows() == [two.id]


def test_a_row_whose_job_never_reaches_the_mirror_is_deleted_after_a_day(lost: Lost) -> None:
    """Either the database refuses its events, or the job was deleted before they were read."""
    lost.configure(MIRROR=True)
    gone, runs = lost.enqueue(1), lost.enqueue(2)
    relay = lost.relay()
    relay.run_once()
    store = Commands(worker_connection(shard_of()))
    request = ClaimRequest("child", ("default",))
    (claimed,) = store.claim(request, 1, 1).jobs
    outcome = Outcome(gone.id, claimed.lease, 1, OutcomeKind.COMPLETED, "1")
    store.finish(request, 2, [outcome], 0)
    assert JobQueue().clear("completed") == 1
    relay.run_once()
    assert rows() == [gone.id, runs.id]
    lost.age(timedelta(days=2))
    relay.run_once()
    assert rows() == [gone.id, runs.id], "the mirror may be away, and read its events later"
    assert relay.remembered == [gone.id]
    _, last = EventFeed(worker_connection(shard_of())).ends()
    MirrorState.objects.create(shard=shard_of(), position=format_position(last))
    runs.cancel()  # the mirror need not have read this
    relay.run_once()
    assert rows() == [runs.id]
    assert relay.remembered == []


@pytest.mark.parametrize("is_mirrored", [True, False], ids=["mirrored", "deleted by somebody"])
def test_a_relay_does_not_remember_jobs_whose_rows_are_gone(lost: Lost, is_mirrored: bool) -> None:
    lost.configure(MIRROR=True)
    job, runs = lost.enqueue(1), lost.enqueue(2)
    relay = lost.relay()
    relay.run_once()
    job.cancel()
    assert JobQueue().clear("cancelled") == 1
    lost.age(timedelta(days=2))
    relay.run_once()
    assert relay.remembered == [job.id]
    if is_mirrored:
        record(job.id, status="cancelled")
    else:
        OutboxJob.objects.filter(pk__in=[job.id, runs.id]).delete()
    relay.run_once()
    assert rows() == [runs.id] * is_mirrored
    assert relay.remembered == []


def test_after_redis_lost_its_data_unmirrored_jobs_are_sent_again(lost: Lost, redis: Redis) -> None:
    lost.configure(MIRROR=True)
    lost.enqueue(1)
    kept = lost.enqueue(2)
    relay = lost.relay()
    relay.run_once()
    record(kept.id)
    relay.run_once()
    redis.flushdb()  # as after a failover to a copy that had neither
    relay.run_once()
    assert queued() == [1]
    redis.flushdb()
    lost.relay().run_once()  # another maintenance process, which was not there before
    assert queued() == [1]


def test_a_row_without_events_is_deleted_when_redis_has_the_job(lost: Lost) -> None:
    lost.configure(MIRROR=True)
    lost.enqueue(1)
    OutboxJob.objects.update(audit="none")
    lost.relay().run_once()
    assert rows() == []


def test_rows_kept_for_a_mirror_are_deleted_when_it_is_switched_off(lost: Lost) -> None:
    lost.configure(MIRROR=True)
    lost.enqueue(1)
    lost.relay().run_once()
    assert len(rows()) == 1
    lost.configure(MIRROR=False)
    lost.relay().run_once()
    assert rows() == []


def test_a_row_stays_until_redis_would_keep_its_job_through_a_crash(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "FSYNCED_MS", 5_000)
    job = lost.enqueue(1)
    relay = lost.relay()
    relay.run_once()
    relay.run_once()
    assert (rows(), queued()) == ([job.id], [1])
    monkeypatch.setattr(durability, "FSYNCED_MS", 0)
    relay.run_once()
    assert rows() == []


class LaggingReplica:
    """A router that reads from a replica that lacks the latest rows."""

    def db_for_read(self, *_: Any, **__: Any) -> str:
        return "other"

    def db_for_write(self, *_: Any, **__: Any) -> str:
        return "default"


@pytest.mark.parametrize("routers", [[], [LaggingReplica()]])
def test_jobs_lost_by_redis_are_sent_again_unless_the_mirror_knows_their_end(
    lost: Lost, redis: Redis, settings: Any, routers: Any
) -> None:
    settings.DATABASE_ROUTERS = routers
    lost.configure(MIRROR=True)
    jobs = {name: lost.enqueue(name) for name in ("new", "runs", "ended", "lost")}
    relay = lost.relay()
    relay.run_once()
    redis.flushdb()
    record(jobs["runs"].id, status="processing")
    record(jobs["ended"].id, status="completed")
    record(jobs["lost"].id, status="failed", reason="lost")
    relay.run_once()
    assert sorted(queued()) == ["lost", "new", "runs"]
    assert jobs["ended"].id not in rows()


def test_a_job_that_has_ended_and_was_pruned_is_not_sent_again(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay is late, and no mirror has seen the job."""
    lost.configure(KEEP_COMPLETED=0, RESEND_WINDOW=0, OUTBOX=True)
    with transaction.atomic():
        job = tasks.noop.enqueue(1)
    complete_and_prune(job.id)
    with pytest.raises(JobNotFound):  # it is not shown as waiting in the outbox
        job.refresh()
    assert rows() == [job.id]
    lost.age()
    lost.relay().run_once()
    assert (rows(), queued()) == ([], [])


def test_a_process_that_sends_after_the_relay_has_done_so_adds_no_job(lost: Lost) -> None:
    """Another commit hook takes so long that the job has run and left Redis and the outbox."""
    lost.configure(KEEP_COMPLETED=0, RESEND_WINDOW=0, OUTBOX=True)

    def slow_hook() -> None:
        lost.age()
        lost.relay().run_once()
        complete_and_prune(job.id)
        lost.relay().run_once()
        assert rows() == []

    with transaction.atomic():
        transaction.on_commit(slow_hook)
        job = tasks.noop.enqueue(1)
    assert queued() == []
    assert forget_ids(lost.commands()) is False  # too early


def complete_and_prune(job_id: str) -> None:
    store = Commands(worker_connection(shard_of()))
    claim_request = ClaimRequest("child", ("default",))
    (claimed,) = store.claim(claim_request, 1, 1).jobs
    outcome = Outcome(job_id, claimed.lease, 1, OutcomeKind.COMPLETED, "1")
    store.finish(claim_request, 2, [outcome], 0)
    eventually(lambda: store.prune("default", "completed", 0, 0)[0] == 1)


def test_ids_whose_rows_are_gone_are_forgotten(
    lost: Lost, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "FORGET_AFTER_MS", 0)
    monkeypatch.setattr(durability, "FSYNCED_MS", 5_000)
    gone, kept = lost.enqueue(1), lost.enqueue(2)
    lost.relay().run_once()
    OutboxJob.objects.filter(pk=gone.id).delete()  # and its relay died before it told Redis
    assert forget_ids(lost.commands()) is False
    assert redis.zrange(keys_of().outbox, 0, -1) == [kept.id.encode()]


# -- refusals


def test_a_refused_row_stores_its_problem_and_the_others_continue(
    lost: Lost, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    before, bad, behind = lost.enqueue(1), lost.enqueue(2), lost.enqueue(3)
    redis.set(keys_of().job(bad.id), "something else")
    relay = lost.relay()
    relay.run_once()
    assert sorted(queued()) == [1, 3]
    (row,) = OutboxJob.objects.all()
    assert row.id == bad.id
    assert f"the key {keys_of().job(bad.id)} does not hold a job" in row.problem
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"outbox of database 'default': job {bad.id} is refused" in error.getMessage()
    relay.run_once()
    assert (before.status, behind.status) == ("queued", "queued")


def test_refused_rows_are_retried_now_and_then(
    lost: Lost, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    bad = lost.enqueue(2)
    redis.set(keys_of().job(bad.id), "something else")
    relay = lost.relay()
    relay.run_once()
    relay.retry_refused()
    relay.run_once()
    assert (
        len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    )  # only once, because it is the same error
    redis.delete(keys_of().job(bad.id))
    relay.run_once()
    assert queued() == []
    relay.retry_refused()
    relay.run_once()
    assert queued() == [2]
    assert rows() == []


def test_a_wrong_key_of_one_queue_does_not_stop_the_others(lost: Lost, redis: Redis) -> None:
    lost.configure(QUEUES={"default": {}, "low": {}})
    lost.enqueue(1, task=tasks.noop.using(queue_name="low"))
    lost.enqueue(2)
    redis.set(keys_of().queue("low").queued, "text")
    lost.relay().run_once()
    assert queued() == [2]
    assert len(rows()) == 1


@pytest.mark.one_server("changes its server's state")
def test_a_full_redis_is_waited_for(
    lost: Lost, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    lost.enqueue(1)
    relay = lost.relay()
    redis.config_set("maxmemory", 1)
    try:
        relay.run_once()
        relay.run_once()
    finally:
        redis.config_set("maxmemory", 0)
    assert len(rows(problem="")) == 1
    assert len([r for r in caplog.records if "has reached maxmemory" in r.getMessage()]) == 1
    relay.run_once()
    assert queued() == [1]


def test_an_outage_of_redis_is_left_to_maintenance(lost: Lost, settings: Any) -> None:
    lost.enqueue(1)
    lost.configure(**AWAY)
    with pytest.raises(RedisUnavailable):
        lost.relay().run_once()
    assert len(rows(problem="")) == 1


def test_a_database_that_is_down_is_logged_once_and_does_not_stop_the_others(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost.enqueue(1, using="other")
    relay = lost.relay()
    rows = relay_module.rows_on

    def gone(alias: str) -> Any:
        if alias == "default":
            raise OperationalError("the server closed the connection")
        return rows(alias)

    monkeypatch.setattr(relay_module, "rows_on", gone)
    relay.run_once()
    relay.run_once()
    assert queued() == [1]
    (message,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "outbox of database 'default': OperationalError: the server closed" in message


def test_without_the_table_there_is_nothing_to_do(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost.enqueue(1)
    monkeypatch.setattr(relay_module, "has_table", lambda model, alias: False)
    assert not lost.relay().run_once()
    assert queued() == []


# -- several databases


def test_rows_on_two_databases_are_one_job(lost: Lost, queue_settings: dict[str, Any]) -> None:
    lost.configure(**AWAY)
    with transaction.atomic(using="other"), transaction.atomic():
        tasks.noop.enqueue(1)
    lost.configure(CONNECTION=queue_settings["CONNECTION"])
    for alias in BOTH:
        lost.age(using=alias)
    relay = lost.relay()
    relay.run_once()
    assert queued() == [1]
    assert rows() == rows("other") == []


@pytest.mark.parametrize("holding", BOTH)
def test_a_job_whose_other_transaction_has_not_committed_is_not_sent(
    lost: Lost, holding: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = next(alias for alias in BOTH if alias != holding)
    with transaction.atomic(using=holding), rolled_back(failing):
        tasks.noop.enqueue(1)
    lost.age(using=holding)
    relay = lost.relay()
    relay.run_once()
    assert queued() == []
    (job_id,) = rows(holding)
    lost.age(timedelta(days=2), using=holding)
    relay.run_once()
    assert rows(holding) == [job_id], "it has only just been seen"
    monkeypatch.setattr(relay_module, "ORPHAN_WATCH", 0)
    relay.run_once()
    assert rows(holding) == queued() == []
    assert f"job {job_id} is dropped because its transaction on {failing} has not" in caplog.text


def test_a_clock_that_is_days_ahead_drops_no_job(
    lost: Lost, queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    days_ahead = SimpleNamespace(now=lambda: timezone.now() + timedelta(days=2))
    monkeypatch.setattr(relay_module, "timezone", days_ahead)
    lost.configure(**AWAY)
    with transaction.atomic(), transaction.atomic(using="other"):
        tasks.noop.enqueue(1)
    lost.configure(CONNECTION=queue_settings["CONNECTION"])
    row = OutboxJob.objects.get()
    relay = lost.relay()
    OutboxJob.objects.all().delete()  # as the relay sees it before the outer transaction commits
    relay.run_once()
    OutboxJob.objects.bulk_create([row])
    relay.run_once()
    assert queued() == [1]


def test_a_row_that_waits_for_another_database_does_not_block_others(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "PAGE_ROWS", 1)
    with transaction.atomic(), rolled_back("other"):
        tasks.noop.enqueue("half")
    lost.age(timedelta(hours=1))
    lost.enqueue("whole")
    relay = lost.relay()
    while relay.run_once():
        pass
    assert queued() == ["whole"]


@pytest.mark.one_server("looks at its server's clients and commands")
def test_an_empty_outbox_costs_one_query_per_alias_and_no_redis_command(
    lost: Lost, redis: Redis, django_assert_num_queries: Callable[..., Any]
) -> None:
    relay = lost.relay()
    relay.run_once()
    redis.config_resetstat()
    for using in BOTH:
        with django_assert_num_queries(1, using=using):
            relay.run_once()
    assert redis.info("commandstats").keys() <= {"cmdstat_config|resetstat", "cmdstat_config"}


def test_a_page_of_a_large_backlog_is_read_by_the_index(on_postgres: object) -> None:
    """PostgreSQL did not treat a column as constant because of ``IS NULL``, and sorted the
    backlog."""
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
    plan = unrelayed("default").filter(problem="")[:10].explain()
    assert "drq_outbox_relayed" in plan
    assert "Sort" not in plan
