"""Processes that die: their jobs are recovered, and only the job that ran is blamed."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from django_redisqueue import Job, JobQueue
from django_redisqueue.broker import sums
from django_redisqueue.broker.shards import AllShards
from django_redisqueue.worker.supervisor.supervisor import EXIT_DONE, EXIT_QUEUES_EMPTY
from tests.support.shards import keys_of
from tests.support.stopwatch import Stopwatch
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import WorkerProcess, eventually, is_alive


def test_a_job_whose_child_is_killed_runs_again_within_a_second(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.run_then_sleep.enqueue(harness.book, "slow", 60)
    eventually(lambda: harness.runs()["slow"], why=harness.report)
    os.kill(harness.pid("slow"), signal.SIGKILL)
    watch = Stopwatch()
    eventually(lambda: harness.runs()["slow"] == 2, 5, every=0.005, why=harness.report)
    assert watch.seconds < 1
    job.refresh()
    assert (job.recoveries, job.attempts) == (1, 0)
    assert harness.pid("slow", 2) in worker.children
    # It is logged once Redis has answered, when the job may already be running.
    eventually(
        lambda: f"job {job.id} of a dead child: recovered" in worker.output, why=harness.report
    )


@pytest.mark.one_shard("several shards are waited for first, and then asked")
@pytest.mark.one_server("it asks the server for its clients")
def test_a_job_claimed_for_a_child_that_dies_is_released(harness: WorkerHarness) -> None:
    """An idle child's claim waits in Redis, and runs even if no one can read its reply."""
    harness.worker("--processes", "1").wait_until_up(2)
    tasks.run.enqueue(harness.book, "first")
    harness.until_done(1)
    child = harness.pid("first")
    eventually(lambda: a_claim_waits(harness), why=harness.report)
    os.kill(child, signal.SIGSTOP)
    job = tasks.run.enqueue(harness.book, "given")
    assert job.status == "processing"
    os.kill(child, signal.SIGKILL)
    harness.until_done(2)
    assert harness.runs() == {"first": 1, "given": 1}
    assert harness.pid("given") != child
    job.refresh()
    assert (job.recoveries, job.attempts) == (0, 0)
    assert harness.count("released_total") == 1


def a_claim_waits(harness: WorkerHarness) -> bool:
    """Whether Redis has received another call after a blocking pop. Servers that parse ahead do not
    show it in the query buffer, but they received both calls together."""
    clients = harness.redis.client_list()
    return any(one["cmd"] == "blpop" and (int(one["qbuf"]) or "tot-cmds" in one) for one in clients)


