"""A queue as an application sees it: counts, pages, order, pause, clear and requeue."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_redisqueue import Job, JobQueue, Limit, Rate, task
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.queries import Queries
from django_redisqueue.broker.replies import StepReply
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import InvalidOption, JobNotFound
from django_redisqueue.worker.maintenance import upkeep
from django_redisqueue.worker.maintenance.upkeep import ContinuationRunner
from tests.app import tasks

from ..support.manual_worker import ManualWorker, low

NOTHING = {
    "queued": 0, "processing": 0, "completed": 0, "failed": 0, "cancelled": 0, "scheduled": 0,
    "retrying": 0, "waiting": 0,
}  # fmt: skip


def stats(**counts: int) -> dict[str, int]:
    return {**NOTHING, **counts}


def arguments(status: str, start: int = 0, stop: int = 49) -> list[Any]:
    jobs = JobQueue().get_jobs(status, start, stop)
    return [job.args[0] for job in jobs if isinstance(job, Job)]


def test_stats_count_every_status(manual_worker: ManualWorker) -> None:
    queue = JobQueue()
    assert queue.get_stats() == NOTHING

    for n in range(6):
        tasks.noop.enqueue(n)
    tasks.noop.using(priority=5).enqueue(6)
    tasks.noop.using(run_after=60).enqueue(7)
    manual_worker.complete_one()
    manual_worker.fail_one()
    manual_worker.settle(
        manual_worker.claim_one(), "retrying", '{"type":"E","message":""}', "60000"
    )
    manual_worker.claim_one()
    tasks.noop.enqueue(8).cancel()

    counts = queue.get_stats()
    # The cancelled job's id stays in its list until a claim discards it, but it is not counted.
    assert counts == stats(
        queued=3, processing=1, completed=1, failed=1, cancelled=1, scheduled=1, retrying=1
    )


def test_clearing_reaches_the_jobs_behind_cancelled_ids(manual_worker: ManualWorker) -> None:
    for _ in range(3):
        tasks.noop.enqueue().cancel()
    tasks.noop.enqueue()
    assert JobQueue().clear("queued") == 4, "the ids left the list"
    assert JobQueue().get_stats() == stats(cancelled=4)


def test_a_cancelled_job_that_was_cleared_is_not_found(manual_worker: ManualWorker) -> None:
    """Its id is still in the queue's list, and its enqueue may still be repeated."""
    job = tasks.noop.enqueue()
    job.cancel()
    assert JobQueue().clear("cancelled") == 1
    for ask in (job.refresh, job.requeue, job.cancel):
        with pytest.raises(JobNotFound):
            ask()
    assert JobQueue().get_stats() == stats()


@pytest.mark.one_server("looks at its server's clients and commands")
@pytest.mark.one_shard("one round trip a shard")
def test_stats_are_one_round_trip(redis: Redis, manual_worker: ManualWorker) -> None:
    JobQueue().get_stats()
    before = redis.info("stats")["total_reads_processed"]
    JobQueue().get_stats()
    assert redis.info("stats")["total_reads_processed"] - before == 2  # and this INFO


def test_pages_of_queued_jobs_are_in_the_order_of_execution(manual_worker: ManualWorker) -> None:
    for n, priority in enumerate([0, -10, 10, 0, 10, -10, 0]):
        tasks.noop.using(priority=priority).enqueue(n)
    order = [2, 4, 0, 3, 6, 1, 5]
    assert arguments("queued") == order
    assert [arguments("queued", at, at)[0] for at in range(7)] == order
    assert arguments("queued", 1, 4) == order[1:5]
    assert arguments("queued", 7, 9) == []
    assert [int(manual_worker.claim_one().payload[2]) for _ in range(7)] == order


def test_pages_of_finished_jobs_are_newest_first(manual_worker: ManualWorker) -> None:
    for n in range(5):
        tasks.noop.enqueue(n)
        manual_worker.complete_one()
    assert arguments("completed") == [4, 3, 2, 1, 0]
    assert arguments("completed", 1, 2) == [3, 2]


