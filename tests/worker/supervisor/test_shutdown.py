"""Workers stop, follow orders and recycle children without losing a job or spending an attempt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from django_redisqueue import Job
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.records import WorkerOrder, WorkerReport, parse_report
from tests.app import tasks as app_tasks
from tests.support.commands import ROOT
from tests.support.proxy import Proxy
from tests.support.shards import all_keys, shard_of
from tests.support.stopwatch import Stopwatch
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually, is_alive


def test_sigterm_lets_the_running_job_finish(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    gate = harness.gate()
    running = tasks.run_until_gate_opens.enqueue(harness.book, "running", gate)
    eventually(lambda: harness.runs()["running"])
    waiting = tasks.run.enqueue(harness.book, "waiting")
    worker.term()
    # Maintenance has been told to stop, and so has the child.
    eventually(lambda: len(worker.children) == 1, why=harness.report)
    harness.open_gate(gate)
    assert worker.wait() == 0
    running.refresh()
    waiting.refresh()
    assert (running.status, waiting.status) == ("completed", "queued")
    assert not any(harness.redis.zcard(keys.workers) for keys in all_keys())
    assert "SIGTERM: finishing running jobs" in worker.output
    assert "worker stopped" in worker.output


def test_a_job_that_has_blocked_all_signals_does_not_hold_up_the_stop(
    harness: WorkerHarness,
) -> None:
    worker = harness.worker("--processes", "1", "--grace", "60").wait_until_up(2)
    harness.ended(tasks.block_signals.enqueue())
    worker.term()
    assert worker.wait() == 0


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_jobs_claimed_as_the_worker_stops_do_not_start(
    harness: WorkerHarness, fresh_proxy: Callable[..., Proxy]
) -> None:
    harness.configure(LEASE=30)
    proxy = fresh_proxy(harness.server.address)
    worker = harness.worker("--processes", "1", address=proxy.address).wait_until_up(2)
    harness.ended(tasks.run.enqueue(harness.book, "before"))
    proxy.delay_ms = 500
    job = tasks.run_then_sleep.enqueue(harness.book, "slow", 60)
    # the reply to the claim is on its way, and must not overtake the order to stop
    eventually(lambda: harness.stats()["processing"], why=harness.report)
    worker.term()
    eventually(lambda: "finishing running jobs" in worker.output, why=harness.report)
    proxy.delay_ms = 0
    assert worker.wait() == 0
    assert harness.runs() == {"before": 1}
    job.refresh()
    assert (job.status, job.attempts, job.recoveries) == ("queued", 0, 0)


@pytest.mark.parametrize("how", ["grace", "second signal"])
def test_jobs_that_exceed_the_grace_period_are_released(harness: WorkerHarness, how: str) -> None:
    grace = "0.5" if how == "grace" else "60"
    worker = harness.worker("--processes", "2", "--grace", grace).wait_until_up(3)
    jobs = tasks.run_then_sleep.enqueue_many([(harness.book, f"long{n}", 60) for n in range(2)])
    eventually(lambda: len(harness.runs()) == 2)
    tree = worker.tree()
    watch = Stopwatch()
    worker.term()
    if how == "second signal":
        eventually(lambda: "finishing running jobs" in worker.output)
        worker.term()
    assert worker.wait() == 0
    assert watch.seconds < 2.5
    assert not any(is_alive(process) for process in tree)
    for job in jobs:
        job.refresh()
        assert (job.status, job.attempts, job.recoveries) == ("queued", 0, 0)
    harness.worker("--processes", "2")
    eventually(lambda: harness.runs() == {"long0": 2, "long1": 2}, why=harness.report)


def test_ctrl_c_reaches_all_processes_and_counts_once(harness: WorkerHarness) -> None:
    """A terminal sends SIGINT to the whole group; the children ignore it."""
    worker = harness.worker("--processes", "2").wait_until_up(3)
    gate = harness.gate()
    job = tasks.run_until_gate_opens.enqueue(harness.book, "running", gate)
    eventually(lambda: harness.runs()["running"])
    worker.interrupt_group()
    eventually(lambda: "finishing running jobs" in worker.output, why=harness.report)
    harness.open_gate(gate)
    assert worker.wait() == 0
    job.refresh()
    assert (job.status, job.attempts, job.recoveries) == ("completed", 0, 0)
    assert "Traceback" not in worker.output


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP has its default action, even if the suite runs under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_a_closed_terminal_lets_the_running_job_finish(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    gate = harness.gate()
    job = tasks.run_until_gate_opens.enqueue(harness.book, "running", gate)
    eventually(lambda: harness.runs()["running"])
    os.killpg(worker.pid, signal.SIGHUP)
    eventually(lambda: "SIGHUP: finishing running jobs" in worker.output, why=harness.report)
    harness.open_gate(gate)
    assert worker.wait() == 0
    job.refresh()
    assert (job.status, job.recoveries) == ("completed", 0)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize(
    ("number", "option"), [(signal.SIGHUP, "--autoreload"), (signal.SIGKILL, "--autorel")]
)
def test_autoreload_leaves_no_worker_behind(
    harness: WorkerHarness, number: int, option: str
) -> None:
    worker = harness.worker("--processes", "1", option, fresh=True)
    job = tasks.run_then_sleep.enqueue(harness.book, "running", 0.5)
    eventually(lambda: harness.runs()["running"], why=harness.report)
    left = worker.tree()
    worker.process.send_signal(number)
    eventually(lambda: not any(is_alive(process) for process in left), why=harness.report)
    job.refresh()
    assert (job.status, job.recoveries) == ("completed", 0)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_an_autoreloading_worker_at_once(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1", "--autoreload", "--grace", "60", fresh=True)
    tasks.run_then_sleep.enqueue(harness.book, "running", 60)
    eventually(lambda: harness.runs()["running"], why=harness.report)
    worker.process.send_signal(signal.SIGINT)
    eventually(lambda: "finishing running jobs" in worker.output, why=harness.report)
    worker.process.send_signal(signal.SIGINT)
    worker.wait(10)
    assert "again: stopping now" in worker.output


@pytest.mark.parametrize("after", [0.0, 0.05, 0.1])
def test_sigterm_at_any_moment_of_the_start_ends_in_order(
    harness: WorkerHarness, after: float
) -> None:
    worker = harness.worker("--processes", "3")
    eventually(lambda: "Stop with Ctrl-C" in worker.output, every=0.001)
    time.sleep(after)  # the signal arrives at this point of the start
    worker.term()
    assert worker.wait(10) in (0, -15)  # -15: no handler was installed yet
    assert "Traceback" not in worker.output
    assert "died" not in worker.output


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_a_worker_without_redis_stops_at_once(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1", "--grace", "60").wait_until_up(2)
    harness.server.kill()
    eventually(lambda: "trying again until it answers" in worker.output, 8, why=harness.report)
    worker.term()
    worker.wait(9)
    harness.server.start()


def test_rolling_restarts_under_load_spend_no_attempt(harness: WorkerHarness) -> None:
    workers = [harness.worker("--processes", "2").wait_until_up(3) for _ in range(2)]
    jobs = []
    for n in range(4):
        jobs += tasks.run.enqueue_many([(harness.book, f"short{n}.{m}") for m in range(400)])
        jobs += tasks.run_then_sleep.enqueue_many(
            [(harness.book, f"long{n}.{m}", 0.05) for m in range(20)]
        )
        workers[n % 2].term()
        assert workers[n % 2].wait() == 0
        workers[n % 2] = harness.worker("--processes", "2").wait_until_up(3)
    harness.until_done(len(jobs))
    assert len(harness.runs()) == len(jobs)
    assert set(harness.runs().values()) == {1}
    assert harness.count("recovered_total") == harness.count("retried_total") == 0
    for job in jobs[::7]:
        job.refresh()
        assert (job.attempts, job.recoveries) == (0, 0)


def test_burst_ends_when_the_queues_are_empty(harness: WorkerHarness) -> None:
    tasks.run.enqueue_many([(harness.book, f"job{n}") for n in range(300)])
    app_tasks.spawn.enqueue(3)
    tasks.async_run.enqueue(harness.book, "async", 0.2)
    worker = harness.worker("--processes", "2", "--burst")
    assert worker.wait() == 0
    harness.until_done(305, 0.1)


def test_burst_runs_jobs_that_arrive_while_an_async_job_runs(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1", "--burst")
    long = tasks.async_run.enqueue(harness.book, "long", 4.5)
    eventually(lambda: harness.runs()["long"], why=harness.report)
    harness.ended(tasks.run.enqueue(harness.book, "new"))
    long.refresh()
    assert long.status == "processing"
    assert worker.wait() == 0
    assert harness.stats()["completed"] == 2


def test_burst_of_an_empty_queue_ends_at_once(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "2", "--burst")
    eventually(lambda: "Stop with Ctrl-C" in worker.output)  # do not measure the start
    assert worker.wait(5) == 0


def test_burst_waits_for_the_jobs_of_a_dead_child(harness: WorkerHarness) -> None:
    """Its successor finds the queue empty before the job has returned to it."""
    harness.alter("slow_recovery")
    tasks.run_then_exit.enqueue(harness.book, "poison")
    worker = harness.worker("--processes", "2", "--burst")
    assert worker.wait() == 0
    assert harness.runs() == {"poison": 3}
    harness.until_done(0, 0.1, failed=1)


def test_burst_waits_for_the_jobs_of_a_dead_worker_of_this_machine(harness: WorkerHarness) -> None:
    tasks.slow_at_first.enqueue(harness.book, "job", 30)
    first = harness.worker("--processes", "1")
    eventually(lambda: harness.runs()["job"], why=harness.report)
    first.kill()
    harness.alter("slow_recovery")
    harness.configure(LEASE=60)  # no lease expires within this test
    worker = harness.worker("--processes", "1", "--burst")
    assert worker.wait() == 0
    harness.until_done(1, 0.1)


def test_burst_continues_while_children_are_recycled(harness: WorkerHarness) -> None:
    app_tasks.pid.enqueue_many([()] * 95)
    worker = harness.worker("--processes", "1", "--burst", "--max-jobs", "10")
    assert worker.wait() == 0
    harness.until_done(95, 0.1)


def test_children_are_recycled_after_max_jobs(harness: WorkerHarness) -> None:
    harness.worker("--processes", "2", "--max-jobs", "50").wait_until_up(3)
    jobs = app_tasks.pid.enqueue_many([()] * 1000)
    harness.until_done(1000)
    pids = harness.results(jobs)
    assert {job.recoveries for job in jobs} == {0}
    assert max(pids.count(pid) for pid in set(pids)) <= 50
    assert len(set(pids)) >= 20


def test_children_are_recycled_when_they_use_too_much_memory(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1", "--max-memory", "150M").wait_until_up(2)
    first = worker.children
    jobs = app_tasks.leak.enqueue_many([(20,)] * 12)
    harness.until_done(12)
    app_tasks.noop.enqueue_many([()] * 10)
    harness.until_done(22)
    eventually(lambda: "over its limit; it ends after its job" in worker.output, 8)
    eventually(lambda: set(first) - set(worker.children), 5)
    app_tasks.leak.enqueue(1)
    harness.until_done(23)
    for job in jobs:
        job.refresh()
        assert (job.attempts, job.recoveries) == (0, 0)


def test_a_worker_takes_over_at_once_from_its_dead_namesake(harness: WorkerHarness) -> None:
    harness.configure(LEASE=60, HEARTBEAT=4)  # no lease expires within this test
    old = harness.worker("--processes", "1", "--name", "alpha").wait_until_up(2)
    job = tasks.run_then_sleep.enqueue(harness.book, "slow", 60)
    eventually(lambda: harness.runs()["slow"])
    old.kill()
    watch = Stopwatch()
    new = harness.worker("--processes", "1", "--name", "alpha")
    eventually(lambda: harness.runs()["slow"] == 2, 10, why=harness.report)
    assert watch.seconds < 5
    job.refresh()
    assert (job.recoveries, job.attempts) == (1, 0)
    eventually(lambda: f"job {job.id} of a dead child: recovered" in new.output, why=harness.report)


def test_a_worker_takes_nothing_from_its_living_namesake(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1", "--name", "alpha").wait_until_up(2)
    gate = harness.gate()
    job = tasks.run_until_gate_opens.enqueue(harness.book, "slow", gate)
    eventually(lambda: harness.runs()["slow"])
    harness.worker("--processes", "1", "--name", "alpha").wait_until_up(2)
    harness.open_gate(gate)
    harness.ended(job)
    assert (job.recoveries, harness.runs()["slow"]) == (0, 1)


@pytest.mark.slow
def test_autoreload_restarts_when_a_file_changes(harness: WorkerHarness) -> None:
    module = harness.folder / "reloaded_tasks.py"
    source = "from django_redisqueue import task\n\n@task\ndef answer():\n    return {}\n"
    module.write_text(source.format(1))
    harness.configure(TASK_MODULES=["tests.worker.tasks", "reloaded_tasks"])
    harness.environment["PYTHONPATH"] = f"{ROOT}:{harness.folder}"
    worker = harness.worker("--processes", "1", "--autoreload", fresh=True)
    long = tasks.run_then_sleep.enqueue(harness.book, "long", 2.0)
    assert _answer(harness) == 1
    eventually(lambda: harness.runs()["long"])

    def is_noticed() -> bool:
        module.write_text(source.format(22))  # again, if the watcher had not seen the original
        return "reloaded_tasks.py changed, restarting" in worker.output

    eventually(is_noticed, every=0.2, why=harness.report)
    eventually(lambda: _answer(harness) == 22, 10, why=harness.report)
    harness.ended(long)
    assert (long.status, long.attempts, harness.runs()["long"]) == ("completed", 0, 1)
    worker.term()
    assert worker.wait() == 0
    assert not worker.tree()


def _answer(harness: WorkerHarness) -> object:
    """The result of a task that only the worker's code has."""
    job = NewJob(new_job_id(shard_of()), "default", "reloaded_tasks.answer", "[[],{}]")
    connection = worker_connection(shard_of())
    Commands(connection).enqueue([job])
    connection.close()
    return harness.ended(Job(job.id)).result


