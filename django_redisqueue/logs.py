"""Log lines that are one line each, whatever the jobs, errors and names in them hold.

The arguments of every record of the package pass through here once, before any handler has them.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from .texts import harmless

LOGGERS = ("django_redisqueue", "django_redisqueue.api", "django_redisqueue.dashboard")
LONGEST = 4000  # characters of one argument


class HarmlessRecords(logging.Filter):
    """Shows control characters, line breaks and the like as escapes. What is put in is what a
    record was given for its message, and its traceback, each line of which is indented: none can
    pass for a record of its own. ``extra`` stays as it is, for handlers that write JSON."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_harmless, record.args))
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            lines = "".join(traceback.format_exception(*record.exc_info)).split("\n")
            record.exc_text = "\n".join(f"  {harmless(line, LONGEST)}" for line in lines if line)
        return True


def _harmless(value: Any) -> Any:
    """The value itself where nothing is wrong with it: a handler may want to know its type."""
    if isinstance(value, int | float):
        return value
    text = str(value)
    if text.isprintable() and len(text) <= LONGEST:
        return value
    return harmless(text, LONGEST) if isinstance(value, str) else _Harmless(value)


class _Harmless:
    """An object of which ``%s`` and ``%r`` show what it would, harmless: an exception's repr has
    its type."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return harmless(str(self._value), LONGEST)

    def __repr__(self) -> str:
        return harmless(repr(self._value), LONGEST)


def guard() -> None:
    """Let the package's loggers write only such lines. Calling it again changes nothing."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _filter not in logger.filters:
            logger.addFilter(_filter)


_filter = HarmlessRecords()
