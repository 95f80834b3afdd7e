"""Why the mirror cannot be written: what is to blame, and words that name the remedy."""

from __future__ import annotations

from enum import Enum

from django.db import (
    DEFAULT_DB_ALIAS,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
)
from django.db.migrations.loader import MigrationLoader

from ..conf import APP

CONTENT_ERRORS = (DataError, IntegrityError, ValueError, OverflowError)
# https://www.postgresql.org/docs/current/errcodes-appendix.html
TOO_MUCH = "54"  # the class "program limit exceeded"
OUT_OF_MEMORY = "53200"
# https://dev.mysql.com/doc/mysql-errors/8.0/en/
PACKET_TOO_LARGE, GONE_AWAY, LOST = 1153, 2006, 2013


class Blame(Enum):
    """What an error while rows were written is the fault of."""

    CONTENT = "content"  # these values are refused, whenever they come
    DOUBTFUL = "doubtful"  # they may have been too much, or the database is not well
    DATABASE = "database"  # it is away, full, locked, read-only or not migrated


def blame(error: Exception, alias: str) -> Blame:
    """What this error is the fault of, as far as it says so itself."""
    if isinstance(error, CONTENT_ERRORS):
        return Blame.CONTENT
    state = getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
    if state:
        if state.startswith(TOO_MUCH):
            return Blame.CONTENT
        return (
            Blame.DOUBTFUL if state.startswith("XX") or state == OUT_OF_MEMORY else Blame.DATABASE
        )
    vendor = connections[alias].vendor
    if vendor == "mysql" and error.args and isinstance(error.args[0], int):
        if error.args[0] == PACKET_TOO_LARGE:
            return Blame.CONTENT
        return Blame.DOUBTFUL if error.args[0] in (GONE_AWAY, LOST) else Blame.DATABASE
    if isinstance(error, InterfaceError | InternalError):
        return Blame.DOUBTFUL
    # Without a code the connection was lost, perhaps because these values were too much. SQLite
    # has no connection to lose.
    is_lost = isinstance(error, OperationalError) and vendor != "sqlite"
    return Blame.DOUBTFUL if is_lost else Blame.DATABASE


def lacks(alias: str) -> str:
    """The migrations of this app that a database lacks, and the remedy; '' when it has them all.
    Raises django.db.Error."""
    names = _unapplied(alias)
    if not names:
        return ""
    option = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
    return (
        f"the database {alias!r} lacks migrations of {APP} ({', '.join(names)}); "
        f"run: manage.py migrate{option}"
    )


def _unapplied(alias: str) -> list[str]:
    loader = MigrationLoader(connections[alias])
    assert loader.disk_migrations is not None
    known = [key for key in loader.disk_migrations if key[0] == APP]
    return sorted(name for app, name in known if (app, name) not in loader.applied_migrations)


def explain(alias: str, error: Exception) -> str:
    """What keeps an alias from being written, after it has raised ``error``."""
    try:
        lacking = lacks(alias)
    except Error as again:
        return f"the database {alias!r} does not answer ({_line(again)})"
    return lacking or f"the database {alias!r} refuses to be written ({_line(error)})"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
