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
from tests.worker.processes import WorkerProcess, eventually, is_alive
from tests.worker.stage import Stage


def test_a_job_whose_child_is_killed_runs_again_within_a_second(stage: Stage) -> None:
    worker = stage.worker("--processes", "1").wait_until_up(2)
    job = tasks.run_then_sleep.enqueue(stage.book, "slow", 60)
    eventually(lambda: stage.runs()["slow"], why=stage.report)
    os.kill(stage.pid("slow"), signal.SIGKILL)
    watch = Stopwatch()
    eventually(lambda: stage.runs()["slow"] == 2, 5, every=0.005, why=stage.report)
    assert watch.seconds < 1
    job.refresh()
    assert (job.recoveries, job.attempts) == (1, 0)
    assert stage.pid("slow", 2) in worker.children
    # It is logged once Redis has answered, when the job may already be running.
    eventually(
        lambda: f"job {job.id} of a dead child: recovered" in worker.output, why=stage.report
    )


@pytest.mark.one_shard("several shards are waited for first, and then asked")
@pytest.mark.one_server("it asks the server for its clients")
def test_a_job_claimed_for_a_child_that_dies_is_released(stage: Stage) -> None:
    """An idle child's claim waits in Redis, and runs even if no one can read its reply."""
    stage.worker("--processes", "1").wait_until_up(2)
    tasks.run.enqueue(stage.book, "first")
    stage.until_done(1)
    child = stage.pid("first")
    eventually(lambda: a_claim_waits(stage), why=stage.report)
    os.kill(child, signal.SIGSTOP)
    job = tasks.run.enqueue(stage.book, "given")
    assert job.status == "processing"
    os.kill(child, signal.SIGKILL)
    stage.until_done(2)
    assert stage.runs() == {"first": 1, "given": 1}
    assert stage.pid("given") != child
    job.refresh()
    assert (job.recoveries, job.attempts) == (0, 0)
    assert stage.count("released_total") == 1


def a_claim_waits(stage: Stage) -> bool:
    """Whether Redis has received another call after a blocking pop. Servers that parse ahead do not
    show it in the query buffer, but they received both calls together."""
    clients = stage.redis.client_list()
    return any(one["cmd"] == "blpop" and (int(one["qbuf"]) or "tot-cmds" in one) for one in clients)


def test_in_a_batch_only_the_job_that_crashed_is_recovered(stage: Stage) -> None:
    stage.worker("--processes", "1").wait_until_up(2)
    warm = stage.warm_up()
    queue = JobQueue("default")
    queue.pause()
    before = [(stage.book, f"before{n}") for n in range(20)]
    behind = [(stage.book, f"behind{n}") for n in range(43)]
    jobs = tasks.run.enqueue_many(before)
    bad = tasks.run_then_exit.enqueue(stage.book, "bad")
    jobs += tasks.run.enqueue_many(behind)
    queue.resume()
    stage.until_done(warm + 63, failed=1)
    assert stage.runs() == {**dict.fromkeys([name for _, name in before + behind], 1), "bad": 3}
    for job in jobs:
        job.refresh()
        assert (job.recoveries, job.attempts) == (0, 0)
    bad.refresh()
    assert bad.recoveries == 3
    assert stage.count("recovered_total") == 2
    # They were in one batch; the jobs that had not started were released.
    assert stage.count("released_total") > 0


def test_a_job_that_kills_its_process_fails_as_poison_and_others_continue(stage: Stage) -> None:
    stage.worker("--processes", "2").wait_until_up(3)
    poison = [tasks.run_then_exit.enqueue(stage.book, f"poison{n}") for n in range(3)]
    good = tasks.run.enqueue_many([(stage.book, f"good{n}") for n in range(200)])
    watch = Stopwatch()
    stage.until_done(200, failed=3)
    assert watch.seconds < 5
    assert stage.statuses(good) == {"completed": 200}
    for n, job in enumerate(poison):
        job.refresh()
        assert (job.status, job.recoveries) == ("failed", 3)
        assert job.error is not None
        assert "the worker process died 3 times" in job.error.message
        assert stage.runs()[f"poison{n}"] == 3
        assert job.attempts == 3
    assert all(stage.runs()[f"good{n}"] == 1 for n in range(200))
    # maintenance does not count
    eventually(lambda: sums.fleet(AllShards(), 9).alive == 2, why=stage.report)


@pytest.mark.parametrize("code", [EXIT_DONE, EXIT_QUEUES_EMPTY])
def test_a_job_that_exits_with_the_code_of_a_normal_end_is_also_poison(
    stage: Stage, code: int
) -> None:
    worker = stage.worker("--processes", "1").wait_until_up(2)
    bad = stage.ended(tasks.run_then_exit_in_order.enqueue(stage.book, "bad", code))
    assert (bad.status, bad.recoveries, stage.runs()["bad"]) == ("failed", 3, 3)
    assert worker.output.count(f"died (exit code {code})") == 3
    stage.ended(tasks.run.enqueue(stage.book, "good"))


