"""``@task``, which makes a function a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from ..core.ids import check_task_name
from ..core.redaction import redaction_of
from ..core.statuses import Audit
from .options import (
    TASK_CHECKS,
    Chunk,
    TaskKeywords,
    TaskOptions,
    check_aliases,
    check_option,
    to_task_options,
)
from .policies import lane_rule_of, uniqueness_of
from .registry import (
    Parameters,
    accepted_parameters,
    check_chunk,
    check_context,
    check_exactly_once,
    check_function,
    check_schedule,
    chunk_parameters,
    dotted_path,
    register,
)
from .tasks import ContextTask, Task, check_expiry

P = ParamSpec("P")
R = TypeVar("R")


@overload
def task(func: Callable[P, R], /) -> Task[P, R]: ...
@overload  # a call takes the arguments of one job, and the function gets many jobs
def task(
    *, chunk: Chunk, takes_context: bool = False, **options: Unpack[TaskKeywords]
) -> Callable[[Callable[..., R]], Task[..., R]]: ...
@overload
def task(
    *, takes_context: Literal[True], **options: Unpack[TaskKeywords]
) -> Callable[[Callable[Concatenate[Any, P], R]], ContextTask[P, R]]: ...
@overload
def task(
    *, takes_context: Literal[False] = False, **options: Unpack[TaskKeywords]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(func: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a module-level function (sync or async) a task.

    Options: queue_name, priority, timeout, expires (the latest start of a job), max_attempts,
    backoff, retry_on, no_retry_on, takes_context, audit, api (may be enqueued through the HTTP
    API), redact, outbox, exactly_once (with using: the database), concurrency, rate, fair_by,
    on_conflict (see Limit and Rate), unique and unique_by (see docs/unique.md), chunk (see Chunk),
    cron or every (it runs periodically: see Cron and Every); ``name`` replaces the dotted path,
    ``aliases`` keep old names valid.
    Raises InvalidTask, InvalidOption or InvalidName.
    """
    name, aliases = options.pop("name", None), options.pop("aliases", ())

    def decorate(func: Callable[..., Any]) -> Task:
        return _make_task(func, options, name, aliases)

    return decorate if func is None else decorate(func)


def _make_task(
    func: Callable[..., Any], options: Mapping[str, Any], name: str | None, aliases: object
) -> Task:
    check_function(func, name)
    old_names = check_aliases(aliases)
    fixed = to_task_options(
        {key: check_option(TASK_CHECKS, key, value, "@task") for key, value in options.items()}
    )
    if fixed.takes_context:
        check_context(func)
    full_name, skip = check_task_name(name or dotted_path(func)), int(fixed.takes_context)
    made = make_task(func, full_name, fixed, accepted_parameters(func, skip), skip)
    register(made, [full_name, *old_names])
    return made


def make_task(
    func: Callable[..., Any], name: str, options: TaskOptions, parameters: Parameters, skip: int
) -> Task:
    """A task with these options. The first ``skip`` parameters of the function are not arguments of
    its jobs. Raises InvalidTask or InvalidOption."""
    check_exactly_once(func, options)
    if options.chunk is not None:
        check_chunk(func, options)
        parameters = chunk_parameters(options.chunk)
    check_schedule(name, options, parameters)
    made = Task(
        func=func,
        name=name,
        options=options,
        queue_name=options.queue_name,
        priority=options.priority,
        expires=f"+{options.expires_ms}" if options.expires_ms else "",
        outbox=options.outbox,
        audit="" if options.audit is Audit.ALL else options.audit.value,
        uniqueness=uniqueness_of(name, parameters, options.unique, options.unique_by),
        is_async=inspect.iscoroutinefunction(func),
        parameters=parameters,
        redaction=redaction_of(func, options.redact, skip) if options.redact else None,
        lane_rule=lane_rule_of(name, parameters, options),
    )
    check_expiry(made)
    return made
