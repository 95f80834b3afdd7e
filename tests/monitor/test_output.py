"""Text from jobs cannot control the terminal; durations and rates are short."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_redisqueue.core.text import sanitize
from django_redisqueue.monitor.views import duration, line, parse, rate


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 日本", "plain ünïcode 日本"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\r\nb\tc\x7f", r"a\r\nb\tc\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udc9b", r"\udc9b"),
        (17, "17"),
    ],
)
def test_control_characters_are_escaped(text: Any, shown: str) -> None:
    assert sanitize(text) == shown


def test_a_long_text_is_truncated() -> None:
    assert sanitize("x" * 500, 10) == "x" * 10 + "…"


@given(st.text(st.characters()))
def test_nothing_else_gets_through(text: str) -> None:
    assert sanitize(text).isprintable()


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (None, "-"), (0, "0 ms"), (412, "412 ms"), (9_949, "9.9 s"), (9_999, "10 s"),
        (12_345, "12 s"), (200_000, "3 m 20 s"), (180_000, "3 m"), (7_320_000, "2 h 2 m"),
        (90_000_000, "1 d 1 h"), (-1500, "-1.5 s"), (-61_000, "-1 m 1 s"),
    ],
)  # fmt: skip
def test_durations(ms: int | None, shown: str) -> None:
    assert duration(ms) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.04, "0.0"), (9.94, "9.9"), (99.94, "99.9"), (12345.6, "12,346")],
)
def test_rates(value: float | None, shown: str) -> None:
    assert rate(value) == shown


EVENT = {"jobId": "job_1_a_0", "status": "processing", "queue": "low", "task": "shop.pay",
         "workerId": "web.1234abcd.7.9.2", "attempt": 2, "seq": 3, "timestamp": 0}  # fmt: skip


def shown(**more: object) -> str:
    return line(parse(json.dumps({**EVENT, **more})))


def test_an_event_in_a_line() -> None:
    told = shown(progress={"done": 3, "total": 10, "note": "half"}, reason="timeout")
    assert told.split("  ")[1:] == [
        "processing", "low", "shop.pay", "job_1_a_0", "attempt 2", "by web", "3/10 half",
        "reason timeout",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {"task": "\x1b[2J"},
        {"queue": "\x1b[2J"},
        {"status": "\x1b[2J"},
        {"jobId": "\x1b[2J"},
        {"workerId": "\x1b[2J.a"},
        {"attempt": "\x1b[2J"},
        {"reason": "\x1b[2J"},
        {"progress": {"done": "\x1b[2J", "total": "\x1b[2J", "note": "\x1b[2J"}},
        {"progress": "\x1b[2J"},
        {"timestamp": "\x1b[2J"},
        {"timestamp": 1e300},
        {"queue": ["low"], "workerId": {}, "progress": {"done": [10**400]}},
    ],
)
def test_no_field_of_an_event_reaches_the_terminal_unescaped(more: dict[str, Any]) -> None:
    assert shown(**more).isprintable()


@pytest.mark.parametrize("text", ["", "\x1b[2J", "[]", "{", "null", "[" * 100_000])
def test_a_message_that_is_not_an_event(text: str) -> None:
    told = line(parse(text))
    assert told.startswith("unreadable message on the channel: ")
    assert told.isprintable()
