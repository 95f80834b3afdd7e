"""enqueue: new jobs get their places, repeats change nothing, and a refused call writes nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import RedisFull, RedisQueueError, WrongKeyType

from .lab import PAYLOAD, T0, Lab, invariants, long_id
from .planted import plant_bug


def test_a_job_is_queued_with_only_the_fields_that_differ_from_the_defaults(lab: Lab) -> None:
    assert lab.add("a") == [True]
    assert lab.job("a") == {
        "task": "app.task",
        "payload": PAYLOAD,
        "status": "queued",
        "enqueued_ms": str(T0),
    }
    assert lab.ids("queued") == ["a"]
    assert lab.tokens() == 1
    invariants(lab)


def test_options_are_stored(lab: Lab) -> None:
    lab.add("a", queue="mail", priority=-3, options='{"timeout_ms":5}', audit="final", when="+500")
    assert lab.job("a") == {
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
    invariants(lab)


def test_jobs_are_claimed_in_the_order_of_arrival(lab: Lab) -> None:
    lab.add("a", "b")
    lab.add("c")
    assert lab.ids("queued") == ["a", "b", "c"]


def test_a_batch_for_several_queues_leaves_one_token_in_each(lab: Lab) -> None:
    jobs = [NewJob(f"{queue}{n}", queue, "t", PAYLOAD) for queue in "xyz" for n in range(3)]
    assert lab.store.enqueue(jobs) == [True] * 9
    assert [lab.tokens(queue) for queue in "xyz"] == [1, 1, 1]
    assert lab.ids("queued", "y") == ["y0", "y1", "y2"]
    invariants(lab)


@pytest.mark.parametrize("options", [{}, {"priority": 5}, {"when": "+1000"}])
def test_a_repeat_changes_nothing(lab: Lab, options: dict[str, object]) -> None:
    lab.add("a", **options)
    before = lab.dump()
    assert lab.add("a", **options) == [False]
    assert lab.add("a", queue="other", priority=9, payload='[["other"],{}]') == [False]
    assert lab.dump() == before


def test_an_id_that_occurs_twice_in_a_call_creates_one_job(lab: Lab) -> None:
    assert lab.add("a", "a", "b") == [True, False, True]
    assert lab.ids("queued") == ["a", "b"]
    invariants(lab)


@pytest.mark.parametrize("verdict", ["completed", "failed", "retrying", "cancelled"])
def test_a_repeat_finds_the_job_in_whatever_state_it_is(lab: Lab, verdict: str) -> None:
    lab.end("a", verdict=verdict, body='"x"')
    before = lab.dump()
    assert lab.add("a") == [False]
    assert lab.dump() == before


@pytest.mark.parametrize("when", ["+1500", str(T0 + 1500)])
def test_a_delayed_job_is_scheduled_and_only_wakes_the_timer(lab: Lab, when: str) -> None:
    lab.add("a", when=when)
    assert lab.redis.zscore(lab.keys.queue("default").scheduled, "a") == T0 + 1500
    assert lab.tokens() == 0
    assert lab.redis.llen(lab.keys.timer) == 1
    invariants(lab)


@pytest.mark.parametrize("when", ["+0", "+-5", str(T0), str(T0 - 1), "0"])
def test_a_time_that_has_passed_means_now(lab: Lab, when: str) -> None:
    lab.add("a", when=when)
    assert lab.ids("queued") == ["a"]
    assert lab.redis.exists(lab.keys.timer) == 0
    invariants(lab)


def test_only_a_sooner_job_wakes_the_timer_and_only_once(lab: Lab) -> None:
    lab.add("a", when="+1000")
    lab.add("b", when="+500")
    assert lab.redis.lrange(lab.keys.timer, 0, -1) == ["1"]
    lab.store.promote(["default"])
    lab.add("later", when="+2000")
    assert lab.redis.exists(lab.keys.timer) == 0
    lab.add("sooner", when="+100")
    assert lab.redis.llen(lab.keys.timer) == 1


def test_priorities_go_into_bands_and_count_in_order(lab: Lab) -> None:
    for name, priority in [("low", -100), ("a", 7), ("b", 7), ("high", 100), ("c", 1)]:
        lab.add(name, priority=priority)
    assert lab.ids("priority") == ["high", "a", "b", "c", "low"]
    invariants(lab)


def test_every_new_job_is_an_event_with_its_arguments(lab: Lab) -> None:
    lab.add("a", payload='[[1],{"x":[]}]')
    assert lab.events() == [
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
def test_only_small_arguments_travel_inline(lab: Lab, size: int, is_inline: bool) -> None:
    lab.add("a", payload="x" * size)
    (event,) = lab.events()
    assert ("args" in event) is is_inline


def test_the_event_is_published_too(lab: Lab) -> None:
    with lab.redis.pubsub() as pubsub:
        pubsub.subscribe(lab.keys.status_channel)
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        lab.add("a")
        message = pubsub.get_message(timeout=5)
    (event,) = lab.events()
    assert json.loads(message["data"]) | {"args": PAYLOAD} == event


def test_messages_without_listeners_are_not_sent(lab: Lab) -> None:
    """One message per script is sent, because its reply tells whether anyone listens."""

    def sent() -> int:
        return int(lab.redis.info("commandstats").get("cmdstat_publish", {}).get("calls", 0))

    before = sent()
    lab.add(*"abcde")
    assert sent() - before == 1
    with lab.redis.pubsub() as pubsub:
        pubsub.psubscribe(f"{lab.keys.status_channel}*")
        assert pubsub.get_message(timeout=5)["type"] == "psubscribe"
        lab.add(*"vwxyz")
        heard = [json.loads(pubsub.get_message(timeout=5)["data"])["jobId"] for _ in range(5)]
    assert heard == list("vwxyz")


@pytest.mark.parametrize(
    ("audit", "story"),
    [
        ("", ["queued", "processing", "completed"]),
        ("all", ["queued", "processing", "completed"]),
        ("final", ["completed"]),
        ("failed", []),
        ("none", []),
    ],
)
def test_audit_thins_events(lab: Lab, audit: str, story: list[str]) -> None:
    lab.end("a", audit=audit)
    assert lab.story("a") == story


@pytest.mark.parametrize(("audit", "story"), [("failed", ["failed"]), ("none", [])])
def test_audit_of_a_failed_job(lab: Lab, audit: str, story: list[str]) -> None:
    lab.end("a", verdict="failed", audit=audit)
    assert lab.story("a") == story


@pytest.mark.parametrize("name", ["queued", "wake", "priority", "meta", "scheduled"])
def test_a_queue_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    key = getattr(lab.keys.queue("default"), name)
    lab.redis.set(key, "theirs")
    options = {"priority": 1} if name in ("priority", "meta") else {}
    options = {"when": "+9"} if name == "scheduled" else options
    before = lab.dump()
    sound = NewJob("sound", "other", "t", PAYLOAD)
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.enqueue([sound, NewJob("a", "default", "t", PAYLOAD, **options)])
    assert lab.dump() == before


def test_an_events_key_of_another_type_is_named(lab: Lab) -> None:
    lab.redis.set(lab.keys.events, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match="holds a string where a stream belongs"):
        lab.add("a")
    assert lab.dump() == before


def test_a_job_key_of_another_type_is_left_alone_and_the_rest_is_created(lab: Lab) -> None:
    lab.redis.set(lab.keys.job("a"), "theirs")
    with pytest.raises(WrongKeyType, match="does not hold a job"):
        lab.add("a", "b")
    assert lab.redis.get(lab.keys.job("a")) == "theirs"
    assert lab.ids("queued") == ["b"]


@pytest.mark.parametrize("options", [{}, {"priority": 5}, {"when": "+1000"}])
def test_a_full_redis_refuses_and_nothing_is_written(lab: Lab, options: dict[str, object]) -> None:
    lab.add("there")
    before = lab.dump()
    with lab.full(), pytest.raises(RedisFull, match="maxmemory"):
        lab.add("a", "b", **options)
    assert lab.dump() == before
    assert lab.add("a", "b", **options) == [True, True]


@pytest.mark.parametrize("bad", [{"when": "soon"}, {"when": "+soon"}, {"priority": "much"}])
def test_a_malformed_call_is_refused_before_anything_is_written(
    lab: Lab, bad: dict[str, str]
) -> None:
    sound = NewJob("sound", "default", "t", PAYLOAD)
    with pytest.raises(RedisQueueError):
        lab.store.enqueue([sound, NewJob("a", "default", "t", PAYLOAD, **bad)])  # type: ignore[arg-type]
    assert lab.dump() == {}


def test_many_batches_are_sent_in_one_pipeline(lab: Lab) -> None:
    batches = [[NewJob(f"{b}.{n}", "default", "t", PAYLOAD) for n in range(100)] for b in range(5)]
    assert lab.store.enqueue_all(iter(batches)) == 500
    assert lab.store.enqueue_all(iter([*batches, [NewJob("one", "default", "t", PAYLOAD)]])) == 1
    assert lab.ids("queued") == [job.id for batch in batches for job in batch] + ["one"]
    invariants(lab)


def test_the_stream_is_capped(lab: Lab) -> None:
    lab.store.settings = replace(lab.store.settings, events_cap=100)
    for n in range(6):
        lab.add(*[long_id(100 * n + m) for m in range(100)])
    assert 100 <= len(lab.events()) < 300


def test_a_queue_is_registered_with_its_first_job_and_costs_nothing_afterwards(lab: Lab) -> None:
    lab.redis.config_resetstat()
    lab.add("a", "b", queue="x")
    lab.add("c", queue="x")
    lab.add("d", queue="y", when="+5")
    assert lab.redis.smembers(lab.keys.queues) == {"x", "y"}
    assert lab.redis.info("commandstats")["cmdstat_sadd"]["calls"] == 2


def one_more(lab: Lab, **options: Any) -> tuple[object, object, int]:
    """What a second job of a queue leaves and publishes, and how many commands that takes."""
    lab.add("first", **options)
    listener = lab.redis.pubsub(ignore_subscribe_messages=True)
    with listener:
        listener.subscribe(lab.keys.status_channel)
        assert listener.get_message(timeout=5) is None  # that it subscribes
        lab.redis.config_resetstat()
        assert lab.add("a", **options) == [True]
        stats = lab.redis.info("commandstats")
        message = listener.get_message(timeout=5)
    calls = sum(each["calls"] for each in stats.values())
    kept = {key: value for key, value in lab.dump().items() if key != lab.keys.events}
    events = [(event.field, event.text, event.beside) for event in lab.written()]
    assert message is not None
    return (kept, events), message["data"], calls


@pytest.mark.parametrize("queue", ["default", "mail"])
@pytest.mark.parametrize("payload", [PAYLOAD, f'[["{"x" * 2000}"],{{}}]'], ids=["short", "long"])
def test_a_single_plain_job_has_the_same_effect_with_fewer_commands(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, queue: str, payload: str
) -> None:
    *fast, few = one_more(lab, queue=queue, payload=payload)
    lab.redis.flushdb()
    plant_bug(monkeypatch, "is_usual, tokens = not is_general,", "is_usual, tokens = false,")
    *slow, more = one_more(lab, queue=queue, payload=payload)
    assert fast == slow
    assert few <= 10  # the call, and at most two checks and seven writes, by a given clock
    assert few < more


@pytest.mark.parametrize("number", ["much", "1.5", "1e3", "-1", ""])
def test_a_corrupt_counter_of_a_queue_restarts(lab: Lab, number: str) -> None:
    lab.add("first")
    lab.redis.hset(lab.keys.queue("default").meta, "enqueued_total", number)
    assert lab.add("a") == [True]
    expected = "0" if number == "-1" else "1"
    assert lab.redis.hget(lab.keys.queue("default").meta, "enqueued_total") == expected
    assert lab.ids("queued") == ["first", "a"]
