"""A listener that needs the database: workers that know it wait for the tables."""

from __future__ import annotations

from django_redisqueue import listener


@listener("once", exactly_once=True)
def once(size: int) -> str:
    """Its result is in its receipt, too."""
    return "z" * size
