"""No value makes the parsing raise, and every returned value fits its column."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_redisqueue.core.clock import FIRST_MS, LAST_MS
from django_redisqueue.core.parsing import (
    MAX_INT32,
    MAX_INT64,
    Fields,
    instant_ms_or_none,
    int_or_none,
    is_number,
    is_storable,
    object_or_none,
    parse_instant_ms,
    parse_int,
    text_or_none,
)

from ..support.hostile import nested

CHARACTERS = st.text(st.characters(), max_size=300)  # with NUL and lone surrogates
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | CHARACTERS | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CHARACTERS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    "value",
    [
        -1, "-1", MAX_INT32 + 1, str(2**63), "1e5", " 5", "5 ", "+5", "1_000", "\u0665", "", "x",
        "5\n", "9" * 5000, None, True, 1.5, float("nan"), float("inf"), b"5", [], {}, "0x5",
    ],
)  # fmt: skip
def test_values_that_are_not_whole_numbers_within_bounds(value: Any) -> None:
    assert int_or_none(value, 0, MAX_INT32) is None


@pytest.mark.parametrize(("value", "found"), [(0, 0), ("7", 7), (3.0, 3), ("007", 7), ("-0", 0)])
def test_whole_numbers(value: Any, found: int) -> None:
    assert int_or_none(value, 0, MAX_INT32) == found


def test_text_that_fits_is_returned_unchanged() -> None:
    value = "Zürich " * 5
    assert text_or_none(value, 40) is value
    assert text_or_none("a\0b\ud800c", 9) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert text_or_none("abc", 2) == "ab"
    assert (
        text_or_none(["a"], 9)
        is text_or_none(5, 9)
        is text_or_none(b"a", 9)
        is text_or_none(None, 9)
        is None
    )


@pytest.mark.parametrize("value", ["[" * 100_000, "[1]", "{", "", None, '{"a":' * 100_000])
def test_values_that_are_not_mappings(value: Any) -> None:
    assert object_or_none(value) is None


def test_a_mapping_with_values_that_its_reader_refuses() -> None:
    found = object_or_none(f'{{"a":NaN,"b":"\\ud800","c":{nested(500)}}}')
    assert found is not None
    assert found["b"] == "\ud800"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("many", "invalid literal for int() with base 10: 'many'"), ("1_0", "invalid literal"),
        (" 5", "invalid literal"), ("", "invalid literal"), ("9" * 5000, "beyond 64 bits"),
        (str(2**63), "beyond 64 bits"), (str(-(2**63) - 1), "beyond 64 bits"),
    ],
)  # fmt: skip
def test_why_a_number_cannot_be_read(value: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_int(value)
    assert parse_int(str(-(2**63))) == -(2**63)


@pytest.mark.parametrize(
    ("value", "found"),
    [("12", 12), ("-12", -12), ("9" * 5000, LAST_MS), (str(-(2**62)), FIRST_MS)],
)
def test_a_time_beyond_every_calendar(value: str, found: int) -> None:
    assert parse_instant_ms(value) == found
    with pytest.raises(ValueError, match="invalid literal"):
        parse_instant_ms(f"{value}.5")


@given(ANYTHING, st.integers(-MAX_INT64, MAX_INT64), st.integers(0, 50))
def test_nothing_raises_and_everything_fits(value: Any, low: int, most: int) -> None:
    found = int_or_none(value, low, MAX_INT64)
    assert found is None or low <= found <= MAX_INT64
    some = text_or_none(value, most)
    assert some is None or (is_storable(some) and len(some) <= most)
    assert not is_number(value, 0, 5) or 0 <= value <= 5
    object_or_none(value)
    instant_ms_or_none(value)


@given(st.dictionaries(st.sampled_from(["a", "b"]), ANYTHING))
def test_each_value_is_read_or_is_a_fault(values: dict[str, Any]) -> None:
    fields = Fields(values)
    read = (fields.integer("a", 99), fields.text("b", 9, needed=True), fields.instant_ms("a"))
    assert isinstance(read[0], int)
    assert 0 <= read[0] <= 99
    assert len(read[1]) <= 9
    if read[1] != values.get("b"):
        assert any(fault.startswith("b is ") for fault in fields.faults)
    if "a" in fields and read[0] == 0:
        assert values["a"] in (0, "0", "-0") or any(f.startswith("a is") for f in fields.faults)
    assert all(is_storable(fault) for fault in fields.faults)
