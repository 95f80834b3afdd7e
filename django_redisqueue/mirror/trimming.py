"""Tells Redis how far the mirror is, after each commit, and lets the stream go behind it.

Pruning waits for that cursor: a finished job stays in Redis until the mirror has read of its end.
"""

from __future__ import annotations

from collections.abc import Callable

from ..store.events import START, show
from ..store.transitions import Transitions
from .writer import Cursor

LIVE = 10_000  # entries that stay for live readers, whatever the mirror has read


class Trimmer:
    """A follower of the bridge. ``applied`` tells how many events it has applied in all."""

    def __init__(self, store: Transitions, applied: Callable[[], int], keep: int = LIVE) -> None:
        self._store = store
        self._applied = applied
        self._keep = keep
        self._told: tuple[Cursor, int] = (Cursor(), 0)

    def __call__(self, cursor: Cursor) -> bool:
        """Tell, and trim by one step, which is more than a page; True when there may be more."""
        before, counted = self._told
        applied = self._applied()
        self._told = cursor, applied
        if cursor.position == START:
            return False
        begin, end = show(before.position), show(cursor.position)
        return self._store.trim(begin, end, applied - counted, self._keep) > 0
