"""Server-sent events under ASGI: live, resumed, shared, bounded."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient
from redis import Redis

from django_redisqueue.api import hub as hub_module
from django_redisqueue.api import streaming
from django_redisqueue.api.hub import Reader, Ring, hub, stream_limiter
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.entries import EventFeed
from django_redisqueue.models import ApiToken
from tests.app import tasks
from tests.support.shards import keys_of, shard_of

from .streams import Stream, eventually, run

pytestmark = pytest.mark.usefixtures("streams_end")


def ring() -> Any:
    """The ring of the queue's shard, or None before it exists."""
    reader = hub.readers.get(shard_of())
    return reader and reader.rings.get(shard_of())


def clients(redis: Redis) -> int:
    return len(redis.client_list())


async def enqueue(count: int = 1) -> list[str]:
    link = sync_to_async(tasks.noop.enqueue_many)
    return [job.id for job in await link([()] * count)]


def test_events_arrive_as_they_happen(token: str) -> None:
    async def test() -> None:
        stream = await (await Stream.open(token)).started()
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-store"
        (first,) = await enqueue()
        assert await stream.events(1) == [(first, "queued")]
        (second,) = await enqueue()
        event = await stream.event()
        assert event.keys() >= {"jobId", "status", "queue", "task", "seq", "timestamp"}
        assert event["jobId"] == second
        await stream.close()

    run(test())


def test_gzip_middleware_does_not_compress_events(token: str, settings: Any) -> None:
    """It would compress each part on its own, of which a client reads only the first."""
    gzip = "django.middleware.gzip.GZipMiddleware"
    settings.MIDDLEWARE = [gzip, *settings.MIDDLEWARE]
    headers = {"Accept-Encoding": "gzip", "Authorization": f"Bearer {token}"}

    async def test() -> None:
        response = await AsyncClient().get("/jobs/events", headers=headers)
        parts = aiter(response.streaming_content)  # type: ignore[attr-defined]
        assert (await anext(parts)).startswith(b"retry: ")
        await parts.aclose()

    run(test())


def test_a_reader_resumes_after_its_last_event(token: str) -> None:
    async def test() -> None:
        ids = await enqueue(5)
        first = await Stream.open(token, after="0-0")
        assert await first.events(2) == [(ids[0], "queued"), (ids[1], "queued")]
        await first.close()
        again = await Stream.open(token, after=first.last_id)
        assert [job for job, _ in await again.events(3)] == ids[2:]
        (more,) = await enqueue()
        assert await again.events(1) == [(more, "queued")]
        await again.close()

    run(test())


def test_a_first_request_may_name_its_position(token: str) -> None:
    async def test() -> None:
        ids = await enqueue(2)
        stream = await Stream.open(token, query="last_event_id=0-0")
        assert [job for job, _ in await stream.events(2)] == ids
        await stream.close()

    run(test())


def test_nothing_is_missed_or_repeated_between_past_and_live_events(token: str) -> None:
    """Jobs are enqueued continuously while streams catch up and go live."""

    async def test() -> None:
        made: list[str] = await enqueue(1500)  # more than a page

        async def go_on() -> None:
            for _ in range(30):
                made.extend(await enqueue(20))

        going_on = asyncio.create_task(go_on())
        streams = [await Stream.open(token, after="0-0") for _ in range(3)]
        await going_on
        for stream in streams:
            assert [job for job, _ in await stream.events(len(made))] == made
            await stream.close()

    run(test())


def test_streams_share_one_reader(token: str, redis: Redis) -> None:
    async def test() -> None:
        before = clients(redis)
        streams = [await (await Stream.open(token, after="0-0")).started() for _ in range(8)]
        (made,) = await enqueue()
        for stream in streams:
            assert await stream.events(1) == [(made, "queued")]
        # The reader, the thread that catches up, and the one that enqueued.
        assert clients(redis) - before <= 3
        assert sum(client["cmd"].startswith("xread") for client in redis.client_list()) == 1
        assert sum(t.name == "redisqueue-events" for t in threading.enumerate()) == 1
        for stream in streams:
            await stream.close()

    run(test())


