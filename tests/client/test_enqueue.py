"""Enqueueing outside a transaction: what is stored in Redis, and that ids decide."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from redis import Redis

from django_redisqueue import Job, JobQueue, get_job
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.queries import Queries
from django_redisqueue.client.transport import transport
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.statuses import Status
from tests.app import tasks
from tests.support.shards import keys_of, shard_of
from tests.support.stream import last

pytestmark = pytest.mark.usefixtures("queue_settings")

JSON_VALUES = [
    None, True, 0, -1, 2**53 + 1, 10**400, 1.5, 1e300, "", "text", "ünï – \u2028 😀", "\x00",
    [], {}, [[]], {"": {"a": [1, {"b": None}]}}, [[], {}], "[]",
]  # fmt: skip


def test_an_enqueued_job_can_be_read_back() -> None:
    job = tasks.add.enqueue(1, b=2)

    assert isinstance(job, Job)
    assert re.fullmatch(rf"job_\d{{13}}_[0-9a-z]{{10}}_{shard_of()}", job.id)
    assert job.status is Status.QUEUED
    assert (job.args, job.kwargs) == ((1,), {"b": 2})
    assert (job.task_name, job.queue_name, job.priority) == ("tests.app.tasks.add", "default", 0)
    assert (job.attempts, job.recoveries, job.result, job.error) == (0, 0, None, None)
    assert job.enqueued_at is not None
    assert abs(job.enqueued_at - datetime.now(UTC)) < timedelta(seconds=5)
    assert not job.is_deferred
    assert get_job(job.id) == job


@pytest.mark.parametrize("value", JSON_VALUES, ids=repr)
def test_every_json_value_arrives_as_it_was(value: Any) -> None:
    job = tasks.noop.enqueue(value)
    keyword = tasks.noop.enqueue(x=value)
    assert job.args == (value,)
    assert type(job.args[0]) is type(value)
    assert keyword.kwargs == {"x": value}


def test_a_tuple_arrives_as_a_list() -> None:
    assert tasks.noop.enqueue((1, (2,))).args == ([1, [2]],)


def test_calling_a_task_is_just_the_function(key_count: Callable[[], int]) -> None:
    assert tasks.add(1, 2) == 3
    assert tasks.add.call(1, 2) == 3
    assert tasks.async_sleep.call(0) == 0
    assert asyncio.run(tasks.add.acall(1, 2)) == 3
    assert asyncio.run(tasks.async_sleep.acall(0)) == 0
    assert key_count() == 0


@pytest.mark.parametrize("name", ["delay", "delay_on_commit", "apply_async"])
def test_who_comes_from_celery_is_told_what_to_call(name: str) -> None:
    for task in (tasks.add, tasks.add.using(priority=5)):
        with pytest.raises(AttributeError) as caught:
            getattr(task, name)(1, 2)
        assert str(caught.value) == (
            f"the task {tasks.add.name} has no {name}(): call enqueue(), with options as in "
            "using(run_after=60).enqueue()"
        )


def test_another_attribute_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="'Task' object has no attribute 'enque'") as caught:
        tasks.add.enque(1, 2)
    assert (caught.value.name, caught.value.obj) == ("enque", tasks.add)
    assert copy.deepcopy(tasks.add) == tasks.add


@pytest.mark.parametrize("name", ["enqueue", "queue_name"])
def test_whoever_patches_a_task_is_told_what_to_do_instead(name: str) -> None:
    for task in (tasks.add, tasks.add.using(priority=5)):
        with pytest.raises(AttributeError) as caught, mock.patch.object(task, name):
            pass  # not reached
        assert str(caught.value) == (
            f"{name} of the task {tasks.add.name} cannot be replaced: in tests use capture_jobs() "
            "or run_inline(), or replace the task itself in the module that calls it"
        )


def test_aenqueue() -> None:
    job = asyncio.run(tasks.add.aenqueue(1, b=2))
    assert (job.args, job.kwargs) == ((1,), {"b": 2})


@pytest.mark.one_server("looks at its server's clients and commands")
def test_enqueue_many_keeps_the_order_and_sends_100_jobs_per_script(redis: Redis) -> None:
    redis.config_resetstat()
    jobs = tasks.noop.enqueue_many([(n,) for n in range(250)])

    assert [job.args for job in (jobs[0], jobs[99], jobs[100], jobs[249])] == [
        (0,), (99,), (100,), (249,),
    ]  # fmt: skip
    queries = Queries(producer_connection(shard_of()))
    pages = [queries.ids("default", Status.QUEUED, at, at + 49) for at in range(0, 250, 50)]
    assert [job_id for page in pages for job_id in page] == [job.id for job in jobs]
    assert script_calls(redis) == 3


def test_enqueue_many_without_calls_does_nothing(key_count: Callable[[], int]) -> None:
    assert tasks.noop.enqueue_many([]) == []
    assert key_count() == 0


@pytest.mark.one_server("looks at its server's clients and commands")
def test_enqueue_many_splits_by_size_too(redis: Redis) -> None:
    redis.config_resetstat()
    tasks.noop.enqueue_many([("x" * 200_000,) for _ in range(10)])
    assert script_calls(redis) == 3  # at most 1 MB per call
    assert JobQueue().get_stats()["queued"] == 10


def test_add_job_takes_a_name_or_a_task() -> None:
    queue = JobQueue("default")
    by_name = queue.add_job("tests.app.tasks.add", 1, b=2)
    by_task = queue.add_job(tasks.add, 1, b=2)
    by_alias = queue.add_job("tests.old_name")
    assert by_name.task_name == by_task.task_name == "tests.app.tasks.add"
    assert by_alias.task_name == "tests.renamed"
    assert queue.get_stats()["queued"] == 3


def test_the_same_enqueue_sent_twice_creates_one_job() -> None:
    job = NewJob(new_job_id(), "default", "tests.app.tasks.noop", "[[1],{}]")
    transport().enqueue([job])
    transport().enqueue([job])
    transport().enqueue([job, job])
    assert JobQueue().get_stats()["queued"] == 1
    assert get_job(job.id).data.seq == 1


@pytest.mark.one_server("looks at its server's clients and commands")
def test_one_enqueue_is_one_round_trip_with_its_event(
    redis: Redis, queue_settings: dict[str, Any]
) -> None:
    tasks.noop.enqueue()
    redis.config_resetstat()
    job = tasks.noop.enqueue()

    assert script_calls(redis) == 1
    keys = keys_of()
    event = last(redis, keys.events)
    assert event is not None
    assert (event.data["jobId"], event.data["status"]) == (job.id, "queued")
    assert redis.llen(keys.queue("default").wake) == 1


def test_ids_are_sorted_by_time_and_unique() -> None:
    ids = [new_job_id() for _ in range(10_000)]
    assert len(set(ids)) == 10_000
    stamps = [job_id.split("_")[1] for job_id in ids]
    assert stamps == sorted(stamps)


def test_a_job_is_deleted_while_a_handle_exists(redis: Redis) -> None:
    job = tasks.noop.enqueue()
    redis.flushdb()
    with pytest.raises(LookupError, match=f"no job {job.id} in Redis"):
        job.refresh()


def script_calls(redis: Redis) -> int:
    """EVALSHA and EVAL calls since the last CONFIG RESETSTAT; a script that is new to the server
    counts once."""
    stats = redis.info("commandstats")
    return sum(
        stats.get(f"cmdstat_{name}", {}).get("calls", 0)
        - stats.get(f"cmdstat_{name}", {}).get("failed_calls", 0)
        for name in ("evalsha", "eval")
    )
