"""What a workflow is given, checked: its name, its tasks, and what its end calls for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..callbacks import callback_fields, check_callback
from ..exceptions import InvalidOption, WorkflowError, shown
from ..jobs import Job
from ..options import check_choice
from ..states import OnFailure
from ..tasks import Signature, Task, as_task

MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Calls:
    """What a workflow's end calls for."""

    complete: Signature | None = None
    failure: Signature | None = None

    def fields(self, flow_id: str) -> Iterator[str]:
        for name, signature in (("complete", self.complete), ("failure", self.failure)):
            if signature is not None:
                yield from callback_fields(name, signature, f"{flow_id}.{name}")


def check_calls(on_complete: object, on_failure: object) -> Calls:
    """Raises InvalidOption for what is neither a task, nor a signature, nor None."""
    return Calls(
        None if on_complete is None else check_callback(on_complete, "on_complete"),
        None if on_failure is None else check_callback(on_failure, "on_failure"),
    )


def check_name(value: object) -> str:
    """Return ``value``; raise InvalidOption unless it has at most 200 characters, all printable."""
    if isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable():
        return value
    raise InvalidOption(
        f"a workflow's name is a text of at most {MAX_NAME} printable characters, "
        f"not {shown(value)}"
    )


def call_of(what: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    """What ``add`` was given, as one; raises WorkflowError."""
    task = as_task(what)
    if isinstance(task, Task):
        return Signature(task, args, kwargs)
    if isinstance(what, Signature) and not args and not kwargs:
        return what
    raise WorkflowError(
        f"add takes a task with its arguments, or a signature (task.s(...)) alone, "
        f"not {shown(what)}"
    )


def as_jobs(after: object) -> Sequence[object]:
    """What was given as parents, one by one; None is none of them. Raises WorkflowError."""
    if after is None:
        return ()
    if isinstance(after, Job):
        return (after,)
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise WorkflowError(f"after takes what add() returned, one or several, not {shown(after)}")
    return tuple(after)


def policy_of(value: object) -> OnFailure:
    """What a job's failure means; raises InvalidOption."""
    return check_choice(value, OnFailure, "on_failure")
