"""trim: the mirror tells how far it has read; what lies behind goes, but for its own entry."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from django_redisqueue.exceptions import RedisQueueError, WrongKeyType

from .lab import Lab


class Reader:
    """Reads the stream as the mirror does, and tells of it."""

    def __init__(self, lab: Lab, keep: int = 0) -> None:
        self.lab, self.keep, self.position = lab, keep, "0-0"

    def read(self, entries: int) -> int:
        """Read that many entries and tell of it until nothing goes; how many went."""
        after = f"({self.position}" if self.position != "0-0" else "-"
        found = self.lab.redis.xrange(self.lab.keys.events, after, "+", count=entries)
        assert len(found) == entries
        before, self.position = self.position, found[-1][0]
        total = gone = self.tell(before, entries)
        while gone:
            total += (gone := self.tell(before, entries))
        return total

    def tell(self, before: str, entries: int) -> int:
        return self.lab.store.trim(before, self.position, entries, self.keep)


def add(lab: Lab, jobs: int, first: int = 0) -> list[str]:
    for at in range(first, first + jobs, 100):
        lab.add(*[f"j{n}" for n in range(at, min(at + 100, first + jobs))])
    return stream(lab)


def stream(lab: Lab) -> list[str]:
    return [entry for entry, _ in lab.redis.xrange(lab.keys.events)]


def meta(lab: Lab, name: str) -> str | None:
    return lab.redis.hget(lab.keys.meta, name)


def test_what_is_read_goes_and_the_cursors_entry_stays(lab: Lab) -> None:
    entries = add(lab, 3000)
    reader = Reader(lab)
    reader.read(3000)
    left = stream(lab)
    assert reader.position == entries[-1] == left[-1]
    assert len(left) <= 100  # whole nodes of the stream
    assert meta(lab, "mirror_position") == entries[-1]
    assert meta(lab, "mirror_read") == str(len(left))


def test_the_last_ones_stay_for_live_readers(lab: Lab) -> None:
    entries = add(lab, 1000)
    reader = Reader(lab, keep=300)
    assert reader.read(1000) > 500
    left = stream(lab)
    assert 300 <= len(left) <= 400
    assert left == entries[-len(left) :]


def test_nothing_unread_goes_while_the_mirror_is_behind(lab: Lab) -> None:
    add(lab, 100)
    reader = Reader(lab)
    reader.read(100)  # once at the end, so that the count is known
    entries = add(lab, 3000, 100)
    for _ in range(4):
        reader.read(500)
        left = stream(lab)
        at = entries.index(reader.position)
        assert reader.position in left
        assert left == entries[-len(left) :]
        assert len(left) <= len(entries) - at + 100
    reader.read(1000)
    assert len(stream(lab)) <= 100


def test_before_the_end_was_reached_once_nothing_goes(lab: Lab) -> None:
    entries = add(lab, 500)
    reader = Reader(lab)
    assert reader.read(400) == 0
    assert stream(lab) == entries
    assert meta(lab, "mirror_position") == entries[399]
    assert meta(lab, "mirror_read") is None


def test_a_repeated_call_adds_nothing(lab: Lab) -> None:
    add(lab, 100)
    reader = Reader(lab)
    reader.read(100)
    entries = add(lab, 1000, 100)
    reader.keep = 10_000
    before = reader.position
    reader.read(300)
    for _ in range(5):
        reader.tell(before, 300)
    assert meta(lab, "mirror_read") == str(entries.index(reader.position) + 1)


def test_an_unexpected_cursor_stops_the_trimming_until_the_end_is_reached(lab: Lab) -> None:
    add(lab, 100)
    reader = Reader(lab)
    reader.read(100)
    entries = add(lab, 1000, 100)
    reader.position = entries[300]  # another bridge has read these, and not told
    assert reader.read(300) == 0
    assert meta(lab, "mirror_read") is None
    assert stream(lab) == entries
    assert reader.read(len(entries) - 601) > 0


def test_when_the_cap_may_have_trimmed_nothing_goes_until_the_end_is_reached(lab: Lab) -> None:
    add(lab, 600)
    reader = Reader(lab, keep=10_000)
    reader.read(600)
    assert meta(lab, "mirror_read") == "600"
    lab.store.settings = replace(lab.store.settings, events_cap=1000)
    add(lab, 600, 600)
    entries = stream(lab)
    assert len(entries) < 1200  # the cap has trimmed what was read, and 600 is too high now
    assert reader.position in entries
    reader.keep = 0
    assert reader.read(100) == 0
    assert meta(lab, "mirror_read") is None
    assert stream(lab) == entries
    assert reader.read(500) > 0


def test_in_bounded_steps(lab: Lab) -> None:
    add(lab, 5000)
    (position,) = stream(lab)[-1:]
    steps = []
    while gone := lab.store.trim("0-0", position, 5000, 0):
        steps.append(gone)
    assert sum(steps) >= 4900
    assert max(steps) <= 2000


def test_no_stream_and_no_position(lab: Lab) -> None:
    assert lab.store.trim("0-0", "5-0", 0, 0) == 0
    assert meta(lab, "mirror_position") == "5-0"
    before = lab.dump()
    for wrong in ("", "5", "-", "5-0 x"):
        with pytest.raises(RedisQueueError, match="position is not the id of an entry"):
            lab.store.trim("0-0", wrong, 0, 0)
    assert lab.dump() == before


@pytest.mark.parametrize("name", ["events", "meta"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    key = getattr(lab.keys, name)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.trim("0-0", "1-1", 0, 0)
    assert lab.dump() == before


def test_a_full_redis_lets_it_through(lab: Lab) -> None:
    add(lab, 500)
    with lab.full():
        assert Reader(lab).read(500) > 0
