"""The JSON codec of arguments and results, with clear errors for what JSON cannot carry.

The standard library's encoder accepts NaN, lone surrogates and non-string keys (which it changes
silently), so values are checked first; small common ones cost well under a microsecond.

Its decoder accepts what browsers, databases and its own encoder refuse. Every encoder accepts what
``loads`` and ``decode_payload`` return: no NaN, no Infinity, no lone surrogates, at most READ_DEPTH
levels. For anything else both raise ValueError, and no other error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import timedelta
from enum import Enum
from math import isfinite
from typing import Any

from ..exceptions import InvalidArguments, PayloadTooLarge, short_repr

MAX_DEPTH = 100  # levels of a value to encode
READ_DEPTH = MAX_DEPTH + 10  # levels to decode, with an envelope such as a payload's


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def refuse_constant(name: str) -> Any:
    """Refuse NaN and Infinity, which are not JSON: ``parse_constant`` of a decoder."""
    raise ValueError(f"{name} is not JSON")


_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)
_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=refuse_constant)
_raw_decode = _decoder.raw_decode
#: How plain values are encoded. Values of exactly these types need no check, and a call with only
#: plain values does not need the encoder, which takes twice as long.
_PLAIN: Mapping[type, Callable[[Any], str]] = {
    str: _encoder.encode,
    int: repr,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): lambda _: "null",
}
_BOXES = frozenset({list, dict})
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def dumps(value: object) -> str:
    """Compact JSON of a value that passed ``check`` or that this package made."""
    return _encoder.encode(value)


def loads(text: str) -> Any:
    """Decode JSON. Raises ValueError, also for anything that other encoders would refuse."""
    try:
        value = _decoder.decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _is_suspicious(text):
        _check_read(text, value)
    return value


_TOO_DEEP = f"it is over {READ_DEPTH} levels deep"


def _is_suspicious(text: str) -> bool:
    """Whether the text may be too deep or not valid Unicode. Cheap, and usually False."""
    return "\\u" in text or len(text) > READ_DEPTH or not text.isascii()


def _check_read(text: str, value: object) -> None:
    if text.count("[") + text.count("{") > READ_DEPTH and _depth(value) > READ_DEPTH:
        raise ValueError(_TOO_DEEP)
    # Two escapes can form one character, so only the decoded value shows a lone surrogate.
    found = _encoder.encode(value) if _SURROGATE.search(text) else text
    if not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError:
            raise ValueError(
                "it has a lone surrogate, or bytes that are not UTF-8, so it is not Unicode text"
            ) from None


def _depth(value: Any) -> int:
    """The levels of lists and dicts in a value, counted up to READ_DEPTH."""
    level, found = 0, [value] if type(value) in _BOXES else []
    while found and level <= READ_DEPTH:
        level += 1
        found = [
            item
            for box in found
            for item in (box.values() if type(box) is dict else box)
            if type(item) in _BOXES
        ]
    return level


def encode_payload(args: Sequence[Any], kwargs: Mapping[str, Any], limit: int, task: str) -> str:
    """``[args, kwargs]`` as JSON, at most ``limit`` bytes. Raises InvalidArguments, naming the
    argument, or PayloadTooLarge."""
    text = _encode_plain(args, kwargs)
    if text is None:
        text = _encode_arguments(args, kwargs, task)
    elif text.isascii() and len(text) <= limit:
        return text
    try:
        return capped(text, limit, f"the arguments of {task}", "MAX_PAYLOAD_BYTES")
    except InvalidArguments:  # say which argument it is
        for position, value in enumerate(args):
            utf8_size(_encode(value, task), f"argument {position + 1} of {task}")
        for name, value in kwargs.items():
            utf8_size(_encode({name: value}, task), f"argument {name!r} of {task}")
        raise


def encode_result(value: object, limit: int, task: str) -> str:
    """A result as JSON, at most ``limit`` bytes. Raises InvalidArguments or PayloadTooLarge."""
    if value is None:
        return "null"
    if type(value) is int and abs(value) < 2**63:
        return str(value)  # common, and faster than the encoder
    what = f"the result of {task}"
    if type(value) not in _PLAIN:
        check(value, what)
    return capped(_encode(value, what), limit, what, "MAX_RESULT_BYTES")


_STORED = ' {"file":'  # the encoder writes no leading space, so no task's result begins like this


def encode_stored(name: str) -> str:
    """A result kept in the file ``name``: JSON, but distinct from every encoded result."""
    return f"{_STORED}{_encoder.encode(name)}}}"


def stored_name(text: str) -> str:
    """The file that a stored result names, or '' for an ordinary result. Raises ValueError."""
    if not text.startswith(_STORED):
        return ""
    name = loads(text)["file"]
    if type(name) is not str:
        raise ValueError("the name of the result file is not a string")
    return name


def decode_payload(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Decode arguments and keyword arguments. Raises ValueError."""
    try:
        payload, end = _raw_decode(text)  # faster than decode, which skips white space
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if end != len(text):
        raise ValueError("there is text after the payload")
    if _is_suspicious(text):
        _check_read(text, payload)
    if type(payload) is not list or len(payload) != 2:
        raise ValueError("the payload is not [args, kwargs]")
    args, kwargs = payload
    if type(args) is not list or type(kwargs) is not dict:
        raise ValueError("the payload is not [args, kwargs]")
    return args, kwargs


