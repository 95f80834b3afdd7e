"""Django's ``Task`` with this package's options, and how a job stores the options of its call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from ..client.options import CALL_CHECKS, TASK_CHECKS
from ..client.tasks import Signature
from ..core.clock import Duration, to_seconds
from ..core.codec import dumps, loads
from ..exceptions import InvalidName, InvalidOption, did_you_mean
from ..exceptions import InvalidTask as OurInvalidTask
from .django_tasks import InvalidTask, Task, TaskResult

OVERRIDES = "django"  # the job option with the changes to the task's definition
# Options that are not needed once the job is enqueued.
ENQUEUE_OPTIONS = ("unique", "unique_by", "on_conflict", "expires")
DATABASE = "database"  # in place of the option ``using`` of @task, because that is a method here


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisQueueTask(Task):  # type: ignore[type-arg]  # Django's own is not generic
    """What ``@task`` creates for this backend. The options are those of ``django_redisqueue.task``
    and of its ``using``; ``database`` is the alias that ``exactly_once`` uses."""

    timeout: Duration | None = None
    expires: Any = None
    max_attempts: int | None = None
    backoff: Any = None
    retry_on: Any = None
    no_retry_on: Any = None
    audit: str | None = None
    api: bool | None = None
    redact: Sequence[str] | None = None
    outbox: bool | None = None
    exactly_once: bool | None = None
    concurrency: Any = None
    rate: Any = None
    fair_by: Any = None
    on_conflict: str | None = None
    cron: Any = None
    every: Any = None
    database: str | None = None
    on_commit: bool | None = None
    tags: Mapping[str, str] | None = field(default=None, hash=False)
    after: Any = None
    on_parent_failure: str | None = None
    unique: Any = None
    unique_by: Any = None

    def using(self, **options: Any) -> RedisQueueTask:
        """A copy with options of one call: Django's, and expires, timeout, max_attempts, on_commit,
        outbox, tags, after, on_parent_failure, on_conflict, unique and unique_by. Raises
        InvalidTask, and TypeError for unknown options."""
        for name in options.keys() - CALL_OPTIONS:
            if name in OPTIONS:
                raise TypeError(
                    f"using() cannot change {name!r} of {self.module_path}, which workers read "
                    "from its definition; pass it to @task"
                )
            raise TypeError(
                f"using() has no option {name!r}{did_you_mean(name, CALL_OPTIONS)}; it accepts "
                f"{', '.join(sorted(CALL_OPTIONS))}"
            )
        return replace(self, **{name: one for name, one in options.items() if one is not None})

    def enqueue_many(self, calls: Iterable[Sequence[Any]]) -> list[TaskResult[Any, Any]]:
        """Queue one run for each sequence of positional arguments, up to 100 in a round trip. All
        are validated before the first is sent."""
        backend: Any = self.get_backend()
        results: list[TaskResult[Any, Any]] = backend.enqueue_many(self, calls)
        return results

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """This task with these arguments, for a workflow, a chain or a gather to enqueue."""
        backend: Any = self.get_backend()
        signature: Signature = backend.signature(self, args, kwargs)
        return signature


OPTIONS = tuple(one.name for one in fields(RedisQueueTask) if one.name not in Task.__slots__)
CALL_OPTIONS = frozenset({"priority", "queue_name", "run_after", "backend"}) | (
    CALL_CHECKS.keys() & set(OPTIONS)
)
_CHECKS = {
    **CALL_CHECKS,
    **TASK_CHECKS,
    "expires": CALL_CHECKS["expires"],
    DATABASE: TASK_CHECKS["using"],
}


def options_of(task: Task[Any, Any]) -> dict[str, Any]:
    """The options of this package that are set on the task."""
    found = {name: getattr(task, name, None) for name in OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def check_options(task: Task[Any, Any]) -> None:
    """Raise Django's InvalidTask unless all options are valid. Normalises them in place."""
    for name, value in options_of(task).items():
        try:
            checked = _CHECKS[name](value)
        except (InvalidOption, InvalidName, OurInvalidTask) as error:
            raise InvalidTask(str(error)) from error
        if name == "expires":
            continue  # a later check cannot use its text
        if name == "timeout":
            checked = to_seconds(value, name)
        object.__setattr__(task, name, checked)


def copy_unvalidated(task: Task[Any, Any], changes: Mapping[str, Any]) -> Task[Any, Any]:
    """A copy with changes, not validated: an enqueued task is shown as it was, even if the settings
    changed since."""
    made: Task[Any, Any] = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(made, one.name, changes.get(one.name, getattr(task, one.name)))
    return made


def changed_options(task: Task[Any, Any], definition: Task[Any, Any]) -> dict[str, Any]:
    """The options of a copy of a task that differ from its definition."""
    if task is definition:
        return {}
    pairs = ((one.name, getattr(task, one.name)) for one in fields(task) if one.name != "func")
    return {name: value for name, value in pairs if value != getattr(definition, name, None)}


def encode_overrides(changed: Mapping[str, Any]) -> str:
    """The changed options as a string, which scripts do not mistake for their own options."""
    changed = {name: value for name, value in changed.items() if name not in ENQUEUE_OPTIONS}
    if "run_after" in changed:
        changed = {**changed, "run_after": changed["run_after"].isoformat()}
    return dumps(changed)


def decode_overrides(options: Mapping[str, Any]) -> dict[str, Any]:
    """The changed options of a job. Raises ValueError."""
    if OVERRIDES not in options:
        return {}
    changed = loads(str(options[OVERRIDES]))
    if not isinstance(changed, dict):
        raise ValueError(f"the option {OVERRIDES!r} is not a JSON object")
    if "run_after" in changed:
        changed["run_after"] = datetime.fromisoformat(changed["run_after"])
    if "after" in changed:
        changed["after"] = tuple(changed["after"])
    return changed
