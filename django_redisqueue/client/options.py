"""The options of a task and of a single call, validated where they are given; and chunk tasks,
whose function gets many jobs in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from keyword import iskeyword
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar

from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone

from ..conf import get_settings
from ..core.clock import MAX_DURATION, Duration, ms_of, real_ms, to_ms, to_period_ms
from ..core.codec import dumps
from ..core.ids import check_job_id, check_queue_name, check_task_name
from ..core.parsing import is_int
from ..core.policies import (
    Backoff,
    FixedDelays,
    Key,
    Limit,
    Limits,
    Rate,
    Rates,
    Unique,
    UniqueBy,
    check_fair_by,
    check_limits,
    check_unique_by,
    to_backoff,
    to_unique,
)
from ..core.schedules import Cron, Every, to_cron, to_every
from ..core.statuses import Audit, OnConflict, OnParentFailure, check_choice
from ..core.tags import check_tags
from ..exceptions import InvalidArguments, InvalidOption, did_you_mean, short_repr

MAX_CHUNK = 100  # the most jobs that a child may claim at once
By = str | tuple[str, ...] | Callable[..., Any] | None

ExceptionTypes = tuple[type[Exception], ...]
Names = tuple[str, ...] | list[str]
OnConflictName = Literal["wait", "discard", "cancel_oldest"]
UniqueName = Literal["until_started", "until_finished", "keep_last"]
MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_PARENTS = 99  # of a job outside a workflow: a script looks at 100 jobs at most


@dataclass(frozen=True, slots=True)
class Chunk:
    """The option ``chunk`` of ``@task``: one call of the function handles up to ``size`` jobs.

    ``wait``: how long the first job waits for others while the chunk is not full, in seconds or as
    a timedelta. ``by``: only jobs with equal values share a chunk; the name of an argument, a tuple
    of names, or a callable that gets the job's arguments. ``parameters``: the names of the jobs'
    arguments, in order, for calls with positional ones. Raises InvalidOption.
    """

    size: int
    wait: Any = 0
    by: By = None
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_int(self.size, 1, MAX_CHUNK):
            raise InvalidOption(
                f"the size of a Chunk must be a whole number from 1 to {MAX_CHUNK}, not "
                f"{short_repr(self.size)}"
            )
        to_ms(self.wait, "wait of a Chunk")
        if self.parameters != () and not _are_names(self.parameters):
            raise InvalidOption(
                "parameters of a Chunk must be a tuple of different names, not "
                f"{short_repr(self.parameters)}"
            )
        names = (self.by,) if isinstance(self.by, str) else self.by
        if names is None or callable(names):
            return
        if not _are_names(names):
            raise InvalidOption(
                "by of a Chunk must be the name of an argument, a tuple of names, or a callable, "
                f"not {short_repr(self.by)}"
            )
        unknown = [name for name in names if self.parameters and name not in self.parameters]
        if unknown:
            raise InvalidOption(
                f"by of a Chunk has {unknown[0]!r}, which is not among its parameters"
                f"{did_you_mean(unknown[0], self.parameters)}"
            )

    @property
    def wait_ms(self) -> int:
        return to_ms(self.wait, "wait of a Chunk")

    def key(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """What the jobs of one chunk have in common, as JSON. Raises InvalidArguments."""
        if self.by is None:
            return ""
        if callable(self.by):
            value = self.by(*args, **kwargs)
        else:
            names = (self.by,) if isinstance(self.by, str) else self.by
            given = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
            for name in names:
                if name not in given:
                    raise InvalidArguments(
                        f"{task} forms chunks by {name!r}, so every call needs it as a keyword "
                        f"argument, such as enqueue(..., {name}=...); or name the arguments in "
                        "parameters= of the Chunk, so that it may be positional"
                    )
            value = [given[name] for name in names]
        try:
            return dumps(value)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(
                f"{task} forms chunks by a value that JSON cannot hold ({error}); use a number, a "
                "string, or a list of these"
            ) from None


def _are_names(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(isinstance(name, str) for name in value)
        and all(name.isidentifier() and not iskeyword(name) for name in value)
        and len(set(value)) == len(value)
    )


@dataclass(frozen=True, slots=True)
class ChunkItem:
    """One job of a chunk: its id, its arguments, and the number of this attempt, from 1."""

    id: str
    args: Sequence[Any] = field(repr=False)
    kwargs: Mapping[str, Any] = field(repr=False)
    attempt: int = 1


def check_chunk_option(value: object) -> Chunk:
    """Return ``value``; raise InvalidOption unless it is a Chunk."""
    if isinstance(value, Chunk):
        return value
    raise InvalidOption(
        f"chunk must be a Chunk, such as Chunk(100, wait=5), not {short_repr(value)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of ``@task(...)``. ``timeout_ms``: None means the setting TIMEOUT, 0 no limit;
    ``expires_ms``: 0 means never."""

    queue_name: str = "default"
    priority: int = 0
    timeout_ms: int | None = None
    expires_ms: int = 0
    max_attempts: int = 1
    backoff: Backoff | FixedDelays = Backoff()  # noqa: RUF009 - frozen
    retry_on: ExceptionTypes = (Exception,)
    no_retry_on: ExceptionTypes = ()
    takes_context: bool = False
    audit: Audit = Audit.ALL
    api: bool = False  # whether it may be enqueued through the HTTP API
    redact: tuple[str, ...] = ()  # parameters whose values are shown nowhere
    outbox: bool | None = None  # None means the setting OUTBOX
    exactly_once: bool = False
    concurrency: Limits = ()
    rate: Rates = ()
    fair_by: Key | None = None
    on_conflict: OnConflict = OnConflict.WAIT
    chunk: Chunk | None = None  # one call gets many jobs
    using: str = DEFAULT_DB_ALIAS  # of exactly_once: the database of the job's work
    cron: Cron | None = None  # when it runs periodically: at most one of the two is set
    every: Every | None = None
    unique: Unique | Literal[False] | None = None  # False: explicitly none
    unique_by: UniqueBy | None = None  # None means all arguments