def test_pages_of_scheduled_jobs_are_soonest_first(manual_worker: ManualWorker) -> None:
    for delay in (300, 100, 200):
        tasks.noop.using(run_after=delay).enqueue(delay)
    assert arguments("scheduled") == [100, 200, 300]
    assert arguments("waiting") == []
    assert arguments("processing") == []


def test_a_paused_queue_hands_out_nothing(manual_worker: ManualWorker) -> None:
    queue = JobQueue()
    job = tasks.noop.enqueue()
    assert not queue.is_paused
    assert queue.pause() is True
    assert queue.pause() is False
    assert queue.is_paused
    assert manual_worker.claim() == []
    assert queue.resume() is True
    assert queue.resume() is False
    assert not queue.is_paused
    assert manual_worker.complete_one() == job.id


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_clear_deletes_finished_jobs(
    manual_worker: ManualWorker,
    redis: Redis,
    settings: Any,
    queue_settings: dict[str, Any],
    status: str,
) -> None:
    settings.REDISQUEUE = {**queue_settings, "RESEND_WINDOW": 0}
    for n in range(3):
        tasks.noop.enqueue(n)
        manual_worker.complete_one() if status == "completed" else manual_worker.fail_one()
    tasks.noop.enqueue("stays")
    queue = JobQueue()
    assert queue.clear(status) == 3
    assert queue.get_stats() == stats(queued=1)
    assert len(list(redis.scan_iter("*:job:*"))) == 1
    assert queue.clear(status) == 0


def test_clear_cancels_jobs_that_wait_for_their_turn(manual_worker: ManualWorker) -> None:
    for n in range(3):
        tasks.noop.enqueue(n)
        tasks.noop.using(priority=n + 1).enqueue(n)
        tasks.noop.using(run_after=60).enqueue(n)
    queue = JobQueue()
    assert queue.clear("queued") == 6
    assert queue.get_stats() == stats(cancelled=6, scheduled=3)
    assert queue.clear("scheduled") == 3
    assert queue.get_stats() == stats(cancelled=9)
    assert manual_worker.claim() == []


def test_clear_and_requeue_all_proceed_in_steps_of_100(
    redis: Redis, manual_worker: ManualWorker
) -> None:
    jobs = tasks.noop.enqueue_many([(n,) for n in range(250)])
    queue = JobQueue()
    for _ in range(3):
        for job in manual_worker.claim(100):
            manual_worker.settle(job, "failed", '{"type":"E","message":"m"}')
    assert queue.get_stats() == stats(failed=250)
    assert queue.requeue_all("failed") == 250
    assert queue.get_stats() == stats(queued=250)
    assert arguments("queued", 0, 9) == list(range(10))  # the oldest first
    assert jobs[249].status is Status.QUEUED
    assert queue.clear("queued") == 250
    assert queue.requeue_all("cancelled") == 250
    assert queue.requeue_all() == 0


