"""Make untrusted text, from jobs or Redis, safe for terminals, logs and pages."""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any

MAX_LENGTH = 200  # characters of one text, by default
MAX_ARGUMENT = 4000  # characters of one argument of a log record
LOGGERS = (
    "django_redisqueue", "django_redisqueue.api", "django_redisqueue.dashboard",
    "django_redisqueue.jobs",
)  # fmt: skip


def printable(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode. They also represent bytes that were not
    UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape_bidi(text: str) -> str:
    """Escape the control characters that change the writing direction: after one, a page would show
    19 as 91. In JSON, the value stays the same."""
    return _BIDI.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")


def sanitize(text: object, longest: int = MAX_LENGTH) -> str:
    """One line of text, with everything that would affect a terminal escaped: control characters,
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
    separate record. ``extra`` is left alone, for handlers that write JSON.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_sanitized, record.args))
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = indented("".join(traceback.format_exception(*record.exc_info)))
        return True


def _sanitized(value: Any) -> Any:
    """The value itself if it is safe, because a handler may check its type."""
    if isinstance(value, int | float):
        return value
    text = str(value)
    if text.isprintable() and len(text) <= MAX_ARGUMENT:
        return value
    return sanitize(text, MAX_ARGUMENT) if isinstance(value, str) else _Sanitized(value)


class _Sanitized:
    """Sanitizes both ``%s`` and ``%r`` of an object, which may differ, as an exception's do."""

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


def enable_loggers() -> None:
    """Undo what LOGGING does to the loggers if the settings have imported this package, as for
    Sentry: it disables loggers that exist, unless it sets disable_existing_loggers to False."""
    for name in LOGGERS:
        logging.getLogger(name).disabled = False


_filter = SanitizingFilter()
