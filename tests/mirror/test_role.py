"""The bridge as a process: it survives its own faults, and those of Redis and the database."""

from __future__ import annotations

import os
import signal
import subprocess
from inspect import signature
from unittest.mock import ANY

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import Count

from django_redisqueue.conf import get_settings
from django_redisqueue.models import JobRecord, OutboxJob
from django_redisqueue.worker.maintenance import bridge as role
from django_redisqueue.worker.maintenance.leader import RoleHost
from tests.app import tasks as app_tasks
from tests.support.stopwatch import Stopwatch
from tests.worker import tasks
from tests.worker.processes import eventually, holds_for

from .mirror_processes import MirrorProcesses, database_down, migrate
from .mirrored_shard import check_events

on_postgresql = pytest.mark.parametrize("processes", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("processes", ["sqlite"], indirect=True)

FOLLOWED = role.LEASE_MS / 1000 + role.RETRY  # s


def test_a_worker_mirrors_a_real_job(processes: MirrorProcesses) -> None:
    processes.worker("--processes", "1").wait_until_up(3)
    job = processes.harness.ended(tasks.run.enqueue(processes.harness.book, "real"))
    processes.until_mirrored()
    record = processes.record(job.id)
    assert (record.status, record.task) == ("completed", "tests.worker.tasks.run")
    assert (record.args, record.result_value) == ((processes.harness.book, "real"), 1)
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.enqueued_at <= record.started_at <= record.finished_at


def test_without_a_mirror_there_is_no_bridge(processes: MirrorProcesses) -> None:
    processes.harness.configure(MIRROR=False)
    worker = processes.worker("--processes", "1").wait_until_up(2)
    processes.harness.ended(tasks.run.enqueue(processes.harness.book, "real"))
    assert len(worker.children) == 2
    assert not JobRecord.objects.exists()


@on_sqlite
def test_burst_ends_after_the_last_event(processes: MirrorProcesses) -> None:
    app_tasks.noop.enqueue_many([()] * 3000)
    worker = processes.worker("--processes", "2", "--burst")
    assert worker.wait(40) == 0, worker.output
    assert JobRecord.objects.filter(status="completed").count() == 3000
    processes.assert_complete()


@pytest.mark.slow
@on_sqlite
def test_stopped_processes_are_replaced(processes: MirrorProcesses) -> None:
    """Tested on the only worker, so that no other one can take over the roles of which there is
    one."""
    processes.harness.alter("quick_watchdog")
    worker = processes.worker("--processes", "1").wait_until_up(3)
    processes.harness.ended(tasks.run.enqueue(processes.harness.book, "before"))
    processes.until_mirrored()
    stopped = set(worker.children)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    eventually(
        lambda: len(worker.children) == 3 and not stopped & set(worker.children),
        why=lambda: worker.output,
    )
    job = tasks.run.using(run_after=0.2).enqueue(processes.harness.book, "after")  # needs all three
    processes.harness.ended(job)
    processes.until_mirrored()
    assert processes.record(job.id).status == "completed"
    assert worker.output.count("is stopped or stuck") == 3


@on_postgresql
def test_maintenance_whose_database_hangs_is_replaced(processes: MirrorProcesses) -> None:
    """The process leads meanwhile, so no other process would relay; its connection may be dead."""
    processes.harness.alter("quick_hang")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {OutboxJob._meta.db_table}")
        worker = processes.worker("--processes", "1").wait_until_up(3)
        before = set(worker.children)
        said = "the outbox's relay on 'default' has not returned for 1 s; a new process takes over"
        eventually(lambda: said in worker.output, why=lambda: worker.output)
        eventually(lambda: len(set(worker.children) - before) == 1, why=lambda: worker.output)
        assert len(before & set(worker.children)) == 2
    processes.harness.ended(tasks.run.using(run_after=0.1).enqueue(processes.harness.book, "later"))


@on_sqlite
def test_a_stopped_worker_mirrors_how_its_jobs_ended(processes: MirrorProcesses) -> None:
    worker = processes.worker("--processes", "1").wait_until_up(3)
    job = tasks.run_then_sleep.enqueue(processes.harness.book, "slow", 1.0)
    # started: jobs that are only claimed are released
    eventually(lambda: processes.harness.runs()["slow"])
    worker.term()
    assert worker.wait() == 0, worker.output
    assert processes.record(job.id).status == "completed"
    processes.assert_complete()


@pytest.mark.slow
@on_sqlite
@pytest.mark.one_shard("counts the scripts of one")
@pytest.mark.one_server("looks at its server's commands")
def test_an_idle_bridge_leaves_its_lease_to_the_heartbeats(processes: MirrorProcesses) -> None:
    harness = processes.harness
    harness.alter("quick_rest")
    processes.worker("--processes", "1").wait_until_up(3)
    for name in ("first", "second"):
        harness.ended(tasks.run.enqueue(harness.book, name))
        eventually(lambda: harness.scripts_beside(6) <= 1, 60, why=harness.report)
        processes.until_mirrored()


@on_sqlite
def test_a_killed_bridge_is_replaced(processes: MirrorProcesses) -> None:
    worker = processes.worker("--processes", "1").wait_until_up(3)
    eventually(processes.is_heard)
    before = set(worker.children)
    for pid in worker.children[-1:]:  # the most recently forked process
        subprocess.run(["kill", "-9", str(pid)], check=True)
    eventually(lambda: set(worker.children) - before, why=lambda: worker.output)
    processes.run_jobs(50)
    processes.until_mirrored(30)


KILLED_BEFORE_COMMIT = """
import os, signal
from django.core.management import call_command
from django_redisqueue.mirror import aggregates
aggregates.RollupBatch.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
call_command("bridgeevents", "--once")
"""


def test_killed_between_write_and_commit(processes: MirrorProcesses) -> None:
    processes.run_jobs(100, "before")
    assert processes.ended(processes.once()) == (0, ANY)
    processes.run_jobs(1000)
    code, said = processes.ended(processes.script(KILLED_BEFORE_COMMIT))
    assert code == -signal.SIGKILL, said
    assert processes.rows() == 300
    assert processes.ended(processes.once()) == (0, ANY)
    assert processes.rows() == 3300
    processes.assert_complete()


def test_two_bridges_at_once(processes: MirrorProcesses) -> None:
    processes.run_jobs(4000)
    bridges = [processes.once() for _ in range(2)]
    ends = [processes.ended(bridge) for bridge in bridges]
    assert [code for code, _ in ends] == [0, 0], ends
    assert sum(int(said.split()[0]) for _, said in ends) == 12_000, ends
    processes.assert_complete()


@on_sqlite
def test_once_reports_why_it_cannot_run(processes: MirrorProcesses) -> None:
    processes.harness.configure(MIRROR=False)
    _, said = processes.ended(processes.once())
    assert 'REDISQUEUE["MIRROR"] is False' in said
    assert "set it to True" in said


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
@on_sqlite
def test_redis_is_restarted_under_it(processes: MirrorProcesses) -> None:
    bridge = processes.bridge_process()
    processes.run_jobs(100, "before")
    processes.until_mirrored()
    processes.harness.server.kill()
    eventually(lambda: "trying again until it succeeds" in bridge.output, why=lambda: bridge.output)
    processes.harness.server.start()
    processes.broker.connection.close()
    processes.run_jobs(100, "after")
    processes.until_mirrored()
    said = [line for line in bridge.output.splitlines() if "trying again until it succeeds" in line]
    # For each shard, once per problem: cut off, and then refused.
    assert len(said) == len(set(said)) <= 2 * get_settings().shards
    eventually(lambda: "continues after" in bridge.output, why=lambda: bridge.output)
    bridge.term()
    assert bridge.wait() == 0


@pytest.mark.one_server("looks at its server's clients and commands")
@on_sqlite
def test_a_lost_subscription_is_renewed(processes: MirrorProcesses) -> None:
    processes.bridge_process()
    for n in range(3):
        processes.broker.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        eventually(processes.is_heard)
        processes.run_jobs(5, f"n{n}_")
        processes.until_mirrored(5)


@pytest.mark.one_server("looks at its server's clients and commands")
@on_sqlite
def test_a_silent_subscription_is_used_now_and_then(processes: MirrorProcesses) -> None:
    """A proxy would cut it if it were idle for long."""
    modules = [*processes.harness.settings["TASK_MODULES"], "tests.mirror.quick_read"]
    processes.harness.configure(TASK_MODULES=modules)
    processes.bridge_process()
    for _ in range(2):
        processes.broker.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        eventually(
            lambda: (
                {each["cmd"] for each in processes.broker.redis.client_list(_type="pubsub")}
                == {"ping"}
            )
        )


@pytest.mark.one_server("changes its server's state")
@on_sqlite
def test_cut_off_for_reading_too_slowly(processes: MirrorProcesses) -> None:
    """The buffer of a subscriber that does not read overflows, and Redis disconnects it."""
    processes.broker.redis.config_set("client-output-buffer-limit", "pubsub 32kb 32kb 1")
    bridge = processes.bridge_process()
    bridge.process.send_signal(signal.SIGSTOP)
    ids = processes.run_jobs(3000)
    assert not processes.is_heard()
    bridge.process.send_signal(signal.SIGCONT)
    processes.until_mirrored()
    assert JobRecord.objects.count() == len(ids)
    eventually(processes.is_heard)


@on_postgresql
def test_the_database_is_down_for_a_while(processes: MirrorProcesses) -> None:
    bridge = processes.bridge_process()
    processes.run_jobs(10, "before")
    processes.until_mirrored()
    with database_down(processes):
        processes.run_jobs(10, "meanwhile")
        eventually(
            lambda: "trying again until it succeeds" in bridge.output, 30, why=bridge.log.read_text
        )
    processes.until_mirrored()
    assert bridge.process.poll() is None
    assert bridge.output.count("trying again until it succeeds") <= 2 * get_settings().shards


def test_a_bridge_that_waits_for_a_connection_pool_is_not_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the database is down, each query waits for as long as the pool does: that of the page,
    and then the one that asks for the reason."""
    pool = pytest.importorskip("psycopg_pool").ConnectionPool
    waits: float = signature(pool.__init__).parameters["timeout"].default
    signs: list[float] = []
    bridge = role.BridgeRole("bridge1", get_settings(), RoleHost(keep_alive=signs.append))
    before: list[float] = []
    monkeypatch.setattr(role, "explain_error", lambda *_: before.extend(signs) or "away")
    bridge.failed(OperationalError())
    assert before == [role.BUSY]
    assert waits + 10 < role.BUSY  # on a busy machine


@on_sqlite
def test_unapplied_migrations_are_waited_for(processes: MirrorProcesses) -> None:
    migrate(processes, "zero")
    bridge = processes.worker(command="bridgeevents")
    ids = processes.run_jobs(20)
    eventually(lambda: "run: manage.py migrate" in bridge.output, why=lambda: bridge.output)
    assert "lacks migrations of django_redisqueue (0001_initial" in bridge.output
    holds_for(lambda: bridge.process.poll() is None, 1.5)
    assert bridge.output.count("run: manage.py migrate") == get_settings().shards
    migrate(processes)
    processes.until_mirrored()
    assert JobRecord.objects.count() == len(ids)


@on_sqlite
def test_another_bridge_succeeds_a_dead_one(processes: MirrorProcesses) -> None:
    processes.harness.configure(TASK_MODULES=["tests.mirror.quick_lease"])
    first = processes.bridge_process()
    second = processes.worker(command="bridgeevents")
    eventually(lambda: "mirroring" in second.output, why=lambda: second.output)
    first.kill()
    watch = Stopwatch()
    processes.run_jobs(10)
    processes.until_mirrored()
    assert watch.seconds < FOLLOWED / 10 + 1  # the last is for the work itself


def test_a_dead_bridge_is_succeeded_within_20_s() -> None:
    assert FOLLOWED < 20
    assert role.RENEW < role.LEASE_MS / 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "jobs"),
    [("sqlite", 30_000), ("postgresql", 10_000)],
    indirect=["processes"],
    ids=["90,000 into SQLite", "30,000 into PostgreSQL"],
)
def test_a_burst_of_events(processes: MirrorProcesses, jobs: int) -> None:
    """They are written faster than they are mirrored."""
    bridge = processes.bridge_process()
    processes.run_jobs(jobs)
    assert processes.rows() < 3 * jobs
    processes.until_at_the_end(120)
    check_events(processes.broker)
    assert processes.rows() == 3 * jobs
    statuses = JobRecord.objects.values_list("status").annotate(Count("pk")).order_by("status")
    assert list(statuses) == [("completed", jobs * 9 // 10), ("failed", jobs // 10)]
    assert "trying again" not in bridge.output
