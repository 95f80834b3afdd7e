"""Whether Redis would still have a job after a crash: the questions, and what older servers are
asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from django_redisqueue.broker import durability
from django_redisqueue.broker.durability import Durability
from django_redisqueue.broker.redis_url import RedisUrl
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.records import WorkflowJob, WorkflowPart
from django_redisqueue.exceptions import ParentNotFound, RedisRefused, WrongKeyType

from .harness import PAYLOAD, BrokerHarness, outcome


def stored(*ids: str, after: str = "") -> list[NewJob]:
    return [NewJob(name, "default", "app.task", PAYLOAD, after=after, stored=True) for name in ids]


@pytest.fixture
def live(broker: BrokerHarness) -> BrokerHarness:
    """On Redis's own clock."""
    broker.store.now_ms = None
    return broker


# -- what Redis remembers about jobs that have rows


@pytest.mark.parametrize("after", ["", "wait parent"])
def test_a_job_with_a_row_is_not_created_again_after_it_was_pruned(
    broker: BrokerHarness, after: str
) -> None:
    if after:
        broker.end("parent")
    assert broker.store.enqueue(stored("a", after=after)) == [True]
    broker.end("a")
    broker.redis.delete(broker.keys.job("a"))
    assert broker.store.enqueue(stored("a", "b", after=after)) == [False, True]
    Durability(broker.store.connection).forget(["a"])
    assert broker.store.enqueue(stored("a", "b", after=after)) == [True, False]


def test_a_workflow_with_a_row_is_not_created_again_after_it_was_cleaned_up(
    broker: BrokerHarness,
) -> None:
    job = WorkflowJob(
        "flow_0_0.0", "default", "app.task", PAYLOAD, "", 0, "", "", 0, "", "", "", ""
    )
    part = WorkflowPart("flow_0_0", [], [job], True, True, stored=True)

    def push() -> Any:
        return broker.store.connection.script(*broker.store.enqueue_workflow([part]))

    assert push() == [1]
    broker.finish(outcome(broker.take()))
    broker.redis.delete(broker.keys.workflow("flow_0_0"), broker.keys.job("flow_0_0.0"))
    assert push() == [0]
    assert broker.taken() == []
    Durability(broker.store.connection).forget(["flow_0_0"])
    assert push() == [1]


def test_a_job_sent_without_its_row_is_remembered_from_the_next_call(broker: BrokerHarness) -> None:
    broker.add("a")
    assert broker.redis.zrange(broker.keys.outbox, 0, -1) == []
    assert broker.store.enqueue(stored("a")) == [False]
    assert broker.redis.zrange(broker.keys.outbox, 0, -1) == ["a"]


def test_a_job_that_was_not_created_is_not_remembered(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.job("a"), "text")
    with pytest.raises(WrongKeyType, match="does not hold a job"):
        broker.store.enqueue(stored("a", "b"))
    assert broker.redis.zrange(broker.keys.outbox, 0, -1) == ["b"]
    with pytest.raises(ParentNotFound, match="was to wait for job gone"):
        broker.store.enqueue(stored("c", after="wait gone"))
    assert broker.redis.zrange(broker.keys.outbox, 0, -1) == ["b"]


def test_it_costs_a_read_and_a_write_per_call_and_nothing_without_rows(
    broker: BrokerHarness,
) -> None:
    broker.redis.config_resetstat()
    broker.store.enqueue(stored(*[f"a{n}" for n in range(100)]))
    assert broker.calls("zmscore", "zadd") == [1, 1]
    broker.redis.config_resetstat()
    broker.add(*[f"b{n}" for n in range(100)])
    assert broker.calls("zmscore", "zadd") == [0, 0]


def test_a_key_of_another_type_is_named_before_anything_is_written(broker: BrokerHarness) -> None:
    with broker.refused_over(broker.keys.outbox, "zset"):
        broker.store.enqueue(stored("a"))


# -- is it safe


def test_a_job_is_safe_some_seconds_after_redis_has_accepted_it(
    live: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Durability(live.store.connection)
    live.store.enqueue(stored("a"))
    assert asked.accepted(["a", "b"]) == {"a": False}
    assert asked.accepted([]) == {}
    monkeypatch.setattr(durability, "FSYNCED_MS", 0)
    assert asked.accepted(["a", "b"]) == {"a": True}
    assert asked.accepted(["a"], wait=False) == {"a": False}
    live.redis.flushdb()
    assert asked.accepted(["a"]) == {}


def test_it_is_not_safe_until_a_replica_has_it(
    live: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "FSYNCED_MS", 0)
    monkeypatch.setattr(durability, "WAIT_MS", 10)
    live.store.enqueue(stored("a"))
    assert Durability(live.store.connection, replicas=1).accepted(["a"]) == {"a": False}


class Server:
    """Stands in for a Redis of some version: records what it was asked, and answers."""

    shard = 0
    redis_url = RedisUrl("redis://localhost", "redis://localhost")

    def __init__(self, waitaof: Any, age_ms: int) -> None:
        self.asked: list[list[str]] = []
        self._waitaof = waitaof
        self._age_ms = age_ms

    def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        names = [str(command[0]) for command in commands]
        self.asked.append(names)
        if "WAITAOF" in names and isinstance(self._waitaof, Exception):
            raise self._waitaof
        replies = {
            "ZMSCORE": [str(10_000_000 - self._age_ms)], "TIME": ["10000", "0"], "HSET": 0,
            "WAITAOF": self._waitaof, "WAIT": 1,
        }  # fmt: skip
        return [replies[name] for name in names]


LOOK = ["TIME", "ZMSCORE"]


@pytest.mark.parametrize(
    ("written", "age_ms", "is_safe"),
    [(1, 4_999, False), (1, 5_000, True), (0, 59_999, False), (0, 60_000, True)],
)
def test_a_server_that_reports_its_disk_state_is_asked(
    written: int, age_ms: int, is_safe: bool
) -> None:
    server: Any = Server([written, 0], age_ms)
    assert Durability(server, replicas=1).accepted(["a"]) == {"a": is_safe}
    assert server.asked == [[*LOOK, "HSET", "WAITAOF", "WAIT"]]


@pytest.mark.parametrize(
    "refusal",
    [
        "ERR unknown command 'WAITAOF', with args beginning with: '1' '0' '1500'",
        "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        "NOPERM User queue has no permissions to run the 'waitaof' command",
    ],
)
def test_on_other_servers_only_the_age_counts(refusal: str) -> None:
    server: Any = Server(RedisRefused(refusal), 5_000)
    asked = Durability(server)
    assert asked.accepted(["a"]) == asked.accepted(["a"]) == {"a": True}
    assert server.asked == [[*LOOK, "HSET", "WAITAOF"], LOOK, LOOK]


def test_other_errors_are_raised() -> None:
    server: Any = Server(RedisRefused("READONLY You can't write against a read only replica"), 0)
    with pytest.raises(RedisRefused, match="READONLY"):
        Durability(server).accepted(["a"])
