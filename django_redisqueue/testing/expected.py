"""What a test expects to have been enqueued. It is checked as strictly as what is enqueued is: an
assertion with a slip in it would fail for a wrong reason, or with ``count=0`` hold for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..codec import decode_payload, encode_payload
from ..conf import get_settings
from ..exceptions import InvalidArguments, InvalidOption, InvalidTask, shown
from ..options import check_whole, no_option
from ..registry import get_task
from ..tasks import Task

WHERE = "assert_enqueued()"
OPTIONS = ("args", "kwargs", "queue_name", "count")


@dataclass(frozen=True, slots=True)
class Expected:
    """``count`` jobs (None: at least one) of a task, by its name, that have these ``facts``."""

    task: str
    facts: Mapping[str, Any]
    count: int | None

    def __str__(self) -> str:
        much = "at least 1 job" if self.count is None else f"{self.count} job"
        much += "" if self.count in (None, 1) else "s"
        return f"{much} of {self.task}" + "".join(
            f", {name}={tuple(value) if name == 'args' else value!r}"
            for name, value in self.facts.items()
        )

    def is_met_by(self, found: int) -> bool:
        """Whether so many jobs are as many as were expected."""
        return found > 0 if self.count is None else found == self.count


def expect(
    task: object,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    queue_name: str | None,
    count: int | None,
) -> Expected:
    """Raises InvalidTask, UnknownTask, InvalidArguments, PayloadTooLarge, InvalidName, UnknownQueue
    or InvalidOption."""
    name = _name(task)
    facts = _arguments(name, args, kwargs)
    if queue_name is not None:
        facts["queue_name"] = get_settings().check_queue(queue_name)
    if count is not None:
        check_whole(count, "count", 0, 2**32)
    return Expected(name, facts, count)


def refuse_others(more: Sequence[object], options: Mapping[str, object]) -> None:
    """Raise InvalidOption for what ``assert_enqueued`` does not take."""
    if more:
        raise InvalidOption(
            f"{WHERE} takes the task alone by its place, and what it was called with as args=(...) "
            "and kwargs={...}"
        )
    for name in options:
        raise no_option(name, OPTIONS, WHERE)


def _name(task: object) -> str:
    """The registered name of a task of ours, of one of Django's, or of a name or alias."""
    if isinstance(task, Task):
        return task.name
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    if not isinstance(name, str):
        raise InvalidTask(
            f"{WHERE} takes a registered name or a function decorated with @task, not {shown(task)}"
        )
    known: Task = get_task(name)
    return known.name


def _arguments(task: str, args: object, kwargs: object) -> dict[str, Any]:
    """Those that were given, as they are behind their way through JSON."""
    given = {"args": _by_place(args), "kwargs": _by_name(kwargs)}
    limit = get_settings().max_payload_bytes
    payload = encode_payload(given["args"] or (), given["kwargs"] or {}, limit, task)
    sent = dict(zip(given, decode_payload(payload), strict=True))
    return {name: value for name, value in sent.items() if given[name] is not None}


def _by_place(args: object) -> Any:
    if args is None or isinstance(args, tuple | list):
        return args
    raise InvalidArguments(
        f"{WHERE}: args must be a tuple of the job's arguments, such as ({shown(args)},), not "
        f"{shown(args)}"
    )


def _by_name(kwargs: object) -> Any:
    if kwargs is None:
        return None
    if isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs):
        return kwargs
    raise InvalidArguments(
        f"{WHERE}: kwargs must be a dict of the job's arguments by their names, such as "
        f'{{"amount": 100}}, not {shown(kwargs)}'
    )
