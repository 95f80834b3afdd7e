"""Which tables exist (not every alias has every table, and migrations may be pending), which rows
belong to a shard (those whose ids end with its number) or have ids with a prefix, which rows come
next in a walk, and how their columns take times."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, TypeVar

from django.conf import settings
from django.db import connections, models, router
from django.db.models import F, Func, Q, Value
from django.db.models.expressions import OrderBy
from django.utils import timezone

RECHECK_AFTER = 60.0  # s, for a missing table

_present: set[tuple[str, str]] = set()
_missing: dict[tuple[str, str], float] = {}
Row = TypeVar("Row", bound=models.Model)
# Ids as core.ids reads them, in the regular expression syntax that all databases share
_MADE = "^(job|flow|gather|periodic_[0-9a-z]{10})_[0-9]+(_[0-9a-z]{10})?_"
_END = "([.]|$)"


def has_table(model: type[models.Model], alias: str) -> bool:
    """Whether the alias has the model's table. Asks once; an existing table is assumed to stay."""
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


def rows_of_shard(
    rows: models.QuerySet[Row], shard: int, field: str = "pk"
) -> models.QuerySet[Row]:
    """The rows whose ``field``, an id, belongs to the shard.

    Shard 0 does not have all rows even if the settings have one shard: newer workers may have more.
    """
    if shard:
        return rows.filter(**{f"{field}__regex": f"{_MADE}{shard}{_END}"})
    # Ids of any other form also belong to shard 0.
    return rows.exclude(**{f"{field}__regex": f"{_MADE}[1-9][0-9]?{_END}"})


def to_column(instant: datetime) -> datetime:
    """A time as the database takes it: naive without USE_TZ."""
    is_fit = settings.USE_TZ or timezone.is_naive(instant)
    return instant if is_fit else timezone.make_naive(instant)


def rows_after(key: str, at: Any, pk: Any) -> Q:
    """The rows after this one in the order of ``key`` and the primary key.

    `key > at OR key = at AND pk > pk` is equivalent, but SQLite would sort all remaining rows.
    """
    return Q(**{f"{key}__gte": at}) & (Q(**{f"{key}__gt": at}) | Q(pk__gt=pk))


def with_prefix(rows: models.QuerySet[Row], prefix: str) -> models.QuerySet[Row]:
    """The rows whose ids begin with the prefix, which an index has."""
    match connections[rows.db].vendor:
        case "sqlite":  # its LIKE uses no index with this collation
            return rows.filter(pk__gte=prefix, pk__lt=f"{prefix}\U0010ffff")
        case "mysql":  # startswith would compare bytes, which no index supports
            return rows.filter(pk__istartswith=prefix)
    return rows.filter(pk__startswith=prefix)


def last_with_prefix(
    rows: models.QuerySet[Row], prefix: str, before: str = ""
) -> models.QuerySet[Row]:
    """The rows whose ids begin with the prefix, the last id first; those before an id, if given.

    PostgreSQL's index for LIKE sorts by bytes. In the order of a collation it would walk over all
    ids behind the prefix, because only the primary key's other index has that order.
    """
    found = with_prefix(rows, prefix)
    if connections[rows.db].vendor != "postgresql":
        return (found.filter(pk__lt=before) if before else found).order_by("-pk")
    return (found.filter(_bytes_below(before)) if before else found).order_by(_LastBytes(F("pk")))


class _LastBytes(OrderBy):
    template = "%(expression)s USING ~>~ /* DESC */"  # Django looks for ASC or DESC


def _bytes_below(text: str) -> Func:
    is_below = {"arg_joiner": " ~<~ ", "template": "%(expressions)s"}
    return Func(F("pk"), Value(text), output_field=models.BooleanField(), **is_below)


def at_newest_times(
    rows: models.QuerySet[Row], matches: models.QuerySet[Row], count: int
) -> models.QuerySet[Row]:
    """The rows that were enqueued at the newest ``count`` times of the ``matches``, which an index
    has in order of time. Other databases than PostgreSQL get all rows: they use that index anyway.

    PostgreSQL expects matches everywhere, so it may walk all rows by time for matches that are old
    or do not exist. For times alone it uses the index.
    """
    if connections[rows.db].vendor != "postgresql":
        return rows
    times = matches.order_by("-enqueued_at").values("enqueued_at").distinct()
    return rows.filter(enqueued_at__in=times[:count])
