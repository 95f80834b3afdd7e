"""Why the database refused a write: the cause of the error, and messages with the remedy."""

from __future__ import annotations

from collections.abc import Collection
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
from ..exceptions import first_line

CONTENT_ERRORS = (DataError, IntegrityError, ValueError, OverflowError)
# https://www.postgresql.org/docs/current/errcodes-appendix.html
LIMIT_EXCEEDED = "54"  # the class "program limit exceeded"
INTERNAL = "XX"  # the class "internal error"
OUT_OF_MEMORY = "53200"
# https://dev.mysql.com/doc/mysql-errors/8.0/en/
# The packet or the row is too large, or the column's character set lacks a character
MYSQL_CONTENT = frozenset({1118, 1153, 1292, 1300, 1366})
GONE_AWAY, LOST_CONNECTION = 2006, 2013
# How often the database refuses a single event before it is left out, if the database may be at
# fault.
UNCERTAIN_REFUSALS = 3


class ErrorCause(Enum):
    """What caused an error while rows were written."""

    CONTENT = "content"  # the values, which the database will always refuse
    UNCERTAIN = "uncertain"  # the values may have been too large, or the database is failing
    DATABASE = "database"  # it is unavailable, full, locked, read-only or not migrated


def error_cause(error: Exception, alias: str) -> ErrorCause:
    if isinstance(error, CONTENT_ERRORS):
        return ErrorCause.CONTENT
    state = getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
    vendor = connections[alias].vendor
    code = error.args[0] if vendor == "mysql" and error.args else None
    if (state and state.startswith(LIMIT_EXCEEDED)) or code in MYSQL_CONTENT:
        return ErrorCause.CONTENT
    if state:
        is_uncertain = state.startswith(INTERNAL) or state == OUT_OF_MEMORY
    elif isinstance(code, int):
        is_uncertain = code in (GONE_AWAY, LOST_CONNECTION)
    else:
        # Without a code the connection was lost, perhaps because the values were too large. SQLite
        # has no connection to lose.
        is_lost = isinstance(error, OperationalError) and vendor != "sqlite"
        is_uncertain = is_lost or isinstance(error, InterfaceError | InternalError)
    return ErrorCause.UNCERTAIN if is_uncertain else ErrorCause.DATABASE


def explain_error(alias: str, error: Exception) -> str:
    """Why the alias cannot be written, after it raised ``error``. It may have refused the write, or
    the connection was cut."""
    try:
        missing = missing_migrations(alias)
    except Error as second:
        return explain_outage(alias, second)
    return missing or f"a query on the database {alias!r} failed ({first_line(error)})"


def explain_outage(alias: str, error: Exception) -> str:
    """The message for an alias that cannot be read, in one line."""
    return f"the database {alias!r} does not answer ({' '.join(str(error).split())})"


def missing_migrations(alias: str) -> str:
    """A message that names this app's unapplied migrations and the remedy, or ''. Raises
    django.db.Error."""
    loader = MigrationLoader(connections[alias])
    known = [key for key in loader.disk_migrations or () if key[0] == APP]
    names = sorted(key[1] for key in known if key not in loader.applied_migrations)
    if not names:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"the database {alias!r} lacks migrations of {APP} ({names[0]}{more}); "
        f"run: manage.py migrate{_option(alias)}"
    )


def missing_table(alias: str, tables: Collection[str]) -> str:
    """A message that names one of these tables that does not exist, and the remedy, or ''. Django
    records a migration as applied even if a router prevented it from creating its tables. Raises
    django.db.Error."""
    missing = sorted({*tables}.difference(connections[alias].introspection.table_names()))
    if not missing:
        return ""
    return (
        f"the database {alias!r} has no table {missing[0]}, although it was migrated: let "
        f"allow_migrate of the database routers allow {APP} there, and run: "
        f"manage.py migrate{_option(alias)} {APP} zero --fake, and migrate{_option(alias)}"
    )


def _option(alias: str) -> str:
    return "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