def to_task_options(checked: Mapping[str, Any]) -> TaskOptions:
    """The options of ``@task(...)`` from their checked values."""
    in_ms = {"timeout": "timeout_ms", "expires": "expires_ms"}
    return TaskOptions(**{in_ms.get(name, name): value for name, value in checked.items()})


A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
Rest = ParamSpec("Rest")


# Tasks by how many arguments a call may have, for ``enqueue_many``. Type checkers infer their types
# from ``enqueue``.
class Takes0(Protocol):
    def enqueue(self) -> object: ...


class Takes1(Protocol[A_contra]):
    def enqueue(self, a: A_contra, /) -> object: ...


class Takes2(Protocol[A_contra, B_contra]):
    def enqueue(self, a: A_contra, b: B_contra, /) -> object: ...


class Takes3(Protocol[A_contra, B_contra, C_contra]):
    def enqueue(self, a: A_contra, b: B_contra, c: C_contra, /) -> object: ...


class Takes4(Protocol[A_contra, B_contra, C_contra, D_contra]):
    def enqueue(self, a: A_contra, b: B_contra, c: C_contra, d: D_contra, /) -> object: ...


class TakesMore(Protocol[Rest]):
    def enqueue(
        self, a: Any, b: Any, c: Any, d: Any, e: Any, /, *args: Rest.args, **kwargs: Rest.kwargs
    ) -> object: ...


class HasId(Protocol):
    """A job, or its record."""

    @property
    def id(self) -> str: ...


class DjangoTask(Protocol):
    """A task of Django's own Tasks, for an alias that uses this package's backend."""

    @property
    def module_path(self) -> str: ...


class TaskKeywords(TypedDict, total=False):
    """The options of ``@task(...)`` for type checkers, except those that change how the task is
    called. TASK_CHECKS validates them at run time."""

    name: str | None
    aliases: Names
    queue_name: str
    priority: int
    timeout: Duration
    expires: Duration
    max_attempts: int
    backoff: Backoff | Duration | Sequence[Duration]
    retry_on: type[Exception] | Sequence[type[Exception]]
    no_retry_on: type[Exception] | Sequence[type[Exception]]
    audit: Audit | Literal["all", "final", "failed", "none"]
    api: bool
    redact: Names
    outbox: bool
    exactly_once: bool
    using: str
    concurrency: Limit | Sequence[Limit]
    rate: Rate | Sequence[Rate]
    fair_by: Key
    on_conflict: OnConflict | OnConflictName
    cron: Cron | str
    every: Every | Duration
    unique: Unique | UniqueName | Literal[False]
    unique_by: Sequence[str] | Callable[..., str]


