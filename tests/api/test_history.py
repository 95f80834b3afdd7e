"""Past events: from the stream, and older ones from the mirror; and polls with one reply each."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from redis import Redis

from django_redisqueue.api import hub
from django_redisqueue.api.hub import next_page
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.entries import EventFeed, Position, format_position
from django_redisqueue.broker.events import EventStream
from django_redisqueue.broker.keys import Keys
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.models import JobEvent, MirrorState
from tests.app import tasks
from tests.support.manual_worker import ManualWorker

from .api import Api

pytestmark = [pytest.mark.django_db, pytest.mark.one_shard]  # several: test_shards.py


@pytest.fixture
def feed(queue_settings: dict[str, Any]) -> EventFeed:
    return EventFeed(producer_connection())


def mirror(after: Position = (0, 0)) -> list[Position]:
    """Write rows for all events in the stream, as the bridge does."""
    events = EventStream(producer_connection()).read(after).events
    JobEvent.objects.bulk_create([
        JobEvent(
            job_id=event.job_id, status=event.status, queue=event.queue, task=event.task,
            worker=event.worker, attempt=event.attempt, seq=event.seq,
            at=datetime.fromtimestamp(event.at_ms / 1000, UTC),
            entry_ms=event.position[0], entry_no=event.position[1],
        )
        for event in events
    ])  # fmt: skip
    places = [event.position for event in events]
    read = format_position(places[-1])
    MirrorState.objects.update_or_create(shard=0, defaults={"position": read})
    return places


def make(jobs: int, entry: int = 1) -> list[str]:
    """Enqueue this many jobs, with so many of them in each entry of the stream; returns their
    ids."""
    calls = [min(entry, jobs - at) for at in range(0, jobs, entry)]
    return [job.id for call in calls for job in tasks.noop.enqueue_many([()] * call)]


def trim(redis: Redis, settings: dict[str, Any], keep: int) -> None:
    redis.xtrim(Keys(settings["PREFIX"]).events, maxlen=keep, approximate=False)


def read_on(feed: EventFeed, position: Position) -> tuple[list[Position], list[bool]]:
    """Read page by page to the end; returns all positions, and the number of the page that reported
    a gap."""
    found, gaps = [], []
    while (page := next_page(feed, position)).events:
        assert page.events[-1][0] > position, "it goes on for ever"
        found += [place for place, text in page.events if text]
        gaps.append(page.gap)
        position = page.events[-1][0]
    return found, gaps


@pytest.mark.parametrize("size", [1, 2, 3, 500])
@pytest.mark.parametrize(("entry", "keep"), [(1, 4), (4, 2), (9, 1)])
def test_the_mirror_continues_where_the_stream_begins(
    feed: EventFeed, redis: Redis, queue_settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch, size: int, entry: int, keep: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(hub, "PAGE", size)
    make(9, entry)  # some of them in the same millisecond
    every = mirror()
    before = dict(feed.page((0, 0), 100))
    trim(redis, queue_settings, keep)
    for at in range(len(every)):
        found, gaps = read_on(feed, every[at])
        assert found == every[at + 1 :]
        assert not any(gaps)
    page = next_page(feed, every[0])
    assert all(before[place] == text for place, text in page.events), "the same words as then"


def test_from_the_beginning_there_is_no_gap(
    feed: EventFeed, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    make(3)
    every = mirror()
    assert read_on(feed, (0, 0)) == (every, [False])


def test_a_reader_from_before_all_known_events_is_told_of_the_gap(
    feed: EventFeed, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    make(6)
    every = mirror()
    trim(redis, queue_settings, 3)
    for ms, number in every[:2]:
        JobEvent.objects.filter(entry_ms=ms, entry_no=number).delete()  # by age
    found, gaps = read_on(feed, every[0])
    assert (found, gaps[0]) == (every[2:], True)
    assert not any(gaps[1:])


def test_without_a_mirror_trimmed_events_are_a_gap(
    feed: EventFeed, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    make(6)
    every = [place for place, _ in feed.page((0, 0), 100)]
    trim(redis, queue_settings, 2)
    assert read_on(feed, every[0]) == (every[4:], [True])


def test_after_redis_was_emptied_the_events_in_the_mirror_are_still_sent(
    feed: EventFeed, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    make(4)
    every = mirror()
    redis.flushdb()
    assert read_on(feed, every[1]) == (every[2:], [False])
    assert read_on(feed, every[3]) == ([], [])


def test_a_reader_from_the_future_is_moved_back(
    feed: EventFeed, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    tasks.noop.enqueue()
    ((last, _),) = feed.page((0, 0), 100)
    page = next_page(feed, (last[0] + 10**9, 0))
    assert page.gap
    assert page.events == [(last, "")]


def test_the_query_of_the_mirror_uses_its_index(
    feed: EventFeed, redis: Redis, queue_settings: dict[str, Any], django_assert_num_queries: Any
) -> None:
    make(4)
    every = mirror()
    with django_assert_num_queries(0):
        next_page(feed, every[0])
    trim(redis, queue_settings, 1)
    with django_assert_num_queries(2) as asked:
        next_page(feed, every[0])
    if connection.vendor == "sqlite":
        for query in asked.captured_queries:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
                assert "drq_event_entry" in str(cursor.fetchall())


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_events_written_by_the_bridge_read_like_the_stream(
    manual_worker: ManualWorker, redis: Redis, queue_settings: dict[str, Any], settings: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}
    feed = EventFeed(producer_connection())
    tasks.noop.using(run_after=60, priority=5).enqueue()
    failed = tasks.noop.enqueue("x")
    manual_worker.fail_one('"quoted"')
    failed.requeue()
    running = manual_worker.claim_one()
    manual_worker.store.progress(
        manual_worker.claim_request.child,
        running.id,
        running.lease,
        '{"done":1,"total":2,"note":"n"}',
    )
    manual_worker.settle(running, "completed", '"done"')
    tasks.noop.enqueue().cancel()
    live = [(place, json.loads(text)) for place, text in feed.page((0, 0), 100)]
    assert len(live) == 10
    assert any("error" in event for _, event in live)
    bridge = Bridge()
    while bridge.run_once():
        pass
    bridge.connection.close()
    trim(redis, queue_settings, 1)
    past = [(place, json.loads(text)) for place, text in next_page(feed, (0, 0)).events]
    assert past == live[:-1]


# -- one poll per reply


def blocks(answer: Any) -> list[dict[str, str]]:
    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/event-stream; charset=utf-8"
    assert not answer.streaming
    text = answer.content.decode()
    assert text.endswith("\n\n")
    return [
        dict(line.split(": ", 1) for line in block.split("\n")) for block in text[:-2].split("\n\n")
    ]


def test_a_poll_without_a_position_begins_now(api: Api, feed: EventFeed) -> None:
    tasks.noop.enqueue()
    assert blocks(api.get("/events")) == [{"retry": "2000", "id": format_position(feed.ends()[1])}]


def test_polls_follow_each_other(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redisqueue.api.hub.PAGE", 3)
    monkeypatch.setattr("django_redisqueue.api.streaming.PAGE", 3)
    (start,) = blocks(api.get("/events"))
    made = make(5)
    first, *events = blocks(api.get("/events", Last_Event_ID=start["id"]))
    assert first["retry"] == "0", "there is more, so do not wait"
    assert [made_of in event["data"] for made_of, event in zip(made, events, strict=False)] == [
        True
    ] * 3
    first, *events = blocks(api.get("/events", Last_Event_ID=events[-1]["id"]))
    assert first["retry"] == "2000"
    assert len(events) == 2
    last = events[-1]["id"]
    assert blocks(api.get("/events", Last_Event_ID=last)) == [{"retry": "2000", "id": last}]


def test_a_poll_ends_with_an_entry_and_the_next_may_begin_within(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redisqueue.api.hub.PAGE", 3)
    monkeypatch.setattr("django_redisqueue.api.streaming.PAGE", 3)
    made = make(10, entry=5)
    first, *events = blocks(api.get("/events?last_event_id=0-0"))
    assert (first["retry"], len(events)) == ("0", 5)
    for at, event in enumerate(events):
        _, *behind = blocks(api.get("/events", Last_Event_ID=event["id"]))
        told = [json.loads(each["data"])["jobId"] for each in behind]
        assert told == made[at + 1 : at + 1 + len(told)]
        assert len(told) >= 3


def test_the_header_wins_over_the_address(api: Api) -> None:
    make(2, entry=2)
    _, first, second = blocks(api.get("/events?last_event_id=0-0"))
    _, only = blocks(api.get("/events?last_event_id=0-0", Last_Event_ID=first["id"]))
    assert only == second


def test_a_poll_reports_a_gap(api: Api, redis: Redis, queue_settings: dict[str, Any]) -> None:
    make(4)
    trim(redis, queue_settings, 1)
    start, gap, event = blocks(api.get("/events", Last_Event_ID="5-0"))
    assert (gap["event"], gap["id"]) == ("gap", event["id"])
    assert "read the jobs again" in gap["data"]
    assert start["id"] == "5-0"
