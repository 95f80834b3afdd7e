"""trim: the mirror reports how far it has read; older entries are trimmed, except its own entry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_redisqueue.exceptions import RedisQueueError

from .harness import BrokerHarness, long_id

STEP = 100  # events from one milestone to the next
dense_and_sparse = pytest.mark.parametrize("batch", [1, 7, 100])  # events per entry


@pytest.fixture(autouse=True)
def small_steps(broker: BrokerHarness) -> None:
    broker.store.settings = replace(broker.store.settings, events_cap=100 * STEP)


def add(broker: BrokerHarness, jobs: int, batch: int = 100, first: int = 0) -> list[str]:
    """Returns the ids of the entries, each with one event."""
    for at in range(first, first + jobs, batch):
        broker.add(*[long_id(n) for n in range(at, min(at + batch, first + jobs))])
    return stream(broker)


def stream(broker: BrokerHarness) -> list[str]:
    return [event.entry for event in broker.written()]


def tell(broker: BrokerHarness, entry: str, keep: int = 0) -> int:
    """Report the position until nothing more is trimmed; returns how many entries were."""
    total = gone = broker.store.trim(entry, keep)
    while gone:
        total += (gone := broker.store.trim(entry, keep))
    return total


def meta(broker: BrokerHarness, name: str) -> str | None:
    return broker.redis.hget(broker.keys.meta, name)


@dense_and_sparse
def test_entries_that_were_read_are_trimmed_and_the_cursors_entry_stays(
    broker: BrokerHarness, batch: int
) -> None:
    entries = add(broker, 3000, batch)
    assert tell(broker, entries[-1]) > 0
    left = stream(broker)
    assert entries[-1] == left[-1]
    assert len(left) <= 2 * STEP  # from the last milestone on, and in whole nodes of the stream
    assert meta(broker, "mirror_position") == entries[-1]
    assert broker.redis.llen(broker.keys.trim_index) <= 3000 // STEP


@dense_and_sparse
def test_the_last_events_stay_for_live_readers(broker: BrokerHarness, batch: int) -> None:
    entries = add(broker, 1000, batch)
    assert tell(broker, entries[-1], keep=300) > 0
    left = stream(broker)
    assert 300 <= len(left) <= 300 + 2 * STEP
    assert left == entries[-len(left) :]


@dense_and_sparse
def test_no_unread_entry_is_trimmed_while_the_mirror_is_behind(
    broker: BrokerHarness, batch: int
) -> None:
    entries = add(broker, 3100, batch)
    gone = 0
    for at in range(0, 3100, 500):
        gone += tell(broker, entries[at])
        left = stream(broker)
        assert entries[at] in left
        assert left == entries[-len(left) :]
        assert len(left) <= 3100 - at + 2 * STEP
    assert gone > 0


def test_a_cursor_within_the_kept_events_trims_nothing(broker: BrokerHarness) -> None:
    entries = add(broker, 1000)
    assert tell(broker, entries[150], keep=950) == 0
    assert stream(broker) == entries
    assert meta(broker, "mirror_position") == entries[150]


def test_a_repeated_call_changes_nothing(broker: BrokerHarness) -> None:
    entries = add(broker, 1000)
    tell(broker, entries[500])
    with broker.unchanged():
        assert tell(broker, entries[500]) == 0


def test_a_cursor_that_goes_back_trims_nothing(broker: BrokerHarness) -> None:
    entries = add(broker, 1000)
    tell(broker, entries[700])
    left = stream(broker)
    assert tell(broker, entries[300]) == 0  # a bridge that another has overtaken
    assert stream(broker) == left
    assert meta(broker, "mirror_position") == entries[300]


@dense_and_sparse
def test_a_cursor_whose_entry_was_trimmed_by_the_cap_trims_nothing(
    broker: BrokerHarness, batch: int
) -> None:
    lost, *_ = add(broker, 600, batch)
    broker.store.settings = replace(broker.store.settings, events_cap=500)
    entries = add(broker, 600, batch, 600)
    assert lost not in entries
    assert tell(broker, lost) == 0
    assert stream(broker) == entries


def test_the_count_is_right_after_the_stream_was_deleted(broker: BrokerHarness) -> None:
    add(broker, 1000)
    broker.redis.delete(broker.keys.events)
    entries = add(broker, 1000, first=1000)
    tell(broker, entries[-1], keep=500)
    assert 500 <= len(stream(broker)) <= 500 + 2 * STEP


def test_the_cap_holds_after_the_count_was_lost(broker: BrokerHarness) -> None:
    broker.store.settings = replace(broker.store.settings, events_cap=500)
    add(broker, 1000)
    broker.redis.hdel(broker.keys.meta, "events")
    assert len(add(broker, 700, first=1000)) <= 500 + 2 * STEP


def test_ids_are_compared_as_numbers(broker: BrokerHarness) -> None:
    """An entry within the same millisecond, and one of a clock that was far behind."""
    for n in range(1, 301):
        broker.redis.xadd(broker.keys.events, {":n": n - 1}, id=f"70-{n}")
    broker.redis.hset(broker.keys.meta, "events", 300)
    broker.redis.rpush(broker.keys.trim_index, "70-1 0", "70-101 100", "70-201 200")
    for position in ("70-9", "8-1"):
        assert tell(broker, position) == 0
    assert broker.redis.xlen(broker.keys.events) == 300


def test_in_bounded_steps(broker: BrokerHarness) -> None:
    entries = add(broker, 5000, 1)
    steps = []
    while gone := broker.store.trim(entries[-1], 0):
        steps.append(gone)
    assert sum(steps) >= 4800
    assert max(steps) <= 2000


def test_no_stream_and_no_position(broker: BrokerHarness) -> None:
    assert broker.store.trim("5-0", 0) == 0
    assert meta(broker, "mirror_position") == "5-0"
    with broker.unchanged():
        for wrong in ("", "5", "-", "5-0 x"):
            with pytest.raises(RedisQueueError, match="position is not the id of an entry"):
                broker.store.trim(wrong, 0)


@pytest.mark.parametrize("name", ["events", "meta", "trim_index"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str
) -> None:
    with broker.refused_over(getattr(broker.keys, name)):
        broker.store.trim("1-1", 0)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    entries = add(broker, 500)
    with broker.full():
        assert tell(broker, entries[-1]) > 0
