"""What a workflow is given, checked: its name, its tasks, and what its end calls for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..exceptions import InvalidOption, WorkflowError
from ..states import OnFailure
from ..tasks import Signature, Task

MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Calls:
    """What a workflow's end calls for."""

    complete: Signature | None = None
    failure: Signature | None = None

    def fields(self) -> Iterator[str]:
        for name, signature in (("complete", self.complete), ("failure", self.failure)):
            if signature is not None:
                job = signature.new_job()
                yield from (f"{name}_task", job.task, f"{name}_payload", job.payload)
                yield from (f"{name}_queue", job.queue, f"{name}_options", job.options)
                yield from (f"{name}_priority", str(job.priority))


def as_signature(value: Task | Signature | None) -> Signature | None:
    return value.s() if isinstance(value, Task) else value


def check_name(value: object) -> str:
    if isinstance(value, str) and len(value) <= MAX_NAME:
        return value
    raise InvalidOption(f"a workflow's name is a text of at most {MAX_NAME} letters, not {value!r}")


def call_of(what: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    if isinstance(what, Task):
        return Signature(what, args, kwargs)
    if isinstance(what, Signature) and not args and not kwargs:
        return what
    raise WorkflowError(
        f"add takes a task with its arguments, or a signature (task.s(...)) alone, not {what!r}"
    )


def policy_of(value: object) -> OnFailure:
    try:
        return OnFailure(str(value))
    except ValueError:
        raise InvalidOption(
            f"on_failure must be one of {', '.join(OnFailure)}, not {value!r}"
        ) from None
