"""What the end of a workflow or of a gather calls for: a task, kept there until then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .exceptions import InvalidOption, shown
from .tasks import Signature, Task, as_task


def check_callback(
    what: object, option: str, keywords: Mapping[str, Any] | None = None
) -> Signature:
    """A task, called with these keyword arguments, or a signature with its own. Raises
    InvalidOption that names the option it was given for."""
    task = as_task(what)
    signature = Signature(task, (), keywords or {}) if isinstance(task, Task) else task
    if not isinstance(signature, Signature):
        raise InvalidOption(
            f"{option} is a task, or a signature (task.s(...)) with its arguments, "
            f"not {shown(what)}"
        )
    if signature.task.after:
        raise InvalidOption(
            f"{signature.task.name} has after= from using(), but as {option} it is enqueued when "
            "all before it has ended; leave it out"
        )
    return signature


def callback_fields(name: str, signature: Signature, job_id: str = "") -> Iterator[str]:
    """Names and values of the fields that callback.lua makes the job from; ``job_id``: one that is
    like its own to be."""
    job = signature.new_job(job_id)
    values = {
        "task": job.task, "payload": job.payload, "queue": job.queue, "options": job.options,
        "priority": str(job.priority), "audit": job.audit, "when": job.when,
    }  # fmt: skip
    for field, value in values.items():
        if value:
            yield from (f"{name}_{field}", value)
