"""What happens after a commit: trimming the stream, sending signals, deleting old rows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from django_redisqueue.broker.entries import format_position
from django_redisqueue.conf import get_settings
from django_redisqueue.mirror import bridge as bridge_module
from django_redisqueue.mirror import retention, sessions, signal_delivery
from django_redisqueue.mirror.bridge import KEEP_EVENTS, make_bridge
from django_redisqueue.mirror.retention import Cleanup
from django_redisqueue.mirror.writer import Cursor
from django_redisqueue.models import Approval, JobRecord, MirrorState
from django_redisqueue.signals import job_completed, job_failed
from tests.app.models import Counter
from tests.support.postgres import PostgresServer, as_database
from tests.worker.processes import eventually

from .mirror_processes import MirrorProcesses
from .mirrored_shard import MirroredShard
from .rows import record


@pytest.fixture
def full_shard(shard: MirroredShard, settings: Any) -> MirroredShard:
    """A shard on Redis's own clock, and a bridge with everything that belongs to it. The stream is
    trimmed by a hundredth of its cap at a time."""
    settings.REDISQUEUE = {**settings.REDISQUEUE, "EVENTS_CAP": 100 * STEP}
    shard.broker.store.settings = get_settings()
    shard.use_full_bridge(page=100)
    return shard


STEP = 200  # events


def length(shard: MirroredShard) -> int:
    """The length of the stream in events."""
    return len(shard.broker.written())


@pytest.fixture
def keep_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps no events for live readers."""
    monkeypatch.setattr(bridge_module, "KEEP_EVENTS", 0)


# -- trimming the stream


def test_the_last_10_000_events_stay_for_live_readers(full_shard: MirroredShard) -> None:
    assert KEEP_EVENTS == 10_000
    full_shard.bridge = make_bridge(get_settings())
    full_shard.run_jobs(4000)
    full_shard.mirror()
    assert 10_000 <= length(full_shard) < 10_200 + STEP
    assert (
        format_position(full_shard.broker.written()[-1].place) == MirrorState.objects.get().position
    )


@pytest.mark.usefixtures("keep_none")
def test_the_stream_is_trimmed_behind_a_mirror_that_is_never_at_the_end(
    full_shard: MirroredShard,
) -> None:
    full_shard.run_jobs(100)
    full_shard.mirror()
    assert length(full_shard) <= 100 + STEP
    for n in range(5):
        full_shard.run_jobs(100, f"r{n}.")
        full_shard.bridge.run_once()
        full_shard.bridge.run_once()
    behind = 5 * 300 - 10 * 100
    assert behind < length(full_shard) <= behind + 150 + STEP
    full_shard.mirror()
    assert JobRecord.objects.count() == 600


@pytest.mark.usefixtures("keep_none")
def test_the_cursors_own_entry_stays(full_shard: MirroredShard) -> None:
    for n in range(4):
        full_shard.run_jobs(70, f"r{n}.")
        full_shard.mirror()
        position = MirrorState.objects.get().position
        assert position in [format_position(event.place) for event in full_shard.broker.written()]
        full_shard.bridge.close()
    assert (MirrorState.objects.get().gaps, MirrorState.objects.get().epoch) == (0, 0)


def test_a_finished_job_stays_until_it_is_mirrored(full_shard: MirroredShard) -> None:
    full_shard.broker.end("a")
    completed = full_shard.broker.keys.queue("default").completed
    full_shard.broker.redis.zadd(completed, {"a": 1})  # long ago
    full_shard.mirror()
    full_shard.broker.end("b")
    full_shard.broker.redis.zadd(completed, {"b": _now(full_shard) - 20_000})
    full_shard.broker.redis.hset(
        full_shard.broker.keys.meta, "mirror_position", f"{_now(full_shard) - 60_000}-0"
    )
    assert full_shard.broker.store.prune("default", "completed", 0, 0)[0] == 1  # a
    assert full_shard.broker.status("b") == "completed"
    full_shard.mirror()
    assert full_shard.broker.store.prune("default", "completed", 0, 0)[0] == 1
    assert JobRecord.objects.get(pk="b").status == "completed"


def _now(shard: MirroredShard) -> int:
    return shard.broker.queries.now_ms()


# -- signals


def test_signals_follow_the_commits_of_the_bridge(full_shard: MirroredShard) -> None:
    heard: list[tuple[str, str]] = []

    def receiver(record: JobRecord, **_: Any) -> None:
        heard.append((record.id, record.status))

    job_completed.connect(receiver)
    job_failed.connect(receiver)
    try:
        ids = full_shard.run_jobs(150)
        full_shard.mirror()
        assert sorted(heard) == sorted((one, _end(one)) for one in ids)
        full_shard.broker.store.requeue(["j7"])
        full_shard.run_jobs(0)
        full_shard.mirror()
        assert heard[150:] == [("j7", "failed")]
    finally:
        job_completed.disconnect(receiver)
        job_failed.disconnect(receiver)


def _end(job_id: str) -> str:
    return "failed" if job_id.endswith("7") else "completed"


TOLD = """
import os, signal
from django.core.management import call_command
from django_redisqueue.signals import job_completed
def receiver(record, **_):
    print("told", record.id, flush=True)
    {end}
job_completed.connect(receiver)
call_command("bridgeevents", "--once")
"""


def test_a_bridge_killed_between_commit_and_signals_sends_them_after_its_restart(
    processes: MirrorProcesses,
) -> None:
    processes.run_jobs(6)
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    code, said = processes.ended(processes.script(TOLD.format(end=kill)))
    assert (code, said.split()) == (-signal.SIGKILL, ["told", "j0"])
    assert processes.rows() == 18  # committed
    code, said = processes.ended(processes.script(TOLD.format(end="")))
    assert code == 0, said
    told = [line.split()[1] for line in said.splitlines() if line.startswith("told")]
    assert told == [f"j{n}" for n in range(6)]


