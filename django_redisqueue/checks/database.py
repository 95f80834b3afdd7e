"""Checks of the database. They are deploy checks, because ``migrate`` must run without them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import Error, connections, router

from ..conf import APP, Settings, get_settings
from ..exceptions import ConfigurationError
from ..worker.readiness import needed_aliases, table_problem
from .local import make_error, make_warning


def check_database(**_: Any) -> list[CheckMessage]:
    """The deploy check. Invalid settings are reported by ``check_settings`` instead."""
    try:
        settings = get_settings()
    except ConfigurationError:
        return []
    messages = list(_tables(settings))
    if settings.mirror and not messages:
        try:
            messages += [*_mirror(), *_sqlite()]
        except Error:  # it has ended since its tables were there
            connections[_mirror_alias()].close()
            messages += _tables(settings)
    return messages


def _tables(settings: Settings) -> Iterator[CheckMessage]:
    mirror = {_mirror_alias()} if settings.mirror else set()
    for alias in sorted({*needed_aliases(settings), *mirror}):
        problem = table_problem(alias)
        if problem:
            yield make_error(
                20,
                f"{problem[0].upper()}{problem[1:]}.",
                "Until then workers take no jobs, and the mirror stands still. Without mirror and "
                'outbox (REDISQUEUE["MIRROR"] and ["OUTBOX"] False) the tables are not needed.',
            )


def _mirror() -> Iterator[CheckMessage]:
    states = apps.get_model(APP, "MirrorState")._default_manager
    for problem in states.exclude(problem="").values_list("problem", flat=True):
        yield make_error(
            21,
            f"The mirror stands still: {problem}",
            "If this is the right Redis and what it lost is to be given up, accept it: "
            "manage.py reapqueue --accept-redis.",
        )


def _sqlite() -> Iterator[CheckMessage]:
    """The mirror writes a lot; with SQLite's defaults other writers wait for it or fail."""
    alias = _mirror_alias()
    connection = connections[alias]
    if connection.vendor != "sqlite" or _is_in_memory(alias):
        return
    lacks = []
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchone()[0].lower() != "wal":
            lacks.append('"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"')
    options = connection.settings_dict["OPTIONS"]
    if str(options.get("transaction_mode", "")).upper() != "IMMEDIATE":
        lacks.append('"transaction_mode": "IMMEDIATE"')
    if lacks:
        yield make_warning(
            22,
            f"The SQLite database {alias!r}, which the mirror writes to, is set up for one writer: "
            'others will see "database is locked".',
            f'Add to its OPTIONS: {", ".join(lacks)}; and "timeout": 20.',
        )


def _mirror_alias() -> str:
    return router.db_for_write(apps.get_model(APP, "JobRecord"))


def _is_in_memory(alias: str) -> bool:
    name = str(connections[alias].settings_dict["NAME"])
    return ":memory:" in name or "mode=memory" in name
