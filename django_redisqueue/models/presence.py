"""Whether a table exists: not every alias has every table, and migrations may be pending."""

from __future__ import annotations

import time

from django.db import connections, models, router

RECHECK_AFTER = 60.0  # s, for a missing table

_present: set[tuple[str, str]] = set()
_missing: dict[tuple[str, str], float] = {}


def has_table(model: type[models.Model], alias: str) -> bool:
    """Whether the alias has the model's table. Asks once; an existing table is taken to stay."""
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
        _missing[key] = time.monotonic() + RECHECK_AFTER
    return found


def reset_table_cache() -> None:
    """For tests that create and drop tables."""
    _present.clear()
    _missing.clear()


def aliases_with_table(model: type[models.Model]) -> list[str]:
    """The aliases whose databases have the table."""
    return [alias for alias in connections if has_table(model, alias)]


def _may_have(model: type[models.Model], alias: str) -> bool:
    engine = connections.settings[alias].get("ENGINE")
    if engine == "django.db.backends.dummy":
        return False  # a project without a database
    return bool(router.allow_migrate_model(alias, model))