# -- a Redis that was emptied, with real processes


def test_a_worker_continues_without_its_mirror_until_redis_is_accepted(
    processes: MirrorProcesses,
) -> None:
    processes.worker("--processes", "1").wait_until_up(3)
    processes.run_jobs(5)
    processes.broker.add("waits", queue="idle")
    processes.until_mirrored()
    processes.broker.redis.flushall()
    processes.run_jobs(5, "later")
    eventually(lambda: bool(MirrorState.objects.get(shard=0).problem), why=processes.harness.report)
    assert JobRecord.objects.count() == 6
    accepted = processes.worker("--accept-redis", command="reapqueue")
    assert accepted.wait() == 0
    assert "the mirror now follows" in accepted.output
    eventually(lambda: processes.record("waits").reason == "lost", why=processes.harness.report)
    processes.until_at_the_end()
    assert JobRecord.objects.count() == 11
    eventually(lambda: not MirrorState.objects.get(shard=0).unreconciled)
    assert MirrorState.objects.get(shard=0).problem == ""


# -- old rows


def test_old_rows_are_deleted_while_the_bridge_runs(
    full_shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CLEANUP_INTERVAL", 0.0)
    full_shard.bridge = make_bridge(get_settings())
    then = datetime.now(UTC) - timedelta(days=100)
    record("old", "completed", enqueued_at=then, finished_at=then)
    full_shard.run_jobs(1)
    full_shard.mirror()
    assert not JobRecord.objects.filter(pk="old").exists()
    assert JobRecord.objects.count() == 1


@pytest.mark.django_db
def test_cleanup_leaves_the_database_to_others_between_steps(
    monkeypatch: pytest.MonkeyPatch, mirrored: None
) -> None:
    monkeypatch.setattr(retention, "CLEANUP_INTERVAL", 0.0)
    calls: list[int] = []
    made = Cleanup(get_settings())
    monkeypatch.setattr(retention, "CLEANUP_INTERVAL", 60.0)
    monkeypatch.setattr(retention, "PAUSE_FACTOR", 10_000)
    monkeypatch.setattr(made._retention, "run_once", lambda: calls.append(1) or True)  # type: ignore[func-returns-value]
    assert [made(Cursor()) for _ in range(50)] == [True] * 50
    assert len(calls) == 1


@pytest.mark.django_db
def test_rollups_that_cannot_be_compacted_wait_for_the_next_round(
    monkeypatch: pytest.MonkeyPatch, mirrored: None, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(now: datetime) -> int:
        raise OperationalError("canceling statement due to statement timeout")

    monkeypatch.setattr(retention, "CLEANUP_INTERVAL", 0.0)
    monkeypatch.setattr(retention, "compact", refuse)
    made = Cleanup(get_settings())
    monkeypatch.setattr(retention, "CLEANUP_INTERVAL", 60.0)
    assert [made(Cursor()) for _ in range(5)] == [False] * 5
    assert caplog.text.count("statement timeout") == 1


# -- other databases


class ApprovalsElsewhere:
    """A router that leaves approvals in another database than the mirror's."""

    def db_for_read(self, model: type[Model], **_: Any) -> str | None:
        return "elsewhere" if model is Approval else None

    db_for_write = db_for_read


@pytest.fixture
def elsewhere(
    full_shard: MirroredShard, postgres: PostgresServer, settings: Any
) -> Iterator[BaseDatabaseWrapper]:
    """A database of receivers and approvals."""
    settings.DATABASE_ROUTERS = [ApprovalsElsewhere()]
    entry = postgres.new_database()
    with as_database("elsewhere", entry) as alias:
        yield connections[alias]
    postgres.drop(entry)


on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@on_postgresql
def test_a_wait_for_a_lock_in_another_database_ends(
    full_shard: MirroredShard,
    elsewhere: BaseDatabaseWrapper,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise the mirror would stop for as long as a migration there."""
    monkeypatch.setattr(sessions, "LOCK_WAIT", 0.05)
    monkeypatch.setattr(retention, "CLEANUP_INTERVAL", 0)
    full_shard.use_full_bridge()
    other = elsewhere.get_new_connection(elsewhere.get_connection_params())
    with closing(other), other.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {Approval._meta.db_table}")
        full_shard.run_jobs(1)
        full_shard.bridge.run_once()
    assert "approval on elsewhere: canceling statement due to lock timeout" in caplog.text
    full_shard.assert_complete()


@on_postgresql
@pytest.mark.parametrize("max_age", [0, None])
def test_a_lost_connection_to_another_database_is_replaced(
    full_shard: MirroredShard, elsewhere: BaseDatabaseWrapper, max_age: int | None,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """After an error, and as between two requests. Otherwise a database that has restarted would be
    away for the bridge until its own restart."""
    monkeypatch.setattr(signal_delivery, "PASS_SECONDS", 60)
    elsewhere.settings_dict["CONN_MAX_AGE"] = max_age
    heard: list[str] = []

    def reads(record: JobRecord, **_: Any) -> None:
        Counter.objects.using("elsewhere").exists()
        heard.append(record.pk)
        elsewhere.connection.close()  # Django does not notice

    job_completed.connect(reads)
    try:
        for names in ("abc", "d"):
            full_shard.broker.end(*names)
            full_shard.bridge.run_once()
    finally:
        job_completed.disconnect(reads)
    assert heard == (["a", "c", "d"] if max_age == 0 else ["a", "c"])
    assert caplog.text.count("the receiver") == 4 - len(heard)