@pytest.mark.parametrize(("act", "status"), [("clear", "cancelled"), ("requeue_all", "queued")])
def test_what_a_caller_leaves_half_done_is_completed(
    act: str, status: str, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.noop.enqueue_many([(n,) for n in range(170)])
    queue, verb = JobQueue(), {"clear": "clear", "requeue_all": "requeue_oldest"}[act]
    if act == "requeue_all":
        queue.clear("queued")
    steps, take = iter(range(2)), getattr(Commands, verb)

    def dies(*args: Any) -> StepReply:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        taken: StepReply = take(*args)
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(Commands, verb, dies)
        with pytest.raises(KeyboardInterrupt):
            getattr(queue, act)("queued" if act == "clear" else "cancelled")
    assert queue.get_stats()[status] == 100
    silent = manual_worker.store.keys.continuations
    (token, word), *_ = zip(
        *[iter(manual_worker.connection.call("HGETALL", silent))] * 2, strict=True
    )
    # time passes
    manual_worker.connection.call("HSET", silent, token, word.rpartition(" ")[0] + " 1")
    monkeypatch.setattr(upkeep, "STEPS_A_PASS", 1)
    runner = ContinuationRunner(manual_worker.store)
    assert [runner.run_once() for _ in range(2)] == [True, False]  # at once, not in 5 s
    assert queue.get_stats() == stats(**{status: 170})


@pytest.mark.parametrize("priority", [0, 5])
def test_clear_leaves_jobs_that_arrive_meanwhile(
    priority: int, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers take jobs from the list at the same time."""
    job = tasks.noop.using(priority=priority)
    job.enqueue_many([()] * 120)
    take, newer = Commands.clear, []

    def race(commands: Commands, *args: Any) -> StepReply:
        taken = take(commands, *args)
        if not newer:
            called_ms = Queries(commands.connection).now_ms()
            while Queries(commands.connection).now_ms() == called_ms:
                pass
            manual_worker.claim(60)
            newer.extend(tasks.noop.using(priority=priority * 2).enqueue_many([()] * 10))
            newer.extend(job.enqueue_many([()] * 30))
        return taken

    monkeypatch.setattr(Commands, "clear", race)
    assert JobQueue().clear("queued") == 60
    assert {one.status for one in newer} == {"queued"}
    assert JobQueue().get_stats() == stats(queued=40, processing=60, cancelled=60)


def test_clear_with_a_limit_takes_the_oldest(manual_worker: ManualWorker) -> None:
    first, second, third = tasks.noop.enqueue_many([()] * 3)
    assert JobQueue().clear("queued", limit=0) == 0
    assert JobQueue().clear("queued", limit=2) == 2
    assert [job.status for job in (first, second, third)] == ["cancelled", "cancelled", "queued"]


def test_queues_do_not_mix(settings: Any, queue_settings: dict[str, Any]) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}
    manual_worker = ManualWorker("low")
    tasks.noop.enqueue(1)
    own = low.enqueue(2)
    moved = tasks.noop.using(queue_name="low").enqueue(3)
    added = JobQueue("low").add_job(tasks.noop, 4)
    assert {job.queue_name for job in (own, moved, added)} == {"low"}
    assert JobQueue("low").get_stats() == stats(queued=3)
    assert JobQueue("default").get_stats() == stats(queued=1)
    # The task low has priority -5, so its job is last.
    assert [job.id for job in manual_worker.claim(9)] == [moved.id, added.id, own.id]
    manual_worker.close()


def test_repr() -> None:
    assert repr(JobQueue()) == "<JobQueue default>"


@task(concurrency=Limit(5, key="tenant"), fair_by="tenant")
def of_tenant(tenant: str) -> None: ...


def test_one_share_or_limit_is_paused(manual_worker: ManualWorker) -> None:
    queue = JobQueue()
    for tenant in ("a", "b", "c"):
        of_tenant.enqueue(tenant)
    assert queue.pause(share="a", by="ann")
    assert queue.pause(limit=of_tenant, key="b")
    assert not queue.pause(limit=of_tenant.name, key="b")
    assert queue.get_pauses() == [f"limit {of_tenant.name}:b", "share a"]
    assert [job.payload for job in manual_worker.claim(jobs=9)] == ['[["c"],{}]']
    assert queue.get_stats()["queued"] == 2
    assert queue.resume(share="a")
    assert queue.resume(limit=of_tenant, key="b")
    assert not queue.resume(limit=of_tenant, key="b")
    assert len(manual_worker.claim(jobs=9)) == 2
    assert queue.get_pauses() == []


@task(concurrency=Limit(5, key="tenant"), rate=Rate(5, "1m", key="tenant"))
def twice_limited(tenant: str) -> None: ...


@pytest.mark.usefixtures("manual_worker")
def test_a_paused_limit_and_rate_of_one_name_are_named_once() -> None:
    queue = JobQueue()
    queue.pause(limit=twice_limited, key="b")
    assert queue.get_pauses() == [f"limit {twice_limited.name}:b"]
    queue.resume(limit=twice_limited, key="b")
    assert queue.get_pauses() == []


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"share": "a", "limit": "stripe"}, "pause a share or a limit, not both at once"),
        ({"key": 42}, "key= is the value of a limit's key; name the limit as limit="),
        ({"limit": "stripe"}, "no task has a Limit or Rate 'stripe'"),
        ({"share": object()}, "a share must be a JSON value"),
    ],
)
def test_what_cannot_be_paused(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        JobQueue().pause(**chosen)
    with pytest.raises(InvalidOption, match=words):
        JobQueue().resume(**chosen)
