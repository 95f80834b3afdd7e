"""What becomes of a job that does not simply return, in a real worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_redisqueue import Job, JobQueue, Task
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.testing import run_inline
from tests.app import tasks as app_tasks
from tests.support.servers import RedisServer
from tests.support.shards import keys_of, shard_of
from tests.support.stopwatch import Stopwatch
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server with a worker of one child, shared by the tests here."""
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        harness = WorkerHarness(
            server, tmp_path_factory.mktemp("running"), SimpleNamespace(), stack
        )
        harness.worker("--processes", "1").wait_until_up(2)
        yield server


@pytest.fixture
def one(running: RedisServer, tmp_path: Path, settings: Any) -> Iterator[WorkerHarness]:
    """A harness with an idle worker of one child, and an empty queue."""
    running.client().flushdb()
    with ExitStack() as stack:
        yield WorkerHarness(running, tmp_path, settings, stack)


def enqueue_by_name(name: str, payload: str = "[[],{}]") -> Job:
    """Enqueue a task that this process could not enqueue itself."""
    job = NewJob(new_job_id(shard_of()), "default", name, payload)
    connection = worker_connection(shard_of())
    Commands(connection).enqueue([job])
    connection.close()
    return Job(job.id)


def test_a_failure_is_kept_with_class_message_and_traceback(one: WorkerHarness) -> None:
    job = one.ended(app_tasks.fail.enqueue("out of paper"))
    assert (job.status, job.attempts) == ("failed", 1)
    assert job.error is not None
    assert (job.error.type, job.error.message) == ("ValueError", "out of paper")
    frames = job.error.traceback.splitlines()
    assert frames[0] == "Traceback (most recent call last):"
    assert "tests/app/tasks.py" in frames[1]
    assert frames[-1] == "ValueError: out of paper"


def test_retries_wait_for_as_long_as_the_task_says(one: WorkerHarness) -> None:
    job = one.ended(tasks.fails_thrice.enqueue())
    assert (job.status, job.attempts) == ("failed", 3)
    assert job.started_at is not None
    assert job.enqueued_at is not None
    waited = (job.started_at - job.enqueued_at).total_seconds()
    assert 0.4 <= waited < 1.2  # 0.1 and then 0.3
    assert one.count("retried_total") == 2


def test_a_task_may_ask_for_another_attempt_at_a_given_time(one: WorkerHarness) -> None:
    watch = Stopwatch()
    job = one.ended(app_tasks.retry_later.enqueue(0.3))
    assert (job.status, job.result, job.attempts) == ("completed", 3, 2)
    assert watch.elapsed >= 0.6
    assert watch.seconds < 2
    assert job.error is None  # of the earlier attempts


@pytest.mark.parametrize("task", [tasks.gives_up, tasks.async_gives_up], ids=lambda task: task.name)
def test_a_task_knows_its_last_attempt(one: WorkerHarness, task: Task) -> None:
    for job, attempts in ((task.enqueue(), 4), (task.using(max_attempts=2).enqueue(), 2)):
        assert one.ended(job).result == f"gave up after {attempts} of {attempts}"
    with run_inline():
        assert task.using(max_attempts=3).enqueue().result == "gave up after 3 of 3"


@pytest.mark.parametrize(("kind", "runs"), [("os", 3), ("file", 1), ("value", 1)])
def test_only_some_errors_are_worth_another_attempt(
    one: WorkerHarness, kind: str, runs: int
) -> None:
    job = one.ended(tasks.picky.enqueue(one.book, kind, kind))
    assert (job.status, job.attempts, one.runs()[kind]) == ("failed", runs, runs)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("plain_exit", "SystemExit"),
        ("panic", "tests.worker.tasks.Panic"),
        ("no_text", "tests.worker.tasks.NoText"),
        ("async_no_text", "tests.worker.tasks.NoText"),
    ],
)
def test_an_unusual_error_fails_the_job_and_not_the_child(
    one: WorkerHarness, bad: str, error: str
) -> None:
    before = one.ended(app_tasks.pid.enqueue()).result
    job = one.ended(getattr(tasks, bad).enqueue())
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.type == error
    assert one.ended(app_tasks.pid.enqueue()).result == before
    assert one.count("recovered_total") == 0


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (lambda: app_tasks.large_result.enqueue(2_000_000), "MAX_RESULT_BYTES"),
        (app_tasks.bad_result.enqueue, "the result of tests.app.tasks.bad_result"),
    ],
)
def test_a_result_that_cannot_be_stored_fails_the_job(
    one: WorkerHarness, job: object, words: str
) -> None:
    assert callable(job)
    failed = one.ended(job())
    assert (failed.status, failed.attempts) == ("failed", 1)
    assert failed.error is not None
    assert failed.error.reason == "result"
    assert words in failed.error.message