class CallKeywords(TypedDict, total=False):
    """The options of ``using(...)`` for type checkers; None leaves an option as it is."""

    after: HasId | str | Sequence[HasId | str] | None
    tags: Mapping[str, str] | None
    on_conflict: OnConflict | OnConflictName | None
    on_parent_failure: OnParentFailure | Literal["wait", "skip", "go_on"] | None
    unique: Unique | UniqueName | Literal[False] | None
    unique_by: Sequence[str] | Callable[..., str] | None
    queue_name: str | None
    priority: int | None
    run_after: datetime | Duration | None
    expires: datetime | Duration | None
    timeout: Duration | None
    max_attempts: int | None
    on_commit: bool | None
    outbox: bool | None


def check_option(
    checks: Mapping[str, Callable[[Any], Any]], name: str, value: object, where: str
) -> Any:
    """The value of an option, converted. Raises InvalidOption."""
    if name in checks:
        return checks[name](value)
    if where == "@task" and name in CALL_CHECKS:
        raise InvalidOption(f"{name!r} is an option of using(), for one call, not of @task")
    of_tasks = (*TASK_CHECKS, "name", "aliases")
    if where != "@task" and name in of_tasks:
        raise InvalidOption(f"{name!r} is an option of @task, for every call, not of {where}")
    known = of_tasks if where == "@task" else checks
    raise InvalidOption(
        f"{where} has no option {name!r}{did_you_mean(name, known)}; it accepts {', '.join(known)}"
    )


def check_integer(value: object, name: str, low: int, high: int) -> int:
    """Return ``value``; raise InvalidOption unless it is a whole number in this range."""
    if is_int(value, low, high):
        return value
    raise InvalidOption(
        f"{name} must be a whole number from {low} to {high}, not {short_repr(value)}"
    )


def check_priority(value: object) -> int:
    """Return ``value``; raise InvalidOption unless it is a whole number from -100 to 100."""
    if is_int(value, MIN_PRIORITY, MAX_PRIORITY):
        return value
    raise InvalidOption(
        f"priority must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY} (larger first), "
        f"not {short_repr(value)}"
    )


def check_timeout(value: object) -> int:
    """A timeout in milliseconds; 0 means none. Raises InvalidOption."""
    return to_ms(value, "timeout (0 for none)")


def check_exceptions(value: object, name: str) -> ExceptionTypes:
    """A tuple of exception classes; raises InvalidOption for anything else."""
    classes = value if isinstance(value, tuple | list) else (value,)
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, Exception)):
            raise InvalidOption(f"{name} must be subclasses of Exception, not {short_repr(item)}")
    return tuple(classes)


def check_flag(value: object, name: str) -> bool:
    """Return ``value``; raise InvalidOption unless it is True or False."""
    if isinstance(value, bool):
        return value
    raise InvalidOption(f"{name} must be True or False, not {short_repr(value)}")


def check_aliases(value: object) -> tuple[str, ...]:
    """The old names of a task as a tuple. Raises InvalidOption or InvalidName."""
    rule = 'aliases must be a list of the task\'s old names, such as ["shop.tasks.charge"]'
    return tuple(map(check_task_name, _check_names(value, rule)))


def check_redact(value: object) -> tuple[str, ...]:
    """A tuple of names; ``redaction_of`` checks that they are parameters."""
    return _check_names(value, 'redact must be a tuple of parameter names, such as ("card",)')


