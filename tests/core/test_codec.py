"""JSON: every value that is read can be written again by every encoder; anything else is a
ValueError."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given

from django_redisqueue.core.codec import (
    MAX_DEPTH,
    READ_DEPTH,
    decode_payload,
    dumps,
    encode_payload,
    encode_result,
    loads,
)
from django_redisqueue.exceptions import InvalidArguments

from ..support.hostile import TEXTS, nested

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of hostile texts


def is_safe(value: object) -> bool:
    """What PostgreSQL, a browser and an indenting encoder require."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode().decode() == text


@pytest.mark.parametrize("decode", [loads, decode_payload])
@given(text=TEXTS)
@example(text="[" * 100_000)
@example(text=f"[[{nested(READ_DEPTH)}],{{}}]")
@example(text='[["' + "\\ud800" + '"],{}]')
@example(text='[["' + "\\\\ud800" + '"],{}]')
@example(text="[[NaN],{}]")
@example(text="[[-1e999],{}]")
@example(text="[[\udcff],{}]")
@example(text='[["\udcff"],{}]')
@example(text=f"[[{'1' * 5000}],{{}}]")
def test_values_that_are_read_can_be_written(decode: Callable[[str], Any], text: str) -> None:
    try:
        value = decode(text)
    except ValueError:
        return
    assert is_safe(value)
    assert json.loads(dumps(value)) == json.loads(text) or text != text.strip()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NaN", "NaN is not JSON"),
        ("[1e999]", "too large"),
        (nested(READ_DEPTH + 1), f"over {READ_DEPTH} levels"),
        ("[" * 100_000, f"over {READ_DEPTH} levels"),
        ('"\\ud800"', "lone surrogate"),
        ('{"\\uDC00": 1}', "lone surrogate"),
        ('"\udcff"', "bytes that are not UTF-8"),
    ],
    ids=repr,
)
def test_unreadable_text_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        loads(text)


@pytest.mark.parametrize("text", ['"\\ud83d\\ude00"', '"\\\\ud800"', '"é"', nested(READ_DEPTH)])
def test_unusual_but_valid_text_is_read(text: str) -> None:
    assert loads(text) == json.loads(text)


def test_values_written_at_the_limits_are_read(settings: Any) -> None:
    settings.REDISQUEUE = {}
    value = json.loads(nested(MAX_DEPTH))
    assert decode_payload(encode_payload([value], {"a": value}, 9999, "t")) == (
        [value],
        {"a": value},
    )
    assert loads(encode_result({"a": json.loads(nested(MAX_DEPTH - 1))}, 9999, "t"))
    for deep in (json.loads(nested(MAX_DEPTH + 1)), {"a": value}, ({"a": [value]},)):
        with pytest.raises(InvalidArguments, match=f"is over {MAX_DEPTH} levels deep"):
            encode_result(deep, 9999, "t")


@pytest.mark.parametrize("args", [(), (1, -2, 10**30), (True, 1), (1.5, 2)])
def test_arguments_of_only_integers_are_written_like_all_others(args: tuple[Any, ...]) -> None:
    assert encode_payload(args, {}, 1000, "app.task") == dumps([args, {}])


def test_an_integer_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="cannot be written as JSON"):
        encode_payload((10**5000,), {}, 10_000, "app.task")
