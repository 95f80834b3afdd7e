"""The Django tasks that this process knows, each as a task of ours too."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import fields, replace
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ..conf import get_settings
from ..exceptions import ConfigurationError, InvalidName, InvalidOption, UnknownTask
from ..exceptions import InvalidTask as OurInvalidTask
from ..functions import check_exactly_once
from ..ids import check_task_name
from ..options import CALL_CHECKS, TASK_CHECKS, TaskOptions, check_timeout
from ..parameters import parameters_of
from ..ports import filled
from ..redaction import redaction_of
from ..registry import is_found_by_workers, lookup, register
from ..states import Audit
from ..tasks import Task as OurTask
from .django_tasks import InvalidTask, Task, task_backends
from .running import wrapped
from .tasks import DATABASE, MARK, RedisQueueTask, differences, encode_mark, options_of

HIDDEN = "The task %s is in %s, which workers do not import."
REMEDY = (
    "Move it to a module named tasks of an installed app, or name its module in "
    'REDISQUEUE["TASK_MODULES"].'
)
logger = logging.getLogger("django_redisqueue")
_definitions: dict[str, Task[Any, Any]] = {}
_hidden: dict[str, Task[Any, Any]] = {}  # those that workers may not know
_told: set[str] = set()  # the names of those that a warning has named


def known_task(name: str) -> Task[Any, Any] | None:
    """The Django task of that name, as it was defined."""
    return _definitions.get(name)


def make_known(task: Task[Any, Any]) -> None:
    """Register the task, unless it is a copy (``using``) of one that is. Raises Django's
    InvalidTask when its options do not go together, or another task has its name."""
    known = _definitions.get(task.module_path)
    if known is not None and known.func is task.func:
        return
    try:
        _register(task, task.queue_name)
    except (InvalidOption, OurInvalidTask) as error:
        raise InvalidTask(str(error)) from error
    if not is_found_by_workers(task.func.__module__):
        _hidden[task.module_path] = task


def hidden_tasks(alias: str) -> list[str]:
    """Names of the tasks of an alias that stand in modules which workers do not import."""
    return [name for name, task in _hidden.items() if task.backend == alias]


def warn_if_hidden(task: Task[Any, Any]) -> None:
    """Log, once in this process, that workers may not know the task."""
    name = task.module_path
    if name in _hidden and name not in _told:
        _told.add(name)
        logger.warning(HIDDEN + " %s", name, task.func.__module__, REMEDY)


def know_tasks(modules: Iterable[ModuleType]) -> None:
    """Register every Django task in these modules. Those of another alias, too: they may come here
    by ``using(backend=...)``, and this process may be the worker that is to run them then."""
    try:
        queues = get_settings().queues
    except ConfigurationError:
        return  # django_redisqueue.E001 says so
    if not any(map(_is_ours, task_backends.settings)):
        return
    for module in modules:
        for value in vars(module).values():
            # Not isinstance: it would ask lazy objects for their class, and so wake them.
            if issubclass(type(value), Task) and value.module_path not in _definitions:
                queue = value.queue_name if value.queue_name in queues else next(iter(queues))
                try:
                    check_task_name(value.module_path)
                    _register(value, queue)
                except (InvalidName, InvalidOption, OurInvalidTask):
                    continue  # it cannot run here; ``using`` will say why


def _is_ours(alias: str) -> bool:
    try:
        return hasattr(task_backends[alias], "signature")
    except ImproperlyConfigured:
        return False  # Django says so where it is used


def _register(task: Task[Any, Any], queue_name: str) -> None:
    name, takes_context = task.module_path, int(task.takes_context)
    said = options_of(task)
    fixed = {option: said[option] for option in TASK_CHECKS if option in said}
    if DATABASE in said:
        fixed["using"] = said[DATABASE]
    if "timeout" in fixed:
        fixed["timeout_ms"] = check_timeout(fixed.pop("timeout"))
    options = TaskOptions(
        takes_context=True, queue_name=queue_name, priority=int(task.priority), **fixed
    )
    check_exactly_once(task.func, options)
    wrapper = wrapped(task)
    ours = OurTask(
        func=wrapper,
        name=name,
        options=options,
        queue_name=options.queue_name,
        priority=options.priority,
        outbox=options.outbox,
        audit="" if options.audit is Audit.ALL else options.audit.value,
        is_async=iscoroutinefunction(wrapper),
        parameters=parameters_of(task.func, takes_context),
        redaction=redaction_of(task.func, options.redact, takes_context)
        if options.redact
        else None,
    ).using(**{option: said[option] for option in CALL_CHECKS - TASK_CHECKS.keys() & said.keys()})
    register(ours, [name])
    _definitions[name] = task


def ours_of(task: Task[Any, Any]) -> OurTask:
    """Our task for a Django task that is known, with the options that this copy of it has."""
    ours: OurTask = lookup(task.module_path)
    said = differences(task, _definitions[task.module_path])
    if not said:
        return ours
    call = {option: said[option] for option in CALL_CHECKS if option in said}
    return replace(ours, marks={MARK: encode_mark(said)}).using(**call)


def adapted(what: object) -> OurTask | None:
    """Our task for one of Django's; None for what is none. Raises Django's InvalidTask."""
    if not issubclass(type(what), Task):
        return None
    task: Task[Any, Any] = what  # type: ignore[assignment]
    if not _is_ours(task.backend):
        raise InvalidTask(
            f"{task.module_path} is for the backend {task.backend!r}, which is not of "
            "django_redisqueue: use a copy for one that is, .using(backend=...)"
        )
    task.get_backend().validate_task(task)
    return ours_of(task)


filled.adapter = adapted


def placeholder(name: str) -> Task[Any, Any]:
    """Stands for a task whose module this process has not imported: a result names it, and nothing
    is imported because a name stood in Redis."""

    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise UnknownTask(f"{name} is not imported in this process, so it cannot be called here")

    unknown.__module__, _, unknown.__name__ = name.rpartition(".")
    unknown.__qualname__ = unknown.__name__
    made: Task[Any, Any] = object.__new__(RedisQueueTask)
    none = dict.fromkeys(one.name for one in fields(RedisQueueTask))
    for field, value in {**none, "func": unknown, "takes_context": False}.items():
        object.__setattr__(made, field, value)
    return made
