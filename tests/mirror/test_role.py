"""The bridge as a process: it survives what happens to it, to Redis and to the database."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from unittest.mock import ANY

import pytest
from django.db import connection, transaction
from django.db.models import Count

from django_redisqueue.models import JobRecord, OutboxJob
from tests.app import tasks as app_tasks
from tests.worker import tasks
from tests.worker.processes import eventually, holds_for

from .scene import check_events
from .theatre import Theatre, database_away, migrate

on_postgresql = pytest.mark.parametrize("theatre", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("theatre", ["sqlite"], indirect=True)


def test_a_worker_mirrors_a_real_job(theatre: Theatre) -> None:
    theatre.worker("--processes", "1").wait_until_up(3)
    job = theatre.stage.ended(tasks.run.enqueue(theatre.stage.book, "real"))
    theatre.until_mirrored()
    record = theatre.record(job.id)
    assert (record.status, record.task) == ("completed", "tests.worker.tasks.run")
    assert (record.args, record.result_value) == ((theatre.stage.book, "real"), 1)
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.enqueued_at <= record.started_at <= record.finished_at


def test_without_a_mirror_there_is_no_bridge(theatre: Theatre) -> None:
    theatre.stage.configure(MIRROR=False)
    worker = theatre.worker("--processes", "1").wait_until_up(2)
    theatre.stage.ended(tasks.run.enqueue(theatre.stage.book, "real"))
    assert len(worker.children) == 2
    assert not JobRecord.objects.exists()


@on_sqlite
def test_burst_ends_behind_the_last_event(theatre: Theatre) -> None:
    app_tasks.noop.enqueue_many([()] * 3000)
    worker = theatre.worker("--processes", "2", "--burst")
    assert worker.wait(40) == 0, worker.output
    assert JobRecord.objects.filter(status="completed").count() == 3000
    theatre.is_complete()


@pytest.mark.slow
@on_sqlite
def test_processes_that_are_stopped_are_replaced(theatre: Theatre) -> None:
    """On the only worker, so that nobody else could take over what exists once."""
    theatre.stage.configure(TASK_MODULES=["tests.worker.tasks", "tests.worker.quick_watchdog"])
    worker = theatre.worker("--processes", "1").wait_until_up(3)
    theatre.stage.ended(tasks.run.enqueue(theatre.stage.book, "before"))
    theatre.until_mirrored()
    stopped = set(worker.children)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    eventually(
        lambda: len(worker.children) == 3 and not stopped & set(worker.children),
        why=lambda: worker.output,
    )
    job = tasks.run.using(run_after=0.2).enqueue(theatre.stage.book, "after")  # needs all three
    theatre.stage.ended(job)
    theatre.until_mirrored()
    assert theatre.record(job.id).status == "completed"
    assert worker.output.count("is stopped or stuck") == 3


@on_postgresql
def test_maintenance_whose_database_hangs_is_replaced(theatre: Theatre) -> None:
    """The process leads meanwhile, so nobody else would relay, and its connection may be dead."""
    theatre.stage.configure(TASK_MODULES=["tests.worker.tasks", "tests.worker.quick_watchdog"])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {OutboxJob._meta.db_table}")
        worker = theatre.worker("--processes", "1").wait_until_up(3)
        before = set(worker.children)
        said = "the outbox's relay on 'default' has not come back for 1 s; a new process takes over"
        eventually(lambda: said in worker.output, why=lambda: worker.output)
        eventually(lambda: len(set(worker.children) - before) == 1, why=lambda: worker.output)
        assert len(before & set(worker.children)) == 2
    theatre.stage.ended(tasks.run.using(run_after=0.1).enqueue(theatre.stage.book, "later"))


@on_sqlite
def test_a_stopped_worker_mirrors_how_its_jobs_ended(theatre: Theatre) -> None:
    worker = theatre.worker("--processes", "1").wait_until_up(3)
    job = tasks.run_then_sleep.enqueue(theatre.stage.book, "slow", 1.0)
    eventually(lambda: theatre.stage.runs()["slow"])  # begun: what is only claimed is handed back
    worker.term()
    assert worker.wait() == 0, worker.output
    assert theatre.record(job.id).status == "completed"
    theatre.is_complete()


@on_sqlite
def test_a_killed_bridge_is_replaced(theatre: Theatre) -> None:
    worker = theatre.worker("--processes", "1").wait_until_up(3)
    eventually(theatre.is_heard)
    before = set(worker.children)
    for pid in worker.children[-1:]:  # the last that was forked
        subprocess.run(["kill", "-9", str(pid)], check=True)
    eventually(lambda: set(worker.children) - before, why=lambda: worker.output)
    theatre.live(50)
    theatre.until_mirrored(30)


KILLED_BEFORE_COMMIT = """
import os, signal
from django.core.management import call_command
from django_redisqueue.mirror import tally
tally.Tally.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
call_command("bridgeevents", "--once")
"""


def test_killed_between_write_and_commit(theatre: Theatre) -> None:
    theatre.live(100, "before")
    assert theatre.ended(theatre.once())[0] == 0
    theatre.live(1000)
    code, said = theatre.ended(theatre.program(KILLED_BEFORE_COMMIT))
    assert code == -signal.SIGKILL, said
    assert theatre.rows() == 300
    assert theatre.ended(theatre.once()) == (0, ANY)
    assert theatre.rows() == 3300
    theatre.is_complete()


def test_two_bridges_at_once(theatre: Theatre) -> None:
    theatre.live(4000)
    bridges = [theatre.once() for _ in range(2)]
    ends = [theatre.ended(bridge) for bridge in bridges]
    assert [code for code, _ in ends] == [0, 0], ends
    assert sum(int(said.split()[0]) for _, said in ends) == 12_000, ends
    theatre.is_complete()


@on_sqlite
def test_once_says_why_it_can_not(theatre: Theatre) -> None:
    theatre.stage.configure(MIRROR=False)
    _, said = theatre.ended(theatre.once())
    assert 'REDISQUEUE["MIRROR"] is False' in said
    assert "set it to True" in said


@on_sqlite
def test_redis_is_restarted_under_it(theatre: Theatre) -> None:
    bridge = theatre.bridge_process()
    theatre.live(100, "before")
    theatre.until_mirrored()
    theatre.stage.server.kill()
    eventually(lambda: "trying again until it goes" in bridge.output, why=lambda: bridge.output)
    theatre.stage.server.start()
    theatre.lab.link.close()
    theatre.live(100, "after")
    theatre.until_mirrored()
    said = [line for line in bridge.output.splitlines() if "trying again until it goes" in line]
    assert len(said) == len(set(said)) <= 2  # once a problem: cut off, and then refused
    eventually(lambda: "goes on after" in bridge.output, why=lambda: bridge.output)
    bridge.term()
    assert bridge.wait() == 0


@on_sqlite
def test_a_lost_subscription_is_made_again(theatre: Theatre) -> None:
    theatre.bridge_process()
    for n in range(3):
        theatre.lab.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        eventually(theatre.is_heard)
        theatre.live(5, f"n{n}_")
        theatre.until_mirrored(5)


@on_sqlite
def test_cut_off_for_reading_too_slowly(theatre: Theatre) -> None:
    """The buffer of a subscriber that does not read overflows, and Redis drops it."""
    theatre.lab.redis.config_set("client-output-buffer-limit", "pubsub 32kb 32kb 1")
    bridge = theatre.bridge_process()
    bridge.process.send_signal(signal.SIGSTOP)
    ids = theatre.live(3000)
    assert not theatre.is_heard()
    bridge.process.send_signal(signal.SIGCONT)
    theatre.until_mirrored()
    assert JobRecord.objects.count() == len(ids)
    eventually(theatre.is_heard)


@on_postgresql
def test_the_database_is_away_for_a_while(theatre: Theatre) -> None:
    bridge = theatre.bridge_process()
    theatre.live(10, "before")
    theatre.until_mirrored()
    with database_away(theatre):
        theatre.live(10, "meanwhile")
        eventually(
            lambda: "trying again until it goes" in bridge.output, 30, why=bridge.log.read_text
        )
    theatre.until_mirrored()
    assert bridge.process.poll() is None
    assert bridge.output.count("trying again until it goes") <= 2


@on_sqlite
def test_unapplied_migrations_are_waited_for(theatre: Theatre) -> None:
    migrate(theatre, "zero")
    bridge = theatre.worker(command="bridgeevents")
    ids = theatre.live(20)
    eventually(lambda: "run: manage.py migrate" in bridge.output, why=lambda: bridge.output)
    assert "lacks migrations of django_redisqueue (0001_initial" in bridge.output
    holds_for(lambda: bridge.process.poll() is None, 1.5)
    assert bridge.output.count("run: manage.py migrate") == 1
    migrate(theatre)
    theatre.until_mirrored()
    assert JobRecord.objects.count() == len(ids)


@pytest.mark.slow
@on_sqlite
def test_another_follows_a_dead_bridge(theatre: Theatre) -> None:
    first = theatre.bridge_process()
    theatre.worker(command="bridgeevents")
    first.kill()
    begun = time.monotonic()
    theatre.live(10)
    theatre.until_mirrored(25)
    assert time.monotonic() - begun < 21


@pytest.mark.slow
def test_a_burst_of_300_000_events(theatre: Theatre) -> None:
    """Written faster than they are mirrored."""
    bridge = theatre.bridge_process()
    theatre.live(100_000)
    assert theatre.rows() < 300_000
    theatre.until_at_the_end(120)
    check_events(theatre.lab)
    assert theatre.rows() == 300_000
    statuses = JobRecord.objects.values_list("status").annotate(Count("pk")).order_by("status")
    assert list(statuses) == [("completed", 90_000), ("failed", 10_000)]
    assert "trying again" not in bridge.output
