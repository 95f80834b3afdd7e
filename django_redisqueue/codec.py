"""JSON in and out: what may travel, and clear words about what may not.

The standard library's encoder lets NaN, lone surrogates and non-string keys pass (the last silently
changed), so values are looked at first; the common small ones cost well under a microsecond.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from .exceptions import InvalidArguments, PayloadTooLarge

_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)
_decode = json.JSONDecoder().decode
_raw_decode = json.JSONDecoder().raw_decode
_PLAIN = frozenset({str, int, bool, type(None)})


def dumps(value: object) -> str:
    """Compact JSON of a value that has passed ``check`` or that this package made itself."""
    return _encoder.encode(value)


def loads(text: str) -> Any:
    """The value of JSON text. Raises ValueError."""
    return _decode(text)


def encode_payload(args: Sequence[Any], kwargs: Mapping[str, Any], limit: int, task: str) -> str:
    """``[args, kwargs]`` as JSON, at most ``limit`` bytes.

    Raises InvalidArguments naming the argument, or PayloadTooLarge.
    """
    for position, value in enumerate(args):
        if type(value) not in _PLAIN:
            check(value, f"argument {position + 1} of {task}")
    for name, value in kwargs.items():
        if type(value) not in _PLAIN:
            check(value, f"argument {name!r} of {task}")
    what = f"the arguments of {task}"
    return capped(_encode([args, kwargs], what), limit, what, "MAX_PAYLOAD_BYTES")


def encode_result(value: object, limit: int, task: str) -> str:
    """A result as JSON, at most ``limit`` bytes. Raises InvalidArguments or PayloadTooLarge."""
    if value is None:
        return "null"
    if type(value) is int and abs(value) < 2**63:
        return str(value)  # common enough to spare it the encoder
    what = f"the result of {task}"
    if type(value) not in _PLAIN:
        check(value, what)
    return capped(_encode(value, what), limit, what, "MAX_RESULT_BYTES")


_STORED = ' {"file":'  # the encoder writes no blank in front, so no task's result begins like this


def encode_stored(name: str) -> str:
    """A result that is kept in the file ``name``: JSON, but like no result's own."""
    return f"{_STORED}{_encoder.encode(name)}}}"


def stored_name(text: str) -> str:
    """The file that a stored result names, or '' when the text is the result itself."""
    return str(_decode(text)["file"]) if text.startswith(_STORED) else ""


def decode_payload(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keyword arguments. Raises ValueError when the text is not a payload."""
    payload, end = _raw_decode(text)  # unlike decode, it does not look for white space around
    if end != len(text):
        raise ValueError("something stands behind the payload")
    if type(payload) is not list or len(payload) != 2:
        raise ValueError("the payload is not [args, kwargs]")
    args, kwargs = payload
    if type(args) is not list or type(kwargs) is not dict:
        raise ValueError("the payload is not [args, kwargs]")
    return args, kwargs


def check(value: object, what: str) -> None:
    """Raise InvalidArguments, naming ``what``, unless ``value`` survives JSON unchanged in meaning.

    Tuples are let through (they arrive as lists), as Django's own Tasks do.
    """
    try:
        _check(value, what)
    except RecursionError:
        raise InvalidArguments(
            f"{what} contains itself, or is nested too deeply for JSON"
        ) from None


def _check(value: object, what: str) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if isinstance(value, float):
        if not isfinite(value):
            raise InvalidArguments(
                f"{what} is {value!r}, which JSON can not carry; pass None instead"
            )
    elif isinstance(value, Mapping):
        _check_mapping(value, what)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            if type(item) not in _PLAIN:
                _check(item, f"{what}[{position}]")
    elif not isinstance(value, str | int):
        raise InvalidArguments(
            f"{what} is a {kind.__module__}.{kind.__qualname__}: {_remedy(value)}"
        )


def _check_mapping(value: Mapping[Any, Any], what: str) -> None:
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidArguments(
                f"{what} has the key {key!r}: JSON keys are strings, use {str(key)!r}"
            )
        if type(item) not in _PLAIN:
            _check(item, f"{what}[{key!r}]")


def _remedy(value: object) -> str:
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return "pass its primary key (.pk) and load it in the task, so that it is never stale"
    if isinstance(value, bytes | bytearray):
        return "pass text, or base64 of it"
    if isinstance(value, set | frozenset):
        return "pass a list of its items"
    if hasattr(value, "isoformat"):
        return "pass value.isoformat()"
    return (
        "only str, int, float, bool, None, lists, tuples and dicts travel; pass str(value) or an id"
    )


def _encode(value: object, what: str) -> str:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"{what} can not be written as JSON: {error}") from None


def capped(text: str, limit: int, what: str, setting: str) -> str:
    """``text``, or PayloadTooLarge when its UTF-8 is over ``limit`` bytes."""
    size = len(text) if text.isascii() else utf8_size(text, what)
    if size > limit:
        raise PayloadTooLarge(
            f"{what} would be {size} bytes of JSON; REDISQUEUE[{setting!r}] allows {limit}. "
            "Store the data elsewhere (a row, a file) and pass its key"
        )
    return text


def utf8_size(text: str, what: str) -> int:
    """Bytes of the text in UTF-8. Raises InvalidArguments for what can not be written in it."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArguments(f"{what} has a lone surrogate, which is not Unicode text") from None
