"""Tells Redis how far the mirror is, after each commit, and lets the stream go behind it.

Pruning waits for that cursor: a finished job stays in Redis until the mirror has read of its end.
"""

from __future__ import annotations

from ..store.events import START, entry_of
from ..store.transitions import Transitions
from .writer import Cursor

LIVE = 10_000  # events that stay for live readers, whatever the mirror has read


class Trimmer:
    """A follower of the bridge."""

    def __init__(self, store: Transitions, keep: int = LIVE) -> None:
        self._store = store
        self._keep = keep

    def __call__(self, cursor: Cursor) -> bool:
        """Tell, and trim by one step, which is more than a page; True when there may be more."""
        if cursor.position == START:
            return False
        return self._store.trim(entry_of(cursor.position), self._keep) > 0