def test_a_stream_holds_no_database_connection(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_open: dict[str, bool] = {}
    kind = type(connections["default"])
    connect, close = kind.connect, kind.close

    def note(value: bool) -> None:
        is_open[threading.current_thread().name] = value

    monkeypatch.setattr(kind, "connect", lambda self: (note(True), connect(self)))
    monkeypatch.setattr(kind, "close", lambda self: (note(False), close(self)))

    async def test() -> None:
        stream = await (await Stream.open(token, after="0-0")).started()
        assert is_open, "the login has used one"
        # Catching up opens a connection for each page of the mirror, and closes it.
        await eventually(lambda: not any(is_open.values()))
        (made,) = await enqueue()
        assert await stream.events(1) == [(made, "queued")]
        assert not any(is_open.values())
        await stream.close()

    run(test())


def test_a_client_that_disconnects_frees_its_slot(
    token: str, user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "STREAMS_A_USER", 2)

    async def test() -> None:
        streams = [await (await Stream.open(token)).started() for _ in range(2)]
        refused = await Stream.open(token)
        assert refused.status == 429
        assert refused.headers["retry-after"] == "30"
        assert (await refused.body())["error"]["code"] == "too_many_streams"
        await streams.pop().close()
        assert hub.streams == 1
        streams.append(await (await Stream.open(token)).started())
        for stream in streams:
            await stream.close()

    run(test())


def test_a_process_has_a_limit_for_all_streams(
    token: str, make_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "STREAMS", 1)
    other = ApiToken.create(make_user("bob", "view_jobrecord"), "t")[1]

    async def test() -> None:
        stream = await (await Stream.open(token)).started()
        refused = await Stream.open(other)
        assert refused.status == 503
        assert refused.headers["retry-after"] == "30"
        assert (await refused.body())["error"]["code"] == "too_many_streams"
        await stream.close()

    run(test())


def test_an_idle_stream_sends_signs_of_life(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE", 0.05)

    async def test() -> None:
        stream = await (await Stream.open(token)).started()
        assert await stream.block() == [": still here"]
        assert await stream.block() == [": still here"]
        (made,) = await enqueue()
        assert await stream.events(1) == [(made, "queued")]
        await stream.close()

    run(test())


def test_a_stream_ends_so_that_its_login_is_checked_again(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "LIFETIME", 0.2)
    monkeypatch.setattr(streaming, "KEEP_ALIVE", 0.05)

    async def test() -> None:
        stream = await Stream.open(token)
        while not stream.ended:
            await stream.read()
        assert "retry: 2000\n" in stream.buffer

    run(test())


def test_a_client_that_reads_nothing_is_disconnected(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "STALL_TIMEOUT", 0.1)

    async def test() -> None:
        stream = await Stream.open(token)
        await stream.started()
        stream.gate.clear()
        await enqueue(3)
        await eventually(lambda: hub.streams == 0)
        await stream.communicator.wait(10)

    run(test())


def test_a_slow_client_misses_nothing(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "RING", 10)

    async def test() -> None:
        stream = await (await Stream.open(token)).started()
        await eventually(ring)  # otherwise it may begin after the next events
        made = await enqueue(1)
        assert await stream.events(1) == [(made[0], "queued")]
        stream.gate.clear()
        made += await enqueue(1)
        await eventually(lambda: ring().events)
        for _ in range(5):
            made += await enqueue(10)
        last = await sync_to_async(lambda: EventFeed(worker_connection(shard_of())).ends()[1])()
        await eventually(lambda: ring().last == last)
        assert len(ring().events) == 10
        stream.gate.set()
        assert [job for job, _ in await stream.events(len(made) - 1)] == made[1:]
        made += await enqueue(1)
        assert await stream.events(1) == [(made[-1], "queued")]
        await stream.close()

    run(test())


def test_a_burst_rarely_wakes_the_streams(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = []
    real = Reader._publish
    monkeypatch.setattr(
        Reader, "_publish", lambda self, rings: (spread.append(1), real(self, rings))
    )

    async def test() -> None:
        stream = await (await Stream.open(token)).started()
        made = await enqueue(2000)
        assert [job for job, _ in await stream.events(2000)] == made
        await stream.close()

    run(test())
    assert len(spread) < 60


def test_a_ring_knows_which_events_it_has_dropped() -> None:
    ring = Ring((5, 0))
    assert ring.after((4, 9)) is None
    assert ring.after((5, 0)) == ()
    ring = ring.extended([((6, 0), "a"), ((6, 1), "b")])
    assert [text for _, text in ring.after((5, 0)) or ()] == ["a", "b"]
    assert [text for _, text in ring.after((6, 0)) or ()] == ["b"]
    assert ring.after((7, 0)) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "RING", 2)
        later = ring.extended([((7, 0), "c")])
    assert later.floor == (6, 0)
    assert later.after((5, 9)) is None
    assert [text for _, text in later.after((6, 0)) or ()] == ["b", "c"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "RING_BYTES", 5)
        assert ring.extended([((8, 0), "x" * 9)]) == Ring((8, 0), [])


def test_the_stream_resumes_when_redis_is_back(
    token: str, fresh_server: Any, settings: Any
) -> None:
    server = fresh_server()
    settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}}

    async def test() -> None:
        stream = await (await Stream.open(token)).started()
        made = await enqueue()
        assert await stream.events(1) == [(made[0], "queued")]
        await sync_to_async(server.restart)()
        made += await enqueue()
        assert await stream.events(1) == [(made[1], "queued")]
        await stream.close()

    run(test())


