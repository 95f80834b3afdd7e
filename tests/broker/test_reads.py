"""Reads of pages of ids, outlines and sorted sets: what they contain, what they cost, and that
nothing is skipped while members come and go."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_redisqueue.broker.base import Read, Strict, page_after, run, together
from django_redisqueue.broker.queries import UnreadableJob
from django_redisqueue.core.job_data import HASH_FIELDS, JobData, decode_job
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import InvalidOption, WrongKeyType
from tests.support.round_trips import round_trips

from .harness import ERROR, BrokerHarness

KEY = "some_set"


@pytest.fixture
def mixed(broker: BrokerHarness) -> list[str]:
    """Adds jobs of all priorities; returns the order in which they will run."""
    for n in range(3):
        broker.add(f"plain{n}")
        broker.add(f"high{n}", priority=5)
        broker.add(f"low{n}", priority=-5)
    return [f"{band}{n}" for band in ("high", "plain", "low") for n in range(3)]


@pytest.mark.parametrize("start", range(10))
@pytest.mark.parametrize("stop", range(10))
def test_every_page_of_queued_ids_is_a_slice_of_the_whole_order(
    broker: BrokerHarness, mixed: list[str], start: int, stop: int
) -> None:
    if start <= stop:
        assert broker.queries.ids("default", Status.QUEUED, start, stop) == mixed[start : stop + 1]


@pytest.mark.parametrize("priority", [0, 5, -5])
def test_queues_of_one_priority_and_empty_ones(broker: BrokerHarness, priority: int) -> None:
    assert broker.queries.ids("default", Status.QUEUED, 0, 9) == []
    broker.add("a", "b", "c", priority=priority)
    assert broker.queries.ids("default", Status.QUEUED, 0, 9) == ["a", "b", "c"]
    assert broker.queries.ids("default", Status.QUEUED, 1, 1) == ["b"]
    assert broker.queries.ids("default", Status.QUEUED, 3, 9) == []


def test_a_deep_page_reads_no_more_than_the_page(broker: BrokerHarness) -> None:
    for at in range(0, 3000, 100):
        broker.add(*[f"j{n}" for n in range(at, at + 100)])
    broker.redis.config_resetstat()
    assert broker.queries.ids("default", Status.QUEUED, 2500, 2509) == [
        f"j{n}" for n in range(2500, 2510)
    ]
    assert broker.redis.info("stats")["total_net_output_bytes"] < 5000


def test_an_outline_has_all_but_result_and_options(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed", body=ERROR, payload='[[1],{"x":2}]', priority=3)
    broker.end("b", body='"a large result"')
    a, b = broker.queries.outlines(["a", "b"])
    assert isinstance(a, JobData)
    assert isinstance(b, JobData)
    assert (a.args, a.kwargs, a.priority, a.status) == ((1,), {"x": 2}, 3, Status.FAILED)
    assert a.error is not None
    assert a.error.type == "E"
    assert a.finished_ms == broker.now
    assert b.result is None


def test_the_fields_that_are_decoded_are_known_to_lists() -> None:
    """A field that HASH_FIELDS lacks would be shown by a job's own page, but not by lists."""
    read = set()

    class Recorded(dict[str, str]):
        def get(self, name: str, *default: Any) -> Any:
            read.add(name)
            return super().get(name, *default)

        def __contains__(self, name: object) -> bool:
            read.add(name)
            return super().__contains__(name)

        def __getitem__(self, name: str) -> str:
            read.add(name)
            return super().__getitem__(name)

    decode_job("a", Recorded(task="t", status=Status.SCHEDULED, payload="[[],{}]"))
    assert read == {*HASH_FIELDS}


