"""Pages of sorted sets: nothing is left out while members come and go."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.base import page_after, run
from django_redisqueue.exceptions import InvalidOption

from .lab import Lab

KEY = "some_set"


def walk(lab: Lab, count: int) -> list[list[str]]:
    pages, after = [], ""
    while True:
        page = run(lab.connection, page_after(KEY, after, count))
        pages.append([member for member, _ in page.entries])
        after = page.following
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
    after = run(lab.connection, page_after(KEY, "", 2)).following
    assert after == "2 b"
    if change == "gone":
        lab.redis.zrem(KEY, "a", "b")
    else:
        lab.redis.zadd(KEY, {"a": 8, "b": 9})
    page = run(lab.connection, page_after(KEY, after, 2))
    assert [member for member, _ in page.entries] == ["c", "d"]


def test_among_equal_scores_a_page_goes_on_behind_a_member_that_is_gone(lab: Lab) -> None:
    names = [f"{n:02}" for n in range(20)]
    lab.redis.zadd(KEY, dict.fromkeys(names, 5) | {"first": 1, "last": 9})
    for gone in names:
        lab.redis.zrem(KEY, gone)
        page = run(lab.connection, page_after(KEY, f"5 {gone}", 30))
        later = [name for name in names if name > gone]
        assert [member for member, _ in page.entries] == [*later, "last"]
        lab.redis.zadd(KEY, {gone: 5})


@pytest.mark.parametrize("after", ["x", "1", "nan a", "0x1 a", "1.2.3 a", ". a", f"1 {'a' * 1001}"])
def test_what_no_page_gave(lab: Lab, after: str) -> None:
    with pytest.raises(InvalidOption, match="after must be what the page before gave as the next"):
        run(lab.connection, page_after(KEY, after, 2))
