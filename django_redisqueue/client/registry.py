"""The tasks registered in this process (no other function ever runs), which functions can be tasks,
and which arguments they accept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS
from django.utils.module_loading import module_has_submodule

from ..conf import APP, get_settings
from ..core.ids import check_schedule_name
from ..core.signatures import signature_of
from ..exceptions import (
    ConfigurationError,
    InvalidArguments,
    InvalidOption,
    InvalidTask,
    UnknownTask,
    did_you_mean,
    short_repr,
)
from .options import CALL_CHECKS, Chunk, TaskOptions

NOT_IMPORTABLE = (
    "django_redisqueue imports the module tasks of every installed app, and %s failed. If it "
    "belongs to another package and needs a queue that is not installed, exclude it at the top of "
    'the settings: sys.modules["%s"] = None'
)
_tasks: dict[str, Any] = {}
_discovered: set[str] = set()  # names of modules
lookup: Callable[[str], Any] = _tasks.get  #: the task of that name or alias, or None


def register(task: Any, names: Sequence[str]) -> None:
    """Register ``task`` (a tasks.Task) under these names. The same function defined again (a
    reload) replaces its predecessor. Raises InvalidTask if a name is taken."""
    for name in names:
        known = _tasks.get(name)
        if known is not None and known.origin != task.origin:
            raise InvalidTask(
                f"the task name {name!r} is already taken by {known.origin}; give one of the two "
                "another name with @task(name=...)"
            )
    for name in names:
        _tasks[name] = task


def is_found_by_workers(module: str) -> bool:
    """Whether workers import this module: ``discover`` does, or Django does as it starts."""
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


def load_task(name: str, module: str, options: Mapping[str, Any], marks: Mapping[str, str]) -> Any:
    """A pickled task, with its ``call_options``. Imports its module if the task is not registered.
    Raises UnknownTask."""
    if name not in _tasks:
        try:
            import_module(module)
        except ModuleNotFoundError:
            get_task(name)  # its error shows this one, which may be about another module
    task = get_task(name)
    return replace(task, marks=marks).with_options(options) if options or marks else task


def task_names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_tasks)


def is_own(name: str) -> bool:
    """Whether this is a task of this package. Its jobs do what their creator was allowed to do:
    they delete jobs, for example, or deliver an approval. They go to ``Settings.own_queue``."""
    return name.startswith(f"{APP}.")


def discover() -> list[ModuleType]:
    """Import ``tasks`` of every installed app, then TASK_MODULES; returns these modules. Raises
    ConfigurationError when TASK_MODULES names a missing module."""
    found = []
    for config in apps.get_app_configs():
        name = f"{config.name}.tasks"
        if module_has_submodule(config.module, "tasks"):
            _discovered.add(name)
            try:
                found.append(import_module(name))
            except ImportError as error:
                error.add_note(NOT_IMPORTABLE % (name, name))
                raise
    try:
        modules = get_settings().task_modules
    except ConfigurationError:
        return found  # a system check reports the error, which it could not if this raised
    _discovered.update(modules)
    for name in modules:
        try:
            found.append(import_module(name))
        except ModuleNotFoundError as error:
            if f"{name}.".startswith(f"{error.name}."):  # otherwise an import in the module failed
                raise ConfigurationError(
                    f'REDISQUEUE["TASK_MODULES"] names {name!r}, but no module '
                    f"{error.name!r} exists: correct the dotted path"
                ) from None
            raise
    return found


def dotted_path(func: Callable[..., Any]) -> str:
    """Where a function was defined; by default also the name of its task."""
    return f"{func.__module__}.{func.__qualname__}"


def check_function(func: object, name: str | None) -> None:
    """Raise InvalidTask unless a worker can import the function: it must be at module level."""
    if not inspect.isfunction(func):
        raise InvalidTask(f"@task must decorate a function, not {short_repr(func)}")
    if func.__name__ == "<lambda>":
        raise InvalidTask("a lambda cannot be a task, because workers find tasks by name; use def")
    if func.__qualname__ != func.__name__:
        raise InvalidTask(
            f"{dotted_path(func)} is not at module level, so no worker could find it; move the "
            "function out to its module"
        )
    if func.__module__ == "__main__" and name is None:
        raise InvalidTask(
            f"{func.__name__} is in the program that was started (__main__), so no worker could "
            "find it; move it to a module, such as tasks.py of an installed app"
        )
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise InvalidTask(
            f"{dotted_path(func)} is a generator function: calling it runs nothing; return a list"
        )


def check_exactly_once(func: Callable[..., Any], options: TaskOptions) -> None:
    """Raise InvalidTask or InvalidOption if exactly_once is requested but not possible."""
    name = dotted_path(func)
    if options.exactly_once and inspect.iscoroutinefunction(func):
        raise InvalidTask(
            f"{name} has exactly_once=True, so it runs in a database transaction, which async code "
            "cannot have; make it a plain def (it may call async code with async_to_sync)"
        )
    if options.using != DEFAULT_DB_ALIAS and not options.exactly_once:
        raise InvalidOption(
            f"{name} has using={options.using!r}, which names the database of exactly_once=True, "
            "but exactly_once=True is missing"
        )


def check_chunk(func: Callable[..., Any], options: TaskOptions) -> None:
    """Raise InvalidTask or InvalidOption unless the function can be a chunk task."""
    name = dotted_path(func)
    if inspect.iscoroutinefunction(func):
        raise InvalidTask(
            f"{name} has chunk=, which does not work for async functions; make it a plain def (it "
            "may call async code with async_to_sync)"
        )
    before = (None,) if options.takes_context else ()
    try:
        signature_of(func, follow_wrapped=False).bind(*before, [])
    except TypeError as error:
        shape = "(context, items)" if options.takes_context else "(items)"
        raise InvalidTask(
            f"{name} has chunk=, so it is called with a list of ChunkItems: its arguments must "
            f"be {shape} ({error})"
        ) from None
    if options.exactly_once:
        raise InvalidOption(
            f"{name} has chunk= and exactly_once=True, but a receipt belongs to one job; remove "
            "one of the two"
        )
    if options.redact:
        raise InvalidOption(
            f"{name} has chunk= and redact=, but redact= names parameters of the function, and "
            "the arguments of chunk jobs are not its parameters"
        )


def check_context(func: Callable[..., Any]) -> None:
    """Raise InvalidTask unless the function takes a context first."""
    signature = signature_of(func)
    if next(iter(signature.parameters), None) != "context":
        raise InvalidTask(
            f"{dotted_path(func)} has takes_context=True, so its first argument must be named "
            f"'context'; it takes {signature}"
        )


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Validates arguments at enqueue time.

    Calls with only ``min_positional`` to ``max_positional`` positional arguments fit: that is quick
    to check. ``signature`` decides about other calls.
    """

    signature: inspect.Signature
    min_positional: int
    max_positional: float

    def check(
        self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], before: int = 0
    ) -> None:
        """Raise InvalidArguments unless a call fits; ``before`` arguments are prepended when the
        job runs. The message shows no values, because they may be secret."""
        if not kwargs and self.min_positional <= len(args) + before <= self.max_positional:
            return
        try:
            self.signature.bind(*(None,) * before, *args, **kwargs)
        except TypeError as error:
            hint = " (the first is its parent's result)" if before else ""
            options = kwargs.keys() & CALL_CHECKS.keys() - self.signature.parameters.keys()
            if options:
                hint += f"; pass options of one call to using({min(options)}=...)"
            raise InvalidArguments(
                f"{task} cannot be called like this: {error}; it takes {self.signature}{hint}"
            ) from None