def test_results_near_the_limit_one_after_another(one: WorkerHarness) -> None:
    """Together they exceed the memory that supervisor and child share."""
    jobs = app_tasks.large_result.enqueue_many([(1_000_000,)] * 12)
    one.until_done(12)
    assert one.statuses(jobs) == {"completed": 12}
    jobs[-1].refresh()
    assert len(jobs[-1].result) == 1_000_000


def test_results_larger_than_that_memory(harness: WorkerHarness) -> None:
    harness.configure(MAX_RESULT_BYTES=20_000_000)
    worker = harness.worker("--processes", "1").wait_until_up(2)
    sizes = [6_000_000, 1, 3_000_000, 3_000_000]
    jobs = app_tasks.large_result.enqueue_many([(size,) for size in sizes])
    harness.until_done(4)
    assert list(map(len, harness.results(jobs))) == sizes
    assert "died" not in worker.output


@pytest.mark.parametrize("name", ["surrogate_result", "surrogate_error"])
def test_text_that_is_not_utf_8(one: WorkerHarness, name: str) -> None:
    job = one.ended(getattr(tasks, name).enqueue())
    assert job.status == "failed"
    assert job.error is not None
    assert one.count("recovered_total") == 0


CORRUPT: list[dict[str, bytes]] = [
    {"payload": b"[[" + b"[" * 500 + b"]" * 500 + b"],{}]"},
    {"payload": b"[[" + b"[" * 50_000},
    {"payload": b"[[NaN],{}]"},
    {"payload": b"[[1e999],{}]"},
    {"payload": b'[["\xff"],{}]'},
    {"payload": b'[["\\ud800"],{}]'},
    {"payload": b"[[" + b"9" * 5000 + b"],{}]"},
    {"payload": b"5"},
    {"payload": b""},
    {"options": b"[1]"},
    {"options": b'{"timeout_ms":1e999}'},
]


def test_whatever_a_hash_holds_its_job_ends_and_the_others_run(one: WorkerHarness) -> None:
    keys, client = keys_of(), one.server.client()
    JobQueue().pause()
    jobs = app_tasks.noop.enqueue_many([()] * (len(CORRUPT) + 2))
    names = [keys.job(job.id).encode() for job in jobs]
    for name, fields in zip(names[1:], CORRUPT, strict=False):
        client.hset(name, mapping=fields)
    strange = f"job_1_{shard_of()}.".encode() + b"\xff"
    names.append(names[0].replace(jobs[0].id.encode(), strange))
    client.copy(names[0], names[-1])
    client.lpush(keys.queue("default").queued, strange)
    JobQueue().resume()

    def have_ended() -> bool:
        return all(client.hget(name, "status") in (b"completed", b"failed") for name in names)

    eventually(have_ended, why=one.report)
    ended = [client.hmget(name, "status", "error") for name in names]
    fine = [b"completed", None]
    assert [ended[0], *ended[-2:]] == [fine] * 3, one.report()
    for (status, error), fields in zip(ended[1:], CORRUPT, strict=False):
        assert (status, b"cannot be read" in error) == (b"failed", True), (fields, error)
    assert one.count("recovered_total") == 0


