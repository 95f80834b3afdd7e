"""Values that anybody may have written, read without ever raising.

What stands in Redis can be changed by hand, by another program or by another version of this
package. Every number, text and instant that comes from there passes through here before it reaches
the database or a page: the result fits its column, or the value counts as unreadable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, overload

from .clock import FIRST_MS, LAST_MS
from .exceptions import shown

INT16 = 2**15 - 1  # the largest value of a SmallIntegerField, an IntegerField, a BigIntegerField
INT32 = 2**31 - 1
INT64 = 2**63 - 1
EXACT = 2**53  # the largest number that Lua counts up to

_WHOLE = re.compile(r"-?[0-9]{1,19}")  # ASCII only; int() also takes ' 5', '1_000' and '٥'
_REFUSED = re.compile("[\x00\ud800-\udfff]")  # no database takes these in a text
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_decode = json.JSONDecoder().decode


def whole(value: object, low: int = 0, high: int = INT64) -> int | None:
    """A whole number from ``low`` to ``high``, also from its digits; None for anything else."""
    if type(value) is str:
        value = int(value) if _WHOLE.fullmatch(value) else None
    elif type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and low <= value <= high else None


def number(value: object, low: float, high: float) -> int | float | None:
    """A finite number from ``low`` to ``high``, as JSON has it; None for anything else."""
    if type(value) is int or (type(value) is float and isfinite(value)):
        return value if low <= value <= high else None
    return None


def instant_ms(value: object) -> int | None:
    """An instant in ms since the epoch that a datetime can hold; None for anything else."""
    return whole(value, FIRST_MS, LAST_MS)


def text(value: object, most: int) -> str | None:
    """A text that a column of ``most`` characters takes; None for what is no text.

    It is the very same object unless something had to be replaced or cut off.
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
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(value: str) -> str:
    """The text with U+FFFD in place of each character that databases refuse."""
    return _REFUSED.sub(_REPLACEMENT, value)


def mapping(value: object) -> dict[str, Any] | None:
    """The object that this JSON text is; None for anything else."""
    if type(value) is not str:
        return None
    try:
        found = _decode(value)
    except (ValueError, RecursionError):
        return None
    return found if type(found) is dict else None


class Fields:
    """The values of one record by name. What cannot be read is replaced by a default, and
    ``faults`` says so. A value that is None or not there is a fault only where it is ``needed``.
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
        """The value as it was written, or None."""
        return self._values.get(name)

    def whole(
        self, name: str, high: int = INT64, *, low: int = 0, default: int = 0, needed: bool = False
    ) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self._values.get(name)
        if type(value) is int and low <= value <= high:
            return value  # nearly always
        found = whole(value, low, high)
        return self._default(name, value, default, needed) if found is None else found

    @overload
    def instant_ms(self, name: str, default: None = None) -> int | None: ...
    @overload
    def instant_ms(self, name: str, default: int) -> int: ...

    def instant_ms(self, name: str, default: int | None = None) -> int | None:
        """An instant in ms since the epoch."""
        value = self._values.get(name)
        found = instant_ms(value)
        return self._default(name, value, default, False) if found is None else found

    def text(self, name: str, most: int, *, default: str = "", needed: bool = False) -> str:
        """A text of up to ``most`` characters; a part of it when not all can be stored."""
        value = self._values.get(name)
        if type(value) is str and value.isascii() and "\0" not in value and len(value) <= most:
            return value  # nearly always
        found = text(value, most)
        if found is not None and found is not value:
            self.fault(name, value)
        return self._default(name, value, default, needed) if found is None else found

    def fault(self, name: str, value: object) -> None:
        """Note that this value cannot be read."""
        self.faults.append(f"{name} is {shown(value)}")

    def _default(self, name: str, value: object, default: Any, needed: bool) -> Any:
        if needed or value is not None:
            self.fault(name, value)
        return default