def _check_names(value: object, rule: str) -> tuple[str, ...]:
    """A tuple of strings. Rejects a bare string, which would count as its letters."""
    if isinstance(value, tuple | list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise InvalidOption(f"{rule}, not {short_repr(value)}")


def check_alias(value: object) -> str:
    """Return ``value``; raise InvalidOption unless DATABASES has it."""
    if isinstance(value, str) and value in connections:
        return value
    raise InvalidOption(
        f"using must be an alias of DATABASES ({', '.join(connections)}), not {short_repr(value)}"
    )


def check_run_after(value: object) -> str:
    """When a job is due: '+<ms>' from now by Redis's clock, or an instant. Raises InvalidOption,
    also for a naive datetime with USE_TZ, and for instants more than a hundred years away."""
    if isinstance(value, datetime):
        return _instant(value, "run_after")
    return f"+{to_ms(value, 'run_after, unless a datetime,')}"


def check_expires(value: object) -> str:
    """The latest start of a job, in the form of ``check_run_after``. Raises InvalidOption."""
    if isinstance(value, datetime):
        return _instant(value, "expires")
    return f"+{to_period_ms(value, 'expires')}"


def _instant(value: datetime, name: str) -> str:
    if timezone.is_naive(value):
        if django_settings.USE_TZ:
            raise InvalidOption(
                f"{name} is the naive datetime {value!r}, but USE_TZ is on: pass an aware "
                "one, such as timezone.now() + timedelta(minutes=5)"
            )
        value = timezone.make_aware(value)
    instant_ms = ms_of(value)
    # Redis can store instants beyond the range of Python's dates, which no page could show.
    if abs(instant_ms - real_ms()) > MAX_DURATION * 1000:
        raise InvalidOption(
            f"{name} must be within a hundred years of now; to run a job only on demand, enqueue "
            "it when it is needed"
        )
    return str(instant_ms)


def check_after(value: object) -> tuple[str, ...]:
    """The ids of one job, or of up to 99, each once. Raises InvalidOption or InvalidName."""
    given = value if isinstance(value, tuple | list) else (value,)
    for item in given:
        job_id = getattr(item, "id", item)
        if not isinstance(job_id, str):
            raise InvalidOption(f"after must be jobs or ids of jobs, not {short_repr(item)}")
        if job_id.startswith(("flow_", "gather_")) and "." not in job_id:
            raise InvalidOption(
                f"after accepts jobs, and {short_repr(item)} is not one; pass its jobs()"
            )
    ids = tuple(dict.fromkeys(check_job_id(getattr(item, "id", item)) for item in given))
    if len(ids) > MAX_PARENTS:
        raise InvalidOption(
            f"after accepts at most {MAX_PARENTS} jobs, not {len(ids)}; use a Workflow, or add "
            "jobs in between, each of which waits for some of them"
        )
    return ids


TASK_CHECKS: dict[str, Callable[[Any], Any]] = {
    "queue_name": check_queue_name,
    "priority": check_priority,
    "timeout": check_timeout,
    "expires": lambda value: to_period_ms(value, "expires"),
    "max_attempts": lambda value: check_integer(value, "max_attempts", 1, 10_000),
    "backoff": to_backoff,
    "retry_on": lambda value: check_exceptions(value, "retry_on"),
    "no_retry_on": lambda value: check_exceptions(value, "no_retry_on"),
    "takes_context": lambda value: check_flag(value, "takes_context"),
    "audit": lambda value: check_choice(value, Audit, "audit"),
    "api": lambda value: check_flag(value, "api"),
    "redact": check_redact,
    "concurrency": lambda value: check_limits(value, Limit, "concurrency"),
    "rate": lambda value: check_limits(value, Rate, "rate"),
    "fair_by": check_fair_by,
    "on_conflict": lambda value: check_choice(value, OnConflict, "on_conflict"),
    "outbox": lambda value: check_flag(value, "outbox"),
    "exactly_once": lambda value: check_flag(value, "exactly_once"),
    "chunk": check_chunk_option,
    "using": check_alias,
    "cron": to_cron,
    "every": to_every,
    "unique": to_unique,
    "unique_by": check_unique_by,
}
CALL_CHECKS: dict[str, Callable[[Any], Any]] = {
    "after": check_after,
    "tags": check_tags,
    "on_conflict": lambda value: check_choice(value, OnConflict, "on_conflict"),
    "on_parent_failure": lambda value: check_choice(value, OnParentFailure, "on_parent_failure"),
    "unique": to_unique,
    "unique_by": check_unique_by,
    "queue_name": lambda value: get_settings().check_queue(value),
    "priority": check_priority,
    "run_after": check_run_after,
    "expires": check_expires,
    "timeout": check_timeout,
    "max_attempts": lambda value: check_integer(value, "max_attempts", 1, 10_000),
    "on_commit": lambda value: check_flag(value, "on_commit"),
    "outbox": lambda value: check_flag(value, "outbox"),
}
