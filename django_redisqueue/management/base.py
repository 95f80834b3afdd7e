"""Shared by the commands: a base class, and types of command-line arguments."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from django.core.management.base import BaseCommand, CommandError, SystemCheckError

from ..conf import get_settings
from ..core.clock import is_duration_text, to_seconds
from ..core.text import sanitize
from ..exceptions import RedisQueueError
from ..worker.interrupts import StoppableWaits

MAX_LINE = 4000  # characters
SHORTEST_INTERVAL = 0.1  # s
Value = TypeVar("Value")


class QueueCommand(BaseCommand):
    """A command that shows errors of this package without a traceback, and starts even while a
    database is down.

    Its system checks query no database. (Since Django 6.1, the checks of models with a JSONField
    query all of them.)
    """

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute(*args, **options)
        except SystemCheckError:  # lines about settings
            raise
        except CommandError as error:  # its text may come from Redis
            raise CommandError(
                sanitize(error, MAX_LINE), returncode=error.returncode
            ) from error.__cause__
        except RedisQueueError as error:
            raise CommandError(sanitize(error, MAX_LINE)) from error

    def write(self, text: str) -> None:
        """Write a line without characters that a terminal would interpret."""
        self.stdout.write(sanitize(text, MAX_LINE))

    def announce(self, text: str, *, is_error: bool = False) -> None:
        """Write a message from a service. The service continues if the message cannot be written,
        because its output is closed, or is a file on a full disk."""
        stream = self.stderr if is_error else self.stdout
        with suppress(AttributeError, OSError, ValueError):
            for line in text.splitlines():
                stream.write(sanitize(line, MAX_LINE))
            stream.flush()

    def get_check_kwargs(self, options: dict[str, Any]) -> dict[Any, Any]:
        kwargs: dict[Any, Any] = super().get_check_kwargs(options)
        return {**kwargs, "databases": []}


def stoppable_waits() -> StoppableWaits:
    """Waits that end when the process is told to stop, by SIGTERM or Ctrl-C."""
    waits = StoppableWaits()

    def stop(number: int, frame: FrameType | None) -> None:
        waits.stopping = True
        waits.end_wait()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return waits


def argument(check: Callable[[str], Value]) -> Callable[[str], Value]:
    """An argparse ``type`` that shows the message of the exception that ``check`` raises."""

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


def integer(low: int, high: int) -> Callable[[str], int]:
    """A whole number from ``low`` to ``high``."""

    def check(text: str) -> int:
        number = int(text) if text.removeprefix("-").isdecimal() else None
        if number is None or not low <= number <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, not {text!r}")
        return number

    return argument(check)


def seconds(text: str) -> float:
    """A duration of zero or more: seconds, or a text such as 90s."""
    try:
        return to_seconds(text if is_duration_text(text) else float(text), "it")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be zero or more seconds, or a duration such as 90s, not {text!r}"
        ) from None


def interval(text: str) -> float:
    """A duration between two passes of a loop, long enough not to load Redis."""
    value = seconds(text)
    if value < SHORTEST_INTERVAL:
        raise argparse.ArgumentTypeError(
            f"must be {SHORTEST_INTERVAL:g} seconds or more, not {text!r}"
        )
    return value


def writable_path(text: str) -> str:
    """The path of a file in an existing directory."""
    path = Path(text).absolute()
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory: name a file in it")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot be written: create {path.parent} first")
    return text


def size(text: str) -> int:
    """``300M``, ``2G`` or bytes: a megabyte or more, or 0 for no limit."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a size such as 300M, not {text!r}")
    value = int(number) * unit
    if 0 < value < units["M"]:  # every child would exit after one job
        raise argparse.ArgumentTypeError(
            f"must be 1M or more, not {text!r}; a number without K, M or G is bytes"
        )
    return value
