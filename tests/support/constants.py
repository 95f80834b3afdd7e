"""Other numbers for a process of a test: modules that a worker imports among its tasks use this."""

from __future__ import annotations

from typing import Any


def replace(owner: Any, **values: Any) -> None:
    """Set attributes of a module or class. Raises AttributeError for one that is not there: it was
    renamed, and a test would wait for the real one's time without a word."""
    for name, value in values.items():
        getattr(owner, name)
        setattr(owner, name, value)
