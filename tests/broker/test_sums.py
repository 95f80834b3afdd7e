"""What all shards have in total, and what is reported when one of them is unavailable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from django_redisqueue.broker import sums
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import RedisConnection, producer_connection
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.overview import rates
from django_redisqueue.broker.queries import Queries
from django_redisqueue.broker.shards import AllShards
from django_redisqueue.broker.sums import read_workers
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob, WaitKind
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import InvalidOption, RedisUnavailable, WrongKeyType
from tests.support.round_trips import round_trips
from tests.support.servers import RedisServer

NOBODY = "unix:///nonexistent/redis.sock"
Ask = Callable[[AllShards], object]
QUESTIONS: dict[str, tuple[Ask, int]] = {  # with the round trips of each
    "stats": (lambda shards: sums.stats(shards, ["default", "mail"]), 1),
    "overview": (lambda shards: sums.overview(shards, ["default", "mail"]), 2),
    "pauses": (lambda shards: sums.pauses(shards, ["default", "mail"]), 1),
    "leases": (sums.leases, 1),
    "servers": (sums.servers, 1),
    "workers": (read_workers, 2),
    "fleet": (lambda shards: sums.fleet(shards, 10), 3),
    "limits": (lambda shards: sums.limits(shards, "", 10), 5),
    "unique_keys": (lambda shards: sums.unique_keys(shards, "", 10), 3),
    "unique_key": (lambda shards: sums.unique_key(shards, "key1"), 3),
    "schedules": (lambda shards: sums.schedules(shards, "", 10), 2),
    "waits": (lambda shards: sums.waits(shards, WaitKind.EVENT, "", 10), 2),
    "wait_counts": (sums.wait_counts, 1),
    "job_ids": (lambda shards: sums.job_ids(shards, "default", Status.QUEUED, 0, 9), 2),
}


@pytest.fixture
def four(settings: Any, queue_settings: dict[str, Any]) -> dict[str, Any]:
    """Four shards on the shared server."""
    queues: dict[str, Any] = {"default": {}, "mail": {}}
    settings.REDISQUEUE = {**queue_settings, "SHARDS": 4, "QUEUES": queues}
    result: dict[str, Any] = settings.REDISQUEUE
    return result


@pytest.fixture
def half_down(settings: Any, four: dict[str, Any], redis_server: RedisServer) -> None:
    """The shards 1 and 3 are on a server that is down."""
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, NOBODY]}}


@pytest.fixture
def hung(settings: Any, four: dict[str, Any], redis_server: RedisServer) -> Iterator[RedisServer]:
    """The shards 1 and 3 are on a server that accepts connections and does not answer."""
    server = RedisServer()
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, server.url]}}
    server.pause()
    yield server
    server.resume()
    server.close()


def enqueue(shard: int, queue: str = "default", **more: Any) -> str:
    job = NewJob(new_job_id(shard), queue, "app.task", "[[],{}]", **more)
    Commands(producer_connection(shard)).enqueue([job])
    return job.id


def claim(shard: int, child: str, jobs: int = 1) -> list[str]:
    reply = Commands(producer_connection(shard)).claim(ClaimRequest(child, ("default",)), 1, jobs)
    return [job.id for job in reply.jobs]


def fill(shards: int) -> None:
    """Put something of each kind into every shard."""
    for shard in range(shards):
        enqueue(shard, unique=f"key{shard} until_finished - -")
        enqueue(shard)
        Commands(producer_connection(shard)).heartbeat(["child"])
        claim(shard, "child")


@pytest.mark.parametrize("name", QUESTIONS)
def test_several_shards_take_the_round_trips_of_one(
    redis: Redis,
    settings: Any,
    four: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    ask, most = QUESTIONS[name]
    for shards in (4, 1):
        settings.REDISQUEUE = {**four, "SHARDS": shards}
        fill(shards)
        with round_trips(monkeypatch) as made:
            ask(AllShards())
        assert 0 < len(made) <= most, shards


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_unavailable_server_is_named(half_down: None, name: str) -> None:
    ask, _ = QUESTIONS[name]
    shards = AllShards()
    ask(shards)
    assert list(shards.missing) == [1, 3]
    assert all(isinstance(error, RedisUnavailable) for error in shards.missing.values())
    with pytest.raises(RedisUnavailable, match="nonexistent"):
        shards.require_all()


def test_a_server_that_does_not_answer_is_waited_for_once(
    hung: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    connect = RedisConnection.connect

    def connecting(self: RedisConnection) -> object:
        asked.append(self.redis_url.text)
        return connect(self)

    monkeypatch.setattr(RedisConnection, "connect", connecting)
    shards = AllShards()
    for ask, _ in QUESTIONS.values():
        ask(shards)
    assert asked.count(hung.url) == 1
    assert len(asked) > len(QUESTIONS)
    assert list(shards.missing) == [1, 3]


def test_all_servers_are_asked_before_the_first_reply_is_read(
    settings: Any, four: dict[str, Any], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [redis_server.url, f"{redis_server.url}?db=1"]
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": urls}}
    sums.stats(AllShards(), ["default"])  # opens the connections
    with round_trips(monkeypatch) as made:
        sums.stats(AllShards(), ["default"])
    assert len(made) == 1


def test_no_server_answers(settings: Any, four: dict[str, Any]) -> None:
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": NOBODY}}
    with pytest.raises(RedisUnavailable, match="nonexistent"):
        sums.stats(AllShards(), ["default"])


def test_an_error_in_one_shard_leaves_no_replies_behind(
    redis: Redis, settings: Any, four: dict[str, Any], redis_server: RedisServer
) -> None:
    urls = [redis_server.url, f"{redis_server.url}?db=1"]
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": urls}}
    key = Keys(four["PREFIX"], 0).queue("default").completed
    redis.set(key, "theirs")
    with pytest.raises(WrongKeyType):
        sums.stats(AllShards(), ["default"])
    redis.delete(key)
    assert [producer_connection(shard).call("ECHO", shard) for shard in range(4)] == list("0123")


def test_counts_are_added_up(redis: Redis, four: dict[str, Any]) -> None:
    fill(4)
    enqueue(2, "mail")
    (default, mail) = sums.overview(AllShards(), ["default", "mail"])
    assert (default.counts["queued"], default.counts["processing"]) == (4, 4)
    assert default.totals["enqueued"] == 8
    assert (mail.name, mail.counts["queued"], mail.shards) == ("mail", 1, (0, 1, 2, 3))
    assert mail.oldest_ms is not None
    stats = sums.stats(AllShards(), ["default", "mail"])
    assert stats == {"default": default.counts, "mail": mail.counts}


def test_a_pause_in_one_shard_counts_as_a_pause(redis: Redis, four: dict[str, Any]) -> None:
    Commands(producer_connection(2)).pause("mail", True, "ann")
    default, mail = sums.overview(AllShards(), ["default", "mail"])
    assert (default.is_paused, mail.is_paused, mail.paused_by) == (False, True, "ann")
    for shard in (1, 3):
        Commands(producer_connection(shard)).pause_lanes("mail", "s:gold", True, "bob")
    (found,) = sums.pauses(AllShards(), ["default", "mail"])
    assert (found.queue, found.name, found.by) == ("mail", "share gold", "bob")


def test_a_shard_that_becomes_available_again_does_not_count_as_a_rate(
    settings: Any, redis: Redis, half_down: None, four: dict[str, Any], redis_server: RedisServer
) -> None:
    (before,) = sums.overview(AllShards(), ["default"])
    settings.REDISQUEUE = four
    fill(4)
    end = 1000
    while True:
        (after,) = sums.overview(AllShards(), ["default"])
        if after.now_ms > before.now_ms:
            break
        assert (end := end - 1)
    assert (before.shards, after.shards) == ((0, 2), (0, 1, 2, 3))
    assert rates(before, after) is None


def test_a_child_counts_once_over_all_shards(redis: Redis, four: dict[str, Any]) -> None:
    fill(4)
    Commands(producer_connection(0)).heartbeat(["another"])
    found = sums.fleet(AllShards(), 10)
    assert (found.total, found.alive) == (2, 2)
    another, child = found.children
    assert (another.child, another.held, another.job) == ("another", 0, "")
    assert (child.child, child.held, child.task) == ("child", 4, "app.task")
    redis.zadd(Keys(four["PREFIX"], 3).workers, {"child": 1})
    found = sums.fleet(AllShards(), 1)
    assert (found.total, found.alive) == (2, 1)
    assert [one.child for one in found.children] == ["child"]
    assert found.children[0].lease_ms < 0


def test_pages_of_jobs_are_merged(redis: Redis, four: dict[str, Any]) -> None:
    ids = [[enqueue(shard) for _ in range(3)] for shard in range(4)]
    found = sums.job_ids(AllShards(), "default", Status.QUEUED, 0, 99)
    assert sorted(found) == sorted(job_id for some in ids for job_id in some)
    assert set(found[:4]) == {some[0] for some in ids}
    assert sums.job_ids(AllShards(), "default", Status.QUEUED, 3, 6) == found[3:7]
    jobs = sums.outlines(AllShards(), found)
    assert [job.id for job in jobs] == found
    with pytest.raises(InvalidOption, match="the first 10,000 jobs of a list can be read"):
        sums.job_ids(AllShards(), "default", Status.QUEUED, 9_990, 10_000)


def test_jobs_of_a_missing_shard_are_left_out(half_down: None) -> None:
    shards = AllShards()
    assert sums.job_ids(shards, "default", Status.QUEUED, 0, 9) == []
    here, gone = enqueue(2), new_job_id(1)
    assert [job.id for job in sums.outlines(shards, [gone, here])] == [here]


def walked(page: Callable[[str], tuple[Any, str]]) -> list[Any]:
    """All rows, read a page at a time."""
    rows: list[Any] = []
    after = ""
    for _ in range(100):
        found, after = page(after)
        rows += found
        if not after:
            return rows
    raise AssertionError("the pages have no end")


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_unique_keys_are_paged_over_all_shards(
    redis: Redis, four: dict[str, Any], count: int
) -> None:
    names = [f"key{n:02}" for n in range(12)]
    for n, name in enumerate(names):
        enqueue(n % 4, unique=f"{name} until_finished - -")
        redis.zadd(Keys(four["PREFIX"], n % 4).uniques, {name: 5 if n < 9 else n})
    rows = walked(lambda after: sums.unique_keys(AllShards(), after, count))
    assert [row.key for row in rows] == names
    assert sums.unique_key_count(AllShards()) == 12


@pytest.mark.parametrize("count", [1, 2, 100])
def test_limits_are_paged_over_all_shards(redis: Redis, four: dict[str, Any], count: int) -> None:
    for n in range(10):
        keys = Keys(four["PREFIX"], n % 4)
        redis.zadd(keys.slots, {f"c:stripe:{n} job_{n}": 0})
    redis.zadd(Keys(four["PREFIX"], 1).slots, {"c:stripe:0 job_of_before": 0})
    rows = walked(lambda after: sums.limits(AllShards(), after, count))
    assert [row.key for row in rows] == [f"c:stripe:{n}" for n in range(10)]
    assert [row.used for row in rows] == [2, *[1] * 9]
    assert {holder.job_id for holder in rows[0].holders} == {"job_0", "job_of_before"}


def test_a_read_on_one_connection(redis: Redis, four: dict[str, Any]) -> None:
    enqueue(1)
    assert Queries(producer_connection(1)).stats(["default"])["default"]["queued"] == 1
    assert Queries(producer_connection(1)).stats([]) == {}
