"""Django's ``Task`` with this package's options, and what of it travels with a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from ..codec import dumps, loads
from ..conf import did_you_mean
from ..exceptions import InvalidName, InvalidOption
from ..exceptions import InvalidTask as OurInvalidTask
from ..options import CALL_CHECKS, TASK_CHECKS
from ..tasks import Signature
from .django_tasks import InvalidTask, Task, TaskResult

MARK = "django"  # of a job's options: how its task differs from the definition
DATABASE = "database"  # the option ``using`` of our own tasks, whose name is a method here


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisQueueTask(Task):  # type: ignore[type-arg]  # Django's own is not generic
    """What ``@task`` makes for this backend. The options are those of ``django_redisqueue.task``
    and of its ``using``; ``database`` is the one that ``exactly_once`` works on."""

    timeout: float | timedelta | None = None
    max_attempts: int | None = None
    backoff: Any = None
    retry_on: Any = None
    no_retry_on: Any = None
    audit: str | None = None
    api: bool | None = None
    redact: Sequence[str] | None = None
    outbox: bool | None = None
    exactly_once: bool | None = None
    database: str | None = None
    on_commit: bool | None = None
    tags: Mapping[str, str] | None = field(default=None, hash=False)
    after: Any = None
    on_parent_failure: str | None = None

    def using(self, **options: Any) -> RedisQueueTask:
        """A copy with options of one call: those of Django, and timeout, max_attempts, on_commit,
        outbox, tags, after and on_parent_failure. Raises InvalidTask, or TypeError for others."""
        for name in options.keys() - OF_A_CALL:
            if name in OPTIONS:
                raise TypeError(
                    f"using() cannot change {name!r} of {self.module_path}, which workers know "
                    "from its definition; give it to @task"
                )
            raise TypeError(
                f"using() has no option {name!r}{did_you_mean(name, OF_A_CALL)}; it takes "
                f"{', '.join(sorted(OF_A_CALL))}"
            )
        return replace(self, **{name: one for name, one in options.items() if one is not None})

    def enqueue_many(self, calls: Iterable[Sequence[Any]]) -> list[TaskResult[Any, Any]]:
        """Queue one run for each sequence of positional arguments, up to 100 in a round trip. All
        are checked before the first is sent."""
        backend: Any = self.get_backend()
        results: list[TaskResult[Any, Any]] = backend.enqueue_many(self, calls)
        return results

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """This task with these arguments, for a workflow, a chain or a gather to enqueue."""
        backend: Any = self.get_backend()
        signature: Signature = backend.signature(self, args, kwargs)
        return signature


OPTIONS = tuple(one.name for one in fields(RedisQueueTask) if one.name not in Task.__slots__)
OF_A_CALL = frozenset({"priority", "queue_name", "run_after", "backend"}) | (
    CALL_CHECKS.keys() & set(OPTIONS)
)
_CHECKS = {**CALL_CHECKS, **TASK_CHECKS, DATABASE: TASK_CHECKS["using"]}


def options_of(task: Task[Any, Any]) -> dict[str, Any]:
    """The options of this package that the task has."""
    found = {name: getattr(task, name, None) for name in OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def check_options(task: Task[Any, Any]) -> None:
    """Raise Django's InvalidTask unless all options are valid; they stand as they are compared and
    travel afterwards, a timeout in seconds."""
    for name, value in options_of(task).items():
        try:
            checked = _CHECKS[name](value)
        except (InvalidOption, InvalidName, OurInvalidTask) as error:
            raise InvalidTask(str(error)) from error
        if name == "timeout":
            checked = value.total_seconds() if isinstance(value, timedelta) else value
        object.__setattr__(task, name, checked)


def rebuilt(task: Task[Any, Any], changes: Mapping[str, Any]) -> Task[Any, Any]:
    """A copy with changes, not validated: what was enqueued is told as it was, whatever the
    settings have become since."""
    made: Task[Any, Any] = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(made, one.name, changes.get(one.name, getattr(task, one.name)))
    return made


def differences(task: Task[Any, Any], definition: Task[Any, Any]) -> dict[str, Any]:
    """What a copy of a task has set otherwise than its definition."""
    if task is definition:
        return {}
    pairs = ((one.name, getattr(task, one.name)) for one in fields(task) if one.name != "func")
    return {name: value for name, value in pairs if value != getattr(definition, name, None)}


def encode_mark(said: Mapping[str, Any]) -> str:
    """Differences as text. A text in the options is nothing that a script takes for an option."""
    if "run_after" in said:
        said = {**said, "run_after": said["run_after"].isoformat()}
    return dumps(said)


def decode_mark(options: Mapping[str, Any]) -> dict[str, Any]:
    """The differences that a job's options tell. Raises ValueError."""
    if MARK not in options:
        return {}
    said = loads(str(options[MARK]))
    if not isinstance(said, dict):
        raise ValueError(f"its option {MARK!r} is no JSON object")
    if "run_after" in said:
        said["run_after"] = datetime.fromisoformat(said["run_after"])
    if "after" in said:
        said["after"] = tuple(said["after"])
    return said
