"""enqueue: new jobs get their places, repeats change nothing, and a refused call writes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import RedisFull, RedisQueueError, WrongKeyType

from .harness import PAYLOAD, T0, BrokerHarness, invariants, long_id
from .planted import plant_bug


def test_a_job_is_queued_with_only_the_fields_that_differ_from_the_defaults(
    broker: BrokerHarness,
) -> None:
    assert broker.add("a") == [True]
    assert broker.job("a") == {
        "task": "app.task",
        "payload": PAYLOAD,
        "status": "queued",
        "enqueued_ms": str(T0),
    }
    assert broker.ids("queued") == ["a"]
    assert broker.tokens() == 1
    invariants(broker)


def test_options_are_stored(broker: BrokerHarness) -> None:
    broker.add(
        "a", queue="mail", priority=-3, options='{"timeout_ms":5}', audit="final", when="+500"
    )
    assert broker.job("a") == {
        "task": "app.task",
        "payload": PAYLOAD,
        "status": "scheduled",
        "enqueued_ms": str(T0),
        "queue": "mail",
        "priority": "-3",
        "options": '{"timeout_ms":5}',
        "audit": "final",
        "seq": "1",  # because its run takes the slow path
        "due_ms": str(T0 + 500),
    }
    invariants(broker)


def test_jobs_are_claimed_in_the_order_of_arrival(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.add("c")
    assert broker.ids("queued") == ["a", "b", "c"]


def test_a_batch_for_several_queues_leaves_one_token_in_each(broker: BrokerHarness) -> None:
    jobs = [NewJob(f"{queue}{n}", queue, "t", PAYLOAD) for queue in "xyz" for n in range(3)]
    assert broker.store.enqueue(jobs) == [True] * 9
    assert [broker.tokens(queue) for queue in "xyz"] == [1, 1, 1]
    assert broker.ids("queued", "y") == ["y0", "y1", "y2"]
    invariants(broker)


@pytest.mark.parametrize("options", [{}, {"priority": 5}, {"when": "+1000"}])
def test_a_repeat_changes_nothing(broker: BrokerHarness, options: dict[str, object]) -> None:
    broker.add("a", **options)
    with broker.unchanged():
        assert broker.add("a", **options) == [False]
        assert broker.add("a", queue="other", priority=9, payload='[["other"],{}]') == [False]


def test_an_id_that_occurs_twice_in_a_call_creates_one_job(broker: BrokerHarness) -> None:
    assert broker.add("a", "a", "b") == [True, False, True]
    assert broker.ids("queued") == ["a", "b"]
    invariants(broker)


@pytest.mark.parametrize("kind", ["completed", "failed", "retrying", "cancelled"])
def test_a_repeat_finds_the_job_in_whatever_state_it_is(broker: BrokerHarness, kind: str) -> None:
    broker.end("a", kind=kind, body='"x"')
    with broker.unchanged():
        assert broker.add("a") == [False]


@pytest.mark.parametrize("when", ["+1500", str(T0 + 1500)])
def test_a_delayed_job_is_scheduled_and_only_wakes_the_timer(
    broker: BrokerHarness, when: str
) -> None:
    broker.add("a", when=when)
    assert broker.redis.zscore(broker.keys.queue("default").scheduled, "a") == T0 + 1500
    assert broker.tokens() == 0
    assert broker.redis.llen(broker.keys.timer) == 1
    invariants(broker)


@pytest.mark.parametrize("when", ["+0", "+-5", str(T0), str(T0 - 1), "0"])
def test_a_time_that_has_passed_means_now(broker: BrokerHarness, when: str) -> None:
    broker.add("a", when=when)
    assert broker.ids("queued") == ["a"]
    assert broker.redis.exists(broker.keys.timer) == 0
    invariants(broker)


def test_only_a_sooner_job_wakes_the_timer_and_only_once(broker: BrokerHarness) -> None:
    broker.add("a", when="+1000")
    broker.add("b", when="+500")
    assert broker.redis.lrange(broker.keys.timer, 0, -1) == ["1"]
    broker.store.promote(["default"])
    broker.add("later", when="+2000")
    assert broker.redis.exists(broker.keys.timer) == 0
    broker.add("sooner", when="+100")
    assert broker.redis.llen(broker.keys.timer) == 1


def test_priorities_go_into_bands_and_count_in_order(broker: BrokerHarness) -> None:
    for name, priority in [("low", -100), ("a", 7), ("b", 7), ("high", 100), ("c", 1)]:
        broker.add(name, priority=priority)
    assert broker.ids("priority") == ["high", "a", "b", "c", "low"]
    invariants(broker)


def test_every_new_job_is_an_event_with_its_arguments(broker: BrokerHarness) -> None:
    broker.add("a", payload='[[1],{"x":[]}]')
    assert broker.events() == [
        {
            "jobId": "a",
            "status": "queued",
            "queue": "default",
            "task": "app.task",
            "workerId": "",
            "attempt": 0,
            "seq": 1,
            "timestamp": T0,
            "args": '[[1],{"x":[]}]',
        }
    ]


@pytest.mark.parametrize(("size", "is_inline"), [(1024, True), (1025, False)])
def test_only_small_arguments_travel_inline(
    broker: BrokerHarness, size: int, is_inline: bool
) -> None:
    broker.add("a", payload="x" * size)
    (event,) = broker.events()
    assert ("args" in event) is is_inline


def test_the_event_is_published_too(broker: BrokerHarness) -> None:
    with broker.redis.pubsub() as pubsub:
        pubsub.subscribe(broker.keys.status_channel)
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        broker.add("a")
        message = pubsub.get_message(timeout=5)
    (event,) = broker.events()
    assert json.loads(message["data"]) | {"args": PAYLOAD} == event


def test_messages_without_listeners_are_not_sent(broker: BrokerHarness) -> None:
    """One message per script is sent, because its reply tells whether anyone listens."""

    def sent() -> int:
        return broker.calls("publish")[0]

    before = sent()
    broker.add(*"abcde")
    assert sent() - before == 1
    with broker.redis.pubsub() as pubsub:
        pubsub.psubscribe(f"{broker.keys.status_channel}*")
        assert pubsub.get_message(timeout=5)["type"] == "psubscribe"
        broker.add(*"vwxyz")
        heard = [json.loads(pubsub.get_message(timeout=5)["data"])["jobId"] for _ in range(5)]
    assert heard == list("vwxyz")


@pytest.mark.parametrize(
    ("audit", "statuses"),
    [
        ("", ["queued", "processing", "completed"]),
        ("all", ["queued", "processing", "completed"]),
        ("final", ["completed"]),
        ("failed", []),
        ("none", []),
    ],
)
def test_audit_thins_events(broker: BrokerHarness, audit: str, statuses: list[str]) -> None:
    broker.end("a", audit=audit)
    assert broker.event_statuses("a") == statuses


@pytest.mark.parametrize(("audit", "statuses"), [("failed", ["failed"]), ("none", [])])
def test_audit_of_a_failed_job(broker: BrokerHarness, audit: str, statuses: list[str]) -> None:
    broker.end("a", kind="failed", audit=audit)
    assert broker.event_statuses("a") == statuses


@pytest.mark.parametrize("name", ["queued", "wake", "priority", "meta", "scheduled"])
def test_a_queue_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str
) -> None:
    options = {"priority": 1} if name in ("priority", "meta") else {}
    options = {"when": "+9"} if name == "scheduled" else options
    sound = NewJob("sound", "other", "t", PAYLOAD)
    with broker.refused_over(getattr(broker.keys.queue("default"), name)):
        broker.store.enqueue([sound, NewJob("a", "default", "t", PAYLOAD, **options)])


def test_an_events_key_of_another_type_is_named(broker: BrokerHarness) -> None:
    with broker.refused_over(broker.keys.events, "stream"):
        broker.add("a")


def test_a_job_key_of_another_type_is_left_alone_and_the_rest_is_created(
    broker: BrokerHarness,
) -> None:
    broker.redis.set(broker.keys.job("a"), "theirs")
    with pytest.raises(WrongKeyType, match="does not hold a job"):
        broker.add("a", "b")
    assert broker.redis.get(broker.keys.job("a")) == "theirs"
    assert broker.ids("queued") == ["b"]


@pytest.mark.parametrize("options", [{}, {"priority": 5}, {"when": "+1000"}])
def test_a_full_redis_refuses_and_nothing_is_written(
    broker: BrokerHarness, options: dict[str, object]
) -> None:
    broker.add("there")
    with broker.unchanged(), broker.full(), pytest.raises(RedisFull, match="maxmemory"):
        broker.add("a", "b", **options)
    assert broker.add("a", "b", **options) == [True, True]


@pytest.mark.parametrize("bad", [{"when": "soon"}, {"when": "+soon"}, {"priority": "much"}])
def test_a_malformed_call_is_refused_before_anything_is_written(
    broker: BrokerHarness, bad: dict[str, str]
) -> None:
    sound = NewJob("sound", "default", "t", PAYLOAD)
    with pytest.raises(RedisQueueError):
        broker.store.enqueue([sound, NewJob("a", "default", "t", PAYLOAD, **bad)])  # type: ignore[arg-type]
    assert broker.dump() == {}


def test_many_batches_are_sent_in_one_pipeline(broker: BrokerHarness) -> None:
    batches = [[NewJob(f"{b}.{n}", "default", "t", PAYLOAD) for n in range(100)] for b in range(5)]
    assert broker.store.enqueue_all(iter(batches)) == 500
    assert broker.store.enqueue_all(iter([*batches, [NewJob("one", "default", "t", PAYLOAD)]])) == 1
    assert broker.ids("queued") == [job.id for batch in batches for job in batch] + ["one"]
    invariants(broker)


def test_the_stream_is_capped(broker: BrokerHarness) -> None:
    broker.store.settings = replace(broker.store.settings, events_cap=100)
    for n in range(6):
        broker.add(*[long_id(100 * n + m) for m in range(100)])
    assert 100 <= len(broker.events()) < 300


def test_a_queue_is_registered_with_its_first_job_and_costs_nothing_afterwards(
    broker: BrokerHarness,
) -> None:
    broker.redis.config_resetstat()
    broker.add("a", "b", queue="x")
    broker.add("c", queue="x")
    broker.add("d", queue="y", when="+5")
    assert broker.redis.smembers(broker.keys.queues) == {"x", "y"}
    assert broker.calls("sadd") == [2]


def one_more(broker: BrokerHarness, **options: Any) -> tuple[object, object, int]:
    """What a second job of a queue leaves and publishes, and how many commands that takes."""
    broker.add("first", **options)
    listener = broker.redis.pubsub(ignore_subscribe_messages=True)
    with listener:
        listener.subscribe(broker.keys.status_channel)
        assert listener.get_message(timeout=5) is None  # that it subscribes
        broker.redis.config_resetstat()
        assert broker.add("a", **options) == [True]
        stats = broker.redis.info("commandstats")
        message = listener.get_message(timeout=5)
    calls = sum(each["calls"] for each in stats.values())
    kept = {key: value for key, value in broker.dump().items() if key != broker.keys.events}
    events = [(event.field, event.text, event.inline) for event in broker.written()]
    assert message is not None
    return (kept, events), message["data"], calls


@pytest.mark.parametrize("queue", ["default", "mail"])
@pytest.mark.parametrize("payload", [PAYLOAD, f'[["{"x" * 2000}"],{{}}]'], ids=["short", "long"])
def test_a_single_plain_job_has_the_same_effect_with_fewer_commands(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch, queue: str, payload: str
) -> None:
    *fast, few = one_more(broker, queue=queue, payload=payload)
    broker.redis.flushdb()
    plant_bug(monkeypatch, "is_usual, tokens = not is_general,", "is_usual, tokens = false,")
    *slow, more = one_more(broker, queue=queue, payload=payload)
    assert fast == slow
    assert few <= 10  # the call, and at most two checks and seven writes, by a given clock
    assert few < more


@pytest.mark.parametrize("number", ["much", "1.5", "1e3", "-1", ""])
def test_a_corrupt_counter_of_a_queue_restarts(broker: BrokerHarness, number: str) -> None:
    broker.add("first")
    broker.redis.hset(broker.keys.queue("default").meta, "enqueued_total", number)
    assert broker.add("a") == [True]
    expected = "0" if number == "-1" else "1"
    assert broker.redis.hget(broker.keys.queue("default").meta, "enqueued_total") == expected
    assert broker.ids("queued") == ["first", "a"]
