"""Listeners, publish and Gather.start as an application writes them; nothing runs here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from django_redisqueue import (
    Gather,
    JobQueue,
    Workflow,
    get_gather,
    get_job,
    listener,
    publish,
    send_event,
    task,
)
from django_redisqueue.client import gather as gathers
from django_redisqueue.client.gather import start_gather
from django_redisqueue.core.codec import decode_payload
from django_redisqueue.exceptions import (
    GatherError,
    GatherExists,
    GatherNotFound,
    InvalidArguments,
    InvalidName,
    InvalidOption,
    InvalidTask,
    JobFailed,
    NotCommitted,
    PayloadTooLarge,
    RedisUnavailable,
    UnknownQueue,
    WaitTimeout,
)
from django_redisqueue.models import OutboxJob
from tests.app.tasks import noop
from tests.support.commands import Script
from tests.support.stream import entries, written

from . import tasks

pytestmark = pytest.mark.usefixtures("queue_settings")
PAYLOAD = {"record_id": 42}


def start(key: str = "k-1", **options: Any) -> Gather:
    return Gather.start(
        key, **{"topic": "report", "payload": PAYLOAD, "then": tasks.merge, **options}
    )


@pytest.fixture
def topic() -> Iterator[str]:
    """A topic for this test only."""
    yield "own"
    gathers._topics.pop("own", None)


# -- listeners and publish


def test_a_listener_is_a_task_with_its_options() -> None:
    assert tasks.users.name == "tests.client.gather.tasks.users"
    assert tasks.funds.is_async
    assert tasks.funds.priority == 5
    assert tasks.users(3) == [3, 1]
    assert list(gathers.listeners_of("report")) == ["accounts", "funds", "users"]


def test_a_task_may_listen_to_many_topics(topic: str) -> None:
    assert listener(topic)(tasks.users) is tasks.users
    assert listener(topic, listens_as="again")(tasks.users) is tasks.users
    assert list(gathers.listeners_of(topic)) == ["again", "users"]
    with pytest.raises(InvalidTask, match=r"is already a task; pass its options \(priority\)"):
        listener(topic, priority=3)(tasks.users)


def test_a_task_with_call_options_may_listen_unless_it_is_delayed(topic: str) -> None:
    listener(topic)(tasks.users.using(priority=9))
    assert publish(topic, PAYLOAD)[0].priority == 9
    for later in (tasks.funds.using(run_after=5), tasks.funds.using(after="job_1")):
        with pytest.raises(InvalidTask, match=r"funds has run_after= or after= from using\(\)"):
            listener(topic)(later)


def test_a_listener_for_an_unknown_queue_is_named(topic: str, redis: Any) -> None:
    listener(topic)(replace(tasks.users, queue_name="nobody"))
    with pytest.raises(UnknownQueue, match="'nobody'"):
        start(topic=topic)
    assert redis.dbsize() == 0


def test_any_name_may_be_in_a_payload(topic: str) -> None:
    listener(topic)(tasks.anything)
    odd = {"self": 1, "key": 2, "topic": 3, "payload": 4, "func": 5}
    assert publish(topic, odd)[0].kwargs == odd
    assert start(topic=topic, payload=odd, then=tasks.anything).jobs()[0].kwargs == odd


def test_two_listeners_of_one_name_are_refused(topic: str) -> None:
    listener(topic)(tasks.users)
    with pytest.raises(InvalidTask, match=r"'own' already has a listener 'users'.*listens_as="):
        listener(topic, listens_as="users")(tasks.funds)


def push(**options: Any) -> None:
    flow = Workflow(**options)
    flow.add(noop)
    flow.push()


@pytest.mark.parametrize("value", ["yes", 1, 0, []], ids=repr)
@pytest.mark.parametrize(
    "send", [start, push, partial(publish, "report", PAYLOAD), partial(send_event, "paid")]
)
def test_on_commit_is_true_or_false_as_for_one_job(
    send: Callable[..., object], value: Any, redis: Any
) -> None:
    with pytest.raises(
        InvalidOption, match=f"on_commit must be True or False, not {re.escape(repr(value))}"
    ):
        send(on_commit=value)
    assert redis.dbsize() == 0


@pytest.mark.parametrize("name", ["queryDoneCount", "a b", "1", "", "a:b", "a" * 200])
def test_names_that_cannot_be_fields_of_results_are_refused(topic: str, name: str) -> None:
    with pytest.raises(InvalidName, match="name of a listener"):
        listener(topic, listens_as=name)(tasks.users)


@pytest.mark.parametrize("bad", ["", "a b", "a:b", "ü", "a" * 65, None, 3])
def test_a_bad_topic_is_named(bad: Any) -> None:
    for act in (listener, publish):
        with pytest.raises(InvalidName, match="is not a valid topic"):
            act(bad)


def test_a_function_that_cannot_be_a_task_is_refused_and_subscribes_nothing(topic: str) -> None:
    with pytest.raises(InvalidTask):
        listener(topic)(lambda: None)
    with pytest.raises(InvalidOption, match="priority"):
        listener(topic, listens_as="a", priority="high")(start)
    assert gathers.listeners_of(topic) == {}


def test_publish_queues_a_job_for_each_listener() -> None:
    jobs = publish("report", PAYLOAD)
    assert [job.task_name.rpartition(".")[2] for job in jobs] == ["accounts", "funds", "users"]
    assert all(job.kwargs == PAYLOAD for job in jobs)
    assert publish("nobody.listens", PAYLOAD) == []


@pytest.mark.django_db(transaction=True)
def test_publish_waits_for_the_commit() -> None:
    with transaction.atomic():
        jobs = publish("report", PAYLOAD)
        with pytest.raises(NotCommitted):
            jobs[0].refresh()
    assert jobs[0].status == "queued"
    with transaction.atomic():
        assert publish("report", PAYLOAD, on_commit=False)[0].status == "queued"


@pytest.mark.parametrize("bad", [[1], "text", {1: 2}, {"record_id": object()}])
def test_a_bad_payload_is_named(bad: Any) -> None:
    for act in (lambda: publish("report", bad), lambda: start(payload=bad)):
        with pytest.raises(InvalidArguments, match=r"payload must be a dict|argument 'record_id'"):
            act()
    assert JobQueue().get_stats()["queued"] == 0


# -- starting


def test_a_gather_is_found_by_its_key() -> None:
    gather = start(threshold=2)
    data = gather.data
    assert (data.status, data.threshold, data.done_count) == ("collecting", 2, 0)
    assert data.listeners == data.missing == ("accounts", "funds", "users")
    assert (gather.payload, gather.results, gather.follow_up) == (PAYLOAD, {}, None)
    assert get_gather("k-1") == gather
    jobs = gather.jobs()
    assert [job.task_name.rpartition(".")[2] for job in jobs] == list(data.listeners)
    assert jobs[1].priority == 5
    assert repr(gather) == f"<Gather 'k-1' {gather.id}>"


def test_a_key_in_use_is_refused() -> None:
    start()
    with pytest.raises(GatherExists, match="the key 'k-1' belongs to a gather that still exists"):
        start()
    assert JobQueue().get_stats()["queued"] == 3


def test_a_key_that_another_gather_has_since_taken_does_not_match() -> None:
    start()
    stale = Gather("k-1", "gather_0_x_0")
    with pytest.raises(GatherNotFound, match="no gather gather_0_x_0 under the key 'k-1'"):
        _ = stale.status
    with pytest.raises(GatherNotFound, match="no gather has the key 'k-2'"):
        get_gather("k-2")


@pytest.mark.parametrize("bad", ["", "a:b", "a b", "ü", ".a", "a" * 129, None, 5])
def test_a_bad_key_is_named(bad: Any) -> None:
    with pytest.raises(InvalidName, match="is not a valid key of a gather"):
        start(bad)
    with pytest.raises(InvalidName, match="is not a valid key of a gather"):
        get_gather(bad)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"topic": "reprot"}, GatherError, "'reprot' has no listener.*'report'.*@listener"),
        ({"threshold": 0}, GatherError, "threshold must be a whole number from 1 to 3"),
        (
            {"threshold": 4},
            GatherError,
            "from 1 to 3, the number of listeners of the topic 'report'",
        ),
        ({"threshold": True}, GatherError, "not True"),
        ({"threshold": 1.0}, GatherError, r"not 1\.0"),
        ({"polls": 0}, InvalidOption, "polls must be a whole number from 1 to 10000, not 0"),
        ({"polls": True}, InvalidOption, "not True"),
        ({"polls": 10_001}, InvalidOption, "not 10001"),
        ({"poll_delay": 0}, InvalidOption, "poll_delay must be more than 0"),
        ({"poll_delay": -1}, InvalidOption, "poll_delay"),
        ({"ttl": 0}, InvalidOption, "ttl must be more than 0"),
        ({"ttl": "long"}, InvalidOption, "ttl"),
        ({"then": len}, InvalidOption, "then must be a task, .* not <built-in function len>"),
        ({"then": noop.using(after="job_1").s()}, InvalidOption, "noop has after= from using"),
        ({"then": None}, InvalidOption, "then must be a task"),
        ({"on_failure": "x"}, InvalidOption, "on_failure must be a task, .* not 'x'"),
        ({"payload": {"record_id": "x" * 300_000}}, PayloadTooLarge, "listeners of 'report'"),
    ],
)
def test_bad_input_is_named_before_anything_is_written(
    options: dict[str, Any], error: type[Exception], message: str, redis: Any
) -> None:
    with pytest.raises(error, match=message):
        start(**options)
    assert redis.dbsize() == 0


def test_more_than_a_hundred_listeners_are_refused(topic: str, redis: Any) -> None:
    for n in range(101):
        listener(topic, listens_as=f"l{n}")(tasks.users)
    with pytest.raises(GatherError, match="'own' has 101 listeners, but a gather allows 100"):
        start(topic=topic)
    gathers._topics[topic].pop("l7")
    with pytest.raises(PayloadTooLarge, match="allows 10000"):  # all of them fit into one call
        start(topic=topic, payload={"record_id": "x" * 10_001})
    assert redis.dbsize() == 0
    start(topic=topic)
    assert JobQueue().get_stats()["queued"] == 100


def test_without_redis_it_raises_a_clear_error(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": {"URL": "unix:///nonexistent/redis"}}
    with pytest.raises(RedisUnavailable):
        start()


# -- transactions and the outbox


@pytest.mark.django_db(transaction=True)
def test_it_waits_for_the_commit() -> None:
    with transaction.atomic():
        gather = start()
        with pytest.raises(GatherNotFound, match="its transaction has not committed"):
            _ = gather.data
    assert gather.status == "collecting"
    with transaction.atomic():
        start("k-2")
        transaction.set_rollback(True)
    with pytest.raises(GatherNotFound):
        get_gather("k-2")
    with transaction.atomic():
        assert start("k-3", on_commit=False).status == "collecting"


@pytest.mark.django_db(transaction=True)
def test_a_call_that_redis_does_not_accept_after_the_commit_is_kept_in_the_outbox(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": {"URL": "unix:///nonexistent/redis"}}
    with transaction.atomic():
        gather = start()
    row = OutboxJob.objects.get()
    assert row.task == "django_redisqueue.start_gather"
    assert row.options == '{"redact":[0]}'
    settings.REDISQUEUE = queue_settings
    args, kwargs = decode_payload(row.payload)
    for _ in range(2):  # relayed twice, started once
        start_gather(*args, **kwargs)
    assert gather.status == "collecting"
    assert JobQueue().get_stats()["queued"] == 3


@pytest.mark.django_db(transaction=True)
def test_a_key_in_use_raises_nothing_after_the_commit_and_leaves_a_row_that_fails() -> None:
    first = start()
    with transaction.atomic():
        second = start()
    (row,) = OutboxJob.objects.all()
    args, _ = decode_payload(row.payload)
    with pytest.raises(GatherExists):
        start_gather(*args)
    assert GatherExists in start_gather.options.no_retry_on
    assert first.status == "collecting"
    with pytest.raises(GatherNotFound):
        _ = second.status


@pytest.mark.django_db(transaction=True)
def test_with_the_outbox_it_is_a_row_of_the_transaction(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "OUTBOX": True}
    with transaction.atomic():
        gather = start()
        row = OutboxJob.objects.get()
    job = get_job(row.pk)
    assert (job.task_name, job.args) == ("django_redisqueue.start_gather", ("[redacted]",))
    args, _ = decode_payload(row.payload)
    start_gather(*args)
    assert gather.status == "collecting"


@pytest.mark.django_db(transaction=True)
def test_with_the_outbox_wait_also_waits_for_the_job_that_starts_it(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "OUTBOX": True}
    with transaction.atomic():
        gather = start()
        with pytest.raises(NotCommitted):
            gather.wait(timeout=0.05)
    row = OutboxJob.objects.get()
    with pytest.raises(WaitTimeout, match=row.pk):
        gather.wait(timeout=0.05)
    with pytest.raises(GatherNotFound, match="the job that starts it with the outbox has not run"):
        _ = gather.status
    get_job(row.pk).cancel()
    with pytest.raises(JobFailed, match=row.pk):
        gather.wait(timeout=5)


@pytest.mark.django_db(transaction=True)
def test_it_needs_no_queue_named_default(
    topic: str, settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"first": {}, "second": {}}, "OUTBOX": True}
    listener(topic)(tasks.users.using(queue_name="second"))
    with transaction.atomic():
        start(topic=topic, then=tasks.merge.using(queue_name="second"))
        send_event("paid")
        rows = OutboxJob.objects.values_list("task", "queue")
        assert sorted(rows) == [
            ("django_redisqueue.send_event", "first"), ("django_redisqueue.start_gather", "first"),
        ]  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_a_gather_too_large_for_the_outbox_is_refused_inside_the_transaction() -> None:
    with (
        pytest.raises(PayloadTooLarge, match=r"django_redisqueue\.start_gather"),
        transaction.atomic(),
    ):
        start(payload={"record_id": "x" * 200_000})
    assert start(payload={"record_id": "x" * 200_000}).status == "collecting"


# -- redaction


@listener("secret", redact=("card",))
def charge(card: str) -> None:
    """Its argument is shown nowhere."""


@task(redact=("card",))
def charged(card: str) -> None:
    """The follow-up."""


def test_redacted_values_are_not_shown(redis: Any) -> None:
    gather = Gather.start("k", topic="secret", payload={"card": "4111-CARD"}, then=charged)
    job = gather.jobs()[0]
    assert job.kwargs == {"card": "[redacted]"}
    assert publish("secret", {"card": "4111-CARD"})[0].kwargs == {"card": "[redacted]"}
    streams = [key for key in redis.scan_iter() if key.endswith(b":events")]
    assert sum(len(written(redis, stream)) for stream in streams) == 2
    assert "4111-CARD" not in repr([entries(redis, stream) for stream in streams])
    assert gather.payload == {"card": "4111-CARD"}  # for the follow-up's code
    assert "4111-CARD" not in repr(gather)


# -- discovery


def test_listeners_are_found_as_tasks_are() -> None:
    script = Script(
        "from django_redisqueue.client.gather import listeners_of; print(*listeners_of('report'))",
        REDISQUEUE_TEST_SETTINGS='{"TASK_MODULES": ["tests.client.gather.tasks"]}',
    )
    assert script.wait() == 0, script.output
    assert script.output == "accounts funds users\n"


def test_a_gather_of_one_listener_needs_no_more() -> None:
    Gather.start("k", topic="silent", payload=PAYLOAD, then=noop.s(1))
    assert get_gather("k").data.threshold == 1
