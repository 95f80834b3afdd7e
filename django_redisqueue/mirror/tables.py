"""Rows written in bulk: SQL made once from a model, and values adapted by hand.

Django's ``bulk_create`` costs 20 us a row and ``bulk_update`` more. ``executemany`` costs SQLite a
fifth of that. psycopg takes some 3 us for each value that it writes into a statement, so PostgreSQL
gets new rows by COPY, and changed ones as one JSON text, which it takes apart itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from ..clock import instant, ms_of
from ..codec import dumps
from .copying import OPTIONS, copy_text

Row = Sequence[Any]
Columns = tuple[str, ...]
KEYS = 500  # in one query; SQLite takes 999 parameters
JSON_ROWS = "jsonb_array_elements(%s::jsonb) AS rows(r)"


class Table:
    """The table of a model on one alias. Columns are named as the model's fields; an instant is
    what ``Instants`` makes of it."""

    def __init__(self, model: type[models.Model], alias: str) -> None:
        self.alias = alias
        self._model = model
        self._meta = model._meta
        self._takes_json = self._connection.vendor == "postgresql"
        # psycopg2, which has no copy(), sends the JSON text for new rows, too.
        self._copies = self._takes_json and _driver(self._connection) == "psycopg"
        self._inserts: dict[Columns, str] = {}
        self._updates: dict[Columns, str] = {}

    def insert(self, columns: Columns, rows: Sequence[Row]) -> None:
        """Add rows, in this order."""
        if columns not in self._inserts:
            self._inserts[columns] = self._insert(columns)
        if rows and self._copies:
            self._copy(self._inserts[columns], rows)
        else:
            self._run(self._inserts[columns], rows)

    def _copy(self, sql: str, rows: Sequence[Row]) -> None:
        # Django wraps the errors of execute() by itself, and those of copy() not.
        with (
            self._connection.wrap_database_errors,
            self._connection.cursor() as cursor,
            cursor.copy(sql) as copy,
        ):
            copy.write(copy_text(rows))

    def of(self, keys: Sequence[str]) -> Iterator[models.QuerySet[Any]]:
        """Queries for the rows of these primary keys. One value a key costs psycopg more than all
        the rest of a query, so PostgreSQL gets one array."""
        rows = self._model._default_manager.using(self.alias)
        if self._takes_json:
            assert self._meta.pk is not None
            where = f"{self._name}.{self._column(self._meta.pk.name)} = ANY(%s)"
            yield rows.extra(where=[where], params=[list(keys)])
        else:
            for at in range(0, len(keys), KEYS):
                yield rows.filter(pk__in=keys[at : at + KEYS])

    def update(self, columns: Columns, rows: Sequence[Row]) -> None:
        """Change rows; behind a row's values stands its primary key."""
        if columns not in self._updates:
            self._updates[columns] = self._update(columns)
        self._run(self._updates[columns], rows)

    def _run(self, sql: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        with self._connection.cursor() as cursor:
            if self._takes_json:
                cursor.execute(sql, [dumps(rows)])
            else:
                cursor.executemany(sql, rows)

    def _insert(self, columns: Columns) -> str:
        names = ", ".join(map(self._column, columns))
        if self._copies:
            return f"COPY {self._name} ({names}) FROM STDIN {OPTIONS}"
        into = f"INSERT INTO {self._name} ({names})"
        if self._takes_json:
            return f"{into} SELECT {', '.join(self._parts(columns))} FROM {JSON_ROWS}"
        return f"{into} VALUES ({', '.join(['%s'] * len(columns))})"

    def _update(self, columns: Columns) -> str:
        assert self._meta.pk is not None
        key = self._meta.pk.name
        values = self._parts((*columns, key)) if self._takes_json else ["%s"] * (len(columns) + 1)
        pairs = zip(map(self._column, columns), values, strict=False)
        changes = ", ".join(f"{column} = {value}" for column, value in pairs)
        source = f" FROM {JSON_ROWS}" if self._takes_json else ""
        where = f"{self._name}.{self._column(key)} = {values[-1]}"
        return f"UPDATE {self._name} SET {changes}{source} WHERE {where}"

    def _parts(self, columns: Columns) -> list[str]:
        """The values of a JSON row with their types."""
        kinds = [self._meta.get_field(name).db_type(self._connection) for name in columns]
        return [f"(r->>{place})::{kind}" for place, kind in enumerate(kinds)]

    def _column(self, name: str) -> str:
        field = self._meta.get_field(name)
        assert isinstance(field, models.Field)
        assert field.column is not None
        return self._connection.ops.quote_name(field.column)

    @property
    def _name(self) -> str:
        return self._connection.ops.quote_name(self._meta.db_table)

    @property
    def _connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]


class Instants:
    """Milliseconds as ``Table`` takes an instant on this alias; events of a batch share many."""

    def __init__(self, alias: str) -> None:
        connection = connections[alias]
        is_json = connection.vendor == "postgresql"
        self._adapt = str if is_json else connection.ops.adapt_datetimefield_value
        self._known: dict[int, Any] = {}

    def __call__(self, ms: int) -> Any:
        found = self._known.get(ms)
        if found is None:
            found = self._known[ms] = self._adapt(instant(ms))
        return found


def ms_or_none(moment: datetime | None) -> int | None:
    """An instant as a query gives it, in ms."""
    return None if moment is None else ms_of(moment)


def _driver(connection: Any) -> str:
    name: str = connection.Database.__name__
    return name
