"""Rows written in bulk: SQL made once from a model, and values adapted by hand.

Django's ``bulk_create`` costs 20 us a row and ``bulk_update`` more, which is more than the whole
way of an event may cost; the same statements by ``executemany`` cost a fifth of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

Row = Sequence[Any]
ROWS = 250  # in one statement of several rows


class Table:
    """The table of a model on one alias. Columns are named as the model's fields."""

    def __init__(self, model: type[models.Model], alias: str) -> None:
        self.alias = alias
        self.model = model

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]

    def insert(self, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """Add rows, in this order."""
        if not rows:
            return
        with self.connection.cursor() as cursor:
            if self.connection.vendor == "sqlite":
                cursor.executemany(_insert(self.model, self.alias, columns, 1), rows)
                return
            for at in range(0, len(rows), ROWS):
                some = rows[at : at + ROWS]
                flat = [value for row in some for value in row]
                cursor.execute(_insert(self.model, self.alias, columns, len(some)), flat)

    def update(self, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """Change rows, one statement each; the last value of a row is its primary key."""
        if rows:
            with self.connection.cursor() as cursor:
                cursor.executemany(_update(self.model, self.alias, columns), rows)


class Instants:
    """Milliseconds as this database takes an instant; the events of a batch share many."""

    def __init__(self, alias: str) -> None:
        self._adapt = connections[alias].ops.adapt_datetimefield_value
        self._known: dict[int, Any] = {}

    def __call__(self, ms: int) -> Any:
        found = self._known.get(ms)
        if found is None:
            moment = datetime.fromtimestamp(ms / 1000, UTC)
            found = self._known[ms] = self._adapt(moment)
        return found


@cache
def _insert(model: type[models.Model], alias: str, columns: tuple[str, ...], rows: int) -> str:
    names = ", ".join(_column(model, alias, column) for column in columns)
    places = ", ".join(["(" + ", ".join(["%s"] * len(columns)) + ")"] * rows)
    return f"INSERT INTO {_table(model, alias)} ({names}) VALUES {places}"


@cache
def _update(model: type[models.Model], alias: str, columns: tuple[str, ...]) -> str:
    places = ", ".join(f"{_column(model, alias, column)} = %s" for column in columns)
    assert model._meta.pk is not None
    key = _column(model, alias, model._meta.pk.name)
    return f"UPDATE {_table(model, alias)} SET {places} WHERE {key} = %s"


def _table(model: type[models.Model], alias: str) -> str:
    return connections[alias].ops.quote_name(model._meta.db_table)


def _column(model: type[models.Model], alias: str, name: str) -> str:
    column = model._meta.get_field(name).column  # type: ignore[union-attr]
    return connections[alias].ops.quote_name(str(column))