def check(value: object, what: str) -> None:
    """Raise InvalidArguments, naming ``what``, unless ``value`` keeps its meaning in JSON. Tuples
    are allowed and arrive as lists, as in Django's own Tasks."""
    try:
        _check(value, what, MAX_DEPTH)
    except RecursionError:
        raise InvalidArguments(
            f"{what} contains itself, or is nested too deeply: it is over {MAX_DEPTH} levels deep"
        ) from None


def _check(value: object, what: str, levels: int) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if isinstance(value, float):
        if not isfinite(value):
            raise InvalidArguments(
                f"{what} is {value!r}, which JSON cannot carry; use None instead"
            )
    elif isinstance(value, Mapping):
        _check_mapping(value, what, levels - 1)
    elif isinstance(value, list | tuple):
        if not levels:
            raise RecursionError
        for position, item in enumerate(value):
            if type(item) not in _PLAIN:
                _check(item, f"{what}[{position}]", levels - 1)
    elif not isinstance(value, str | int):
        raise InvalidArguments(
            f"{what} is a {kind.__module__}.{kind.__qualname__}: {_remedy(value)}"
        )


def _check_mapping(value: Mapping[Any, Any], what: str, levels: int) -> None:
    if levels < 0:
        raise RecursionError
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidArguments(
                f"{what} has the key {short_repr(key)}: JSON keys are strings, use "
                f"'{short_repr(key)}'"
            )
        if type(item) not in _PLAIN:
            _check(item, f"{what}[{key!r}]", levels)


def _remedy(value: object) -> str:
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return "use its primary key (.pk), which is never stale"
    if hasattr(value, "values_list"):
        return 'use a list of primary keys, list(queryset.values_list("pk", flat=True))'
    if isinstance(value, bytes | bytearray):
        return "use text, such as its base64 encoding"
    if isinstance(value, set | frozenset):
        return "use a list of its items"
    if isinstance(value, Enum):
        return "use value.value"
    if isinstance(value, timedelta):
        return "use value.total_seconds()"
    if is_dataclass(value):
        return "use dataclasses.asdict(value)"
    if hasattr(value, "__await__"):
        return "await it first"
    if hasattr(value, "isoformat"):
        return "use value.isoformat()"
    return (
        "JSON carries only str, int, float, bool, None, lists, tuples and dicts; "
        "use str(value) or an id"
    )


def _encode(value: object, what: str) -> str:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"{what} cannot be written as JSON: {error}") from None


def _encode_plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """``[args, kwargs]`` as JSON if all values are plain, as they mostly are; else None."""
    try:
        positional = ",".join([_PLAIN[type(value)](value) for value in args])
        if not kwargs:
            return f"[[{positional}],{{}}]"
        named = [
            f"{_encoder.encode(n)}:{_PLAIN[type(value)](value)}" for n, value in kwargs.items()
        ]
    except (KeyError, ValueError):  # another type; an integer of thousands of digits
        return None
    return f"[[{positional}],{{{','.join(named)}}}]"


def _encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], task: str) -> str:
    """``[args, kwargs]`` as JSON. Raises InvalidArguments, naming the argument."""
    for position, value in enumerate(args):
        if type(value) not in _PLAIN:
            check(value, f"argument {position + 1} of {task}")
    for name, value in kwargs.items():
        if type(value) not in _PLAIN:
            check(value, f"argument {name!r} of {task}")
    return _encode([args, kwargs], f"the arguments of {task}")


def capped(text: str, limit: int, what: str, setting: str) -> str:
    """Return ``text``. Raises PayloadTooLarge if its UTF-8 exceeds ``limit`` bytes."""
    size = len(text) if text.isascii() else utf8_size(text, what)
    if size > limit:
        raise PayloadTooLarge(
            f"{what} would be {size} bytes of JSON; REDISQUEUE[{setting!r}] allows {limit}. "
            "Store the data elsewhere (a row, a file) and pass its key"
        )
    return text


def utf8_size(text: str, what: str) -> int:
    """The length of the text in UTF-8. Raises InvalidArguments for a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArguments(f"{what} has a lone surrogate, which is not Unicode text") from None
