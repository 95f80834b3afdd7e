"""Is a table there? Not every alias has every table, and migrations may be still to come."""

from __future__ import annotations

import time

from django.db import connections, models, router

FORGET = 60.0  # s after which a table that was missing is looked for again

_present: set[tuple[str, str]] = set()
_missing: dict[tuple[str, str], float] = {}


def is_present(model: type[models.Model], alias: str) -> bool:
    """True when the database of ``alias`` has the model's table. One look; a table that was there
    is taken to stay."""
    key = (alias, model._meta.db_table)
    if key in _present:
        return True
    if time.monotonic() < _missing.get(key, 0.0) or not _may_have(model, alias):
        return False
    connection = connections[alias]
    with connection.cursor() as cursor:
        found = model._meta.db_table in connection.introspection.table_names(cursor)
    if found:
        _present.add(key)
    else:
        _missing[key] = time.monotonic() + FORGET
    return found


def forget_tables() -> None:
    """Look again, for tests that make and drop tables."""
    _present.clear()
    _missing.clear()


def aliases_of(model: type[models.Model]) -> list[str]:
    """The aliases whose databases have the table."""
    return [alias for alias in connections if is_present(model, alias)]


def _may_have(model: type[models.Model], alias: str) -> bool:
    engine = connections.settings[alias].get("ENGINE")
    if engine == "django.db.backends.dummy":
        return False  # a project without a database
    return bool(router.allow_migrate_model(alias, model))
