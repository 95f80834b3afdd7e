"""Why the mirror can not be written, in words that name the remedy."""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.migrations.loader import MigrationLoader

from ..conf import APP


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