ANY_ARGUMENTS = Parameters(inspect.signature(lambda *args, **kwargs: None), 0, float("inf"))


def chunk_parameters(chunk: Chunk) -> Parameters:
    """The parameters of a chunk task's jobs, which differ from those of its function."""
    if not chunk.parameters:
        return ANY_ARGUMENTS
    kind, count = inspect.Parameter.POSITIONAL_OR_KEYWORD, len(chunk.parameters)
    found = [inspect.Parameter(name, kind) for name in chunk.parameters]
    return Parameters(inspect.Signature(found), count, count)


def accepted_parameters(func: Callable[..., Any], skip: int = 0) -> Parameters:
    """The Parameters of a function, without its first ``skip``, which are not arguments of the job.
    For a decorated function these are the decorator's own, because it may add some."""
    signature = signature_of(func, follow_wrapped=False)
    found = list(signature.parameters.values())
    if all(one.kind in _POSITIONAL for one in found[:skip]):
        found = found[skip:]
    required = [one for one in found if one.default is one.empty]
    maximum: float = sum(one.kind in _POSITIONAL for one in found)
    if any(one.kind is one.VAR_POSITIONAL for one in found):
        maximum = float("inf")
    if any(one.kind is one.KEYWORD_ONLY for one in required):
        maximum = -1  # positional arguments alone never fit
    bare = [one.replace(annotation=one.empty) for one in found]
    return Parameters(
        signature.replace(parameters=bare, return_annotation=signature.empty),
        sum(one.kind in _POSITIONAL for one in required),
        maximum,
    )


def check_schedule(task: str, options: TaskOptions, parameters: Parameters) -> None:
    """Raise InvalidOption for two schedules, or for a scheduled task that needs arguments."""
    if options.cron is None and options.every is None:
        return
    if options.cron and options.every:
        raise InvalidOption(f"{task} has both cron= and every=; use one of the two")
    check_schedule_name(task)
    try:
        parameters.check(task, (), {})
    except InvalidArguments:
        raise InvalidOption(
            f"{task} has cron= or every=, so it runs without arguments, but it takes "
            f"{parameters.signature}; give them defaults, or name the task with its arguments in "
            'REDISQUEUE["SCHEDULES"]'
        ) from None
