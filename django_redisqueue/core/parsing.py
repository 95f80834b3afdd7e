"""Parse values from Redis, which anyone may have written.

A hash in Redis can be changed by hand, by another program or by another version of this package.
Every number, text and time from there passes through here before it reaches the database or a page:
the result fits its column, or the value counts as unreadable. ``..._or_none`` never raise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ..exceptions import short_repr
from .clock import FIRST_MS, LAST_MS

MAX_INT16 = 2**15 - 1  # a SmallIntegerField
MAX_INT32 = 2**31 - 1  # an IntegerField
MAX_INT64 = 2**63 - 1  # a BigIntegerField
MAX_EXACT = 2**53  # Lua's numbers are exact up to here

_WHOLE = re.compile(r"-?[0-9]{1,19}")  # ASCII only; int() also accepts ' 5', '1_000' and '٥'
_DIGITS = re.compile(r"-?[0-9]+")
_REFUSED = re.compile("[\x00\ud800-\udfff]")  # databases refuse these in text
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Not codec.loads, which would refuse a whole event for one NaN or one deeply nested value.
_decode = json.JSONDecoder().decode


def is_int(value: object, low: int, high: int) -> TypeGuard[int]:
    """Whether ``value`` is an int from ``low`` to ``high``. A bool is not."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: object, low: float, high: float) -> TypeGuard[float]:
    """Whether ``value`` is an int or a float from ``low`` to ``high``. A bool or NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def int_or_none(value: object, low: int = 0, high: int = MAX_INT64) -> int | None:
    """An integer from ``low`` to ``high``, or the digits of one; None for anything else."""
    if type(value) is str:
        value = int(value) if _WHOLE.fullmatch(value) else None
    elif type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and low <= value <= high else None


def parse_int(text: str) -> int:
    """A 64-bit integer from its digits. Raises ValueError."""
    found = int_or_none(text, -MAX_INT64 - 1)
    if found is None:
        if not _DIGITS.fullmatch(text):
            raise ValueError(f"invalid literal for int() with base 10: {short_repr(text)}")
        raise ValueError("the number is beyond 64 bits")
    return found


def parse_instant_ms(text: str) -> int:
    """A time in ms from its digits, clamped to the range of a datetime. Raises ValueError."""
    found = instant_ms_or_none(text)
    if found is None and _DIGITS.fullmatch(text):
        return FIRST_MS if text.startswith("-") else LAST_MS
    return parse_int(text) if found is None else found


def instant_ms_or_none(value: object) -> int | None:
    """A time in ms since the epoch that a datetime can hold; None for anything else."""
    return int_or_none(value, FIRST_MS, LAST_MS)


def text_or_none(value: object, most: int) -> str | None:
    """Text that fits a column of ``most`` characters; None for anything but a string.

    Returns the same object unless something had to be replaced or cut off.
    """
    if type(value) is not str:
        return None
    if not is_storable(value):
        value = storable(value)
    return value if len(value) <= most else value[:most]


def is_storable(value: str) -> bool:
    """False for a text with a NUL or a lone surrogate, which databases refuse."""
    if "\0" in value:
        return False
    if value.isascii():
        return True
    try:
        value.encode()  # an eighth of the time of a search; the bridge checks every text
    except UnicodeEncodeError:
        return False
    return True


def storable(value: str) -> str:
    """Replace each character that databases refuse with U+FFFD."""
    return _REFUSED.sub(_REPLACEMENT, value)


def object_or_none(value: object) -> dict[str, Any] | None:
    """A JSON object; None for any other text or value."""
    if type(value) is not str:
        return None
    try:
        found = _decode(value)
    except (ValueError, RecursionError):
        return None
    return found if type(found) is dict else None


def pairs(reply: Sequence[str]) -> dict[str, str]:
    """A reply of alternating names and values, such as that of HGETALL."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def present(names: Sequence[str], values: Sequence[str | None]) -> dict[str, str]:
    """The fields that exist, by the names and the reply of HMGET; none for an empty reply."""
    found = zip(names, values, strict=False)
    return {name: value for name, value in found if value is not None}


def int64_or_none(value: str | None) -> int | None:
    """A field of a hash as a signed integer; None if it is missing or not an integer."""
    return int_or_none(value, -MAX_INT64)


def counters(reply: Sequence[str]) -> dict[str, int]:
    """The reply of HGETALL for a hash of counters. An unreadable counter counts as 0, and the next
    script that increments it starts from there."""
    return {name: int64_or_none(value) or 0 for name, value in pairs(reply).items()}


def score_ms(score: str) -> int:
    """The score of a sorted set as a time in ms. Infinity becomes the largest exact number."""
    return round(min(max(float(score), -MAX_EXACT), MAX_EXACT))


def clock_ms(reply: Sequence[str]) -> int:
    """The reply of TIME, in ms since the epoch."""
    seconds, micros = reply
    return int(seconds) * 1000 + int(micros) // 1000


class Fields:
    """Reads the values of one record by name.

    An unreadable value is replaced by a default and noted in ``faults``. A missing value (or None)
    is a fault only if it is ``needed``.
    """

    __slots__ = ("_values", "faults")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.faults: list[str] = []

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        """The raw value, or None."""
        return self._values.get(name)

    def integer(self, name: str, high: int, *, low: int = 0, needed: bool = False) -> int:
        value = self._values.get(name)
        if type(value) is int and low <= value <= high:
            return value  # the common case
        found = int_or_none(value, low, high)
        return self._default(name, value, 0, needed) if found is None else found

    def instant_ms(self, name: str) -> int | None:
        value = self._values.get(name)
        found = instant_ms_or_none(value)
        return self._default(name, value, None, False) if found is None else found

    def text(self, name: str, most: int, *, needed: bool = False) -> str:
        """A text of up to ``most`` characters, cut or with characters replaced if necessary."""
        value = self._values.get(name)
        if type(value) is str and value.isascii() and "\0" not in value and len(value) <= most:
            return value  # the common case
        found = text_or_none(value, most)
        if found is not None and found is not value:
            self.fault(name, value)
        return self._default(name, value, "", needed) if found is None else found

    def fault(self, name: str, value: object) -> None:
        """Note an unreadable value."""
        self.faults.append(f"{name} is {short_repr(value)}")

    def _default(self, name: str, value: object, default: Any, needed: bool) -> Any:
        if needed or value is not None:
            self.fault(name, value)
        return default
