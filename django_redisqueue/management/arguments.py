"""Command-line arguments, checked with the same words as in code."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..conf import get_settings
from ..exceptions import RedisQueueError

Value = TypeVar("Value")


def checked(check: Callable[[str], Value]) -> Callable[[str], Value]:
    """An argparse ``type`` that shows the package's own message."""

    def convert(text: str) -> Value:
        try:
            return check(text)
        except (RedisQueueError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def queue_list(text: str) -> tuple[str, ...]:
    """``a,b,c``: configured queues, in order. Raises InvalidName or UnknownQueue."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ValueError("name at least one queue")
    return tuple(get_settings().check_queue(name) for name in names)


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def check(text: str) -> int:
        number = int(text) if text.lstrip("-").isdigit() else None
        if number is None or not low <= number <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, not {text!r}")
        return number

    return checked(check)


def seconds(text: str) -> float:
    """A duration of zero or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"must be seconds of zero or more, not {text!r}")
    return value


def new_file(text: str) -> str:
    """A file that can be made: its folder is there."""
    folder = Path(text).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot be written: make the folder {folder} first")
    return text


def size(text: str) -> int:
    """``300M``, ``2G`` or bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdigit():
        raise argparse.ArgumentTypeError(f"must be a size such as 300M, not {text!r}")
    return int(number) * unit
