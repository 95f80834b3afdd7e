"""Which rows belong to a shard: those whose ids end with its number."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, QuerySet

from ..conf import get_settings

Row = TypeVar("Row", bound=Model)
# As core.placement reads ids, in the syntax of regular expressions that all databases share
_MADE = "^(job|flow|gather|periodic_[0-9a-z]{10})_[0-9]+(_[0-9a-z]{10})?_"
_END = "([.]|$)"


def rows_of_shard(rows: QuerySet[Row], shard: int, field: str = "pk") -> QuerySet[Row]:
    """The rows whose ``field``, an id, belongs to the shard; all of them if there is one shard."""
    if get_settings().shards == 1:
        return rows
    if shard:
        return rows.filter(**{f"{field}__regex": f"{_MADE}{shard}{_END}"})
    # Also ids of another form belong to shard 0.
    return rows.exclude(**{f"{field}__regex": f"{_MADE}[1-9][0-9]?{_END}"})
