"""What a function must be like to become a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from .exceptions import InvalidOption, InvalidTask, shown
from .options import TaskOptions


def check_function(func: object, name: str | None) -> None:
    """Raise InvalidTask unless a worker can find the function: it is one, at module level."""
    if not inspect.isfunction(func):
        raise InvalidTask(f"@task decorates a function, not {shown(func)}")
    if func.__qualname__ != func.__name__ or func.__name__ == "<lambda>":
        raise InvalidTask(
            f"{func.__module__}.{func.__qualname__} is not at module level, so a worker could not "
            "find it; move the function out to its module"
        )
    if func.__module__ == "__main__" and name is None:
        raise InvalidTask(
            f"{func.__name__} is in the program that was started (__main__), so a worker could not "
            "find it; move it to a module, such as tasks.py of an installed app"
        )


def check_exactly_once(func: Callable[..., Any], options: TaskOptions) -> None:
    """Raise InvalidTask or InvalidOption unless exactly_once, if asked for, is possible."""
    name = f"{func.__module__}.{func.__qualname__}"
    if options.exactly_once and inspect.iscoroutinefunction(func):
        raise InvalidTask(
            f"{name} has exactly_once=True, so it runs in a database transaction, which async code "
            "cannot have; make it a plain def (it may call async code with async_to_sync)"
        )
    if options.using != DEFAULT_DB_ALIAS and not options.exactly_once:
        raise InvalidOption(
            f"{name} has using={options.using!r}, the database of exactly_once=True, which it "
            "has not"
        )


def check_context(func: Callable[..., Any]) -> None:
    """Raise InvalidTask unless the function takes a context first."""
    first = next(iter(inspect.signature(func).parameters), None)
    if first != "context":
        raise InvalidTask(
            f"{func.__module__}.{func.__qualname__} has takes_context=True, so its first argument "
            f"must be named 'context', not {first!r}"
        )
