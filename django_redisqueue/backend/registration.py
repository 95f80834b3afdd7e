"""The Django tasks registered in this process, each of them also a ``Task`` of this package."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ..client.decorator import make_task
from ..client.options import CALL_CHECKS, TASK_CHECKS, to_task_options
from ..client.registry import accepted_parameters, is_found_by_workers, lookup, register
from ..client.tasks import Task as OurTask
from ..conf import get_settings
from ..core.ids import check_task_name
from ..core.ports import ports
from ..exceptions import ConfigurationError, InvalidName, InvalidOption, UnknownTask
from ..exceptions import InvalidTask as OurInvalidTask
from .django_tasks import InvalidTask, Task, task_backends
from .results import wrapped
from .tasks import (
    DATABASE,
    OVERRIDES,
    RedisQueueTask,
    changed_options,
    encode_overrides,
    options_of,
)

NOT_IMPORTED = "The task %s is in %s, which workers do not import."
REMEDY = (
    "Move it to a module named tasks of an installed app, or name its module in "
    'REDISQUEUE["TASK_MODULES"].'
)
logger = logging.getLogger("django_redisqueue")
_definitions: dict[str, Task[Any, Any]] = {}
_unimported: dict[str, Task[Any, Any]] = {}  # tasks that workers may not import
_warned: set[str] = set()  # names of tasks for which a warning was logged


def registered_task(name: str) -> Task[Any, Any] | None:
    """The Django task of that name, as it was defined."""
    return _definitions.get(name)


def register_task(task: Task[Any, Any]) -> None:
    """Register the task, unless it is a copy (``using``) of a registered one. Raises Django's
    InvalidTask when its options conflict, or another task has its name."""
    known = _definitions.get(task.module_path)
    if known is not None and known.func is task.func:
        return
    try:
        _register(task, task.queue_name)
    except (InvalidOption, OurInvalidTask) as error:
        raise InvalidTask(str(error)) from error
    if not is_found_by_workers(task.func.__module__):
        _unimported[task.module_path] = task


def unimported_tasks(alias: str) -> list[str]:
    """Names of an alias's tasks in modules that workers do not import."""
    return [name for name, task in _unimported.items() if task.backend == alias]


def warn_if_unimported(task: Task[Any, Any]) -> None:
    """Log, once in this process, that workers may not know the task."""
    name = task.module_path
    if name in _unimported and name not in _warned:
        _warned.add(name)
        #: A task of Django's Tasks was enqueued that workers may not know: its jobs would wait, and
        #: then fail as unknown_task. Do what the line says.
        logger.warning(f"{NOT_IMPORTED} {REMEDY}", name, task.func.__module__)


def register_module_tasks(modules: Iterable[ModuleType]) -> None:
    """Register every Django task in these modules, even for other aliases: a call may select this
    backend with ``using(backend=...)``, and this process may be the worker that runs it."""
    try:
        queues = get_settings().queues
    except ConfigurationError:
        return  # django_redisqueue.E001 says so
    if not any(map(is_ours, task_backends.settings)):
        return
    for module in modules:
        for value in vars(module).values():
            # isinstance() would evaluate lazy objects.
            if issubclass(type(value), Task) and value.module_path not in _definitions:
                queue = value.queue_name if value.queue_name in queues else next(iter(queues))
                try:
                    check_task_name(value.module_path)
                    _register(value, queue)
                except (InvalidName, InvalidOption, OurInvalidTask):
                    continue  # it cannot run here; using() will raise


def is_ours(alias: str) -> bool:
    try:
        return hasattr(task_backends[alias], "signature")
    except ImproperlyConfigured:
        return False  # Django raises the error where the backend is used


def _register(task: Task[Any, Any], queue_name: str) -> None:
    name, skip = task.module_path, int(task.takes_context)
    given = options_of(task)
    fixed = {option: given[option] for option in TASK_CHECKS if option in given}
    if DATABASE in given:
        fixed["using"] = given[DATABASE]
    for option in {"timeout", "expires"} & fixed.keys():
        fixed[option] = TASK_CHECKS[option](fixed[option])
    fixed |= {"takes_context": True, "queue_name": queue_name, "priority": int(task.priority)}
    parameters = accepted_parameters(task.func, skip)
    queue_task = make_task(wrapped(task), name, to_task_options(fixed), parameters, skip)
    of_calls = CALL_CHECKS - TASK_CHECKS.keys() & given.keys()
    register(queue_task.using(**{option: given[option] for option in of_calls}), [name])
    _definitions[name] = task


def to_queue_task(task: Task[Any, Any]) -> OurTask:
    """The ``Task`` for a registered Django task, with the options of this copy of it."""
    queue_task: OurTask = lookup(task.module_path)
    changed = changed_options(task, _definitions[task.module_path])
    if not changed:
        return queue_task
    call = {option: changed[option] for option in CALL_CHECKS if option in changed}
    made = replace(queue_task, marks={OVERRIDES: encode_overrides(changed)})
    try:
        return made.using(**call)
    except InvalidOption as error:  # conflicting options
        raise InvalidTask(str(error)) from error


def adapt_task(what: object) -> OurTask | None:
    """The ``Task`` for a Django task; None for other objects. Raises Django's InvalidTask."""
    if not issubclass(type(what), Task):
        return None
    task: Task[Any, Any] = what  # type: ignore[assignment]
    if not is_ours(task.backend):
        raise InvalidTask(
            f"{task.module_path} uses the backend {task.backend!r}, which is not one of "
            "django_redisqueue: use a copy for one that is, by .using(backend=...)"
        )
    task.get_backend().validate_task(task)
    return to_queue_task(task)


ports.adapter = adapt_task


def placeholder(name: str) -> Task[Any, Any]:
    """Stands in for a task that is not imported: a name in Redis must not cause an import."""

    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise UnknownTask(f"{name} is not imported in this process, so it cannot be called here")

    unknown.__module__, _, unknown.__name__ = name.rpartition(".")
    unknown.__qualname__ = unknown.__name__
    made: Task[Any, Any] = object.__new__(RedisQueueTask)
    none = dict.fromkeys(one.name for one in fields(RedisQueueTask))
    for field, value in {**none, "func": unknown, "takes_context": False}.items():
        object.__setattr__(made, field, value)
    return made
