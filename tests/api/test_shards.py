"""Lists, counts and streams cover all shards; if some are missing, they name them or continue
without them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_redisqueue.api.hub import next_page
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.entries import EventFeed
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.models import JobEvent
from tests.support.servers import RedisServer
from tests.support.shards import all_keys
from tests.support.shards import mirror as mirror_all

from .api import Api
from .streams import Stream, run

SHARDS = 4
NOBODY = "unix:///nonexistent/redis.sock"
LISTS = ("stats", "queued", "limits", "unique-keys", "schedules", "waits?kind=event", "pauses")
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def other(
    queue_settings: dict[str, Any], settings: Any, fresh_server: Callable[..., RedisServer]
) -> RedisServer:
    """The server of shards 1 and 3, which keeps its data when it stops."""
    server = fresh_server(appendonly=True)
    urls = [queue_settings["CONNECTION"]["URL"], server.url]
    settings.REDISQUEUE = {**queue_settings, "SHARDS": SHARDS, "CONNECTION": {"URL": urls}}
    return server


def enqueue(*shards: int) -> list[str]:
    """Enqueue a job in each of these shards; returns their ids."""
    ids = [new_job_id(shard) for shard in shards]
    for shard, job_id in zip(shards, ids, strict=True):
        job = NewJob(job_id, "default", "app.task", "[[],{}]")
        Commands(producer_connection(shard)).enqueue([job])
    return ids


async def enqueued(*shards: int) -> list[str]:
    return await sync_to_async(enqueue)(*shards)


async def jobs(stream: Stream, count: int) -> list[str]:
    return [job for job, _ in await stream.events(count)]


@pytest.mark.usefixtures("streams_end")
def test_a_stream_has_the_events_of_all_shards_and_resumes_after_any(
    token: str, other: RedisServer
) -> None:
    async def test() -> None:
        live = await (await Stream.open(token)).started()
        assert live.last_id == "0-0,0-0,0-0,0-0"
        made = await enqueued(0, 1, 2, 3, 0, 1, 1)
        assert sorted(await jobs(live, 7)) == sorted(made)
        await live.close()
        first = await Stream.open(token, after="0-0")  # a position in one shard is valid too
        seen = []
        for _ in made:
            seen += await jobs(first, 1)
            again = await Stream.open(token, after=first.last_id)
            assert set(await jobs(again, 7 - len(seen))) == set(made) - set(seen)
            await again.close()
        assert sorted(seen) == sorted(made)
        (last,) = await enqueued(3)
        assert await jobs(first, 1) == [last]
        await first.close()

    run(test())


@pytest.mark.usefixtures("streams_end")
def test_while_a_server_is_down_the_others_continue_and_nothing_is_missed(
    token: str, other: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redisqueue.api.streaming.KEEP_ALIVE", 0.05)

    async def test() -> None:
        (old,) = await enqueued(1)
        live = await (await Stream.open(token)).started()
        made = await enqueued(0, 1)
        assert sorted(await jobs(live, 2)) == sorted(made)
        await sync_to_async(other.stop)()
        behind = await Stream.open(token, after="0-0")
        new = await (await Stream.open(token)).started()
        (later,) = await enqueued(2)
        assert await jobs(behind, 2) == [made[0], later]
        assert await jobs(live, 1) == await jobs(new, 1) == [later]
        while ": shard 3 does not answer" not in new.comments:
            new.comments += await new.block()
        await sync_to_async(other.start)()
        (last,) = await enqueued(1)
        assert await jobs(behind, 3) == [old, made[1], last]
        assert await jobs(live, 1) == await jobs(new, 1) == [last]
        for stream in (live, behind, new):
            await stream.close()

    run(test())


def blocks(answer: Any) -> list[str]:
    assert answer.status_code == 200
    return [block for block in answer.content.decode().split("\n\n") if block]


def ids_in(found: list[str]) -> list[str]:
    return [json.loads(b.partition("data: ")[2])["jobId"] for b in found if "data: " in b]


def test_a_poll_names_the_shards_that_are_missing(api: Api, other: RedisServer) -> None:
    made = enqueue(0, 1, 2, 3)
    other.stop()
    start, *found = blocks(api.get("/events?last_event_id=0-0"))
    assert start == "retry: 2000\nid: 0-0,0-0,0-0,0-0"
    assert found[-2:] == [": shard 1 does not answer", ": shard 3 does not answer"]
    assert ids_in(found) == made[::2]
    other.start()
    place = found[1].partition("\n")[0].removeprefix("id: ")
    assert ids_in(blocks(api.get("/events", Last_Event_ID=place))) == made[1::2]


def test_a_position_from_another_number_of_shards(api: Api, other: RedisServer) -> None:
    (start,) = blocks(api.get("/events?last_event_id=9000000000000-0,7-1"))[:1]
    assert start.endswith("id: 9000000000000-0,7-1,9000000000000-0,9000000000000-0")
    (start,) = blocks(api.get(f"/events?last_event_id={','.join(['7-1'] * 64)}"))[:1]
    assert start.endswith("id: 7-1,7-1,7-1,7-1")
    for text in (",".join(["7-1"] * 65), "7-1,", "7-1,x", ",7-1"):
        assert api.get(f"/events?last_event_id={text}").status_code == 400


def test_a_poll_does_not_search_the_mirror_for_a_shard_without_events(
    api: Api, queue_settings: dict[str, Any], settings: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "SHARDS": SHARDS, "MIRROR": True}
    made = enqueue(0, 2)
    mirror_all()
    with CaptureQueriesContext(connection) as queries:
        _, *found = blocks(api.get("/events?last_event_id=0-0"))
    assert ids_in(found) == made
    searched = [one for one in queries if JobEvent._meta.db_table in one["sql"]]
    assert len(searched) == 2  # for the shards that have events


def test_the_mirror_of_a_shard_continues_where_its_stream_begins(
    queue_settings: dict[str, Any], settings: Any, redis: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "SHARDS": SHARDS, "MIRROR": True}
    made = enqueue(*[0, 1, 3, 1, 2, 1] * 3)
    mirror_all()
    for keys in all_keys():
        redis.xtrim(keys.events, maxlen=1, approximate=False)
    for shard in range(SHARDS):
        feed, found, after = EventFeed(producer_connection(shard)), [], (0, 0)
        while events := next_page(feed, after).events:
            found += [json.loads(text)["jobId"] for _, text in events]
            after = events[-1][0]
        assert found == [job_id for job_id in made if job_id.endswith(f"_{shard}")]


@pytest.mark.parametrize("path", LISTS)
def test_missing_shards_are_named(
    api: Api, settings: Any, redis_server: RedisServer, path: str
) -> None:
    connection = {"URL": [redis_server.url, NOBODY]}
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": SHARDS, "CONNECTION": connection}
    document = api.get(f"/{path}").json()
    assert document["missing_shards"] == [
        {"shard": 1, "error": "redis_unavailable"}, {"shard": 3, "error": "redis_unavailable"},
    ]  # fmt: skip


def test_counts_lists_and_health_cover_all_shards(
    api: Api, settings: Any, redis_server: RedisServer
) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": SHARDS}
    ids = enqueue(*range(SHARDS))
    stats = api.get("/stats").json()
    assert stats["total"]["queued"] == 4
    assert "missing_shards" not in stats
    assert {job["id"] for job in api.get("/queued").json()["jobs"]} == set(ids)
    connection = {"URL": [redis_server.url, NOBODY]}
    settings.REDISQUEUE = {**settings.REDISQUEUE, "CONNECTION": connection}
    assert api.get("/stats").json()["total"]["queued"] == 2
    found = api.get("/health").json()["findings"]
    away = [one["message"] for one in found if one["id"] == "shard_away"]
    assert away[0].startswith("Shards 1, 3 do not answer, so their jobs are not shown")