def test_an_unknown_task_is_delayed_and_then_fails_with_advice(one: WorkerHarness) -> None:
    job = enqueue_by_name("shop.tasks.not_deployed_yet")

    def is_put_off() -> bool:
        job.refresh()
        return job.status == "retrying"

    eventually(is_put_off, why=one.report)
    assert job.attempts == 0
    assert job.run_after is not None
    one.redis.hset(keys_of().job(job.id), "delays", 12)
    one.redis.zadd(keys_of().queue("default").retrying, {job.id: 1})
    one.redis.lpush(keys_of().timer, 1)
    one.ended(job)
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.reason == "unknown_task"
    assert "keep the old name with @task(aliases=[...])" in job.error.message


def test_a_task_is_found_by_its_old_name(one: WorkerHarness) -> None:
    job = one.ended(enqueue_by_name("tests.old_name", "[[7],{}]"))
    assert (job.status, job.result) == ("completed", 7)


@pytest.mark.parametrize("payload", ["", "{", "[]", "[1,2]", "[[1],{}]]", "nul"])
def test_a_payload_that_cannot_be_read_fails_only_its_own_job(
    one: WorkerHarness, payload: str
) -> None:
    bad = enqueue_by_name("tests.app.tasks.noop", payload)
    good = app_tasks.noop.enqueue(1)
    one.ended(good)
    raw = eventually(lambda: one.redis.hgetall(keys_of().job(bad.id)).get("reason"), why=one.report)
    assert raw == "corrupt"
    assert (good.status, one.stats()["failed"]) == ("completed", 1)


def test_arguments_that_do_not_fit_the_task(one: WorkerHarness) -> None:
    job = one.ended(enqueue_by_name("tests.app.tasks.add", '[[1,2,3],{"c":4}]'))
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.type == "TypeError"


@pytest.mark.one_shard("queues have their order inside a shard")
def test_strict_order_of_queues(harness: WorkerHarness) -> None:
    harness.configure(QUEUES={"high": {}, "default": {}})
    for n in range(3):
        tasks.run.enqueue(harness.book, f"default{n}")
        tasks.run.using(queue_name="high").enqueue(harness.book, f"high{n}")
    worker = harness.worker("--processes", "1", "--queues", "high,default", "--burst")
    assert worker.wait() == 0
    assert harness.in_order() == [f"{name}{n}" for name in ("high", "default") for n in range(3)]


def test_a_worker_with_a_lowest_priority_leaves_the_rest(harness: WorkerHarness) -> None:
    for n in range(3):
        tasks.run.enqueue(harness.book, f"default{n}")
        tasks.run.using(priority=-1).enqueue(harness.book, f"low{n}")
    picky = harness.worker("--processes", "1", "--min-priority", "0", "--burst")
    assert picky.wait() == 0
    assert harness.in_order() == [f"default{n}" for n in range(3)]
    assert harness.stats()["queued"] == 3
    # A worker that may not claim the waiting jobs neither spins nor keeps others from claiming
    # them.
    harness.worker("--processes", "1", "--min-priority", "0").wait_until_up(2)
    harness.worker("--processes", "1").wait_until_up(2)
    eventually(lambda: harness.stats()["queued"] == 0, 3, why=harness.report)


@pytest.mark.one_server("looks at its server's clients and commands")
def test_a_paused_queue_waits_and_its_worker_does_not_spin(one: WorkerHarness) -> None:
    queue = JobQueue("default")
    queue.pause()
    job = tasks.run.enqueue(one.book, "job")
    calls = "cmdstat_evalsha"
    before = one.redis.info("commandstats")[calls]["calls"]
    time.sleep(1.0)  # this test measures exactly this time
    # A worker that spins makes thousands of calls, however busy the machine is.
    assert one.redis.info("commandstats")[calls]["calls"] - before < 100
    assert one.runs() == {}
    queue.resume()
    one.ended(job)


def test_a_delayed_job_starts_within_50_ms_of_its_time(one: WorkerHarness) -> None:
    late = []
    for n in range(10):
        watch = Stopwatch()
        job = one.ended(tasks.run.using(run_after=0.2).enqueue(one.book, f"job{n}"))
        assert job.started_at is not None
        assert job.enqueued_at is not None
        waited = (job.started_at - job.enqueued_at).total_seconds()
        assert waited >= 0.2
        late.append(waited - 0.2 - watch.stalled)
    assert sorted(late)[5] < 0.05, late
