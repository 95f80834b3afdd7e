"""The tasks registered in this process. No other function ever runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from django.apps import apps

from ..conf import get_settings
from ..exceptions import ConfigurationError, InvalidTask, UnknownTask, did_you_mean

_tasks: dict[str, Any] = {}
_discovered: set[str] = set()  # names of modules
lookup: Callable[[str], Any] = _tasks.get  #: the task of that name or alias, or None


def register(task: Any, names: Sequence[str]) -> None:
    """Register ``task`` (a tasks.Task) under these names. Raises InvalidTask if one is taken.

    The same function defined again (a reload) replaces its predecessor.
    """
    for name in names:
        known = _tasks.get(name)
        if known is not None and known.origin != task.origin:
            raise InvalidTask(
                f"the task name {name!r} is taken by {known.origin}; give one of the two "
                "another with @task(name=...)"
            )
    for name in names:
        _tasks[name] = task


def is_found_by_workers(module: str) -> bool:
    """Whether workers import this module: ``discover`` does, or Django does while it starts."""
    return not apps.ready or module in _discovered


def get_task(name: str) -> Any:
    """The task of that name or alias. Raises UnknownTask with a suggestion."""
    task = _tasks.get(name)
    if task is None:
        raise UnknownTask(
            f"no task {name!r} is registered{did_you_mean(name, _tasks)}; decorate the function "
            "with @task in a module named tasks of an installed app, or name its module in "
            'REDISQUEUE["TASK_MODULES"]'
        )
    return task


def task_names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_tasks)


def discover() -> list[ModuleType]:
    """Import ``tasks`` of every installed app, then TASK_MODULES, so that their tasks register;
    returns these modules.

    Raises ConfigurationError when TASK_MODULES names a missing module.
    """
    found = []
    for config in apps.get_app_configs():
        name = f"{config.name}.tasks"
        if find_spec(name) is not None:
            _discovered.add(name)
            found.append(import_module(name))
    try:
        modules = get_settings().task_modules
    except ConfigurationError:
        return found  # a system check reports it, which it could not if this raised
    _discovered.update(modules)
    for name in modules:
        try:
            found.append(import_module(name))
        except ModuleNotFoundError as error:
            if f"{name}.".startswith(f"{error.name}."):  # else an import inside the module failed
                raise ConfigurationError(
                    f'REDISQUEUE["TASK_MODULES"] names {name!r}, but there is no module '
                    f"{error.name!r}: correct the dotted path"
                ) from None
            raise
    return found
