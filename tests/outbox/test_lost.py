"""Real processes: what a producer could not send is sent by a worker's maintenance."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import transaction
from django.utils import timezone

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.core.ports import ports
from django_redisqueue.models import OutboxJob
from django_redisqueue.outbox.rows import to_new_job
from tests.app.models import Counter
from tests.gauntlet.clock import MovedClock, missing
from tests.worker import tasks
from tests.worker.processes import eventually, holds_for

from .conftest import OutboxHarness

DIE_BEFORE_SENDING = """
from django.db import transaction
from django_redisqueue.client.transport import RedisTransport
from tests.worker.tasks import run
RedisTransport.enqueue = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def run_and_die_before_sending(outbox_harness: OutboxHarness, work: str) -> None:
    """A producer that is killed when its jobs have committed, and Redis has none of them."""
    outbox_harness.run(DIE_BEFORE_SENDING + work, kill=signal.SIGKILL, OUTBOX=True)


def test_a_producer_killed_between_commit_and_relay(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    run_and_die_before_sending(
        outbox_harness,
        f"""
with transaction.atomic():
    bump("work")
    run.enqueue({harness.book!r}, "one")
    run.enqueue_many([({harness.book!r}, "two"), ({harness.book!r}, "three")])
""",
    )
    assert Counter.objects.get(name="work").value == 1
    assert OutboxJob.objects.count() == 3
    assert harness.stats()["queued"] == 0
    harness.worker("--processes", "1")
    harness.until_done(3)
    eventually(lambda: not OutboxJob.objects.exists(), why=harness.report)
    holds_for(lambda: harness.runs() == {"one": 1, "two": 1, "three": 1}, 1)


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_worker_with_a_wrong_clock_sends_waiting_jobs_and_runs_them_in_time(
    outbox_harness: OutboxHarness, tmp_path: Path, hours: int
) -> None:
    harness, clock = outbox_harness.harness, MovedClock(tmp_path)
    clock.jump(hours * 3600)
    run_and_die_before_sending(
        outbox_harness, f"with transaction.atomic(): run.enqueue({harness.book!r}, 'left')"
    )
    early = tasks.run.using(run_after=3600).enqueue(harness.book, "early")
    tasks.run.using(run_after=1).enqueue(harness.book, "late")
    harness.environment.update(clock.environment)
    worker = harness.worker("--processes", "1", fresh=True)
    eventually(lambda: harness.runs() == {"left": 1, "late": 1}, why=harness.report)
    assert clock.moves(worker.pid)
    early.refresh()
    assert early.status == "scheduled"


def leave_in_the_outbox(outbox_harness: OutboxHarness, names: str) -> None:
    """Rows that are old enough for the relay."""
    run_and_die_before_sending(
        outbox_harness,
        f"""
with transaction.atomic():
    run.enqueue_many([({outbox_harness.harness.book!r}, name) for name in {names!r}])
""",
    )
    OutboxJob.objects.update(created_at=timezone.now() - timedelta(minutes=1))


def test_a_burst_runs_the_jobs_in_the_outbox(outbox_harness: OutboxHarness) -> None:
    """Its children end when their queues are empty, and the relay's first pass may come later."""
    leave_in_the_outbox(outbox_harness, "abc")
    assert outbox_harness.harness.worker("--processes", "1", "--burst").wait() == 0
    assert outbox_harness.harness.runs() == {"a": 1, "b": 1, "c": 1}


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_a_burst_waits_while_redis_cannot_save_the_jobs_of_the_outbox(
    outbox_harness: OutboxHarness,
) -> None:
    harness = outbox_harness.harness
    # it leaves data for later ones
    assert harness.worker("--processes", "1", "--burst").wait() == 0
    leave_in_the_outbox(outbox_harness, "abc")
    with harness.server.save_failing():
        burst = harness.worker("--processes", "1", "--burst")
        eventually(lambda: "refuses writes; look at its log" in burst.output, why=harness.report)
        holds_for(lambda: burst.process.poll() is None, 0.5)
    assert burst.wait() == 0, burst.output
    assert harness.runs() == {"a": 1, "b": 1, "c": 1}


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_a_burst_reports_that_a_full_redis_refused_the_jobs_of_the_outbox(
    outbox_harness: OutboxHarness,
) -> None:
    """It runs the jobs that Redis has, which frees memory."""
    harness = outbox_harness.harness
    assert harness.worker("--processes", "1", "--burst").wait() == 0
    tasks.run.enqueue(harness.book, "before")
    leave_in_the_outbox(outbox_harness, "abc")
    harness.redis.config_set("maxmemory", 1)
    burst = harness.worker("--processes", "1", "--burst")
    assert burst.wait() == 1, burst.output
    assert "jobs of the outbox could not be sent before the burst" in burst.output
    assert "Traceback" not in burst.output
    assert harness.runs() == {"before": 1}
    assert OutboxJob.objects.count() == 3
    harness.redis.config_set("maxmemory", 0)
    assert harness.worker("--processes", "1", "--burst").wait() == 0
    assert harness.runs() == {"before": 1, "a": 1, "b": 1, "c": 1}


def test_a_producer_killed_before_its_commit_leaves_nothing(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    outbox_harness.run(
        f"""
from django.db import transaction
from tests.worker.tasks import run
with transaction.atomic():
    bump("work")
    run.enqueue({harness.book!r}, "never")
    os.kill(os.getpid(), signal.SIGKILL)
""",
        kill=signal.SIGKILL,
        OUTBOX=True,
    )
    assert not OutboxJob.objects.exists()
    assert not Counter.objects.exists()
    assert harness.stats()["queued"] == 0


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_a_job_that_leaves_the_outbox_between_two_reads_is_found(
    outbox_harness: OutboxHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis does not have the job yet, and the database no longer does."""
    look = ports.archive
    assert look is not None
    outbox_harness.harness.configure(OUTBOX=True)
    outbox_harness.harness.server.stop()
    with transaction.atomic():
        job = tasks.run.enqueue(outbox_harness.harness.book, "late")
    outbox_harness.harness.server.start()

    def relayed_meanwhile(job_id: str, *, in_outbox: bool) -> object:
        row = OutboxJob.objects.get(pk=job_id)
        store = Commands(producer_connection(shard_of_id(job.id)))
        assert store.enqueue([to_new_job(row)]) == [True]
        row.delete()
        return look(job_id, in_outbox=in_outbox)

    monkeypatch.setattr(ports, "archive", relayed_meanwhile)
    job.refresh()
    assert job.status == "queued"


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
@pytest.mark.parametrize("outbox", [True, False])
def test_redis_down_for_the_whole_request(outbox_harness: OutboxHarness, outbox: bool) -> None:
    harness = outbox_harness.harness
    harness.configure(OUTBOX=outbox)
    harness.server.stop()
    with transaction.atomic():
        Counter.objects.create(name="work")
        job = tasks.run.enqueue(harness.book, "late")
    assert OutboxJob.objects.count() == 1
    worker = harness.worker("--processes", "1")
    eventually(lambda: "does not answer" in worker.output, why=harness.report)
    harness.server.start()
    harness.ended(job)
    assert job.result == 1
    eventually(lambda: not OutboxJob.objects.exists(), why=harness.report)


def test_two_databases_and_a_producer_killed_between_their_commits(
    outbox_harness: OutboxHarness,
) -> None:
    harness = outbox_harness.harness
    outbox_harness.run(
        f"""
from django.db import transaction
from tests.worker.tasks import run
with transaction.atomic(using="other"):
    Counter.objects.using("other").create(name="inner, and rolled back by the crash")
    with transaction.atomic():
        bump("outer, and committed")
        run.enqueue({harness.book!r}, "half")
    os.kill(os.getpid(), signal.SIGKILL)
""",
        kill=signal.SIGKILL,
        OUTBOX=True,
    )
    run_and_die_before_sending(
        outbox_harness,
        f"""
with transaction.atomic(using="other"), transaction.atomic():
    run.enqueue({harness.book!r}, "whole")
""",
    )
    assert not Counter.objects.using("other").exists()
    assert Counter.objects.exists()
    harness.worker("--processes", "1")
    harness.until_done(1)
    holds_for(lambda: harness.runs() == {"whole": 1}, 1)


def test_with_the_mirror_the_row_is_deleted_once_the_job_is_mirrored(
    outbox_harness: OutboxHarness,
) -> None:
    harness = outbox_harness.harness
    harness.configure(OUTBOX=True, MIRROR=True)
    with transaction.atomic():
        tasks.run.enqueue(harness.book, "mirrored")
    assert OutboxJob.objects.count() == 1
    harness.worker("--processes", "1")
    harness.until_done(1)
    eventually(lambda: not OutboxJob.objects.exists(), why=harness.report)
    assert harness.runs() == {"mirrored": 1}
