"""Text for people: untrusted text made safe for terminals, logs and pages; and numbers, durations
and arguments as people read them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .codec import dumps

MAX_LENGTH = 200  # characters of one text, by default
MAX_ARGUMENT = 4000  # characters of one argument of a log record
LOGGERS = (
    "django_redisqueue", "django_redisqueue.api", "django_redisqueue.dashboard",
    "django_redisqueue.jobs",
)  # fmt: skip
NOTHING = "–"
SHORT = 160  # characters of arguments in a list
LONG = 50_000  # characters of one value on its own page


def printable(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode. They also stand for bytes that were not
    UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def sanitize(text: object, longest: int = MAX_LENGTH) -> str:
    """One line of text, with everything that a terminal would act on escaped: control characters,
    line breaks, escape sequences and marks that change the writing direction."""
    plain = str(text)
    cut = plain[:longest]
    shown = cut if cut.isprintable() else "".join(map(_escaped, cut))
    return shown + "…" if len(plain) > longest else shown


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def indented(text: str) -> str:
    """The lines of a traceback, sanitized, so that none can pass for a log record."""
    return "\n".join(f"  {sanitize(line, MAX_ARGUMENT)}" for line in text.split("\n") if line)


class SanitizingFilter(logging.Filter):
    """Sanitizes the arguments and the traceback of log records, before any handler sees them.

    So each message is one line, and each line of a traceback is indented: none can pass for a
    record of its own. ``extra`` is left alone, for handlers that write JSON.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_sanitized, record.args))
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = indented("".join(traceback.format_exception(*record.exc_info)))
        return True


def _sanitized(value: Any) -> Any:
    """The value itself if it is safe, because a handler may look at its type."""
    if isinstance(value, int | float):
        return value
    text = str(value)
    if text.isprintable() and len(text) <= MAX_ARGUMENT:
        return value
    return sanitize(text, MAX_ARGUMENT) if isinstance(value, str) else _Sanitized(value)


class _Sanitized:
    """Sanitizes both ``%s`` and ``%r`` of an object, which may differ, as those of an exception."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return sanitize(str(self._value), MAX_ARGUMENT)

    def __repr__(self) -> str:
        return sanitize(repr(self._value), MAX_ARGUMENT)


def install_log_filter() -> None:
    """Add the filter to the package's loggers, once."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _filter not in logger.filters:
            logger.addFilter(_filter)


_filter = SanitizingFilter()


def number(value: float) -> str:
    """``12,345``"""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"


def jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{number(count)} jobs"


def duration(ms: float | None, missing: str = NOTHING) -> str:
    """At most two units: ``12 ms``, ``1.5 s``, ``3 m 20 s``, ``2 h 5 m``, ``4 d 3 h``."""
    if ms is None:
        return missing
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, next_size, next_unit in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{whole} s"


def rate(per_second: float | None, missing: str = NOTHING) -> str:
    """``0``, ``2.5``, ``1,234``"""
    if per_second is None:
        return missing
    if per_second == 0:
        return "0"
    return number(per_second) if per_second >= 100 else f"{per_second:.1f}"


def instant(at: datetime | None) -> str:
    """To the second, in the time zone that it has: ``2026-01-31 12:00:00``"""
    return NOTHING if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def size(count: int) -> str:
    """Bytes in powers of 1,024: ``512 bytes``, ``1.5 MB``"""
    value = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Arguments as in a call, each as JSON: ``"de/django.po", limit=3``"""
    return ", ".join(
        [*(dumps(value) for value in args), *(f"{name}={dumps(v)}" for name, v in kwargs.items())]
    )


def shorten(text: str, limit: int = SHORT) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
