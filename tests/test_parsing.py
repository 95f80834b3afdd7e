"""No value makes the parsing raise, and what it returns fits its column."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_redisqueue.parsing import (
    INT32,
    INT64,
    Fields,
    instant_ms,
    is_storable,
    mapping,
    number,
    text,
    whole,
)

CHARACTERS = st.text(st.characters(), max_size=300)  # with NUL and lone surrogates
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | CHARACTERS | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CHARACTERS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    "value",
    [
        -1, "-1", INT32 + 1, str(2**63), "1e5", " 5", "5 ", "+5", "1_000", "\u0665", "", "x", "5\n",
        "9" * 5000, None, True, 1.5, float("nan"), float("inf"), b"5", [], {}, "0x5",
    ],
)  # fmt: skip
def test_what_is_no_whole_number_within_bounds(value: Any) -> None:
    assert whole(value, 0, INT32) is None


@pytest.mark.parametrize(("value", "found"), [(0, 0), ("7", 7), (3.0, 3), ("007", 7), ("-0", 0)])
def test_whole_numbers(value: Any, found: int) -> None:
    assert whole(value, 0, INT32) == found


def test_a_text_that_fits_is_the_same_object() -> None:
    value = "Zürich " * 5
    assert text(value, 40) is value
    assert text("a\0b\ud800c", 9) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert text("abc", 2) == "ab"
    assert text(["a"], 9) is text(5, 9) is text(b"a", 9) is text(None, 9) is None


@pytest.mark.parametrize("value", ["[" * 100_000, "[1]", "{", "", None, '{"a":' * 100_000])
def test_what_is_no_mapping(value: Any) -> None:
    assert mapping(value) is None


@given(ANYTHING, st.integers(-INT64, INT64), st.integers(0, 50))
def test_nothing_raises_and_everything_fits(value: Any, low: int, most: int) -> None:
    found = whole(value, low, INT64)
    assert found is None or low <= found <= INT64
    some = text(value, most)
    assert some is None or (is_storable(some) and len(some) <= most)
    assert number(value, 0, 5) in (None, value)
    mapping(value)
    instant_ms(value)


@given(st.dictionaries(st.sampled_from(["a", "b"]), ANYTHING))
def test_each_value_is_read_or_is_a_fault(values: dict[str, Any]) -> None:
    fields = Fields(values)
    read = (fields.whole("a", 99), fields.text("b", 9, needed=True), fields.instant_ms("a"))
    assert isinstance(read[0], int)
    assert 0 <= read[0] <= 99
    assert len(read[1]) <= 9
    if read[1] != values.get("b"):
        assert any(fault.startswith("b is ") for fault in fields.faults)
    if "a" in fields and read[0] == 0:
        assert values["a"] in (0, "0", "-0") or any(f.startswith("a is") for f in fields.faults)
    assert all(is_storable(fault) for fault in fields.faults)
