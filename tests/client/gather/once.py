"""A listener that needs the database: workers that have it registered wait for the tables."""

from __future__ import annotations

from django_redisqueue import listener


@listener("once", exactly_once=True)
def once(size: int) -> str:
    """Its result is also in its receipt."""
    return "z" * size
