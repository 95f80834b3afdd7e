"""Reading the stream: whole entries with one or many events, and entries of other writers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from django_redisqueue.broker import entries as entries_module
from django_redisqueue.broker.entries import (
    ENTRY,
    START,
    EventFeed,
    Position,
    entry_id,
    first_position,
)
from django_redisqueue.broker.events import EntryLost, EventStream
from django_redisqueue.broker.health import HealthQueries, UnreadEvents

from ..support.stream import fields_of
from .harness import PAYLOAD, BrokerHarness, outcome
from .workflows import BrokerWorkflow

NOT_OURS = {"other": "thing", "more": "of it"}


@pytest.fixture
def events(broker: BrokerHarness) -> EventStream:
    return EventStream(broker.connection)


def add(broker: BrokerHarness, *sizes: int) -> list[str]:
    """Add one entry of each size; returns the ids of the jobs."""
    made = [[f"j{at}.{n}" for n in range(size)] for at, size in enumerate(sizes)]
    for names in made:
        broker.add(*names)
    return [name for names in made for name in names]


def write(broker: BrokerHarness, *parts: str, entry: str = "*") -> str:
    """Add an entry by hand; its fields may be repeated."""
    return broker.redis.execute_command("XADD", broker.keys.events, entry, *parts)  # type: ignore[no-any-return]


def read_on(events: EventStream, size: int, after: Position = START) -> list[list[str]]:
    """Read page by page to the end; returns the jobs of each page."""
    pages = []
    for _ in range(10_000):
        page = events.read(after, size)
        if page.last == after:
            assert page.is_end
            return pages
        pages.append([event.job_id for event in page.events])
        after = page.last
    raise AssertionError("it goes on for ever")


# -- places


def test_a_place_is_its_entry_and_the_number_of_events_before_it_there(
    broker: BrokerHarness,
) -> None:
    broker.add("a", "b", "c")
    jobs = broker.claim(jobs=2).jobs
    broker.finish(*map(outcome, jobs))
    read = EventStream(broker.connection).read(START).events
    assert [event.position for event in read] == [event.place for event in broker.written()]
    assert [event.position[1] % ENTRY for event in read] == [0, 1, 2, 0, 1, 0, 1]
    assert sorted({event.position for event in read}) == [event.position for event in read]
    assert [event.args for event in read] == [PAYLOAD] * 3 + [None] * 4
    assert [event.result for event in read] == [None] * 5 + ['"ok"'] * 2


@pytest.mark.parametrize("place", [(5, 0), (5, 999), (5, 1000), (1795324247887, 69_123)])
def test_an_entry_and_a_place_in_it(place: Position) -> None:
    ms, number = first_position(entry_id(place))
    assert (ms, number) <= place < (ms, number + ENTRY)


def test_events_of_jobs_and_of_workflows_share_an_entry(
    broker: BrokerHarness, events: EventStream
) -> None:
    workflow = BrokerWorkflow(broker, {0: (), 1: ()})
    workflow.push()
    page = events.read(START)
    assert [event.position[1] % ENTRY for event in page.events] == [0, 1]
    ((place, workflow_id, *_),) = page.workflows
    assert (place, workflow_id) == (page.last, workflow.id)
    assert page.seen == 3


# -- pages


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_pages_consist_of_whole_entries_and_skip_nothing(
    broker: BrokerHarness, events: EventStream, size: int
) -> None:
    sizes = [1, 5, 100, 2, 1, 1, 37, 1, 1, 1, 60]
    every = add(broker, *sizes)
    pages = read_on(events, size)
    assert [name for page in pages for name in page] == every
    assert all(len(page) >= size for page in pages[:-1])
    assert all(len(page) < size + 100 for page in pages)
    for page in pages:
        assert every.index(page[0]) in [sum(sizes[:at]) for at in range(len(sizes))]


def test_a_dense_stream_behind_a_sparse_one_is_read_in_bounded_pieces(
    broker: BrokerHarness, events: EventStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = add(broker, *[1] * 300, *[100] * 60)
    asked = []
    real = entries_module.Entries._parts

    def parts(self: Any, reply: Any) -> Any:
        found = real(self, reply)
        asked.append(sum(len(some) for _, some in found))
        return found

    monkeypatch.setattr(entries_module.Entries, "_parts", parts)
    pages = read_on(events, 1000)
    assert [name for page in pages for name in page] == every
    assert max(len(page) for page in pages) < 1100
    assert max(asked) <= 10_000  # one command, once; then the end is known
    assert sum(asked) < 2.5 * len(every)


def test_the_end_is_known(broker: BrokerHarness, events: EventStream) -> None:
    add(broker, 3, 3)
    assert events.read(START, 7).is_end
    first = events.read(START, 3)
    assert not first.is_end
    assert events.read(first.last, 4).is_end


def test_a_reader_continues_in_the_middle_of_an_entry(
    broker: BrokerHarness, events: EventStream
) -> None:
    every = add(broker, 4, 3)
    places = [event.position for event in events.read(START).events]
    feed = EventFeed(broker.connection)
    for at, place in enumerate(places):
        assert [event.job_id for event in events.read(place).events] == every[at + 1 :]
        assert [found for found, _ in feed.page(place, 100)] == places[at + 1 :]


def test_a_cursor_whose_entry_is_gone_is_lost(broker: BrokerHarness, events: EventStream) -> None:
    add(broker, 5, 5)
    first = events.read(START, 5).last
    broker.redis.xdel(broker.keys.events, entry_id(first))
    with pytest.raises(EntryLost, match=f"entry {entry_id(first)} is no longer in the event"):
        events.read(first)
    assert events.at(first) is None
    ms, number = events.first()  # type: ignore[misc]
    _, (last_ms, last_number) = events.ends()
    assert (ms, number % ENTRY, last_number) == (last_ms, 0, number + 4)


def test_the_middle_is_found_in_the_trim_index(broker: BrokerHarness, events: EventStream) -> None:
    broker.store.settings = replace(broker.store.settings, events_cap=10_000)
    assert events.middle() == START
    for number in range(20):
        broker.add(*[f"{number}.{n}" for n in range(50)])
    middle = events.middle()
    positions = [event.position for event in events.read(START).events]
    assert 400 <= sum(position < middle for position in positions) <= 600


# -- what others write


def test_foreign_entries_are_logged_once_and_skipped(
    broker: BrokerHarness, events: EventStream, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add("a")
    broker.redis.xadd(broker.keys.events, NOT_OURS)
    text = broker.written()[0].text
    other = fields_of(text.replace('"a"', '"b"'))
    write(broker, ":n", "x", *fields_of(text), ":alike", "{", "x", "", *other)
    broker.redis.xadd(broker.keys.events, NOT_OURS)
    page = events.read(START)
    assert [event.job_id for event in page.events] == ["a", "a", "b"]
    assert [event.position[1] % ENTRY for event in page.events] == [0, 0, 2]
    assert caplog.text.count("is no event") == 3
    assert events.ends()[1] == page.last
    for _ in range(3):
        assert events.read(page.last).last == page.last
    assert caplog.text.count("is no event") == 3


def test_an_entry_with_more_events_than_places(
    broker: BrokerHarness, events: EventStream, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add("a")
    text = broker.written()[0].text
    write(broker, *fields_of(text) * (ENTRY + 5))
    broker.add("z")
    page = events.read(START, 5000)
    assert len(page.events) == ENTRY + 2
    assert len({event.position for event in page.events}) == ENTRY + 2
    assert page.events[-1].job_id == "z"
    assert caplog.text.count("it has 1005 events") == 1
    assert len(EventFeed(broker.connection).page(START, 5000)) == ENTRY + 2


def test_entries_without_a_number_are_read(broker: BrokerHarness, events: EventStream) -> None:
    broker.add("a")
    text = broker.written()[0].text
    write(broker, *fields_of(text.replace('"a"', '"b"'))[:-1], "[[1],{}]")
    assert [(one.job_id, one.args) for one in events.read(START).events] == [
        ("a", PAYLOAD), ("b", "[[1],{}]"),
    ]  # fmt: skip


# -- how many


def unread(broker: BrokerHarness, after: Position) -> UnreadEvents:
    """The number of events that the mirror has not read, if it has read up to there."""
    return HealthQueries(broker.connection).shard_state(["default"], after).unread


def test_unread_events_are_counted_from_any_place(
    broker: BrokerHarness, events: EventStream
) -> None:
    assert unread(broker, START) == (0, 0)
    add(broker, 4, 1, 100)
    assert unread(broker, START).events == broker.queries.server().events == 105
    after = START
    for left in (101, 100, 0):
        after = events.read(after, 1).last
        assert unread(broker, after).events == left
    broker.redis.xtrim(broker.keys.events, maxlen=2, approximate=False)
    assert broker.queries.server().events == 101


def test_the_unread_count_is_unknown_after_a_lost_counter_until_the_mirror_has_passed_it(
    broker: BrokerHarness, events: EventStream
) -> None:
    add(broker, 50)
    broker.add("x")
    after = events.read(START).last
    broker.redis.delete(broker.keys.meta)
    assert broker.queries.server().events is None
    assert unread(broker, START).events is None
    broker.add("y", "z")
    assert unread(broker, after).events == 2


def test_the_unread_count_is_unknown_where_another_program_has_written(
    broker: BrokerHarness,
) -> None:
    broker.redis.xadd(broker.keys.events, NOT_OURS)
    assert unread(broker, START).events is None
    assert broker.queries.server().events is None