def test_a_worker_is_quieted_resumed_and_stopped(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "2", "--name", "w").wait_until_up(3)
    store = Commands(worker_connection(0))

    def report(state: str, children: int) -> WorkerReport:
        keys = all_keys()[0]

        def found() -> WorkerReport | None:
            for key in harness.redis.scan_iter(f"{keys.worker('w.')}*"):
                one = parse_report(harness.redis.get(key))
                if one and (one.state, len(one.children), one.memory > 2**20) == (
                    state,
                    children,
                    True,
                ):
                    return one
            return None

        return eventually(found, why=lambda: worker.output)

    def tell(order: WorkerOrder, at_ms: int) -> None:
        (key,) = harness.redis.scan_iter(f"{all_keys()[0].worker('w.')}*[0-9]")
        assert store.order_worker(key.partition(":worker:")[2], order, at_ms)

    told = report("running", 3)
    assert (told.processes, told.threads, told.queues) == (2, 1, ("default",))
    gate = harness.gate()
    running = tasks.run_until_gate_opens.enqueue(harness.book, "running", gate)
    eventually(lambda: harness.runs()["running"])
    tell(WorkerOrder.QUIET, 10)
    report("quiet", 2)  # maintenance, and the child that runs the job
    waiting = tasks.run.enqueue(harness.book, "waiting")
    harness.open_gate(gate)
    harness.ended(running)
    report("quiet", 1)
    assert harness.runs() == {"running": 1}
    tell(WorkerOrder.STOP, 9)  # an earlier order, which another shard may deliver late
    tell(WorkerOrder.RESUME, 11)
    harness.ended(waiting)
    report("running", 3)
    tell(WorkerOrder.STOP, 12)
    assert worker.wait() == 0
    assert "told to stop" in worker.output
