"""The unique keys that jobs have now: for screens, and to free one by hand."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.unique import UniqueKey
from .transport import transport

PAGE = 100  # keys a page at the most


def unique_keys(start: int = 0, count: int = PAGE) -> Sequence[UniqueKey]:
    """A page of the keys, those taken first first; at most 100. Keys that are free again may be
    missing from it, so that it is shorter than ``count``."""
    return transport().unique_keys(start, min(count, PAGE))


def release_unique_key(key: str) -> str:
    """Free a key, so that a new job may take it. Returns the id of the job that had it, which goes
    on, or ''."""
    return transport().release_unique(key)