def test_in_a_batch_only_the_job_that_crashed_is_recovered(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    warm = harness.warm_up()
    queue = JobQueue("default")
    queue.pause()
    before = [(harness.book, f"before{n}") for n in range(20)]
    behind = [(harness.book, f"behind{n}") for n in range(43)]
    jobs = tasks.run.enqueue_many(before)
    bad = tasks.run_then_exit.enqueue(harness.book, "bad")
    jobs += tasks.run.enqueue_many(behind)
    queue.resume()
    harness.until_done(warm + 63, failed=1)
    assert harness.runs() == {**dict.fromkeys([name for _, name in before + behind], 1), "bad": 3}
    for job in jobs:
        job.refresh()
        assert (job.recoveries, job.attempts) == (0, 0)
    bad.refresh()
    assert bad.recoveries == 3
    assert harness.count("recovered_total") == 2
    # They were in one batch; the jobs that had not started were released.
    assert harness.count("released_total") > 0


def test_a_job_that_kills_its_process_fails_as_poison_and_others_continue(
    harness: WorkerHarness,
) -> None:
    harness.worker("--processes", "2").wait_until_up(3)
    poison = [tasks.run_then_exit.enqueue(harness.book, f"poison{n}") for n in range(3)]
    good = tasks.run.enqueue_many([(harness.book, f"good{n}") for n in range(200)])
    watch = Stopwatch()
    harness.until_done(200, failed=3)
    assert watch.seconds < 5
    assert harness.statuses(good) == {"completed": 200}
    for n, job in enumerate(poison):
        job.refresh()
        assert (job.status, job.recoveries) == ("failed", 3)
        assert job.error is not None
        assert "the worker process died 3 times" in job.error.message
        assert harness.runs()[f"poison{n}"] == 3
        assert job.attempts == 3
    assert all(harness.runs()[f"good{n}"] == 1 for n in range(200))
    # maintenance does not count
    eventually(lambda: sums.fleet(AllShards(), 9).alive == 2, why=harness.report)


@pytest.mark.parametrize("code", [EXIT_DONE, EXIT_QUEUES_EMPTY])
def test_a_job_that_exits_with_the_code_of_a_normal_end_is_also_poison(
    harness: WorkerHarness, code: int
) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    bad = harness.ended(tasks.run_then_exit_in_order.enqueue(harness.book, "bad", code))
    assert (bad.status, bad.recoveries, harness.runs()["bad"]) == ("failed", 3, 3)
    assert worker.output.count(f"died (exit code {code})") == 3
    harness.ended(tasks.run.enqueue(harness.book, "good"))


def _kill_a_worker_that_runs(harness: WorkerHarness, within: float) -> None:
    dead = harness.worker("--processes", "2").wait_until_up(3)
    job = tasks.run_then_sleep.enqueue(harness.book, "slow", 60)
    eventually(lambda: harness.runs()["slow"], why=harness.report)
    # The second worker assumes that it ran on another machine, so it must wait for the lease.
    second = harness.worker("--processes", "1").wait_until_up(2)
    eventually(lambda: len(harness.redis.zrange(keys_of().workers, 0, -1)) == 5)
    orphans = [psutil.Process(pid) for pid in dead.children]
    dead.kill()
    watch = Stopwatch()
    eventually(lambda: not any(is_alive(orphan) for orphan in orphans), 1)
    eventually(lambda: harness.runs()["slow"] == 2, within, why=harness.report)
    assert watch.seconds < within
    assert harness.pid("slow", 2) in second.children
    job.refresh()
    assert (job.recoveries, job.attempts) == (1, 0)


def test_the_children_of_a_killed_supervisor_end_and_its_jobs_are_recovered(
    harness: WorkerHarness,
) -> None:
    _kill_a_worker_that_runs(harness, within=1.5 + 0.4 + 0.6)


@pytest.mark.slow
def test_with_the_default_lease_recovery_takes_less_than_20_s(harness: WorkerHarness) -> None:
    harness.configure(LEASE=15, HEARTBEAT=4)
    _kill_a_worker_that_runs(harness, within=20)


def _stopped_past_its_lease(harness: WorkerHarness, seconds: float) -> tuple[WorkerProcess, Job]:
    """A worker that was stopped in the first run of a job, which another worker has completed
    since."""
    frozen = harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.slow_at_first.enqueue(harness.book, "slow", seconds)
    eventually(lambda: harness.runs()["slow"], why=harness.report)
    harness.pid("slow")  # it has written its pid, too
    frozen.stop()
    other = harness.worker("--processes", "1")
    harness.ended(job)
    other.term()
    other.wait()
    return frozen, job


def _assert_it_works_again(harness: WorkerHarness, frozen: WorkerProcess, job: Job) -> None:
    """The other worker's run counts, and the stopped worker continues, in the same child."""
    job.refresh()
    assert (job.result, job.recoveries) == (2, 1)
    assert harness.stats()["completed"] == 1
    assert harness.count("completed_total") == 1
    more = tasks.run.enqueue_many([(harness.book, f"more{n}") for n in range(50)])
    harness.until_done(51)
    assert harness.statuses(more) == {"completed": 50}
    assert {harness.pid(f"more{n}") for n in range(50)} == {harness.pid("slow")}
    assert harness.pid("slow") in frozen.children


def test_a_report_after_the_lease_has_expired_is_refused(harness: WorkerHarness) -> None:
    frozen, job = _stopped_past_its_lease(harness, 0.5)
    os.kill(harness.pid("slow"), signal.SIGCONT)  # its supervisor cannot warn it
    eventually(lambda: "refused, its lease 1 is lost" in frozen.output, why=harness.report)
    frozen.cont()
    _assert_it_works_again(harness, frozen, job)


def test_a_run_whose_lease_has_expired_is_interrupted(harness: WorkerHarness) -> None:
    frozen, job = _stopped_past_its_lease(harness, 60)
    frozen.cont()
    eventually(lambda: f"job {job.id}: its lease 1 is lost" in frozen.output, why=harness.report)
    _assert_it_works_again(harness, frozen, job)


def test_a_killed_maintenance_child_is_replaced(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    eventually(lambda: harness.redis.hget(keys_of().meta, "leader"), why=harness.report)
    leader = worker.children[-1]
    os.kill(leader, signal.SIGKILL)
    eventually(lambda: len(worker.children) == 2 and leader not in worker.children, 3)
    job = tasks.run.using(run_after=0.3).enqueue(harness.book, "later")
    harness.ended(job, 5)


def test_a_child_that_cannot_start_is_not_respawned_in_a_tight_loop(harness: WorkerHarness) -> None:
    harness.alter("broken_children")
    worker = harness.worker("--processes", "1")
    eventually(lambda: worker.output.count("died (exit code") >= 6, why=harness.report)
    watch = Stopwatch()
    eventually(lambda: worker.output.count("died (exit code") >= 10, 20)
    assert watch.elapsed > 1
    worker.term()
    worker.wait(5)