def test_the_outlines_of_broken_and_missing_jobs_say_so(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    broker.redis.hset(broker.keys.job("a"), "payload", "{")
    broker.redis.set(broker.keys.job("b"), "a string")
    a, b, c, d = broker.queries.outlines(["a", "b", "c", "d"])
    assert isinstance(a, UnreadableJob)
    assert "cannot be read" in a.problem
    assert isinstance(b, UnreadableJob)
    assert "does not hold a job" in b.problem
    assert isinstance(c, JobData)
    assert isinstance(d, UnreadableJob)


def values(*keys: str, is_strict: bool = False) -> Read[list[str | None]]:
    """Reads one key after another."""
    found: list[str | None] = []
    for key in keys:
        command = ("GET", key)
        [value] = yield Strict(command) if is_strict else [command]
        found.append(value)
    return found


def test_combined_reads_take_as_many_round_trips_as_the_longest(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.redis.mset({"a": 1, "b": 2})
    reads = [values("a"), values(), values("b", "c", "a")]
    broker.connection.connect()
    with round_trips(monkeypatch) as made:
        assert run(broker.connection, together(reads)) == [["1"], [], ["2", None, "1"]]
    assert len(made) == 3
    assert run(broker.connection, together([])) == []


def test_combined_reads_are_strict_if_all_of_them_are(broker: BrokerHarness) -> None:
    broker.redis.set("a", 1)
    broker.redis.lpush("wrong", "theirs")
    strict, others = values("a", "wrong", is_strict=True), values("wrong", "a")
    assert run(broker.connection, together([strict, others])) == [["1", None], [None, "1"]]
    with pytest.raises(WrongKeyType):
        run(
            broker.connection,
            together([values("wrong", is_strict=True), values("a", is_strict=True)]),
        )


def test_the_server_reports_its_kind_and_version(broker: BrokerHarness) -> None:
    broker.add("a")
    found = broker.queries.server()
    assert found.name in ("Redis", "Valkey")
    assert re.fullmatch(r"\d+\.\d+\.\d+", found.version)
    assert found.memory > 100_000
    assert (found.eviction, found.may_evict, found.events) == ("noeviction", False, 1)
    broker.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert broker.queries.server().may_evict
    finally:
        broker.redis.config_set("maxmemory-policy", "noeviction")


def test_the_first_children(broker: BrokerHarness) -> None:
    broker.store.now_ms = None
    broker.store.heartbeat(["c1"])
    broker.store.heartbeat(["c2", "c3"])
    assert [child.child for child in broker.fleet(2).children] == ["c1", "c2"]
    assert broker.fleet(2).total == 3


def walk(broker: BrokerHarness, count: int) -> list[list[str]]:
    pages, after = [], ""
    while True:
        page = run(broker.connection, page_after(KEY, after, count))
        pages.append([member for member, _ in page.entries])
        after = page.following
        if not after:
            return pages


def test_a_walk_visits_every_member_once_whatever_the_scores(broker: BrokerHarness) -> None:
    assert walk(broker, 3) == [[]]
    broker.redis.zadd(KEY, {"a": 5, "b": 5, "c c": 5, "d": 1_760_000_000_000, "e": float("inf")})
    broker.redis.zadd(KEY, {"f": float("inf")})
    assert walk(broker, 3) == [["a", "b", "c c"], ["d", "e", "f"]]
    assert walk(broker, 1) == [["a"], ["b"], ["c c"], ["d"], ["e"], ["f"]]
    assert walk(broker, 100) == [["a", "b", "c c", "d", "e", "f"]]


def test_a_member_that_is_not_text_ends_a_page_like_any_other(broker: BrokerHarness) -> None:
    """The next page is requested in a URL, which cannot contain its bytes."""
    broker.redis.zadd(KEY, {b"a": 5, b"\xff\xfe1": 5, b"\xff\xfe2": 5})
    after = run(broker.connection, page_after(KEY, "", 2)).following
    assert after.isascii()
    page = run(broker.connection, page_after(KEY, after, 2))
    assert [member for member, _ in page.entries] == ["\udcff\udcfe2"]


@pytest.mark.parametrize("change", ["gone", "moved"])
def test_a_page_continues_when_its_member_is_gone_or_has_moved(
    broker: BrokerHarness, change: str
) -> None:
    broker.redis.zadd(KEY, {"a": 1, "b": 2, "c": 3, "d": 4})
    after = run(broker.connection, page_after(KEY, "", 2)).following
    assert after == "2 b"
    if change == "gone":
        broker.redis.zrem(KEY, "a", "b")
    else:
        broker.redis.zadd(KEY, {"a": 8, "b": 9})
    page = run(broker.connection, page_after(KEY, after, 2))
    assert [member for member, _ in page.entries] == ["c", "d"]


def test_among_equal_scores_a_page_continues_after_a_member_that_is_gone(
    broker: BrokerHarness,
) -> None:
    names = [f"{n:02}" for n in range(20)]
    broker.redis.zadd(KEY, dict.fromkeys(names, 5) | {"first": 1, "last": 9})
    for gone in names:
        broker.redis.zrem(KEY, gone)
        page = run(broker.connection, page_after(KEY, f"5 {gone}", 30))
        later = [name for name in names if name > gone]
        assert [member for member, _ in page.entries] == [*later, "last"]
        broker.redis.zadd(KEY, {gone: 5})


@pytest.mark.parametrize("after", ["x", "1", "nan a", "0x1 a", "1.2.3 a", ". a", f"1 {'a' * 1001}"])
def test_an_invalid_cursor(broker: BrokerHarness, after: str) -> None:
    with pytest.raises(InvalidOption, match="after must be the value that the previous page"):
        run(broker.connection, page_after(KEY, after, 2))
