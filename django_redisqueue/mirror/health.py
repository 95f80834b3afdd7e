"""Why the mirror can not be written, in words that name the remedy."""

from __future__ import annotations

from django.db import Error, connections
from django.db.migrations.loader import MigrationLoader

APP = "django_redisqueue"


def unapplied(alias: str) -> list[str]:
    """The migrations of this app that a database lacks. Raises django.db.Error."""
    loader = MigrationLoader(connections[alias])
    assert loader.disk_migrations is not None
    known = [key for key in loader.disk_migrations if key[0] == APP]
    return sorted(name for app, name in known if (app, name) not in loader.applied_migrations)


def explain(alias: str, error: Exception) -> str:
    """What keeps an alias from being written, after it has raised ``error``."""
    try:
        lacking = unapplied(alias)
    except Error as again:
        return f"the database {alias!r} does not answer ({_line(again)})"
    if lacking:
        names = ", ".join(lacking)
        option = "" if alias == "default" else f" --database {alias}"
        return (
            f"the database {alias!r} lacks migrations of {APP} ({names}); "
            f"run: manage.py migrate{option}"
        )
    return f"the database {alias!r} refuses to be written ({_line(error)})"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
