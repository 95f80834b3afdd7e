"""trim: the mirror reports how far it has read; older entries are trimmed, except its own entry."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from django_redisqueue.exceptions import RedisQueueError, WrongKeyType

from .lab import Lab, long_id

STEP = 100  # events from one milestone to the next
dense_and_sparse = pytest.mark.parametrize("batch", [1, 7, 100])  # events per entry


@pytest.fixture(autouse=True)
def small_steps(lab: Lab) -> None:
    lab.store.settings = replace(lab.store.settings, events_cap=100 * STEP)


def add(lab: Lab, jobs: int, batch: int = 100, first: int = 0) -> list[str]:
    """Returns the ids of the entries, each with one event."""
    for at in range(first, first + jobs, batch):
        lab.add(*[long_id(n) for n in range(at, min(at + batch, first + jobs))])
    return stream(lab)


def stream(lab: Lab) -> list[str]:
    return [event.entry for event in lab.written()]


def tell(lab: Lab, entry: str, keep: int = 0) -> int:
    """Report the position until nothing more is trimmed; returns how many entries were."""
    total = gone = lab.store.trim(entry, keep)
    while gone:
        total += (gone := lab.store.trim(entry, keep))
    return total


def meta(lab: Lab, name: str) -> str | None:
    return lab.redis.hget(lab.keys.meta, name)


@dense_and_sparse
def test_entries_that_were_read_are_trimmed_and_the_cursors_entry_stays(
    lab: Lab, batch: int
) -> None:
    entries = add(lab, 3000, batch)
    assert tell(lab, entries[-1]) > 0
    left = stream(lab)
    assert entries[-1] == left[-1]
    assert len(left) <= 2 * STEP  # from the last milestone on, and in whole nodes of the stream
    assert meta(lab, "mirror_position") == entries[-1]


@dense_and_sparse
def test_the_last_events_stay_for_live_readers(lab: Lab, batch: int) -> None:
    entries = add(lab, 1000, batch)
    assert tell(lab, entries[-1], keep=300) > 0
    left = stream(lab)
    assert 300 <= len(left) <= 300 + 2 * STEP
    assert left == entries[-len(left) :]


@dense_and_sparse
def test_no_unread_entry_is_trimmed_while_the_mirror_is_behind(lab: Lab, batch: int) -> None:
    entries = add(lab, 3100, batch)
    gone = 0
    for at in range(0, 3100, 500):
        gone += tell(lab, entries[at])
        left = stream(lab)
        assert entries[at] in left
        assert left == entries[-len(left) :]
        assert len(left) <= 3100 - at + 2 * STEP
    assert gone > 0


def test_a_cursor_within_the_kept_events_trims_nothing(lab: Lab) -> None:
    entries = add(lab, 1000)
    assert tell(lab, entries[150], keep=950) == 0
    assert stream(lab) == entries
    assert meta(lab, "mirror_position") == entries[150]


def test_a_repeated_call_changes_nothing(lab: Lab) -> None:
    entries = add(lab, 1000)
    tell(lab, entries[500])
    before = lab.dump()
    assert tell(lab, entries[500]) == 0
    assert lab.dump() == before


def test_a_cursor_that_goes_back_trims_nothing(lab: Lab) -> None:
    entries = add(lab, 1000)
    tell(lab, entries[700])
    left = stream(lab)
    assert tell(lab, entries[300]) == 0  # a bridge that another has overtaken
    assert stream(lab) == left
    assert meta(lab, "mirror_position") == entries[300]


@dense_and_sparse
def test_a_cursor_whose_entry_was_trimmed_by_the_cap_trims_nothing(lab: Lab, batch: int) -> None:
    lost, *_ = add(lab, 600, batch)
    lab.store.settings = replace(lab.store.settings, events_cap=500)
    entries = add(lab, 600, batch, 600)
    assert lost not in entries
    assert tell(lab, lost) == 0
    assert stream(lab) == entries


def test_the_count_is_right_after_the_stream_was_deleted(lab: Lab) -> None:
    add(lab, 1000)
    lab.redis.delete(lab.keys.events)
    entries = add(lab, 1000, first=1000)
    tell(lab, entries[-1], keep=500)
    assert 500 <= len(stream(lab)) <= 500 + 2 * STEP


def test_in_bounded_steps(lab: Lab) -> None:
    entries = add(lab, 5000, 1)
    steps = []
    while gone := lab.store.trim(entries[-1], 0):
        steps.append(gone)
    assert sum(steps) >= 4800
    assert max(steps) <= 2000


def test_no_stream_and_no_position(lab: Lab) -> None:
    assert lab.store.trim("5-0", 0) == 0
    assert meta(lab, "mirror_position") == "5-0"
    before = lab.dump()
    for wrong in ("", "5", "-", "5-0 x"):
        with pytest.raises(RedisQueueError, match="position is not the id of an entry"):
            lab.store.trim(wrong, 0)
    assert lab.dump() == before


@pytest.mark.parametrize("name", ["events", "meta", "trim_index"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    key = getattr(lab.keys, name)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.trim("1-1", 0)
    assert lab.dump() == before


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    entries = add(lab, 500)
    with lab.full():
        assert tell(lab, entries[-1]) > 0
