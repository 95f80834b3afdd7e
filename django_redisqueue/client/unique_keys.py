"""The unique keys that jobs have now: for screens, and to free one by hand."""

from __future__ import annotations

from ..broker.commands import Commands
from ..broker.connection import producer_connection
from ..broker.uniques import PAGE, UniqueKey, UniqueQueries


def unique_keys(start: int = 0, count: int = PAGE) -> list[UniqueKey]:
    """A page of the keys, those taken first first; at most 100. Keys that are free again may be
    missing from it, so that it is shorter than ``count``."""
    return UniqueQueries(producer_connection()).page(start, count)


def release_unique_key(key: str) -> str:
    """Free a key, so that a new job may take it. Returns the id of the job that had it, which goes
    on, or ''."""
    return Commands(producer_connection()).release_unique(key)
