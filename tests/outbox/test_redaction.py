"""Redacted arguments: the hash in Redis has them, for the worker; nothing else shows them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from django_redisqueue import Job, JobQueue, get_job, task
from django_redisqueue.broker.connection import blocking_connection, worker_connection
from django_redisqueue.broker.events import EventStream
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.queries import Queries
from django_redisqueue.client.registry import ANY_ARGUMENTS
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.redaction import ALL_REDACTED, display_payload, redaction_of
from django_redisqueue.exceptions import InvalidArguments, InvalidOption
from django_redisqueue.testing import capture_jobs
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_of, shard_of
from tests.support.stream import entries, written

from . import tasks

SECRET = "4111-1111"


@pytest.fixture
def keys(queue_settings: dict[str, Any]) -> Keys:
    return keys_of()


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ((7, SECRET), {}, [[7, "[redacted]"], {}]),
        ((7,), {"card": SECRET, "note": "n"}, [[7], {"card": "[redacted]", "note": "n"}]),
        ((7, SECRET), {"token": SECRET}, [[7, "[redacted]"], {"token": "[redacted]"}]),
        # An argument that does not fit the signature (for example, of an older version) may be the
        # very one to hide.
        ((7, "", SECRET), {}, [[7, "[redacted]", "[redacted]"], {}]),
        ((7,), {"crad": SECRET}, [[7], {"crad": "[redacted]"}]),
    ],
)
def test_a_job_is_shown_without_them(args: Any, kwargs: Any, shown: Any, keys: Keys) -> None:
    job = replace(tasks.charge, parameters=ANY_ARGUMENTS).enqueue(*args, **kwargs)
    queries = Queries(worker_connection(shard_of()))
    for data in (get_job(job.id).data, *queries.jobs([job.id]), *queries.outlines([job.id])):
        assert [list(data.args), data.kwargs] == shown  # type: ignore[union-attr]
        assert SECRET not in repr(data)
    (listed,) = JobQueue().get_jobs("queued")
    assert isinstance(listed, Job)
    assert [list(listed.args), listed.kwargs] == shown
    (body,) = EventStream(worker_connection(shard_of())).bodies([job.id])
    assert json.loads(body.payload or "") == shown


def test_parameters_that_take_any_number(keys: Keys) -> None:
    job = tasks.vault.enqueue("a", SECRET, SECRET, shown=3, more=SECRET)
    job.refresh()
    assert job.args == ("a", "[redacted]", "[redacted]")
    assert job.kwargs == {"shown": 3, "more": "[redacted]"}


def test_redis_only_has_them_in_the_hash_and_the_worker_gets_them(
    redis: Redis, manual_worker: ManualWorker
) -> None:
    ear = blocking_connection(shard_of())
    ear.subscribe(manual_worker.store.keys.status_channel)
    many = tasks.charge.enqueue_many([(1, SECRET)] * 3)
    job = tasks.charge.using(priority=3, timeout=9, run_after=0).enqueue(1, card=SECRET)
    payloads = [manual_worker.claim_one().payload for _ in range(4)]
    assert payloads == ['[[1],{"card":"4111-1111"}]'] + ['[[1,"4111-1111"],{}]'] * 3
    for key in redis.scan_iter():
        value: Any = {
            b"hash": redis.hgetall, b"string": redis.get,
            b"stream": lambda name: entries(redis, name),
            b"list": lambda name: redis.lrange(name, 0, -1),
            b"zset": lambda name: redis.zrange(name, 0, -1),
            b"set": redis.smembers,
        }[redis.type(key)](key)  # fmt: skip
        if b":job:" not in key:
            assert SECRET not in repr(value), key
    heard = list(iter(lambda: ear.message(0.1), None))
    ear.close()
    assert len(heard) >= 8
    assert SECRET not in repr(heard)
    assert get_job(job.id).data.options == {"redact": ["card"], "timeout_ms": 9000}
    assert many[0].data.options == {"redact": [1]}


def test_a_task_without_redaction_shows_its_arguments_in_the_event(
    redis: Redis, keys: Keys
) -> None:
    tasks.stored.using(outbox=False, timeout=3).enqueue("plain")
    (event,) = written(redis, keys.events)
    assert event.inline == {"args": '[["plain"],{}]'}


def test_reprs_do_not_show_them(manual_worker: ManualWorker) -> None:
    job = tasks.charge.enqueue(1, SECRET)
    new = NewJob(job.id, "default", tasks.charge.name, f'[["{SECRET}"],{{}}]')
    claimed = manual_worker.claim_one()
    assert SECRET in claimed.payload
    assert SECRET not in repr(claimed) + repr(new) + repr(job)


def test_an_error_about_the_call_does_not_show_them(keys: Keys) -> None:
    with pytest.raises(InvalidArguments, match=r"call 1 is \.\.\.; pass a list") as caught:
        tasks.charge.enqueue_many([SECRET])  # type: ignore[list-item]
    assert SECRET not in str(caught.value)


@task(redact=("card",))
def take_apart(card: dict[str, str]) -> None:
    number = card.pop("number")
    raise ValueError(f"{number} was refused")


def test_an_error_does_not_show_parts_that_the_task_took_from_its_argument() -> None:
    with capture_jobs() as jobs:
        take_apart.enqueue({"number": SECRET})
        (job,) = jobs.drain()
    assert job.error is not None
    assert job.error.message == "[redacted] was refused"
    assert SECRET not in job.error.traceback


def test_in_memory_arguments_are_hidden_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), capture_jobs() as jobs:
        tasks.charge.enqueue(1, card=SECRET)
        jobs.assert_enqueued(tasks.charge, args=(1,), kwargs={"card": SECRET})
        assert jobs.jobs[0].kwargs == {"card": "[redacted]"}
        with pytest.raises(AssertionError, match="redacted") as caught:
            jobs.assert_enqueued(tasks.charge, kwargs={"card": "another"})
        assert SECRET not in str(caught.value)
        (job,) = jobs.drain()
        assert job.result == f"1 {SECRET}  "  # a task's result is its own responsibility
    assert SECRET not in caplog.text


# -- the option's value


def plain(order: int, card: str) -> None: ...


def test_names_that_are_not_parameters_are_refused_at_the_definition() -> None:
    with pytest.raises(InvalidOption) as caught:
        task(redact=("order", "cart"))(plain)
    assert str(caught.value) == (
        f"redact names 'cart', which is not a parameter of {__name__}.plain "
        "(did you mean 'card'?); it has order, card"
    )


@pytest.mark.parametrize("value", ["card", 5, ("card", 5), {"card": 1}])
def test_anything_but_a_tuple_of_names_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"redact must be a tuple of parameter names, such as"):
        task(redact=value)(plain)


def test_the_context_is_not_an_argument() -> None:
    with pytest.raises(InvalidOption, match="redact names 'context', which is not a parameter"):
        redaction_of(tasks.vault.func, ("context",), 1)


@pytest.mark.parametrize(
    ("payload", "options", "shown"),
    [
        ('[["a"],{}]', "", '[["a"],{}]'),
        ('[["a"],{}]', '{"timeout_ms":5}', '[["a"],{}]'),
        (
            '[["a","b"],{"c":1}]',
            '{"redact":[1,"c","d"]}',
            '[["a","[redacted]"],{"c":"[redacted]"}]',
        ),
        ('[["a"]', '{"redact":[0]}', ALL_REDACTED),
        ('[["a"],{}]', '{"redact":[[]]}', ALL_REDACTED),
        ('[["a"],{}]', "[]", ALL_REDACTED),
        ('[["a"],{}]', "{", ALL_REDACTED),
        ("[" * 100_000, '{"redact":[0]}', ALL_REDACTED),
    ],
)
def test_a_payload_as_it_may_be_shown(payload: str, options: str, shown: str) -> None:
    assert display_payload(payload, options) == shown
