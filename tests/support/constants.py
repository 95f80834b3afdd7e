"""Overrides constants in a test's worker process: modules that a worker imports with its tasks use
this."""

from __future__ import annotations

from typing import Any


def replace(owner: Any, **values: Any) -> None:
    """Set attributes of a module or class. Raises AttributeError for an attribute that does not
    exist: it was renamed, and without the error a test would silently use the real value."""
    for name, value in values.items():
        getattr(owner, name)
        setattr(owner, name, value)