def _kill_a_worker_that_runs(stage: Stage, within: float) -> None:
    dead = stage.worker("--processes", "2").wait_until_up(3)
    job = tasks.run_then_sleep.enqueue(stage.book, "slow", 60)
    eventually(lambda: stage.runs()["slow"], why=stage.report)
    # The second worker assumes that it ran on another machine, so it must wait for the lease.
    second = stage.worker("--processes", "1").wait_until_up(2)
    eventually(lambda: len(stage.redis.zrange(keys_of().workers, 0, -1)) == 5)
    orphans = [psutil.Process(pid) for pid in dead.children]
    dead.kill()
    watch = Stopwatch()
    eventually(lambda: not any(is_alive(orphan) for orphan in orphans), 1)
    eventually(lambda: stage.runs()["slow"] == 2, within, why=stage.report)
    assert watch.seconds < within
    assert stage.pid("slow", 2) in second.children
    job.refresh()
    assert (job.recoveries, job.attempts) == (1, 0)


def test_the_children_of_a_killed_supervisor_end_and_its_jobs_are_recovered(stage: Stage) -> None:
    _kill_a_worker_that_runs(stage, within=1.5 + 0.4 + 0.6)


@pytest.mark.slow
def test_with_the_default_lease_recovery_takes_less_than_20_s(stage: Stage) -> None:
    stage.configure(LEASE=15, HEARTBEAT=4)
    _kill_a_worker_that_runs(stage, within=20)


def _stopped_past_its_lease(stage: Stage, seconds: float) -> tuple[WorkerProcess, Job]:
    """A worker that was stopped in the first run of a job, which another worker has completed
    since."""
    frozen = stage.worker("--processes", "1").wait_until_up(2)
    job = tasks.slow_at_first.enqueue(stage.book, "slow", seconds)
    eventually(lambda: stage.runs()["slow"], why=stage.report)
    stage.pid("slow")  # it has written its pid, too
    frozen.stop()
    other = stage.worker("--processes", "1")
    stage.ended(job)
    other.term()
    other.wait()
    return frozen, job


def _assert_it_works_again(stage: Stage, frozen: WorkerProcess, job: Job) -> None:
    """The other worker's run counts, and the stopped worker continues, in the same child."""
    job.refresh()
    assert (job.result, job.recoveries) == (2, 1)
    assert stage.stats()["completed"] == 1
    assert stage.count("completed_total") == 1
    more = tasks.run.enqueue_many([(stage.book, f"more{n}") for n in range(50)])
    stage.until_done(51)
    assert stage.statuses(more) == {"completed": 50}
    assert {stage.pid(f"more{n}") for n in range(50)} == {stage.pid("slow")}
    assert stage.pid("slow") in frozen.children


def test_a_report_after_the_lease_has_expired_is_refused(stage: Stage) -> None:
    frozen, job = _stopped_past_its_lease(stage, 0.5)
    os.kill(stage.pid("slow"), signal.SIGCONT)  # its supervisor cannot warn it
    eventually(lambda: "refused, its lease 1 is lost" in frozen.output, why=stage.report)
    frozen.cont()
    _assert_it_works_again(stage, frozen, job)


def test_a_run_whose_lease_has_expired_is_interrupted(stage: Stage) -> None:
    frozen, job = _stopped_past_its_lease(stage, 60)
    frozen.cont()
    eventually(lambda: f"job {job.id}: its lease 1 is lost" in frozen.output, why=stage.report)
    _assert_it_works_again(stage, frozen, job)


def test_a_killed_maintenance_child_is_replaced(stage: Stage) -> None:
    worker = stage.worker("--processes", "1").wait_until_up(2)
    eventually(lambda: stage.redis.hget(keys_of().meta, "leader"), why=stage.report)
    leader = worker.children[-1]
    os.kill(leader, signal.SIGKILL)
    eventually(lambda: len(worker.children) == 2 and leader not in worker.children, 3)
    job = tasks.run.using(run_after=0.3).enqueue(stage.book, "later")
    stage.ended(job, 5)


def test_a_child_that_cannot_start_is_not_respawned_in_a_tight_loop(stage: Stage) -> None:
    stage.alter("broken_children")
    worker = stage.worker("--processes", "1")
    eventually(lambda: worker.output.count("died (exit code") >= 6, why=stage.report)
    watch = Stopwatch()
    eventually(lambda: worker.output.count("died (exit code") >= 10, 20)
    assert watch.elapsed > 1
    worker.term()
    worker.wait(5)
