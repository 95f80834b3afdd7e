"""Pages of sorted sets: nothing is left out while members come and go."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.paging import page_after
from django_redisqueue.exceptions import InvalidOption

from .lab import Lab

KEY = "some_set"


def walk(lab: Lab, count: int) -> list[list[str]]:
    pages, after = [], ""
    while True:
        found, after = page_after(lab.connection, KEY, after, count)
        pages.append([member for member, _ in found])
        if not after:
            return pages


def test_every_member_once_whatever_the_scores(lab: Lab) -> None:
    assert walk(lab, 3) == [[]]
    lab.redis.zadd(KEY, {"a": 5, "b": 5, "c c": 5, "d": 1_760_000_000_000, "e": float("inf")})
    lab.redis.zadd(KEY, {"f": float("inf")})
    assert walk(lab, 3) == [["a", "b", "c c"], ["d", "e", "f"]]
    assert walk(lab, 1) == [["a"], ["b"], ["c c"], ["d"], ["e"], ["f"]]
    assert walk(lab, 100) == [["a", "b", "c c", "d", "e", "f"]]


@pytest.mark.parametrize("change", ["gone", "moved"])
def test_a_page_goes_on_when_its_member_is_gone_or_has_moved(lab: Lab, change: str) -> None:
    lab.redis.zadd(KEY, {"a": 1, "b": 2, "c": 3, "d": 4})
    _, after = page_after(lab.connection, KEY, "", 2)
    assert after == "2 b"
    if change == "gone":
        lab.redis.zrem(KEY, "a", "b")
    else:
        lab.redis.zadd(KEY, {"a": 8, "b": 9})
    found, _ = page_after(lab.connection, KEY, after, 2)
    assert [member for member, _ in found] == ["c", "d"]


@pytest.mark.parametrize("after", ["x", "1", "nan a", "0x1 a", f"1 {'a' * 1001}"])
def test_what_no_page_gave(lab: Lab, after: str) -> None:
    with pytest.raises(InvalidOption, match="after must be what the page before gave as the next"):
        page_after(lab.connection, KEY, after, 2)