@pytest.mark.one_shard  # with several shards, the others continue
def test_a_stream_that_reads_past_events_while_redis_is_down_ends(
    token: str, fresh_server: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_server()
    settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}}
    real = Reader.page

    def page(self: Reader, shard: int, after: Any) -> Any:
        server.stop()
        return real(self, shard, after)

    monkeypatch.setattr(Reader, "page", page)

    async def test() -> None:
        await enqueue()  # otherwise there is nothing to look back at
        stream = await Stream.open(token, after="0-0")
        while not stream.ended:
            await stream.read()
        assert ": RedisUnavailable; try again later" in stream.buffer
        await stream.communicator.wait(10)

    run(test())


def test_a_stream_that_cannot_start_a_reader_leaves_nothing_behind(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process may start no more threads."""

    def fail(reader: Reader) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Reader, "start", fail)
            with pytest.raises(RuntimeError, match="can't start"):
                await anext(streaming.stream("a user", ((0, 0),)))
        assert (hub.streams, stream_limiter.open_streams) == (0, 0)
        stream = await (await Stream.open(token)).started()
        (made,) = await enqueue()
        assert await stream.events(1) == [(made, "queued")]
        await stream.close()

    run(test())


def test_head_and_others_open_no_stream(token: str) -> None:
    async def test() -> None:
        for method in ("HEAD", "POST"):
            answer = await Stream.open(token, method=method)
            assert answer.status == 405
            assert answer.headers["allow"] == "GET"
            await answer.communicator.wait(10)
        answer = await Stream.open("drq_wrong")
        assert (answer.status, (await answer.body())["error"]["code"]) == (401, "invalid_token")
        assert hub.streams == 0

    run(test())


def test_foreign_entries_in_the_stream_are_skipped(
    token: str, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    async def test() -> None:
        stream = await (await Stream.open(token, after="0-0")).started()
        redis.xadd(keys_of().events, {"other": "x\n\ndata: y"})
        forged = {":alike": '{\n\n"status":"queued"}', "forged": ""}
        redis.xadd(keys_of().events, forged)
        assert (await stream.event())["jobId"] == "forged"
        (made,) = await enqueue()
        assert await stream.events(1) == [(made, "queued")]
        await stream.close()

    run(test())
