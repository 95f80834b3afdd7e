"""Why a job does not run: one sentence for each cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

from django_redisqueue import JobQueue, Workflow, chain, get_job
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.workflows import WorkflowQueries
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.health.waiting import read_why, why_not_running
from tests.app import tasks
from tests.support.manual_worker import ManualWorker
from tests.support.round_trips import round_trips
from tests.support.shards import all_keys, keys_with

pytestmark = pytest.mark.django_db(databases=["default", "other"])
HOUR = 3_600_000
FOR, IN = r"3 h( \d+ m)?", r"in (2 h|1 h \d+ m)"
LIMITED = "|c:stripe:42 c:stripe=4"


@pytest.fixture
def manual_worker(queue_settings: dict[str, Any], settings: Any) -> Iterator[ManualWorker]:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}
    made = ManualWorker()
    for store in made.stores:
        store.heartbeat([made.claim_request.child], (), ["default"])
    yield made
    made.close()


def why(job_id: str) -> str:
    return read_why(get_job(job_id).data, producer_connection(shard_of_id(job_id))) or ""


def add(manual_worker: ManualWorker, job_id: str, **fields: Any) -> None:
    store = manual_worker.store_of(job_id)
    store.enqueue([NewJob(**{"id": job_id, "queue": "default", "task": "t",
                                  "payload": "[[],{}]", **fields})])  # fmt: skip


def test_a_job_in_a_queue(manual_worker: ManualWorker, redis: Redis) -> None:
    job = tasks.noop.enqueue()
    assert why(job.id) == "It waits for a free worker."
    tasks.noop.enqueue()
    assert why(job.id) == "It waits for its turn, with 1 job besides it in its queue."
    JobQueue().pause(by="ann")
    assert re.fullmatch(r"Its queue is paused, .* ago by ann\.", why(job.id))
    JobQueue().resume()
    other = tasks.noop.using(queue_name="low").enqueue()
    assert why(other.id) == "No worker serves its queue, low."
    for keys in all_keys():
        redis.delete(keys.serving, keys.workers)
    assert why(other.id) == "No worker is alive."
    add(manual_worker, "job_1", queue="former")
    assert "former is not in REDISQUEUE" in why("job_1")
    manual_worker.complete_one()
    assert why(job.id) == ""


def test_a_blocked_queue(manual_worker: ManualWorker, redis: Redis) -> None:
    job = tasks.noop.enqueue()
    redis.set(manual_worker.store.keys.queue("default").failed, "theirs")
    assert why(job.id).startswith("Its queue is blocked")


def test_limits(manual_worker: ManualWorker) -> None:
    for n in range(6):
        add(manual_worker, f"job_{n}", lane=LIMITED)
    add(manual_worker, "other", lane="|r:api: r:api=1/3600000000/1")
    add(manual_worker, "last", lane="|r:api: r:api=1/3600000000/1")
    assert why("job_0").startswith("It waits for its turn")
    for _ in range(8):
        manual_worker.claim()
    assert why("job_5") == (
        "It waits for limit stripe:42, 4 of 4, held by job_0, job_1, job_2 and 1 more."
    )
    assert re.fullmatch(r"It waits for limit api, 1 in 1h, next start in .*\.", why("last"))
    assert why("job_0") == "", "it runs"


def test_a_paused_share(manual_worker: ManualWorker) -> None:
    queue = JobQueue()
    add(manual_worker, "job_1", lane="a%20b|c:stripe:42 c:stripe=4")
    queue.pause(share="a b", by="ann")
    assert manual_worker.claim() == []
    assert why("job_1") == "Its share a b is paused in this queue by ann."


def test_chunks(manual_worker: ManualWorker) -> None:
    for n in range(2):
        add(manual_worker, f"job_{n}", lane=f"|k:t:7 k:t=3/{2 * HOUR}")
    assert re.fullmatch(
        rf"It waits for its chunk to be full, 2 of 3, or starts {IN}\.", why("job_0")
    )
    add(manual_worker, "job_2", lane=f"|k:t:7 k:t=3/{2 * HOUR}")
    assert why("job_0").startswith("It waits for its turn")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, rf"It is due {IN}\."),
        ({"due_ms": -3 * HOUR}, rf"It was due {FOR} ago, but no worker's maintenance has .*\."),
        ({"waits_for": ""}, rf"It has slept for {FOR}, and is due {IN}\."),
        ({"waits_for": "paid:42"},
         rf"It has waited for the event paid:42 for {FOR}; its timeout is due {IN}\."),
        ({"waits_for": "approval:job_1:refund", "due_ms": ""},
         rf"It has waited for the approval refund for {FOR}; it has no timeout\."),
    ],
)  # fmt: skip
def test_a_job_that_is_due_later(
    manual_worker: ManualWorker, redis: Redis, fields: dict[str, Any], sentence: str
) -> None:
    add(manual_worker, "job_1", when=f"+{2 * HOUR}")
    now_ms = WorkflowQueries(manual_worker.connection).now_ms()
    key = keys_with("job_1").job("job_1")
    if fields.get("due_ms") == "":
        redis.hdel(key, "due_ms")
    elif "due_ms" in fields:
        redis.hset(key, "due_ms", now_ms + fields["due_ms"])
    if "waits_for" in fields:
        redis.hset(key, mapping={"waits_for": fields["waits_for"], "parked_ms": now_ms - 3 * HOUR})
    assert re.fullmatch(sentence, why("job_1"))


def test_the_next_attempt(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    manual_worker.settle(
        manual_worker.claim_one(), "retrying", '{"type":"E","message":"m"}', f"{2 * HOUR}"
    )
    assert re.fullmatch(rf"Its last attempt failed; the next one is due {IN}\.", why(job.id))


def test_parents(manual_worker: ManualWorker) -> None:
    first, second = tasks.noop.enqueue_many([(1,), (2,)])
    manual_worker.claim_one()
    job = tasks.noop.using(after=[first, second]).enqueue()
    assert why(job.id) == (
        f"It waits for 2 of 2 parents: {first.id} (processing), {second.id} (queued)."
    )
    manual_worker.complete_one()
    assert why(job.id) == f"It waits for 1 of 2 parents: {first.id} (processing)."


def test_workflows(manual_worker: ManualWorker, redis: Redis) -> None:
    workflow = chain(tasks.noop.s(), tasks.noop.s())
    second = f"{workflow.id}.1"
    first_id = f"{workflow.id}.0"
    assert why(second) == f"It waits for 1 of 1 parents: {first_id} (queued)."
    workflow.pause()
    assert why(second) == "Its workflow is paused."
    workflow.release()
    manual_worker.fail_one()
    assert isinstance(workflow, Workflow)
    assert why(second).startswith("Its workflow has failed; it resumes ")
    redis.delete(keys_with(workflow.id).workflow(workflow.id))
    assert why(second) == f"Its workflow {workflow.id} is gone."


def test_without_redis_no_cause_is_given(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    assert why_not_running(job.data, None, producer_connection()) == ""


def test_a_job_in_the_outbox(manual_worker: ManualWorker, settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "OUTBOX": True}
    with transaction.atomic():
        job = tasks.noop.enqueue()
        assert why(job.id) == (
            "It is not in Redis: it is still in the outbox, or Redis has lost it."
        )


def test_a_cause_that_cannot_be_read_is_reported(manual_worker: ManualWorker, redis: Redis) -> None:
    first = tasks.noop.enqueue()
    job = tasks.noop.using(after=first).enqueue()
    data = get_job(job.id).data
    redis.delete(manual_worker.store.keys.job(first.id))
    redis.set(manual_worker.store.keys.job(first.id), "theirs")
    found = read_why(data, producer_connection(shard_of_id(job.id)))
    assert found is not None
    assert found.startswith("The reason why it is not running cannot be read: ")


def test_a_job_that_runs_or_has_ended_costs_nothing(
    manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, ended = tasks.noop.enqueue_many([()] * 2)
    manual_worker.claim_one()
    ended.cancel()
    found = [get_job(running.id).data, get_job(ended.id).data]
    with round_trips(monkeypatch) as made:
        assert [read_why(data, producer_connection()) for data in found] == [None, None]
    assert made == []
