"""What can be done to one job: a verb, or a copy with the same or changed arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpResponse

from ..broker.queries import Queries
from ..client.registry import get_task, lookup
from ..client.tasks import Task
from ..client.transport import connection_of
from ..core.codec import decode_payload, loads
from ..core.ids import check_job_id
from ..core.job_data import JobData
from ..core.parsing import int_or_none
from ..core.redaction import REDACTED
from ..exceptions import CorruptJob, InvalidOption, RedisQueueError
from ..models import JobRecord
from .actions import posted, requested_verb
from .job_page import find
from .pages import Page, log_jobs

SHAPES: dict[str, tuple[type, str]] = {
    "args": (list, 'a list, such as [1, "a"]'),
    "kwargs": (dict, "an object, such as {}"),
}


@posted
def act_on_job(page: Page, job_id: str) -> HttpResponse:
    """Retry, cancel, delete or copy one job."""
    if page.request.POST.get("verb") == "copy":
        page.require("enqueue_job")
        original = _original(page, job_id)
        return _enqueue_copy(page, original, [*original.job.args], {**original.job.kwargs})
    job = _known(page, check_job_id(job_id))
    verb = requested_verb(page, job.status)
    done = verb.act([job.id]).ids
    log_jobs(page, done, verb.label)
    if done:
        page.add_message(messages.SUCCESS, f"The job was {verb.done}.")
    else:
        page.add_message(messages.WARNING, "The job has changed meanwhile; nothing was done.")
    if verb.name == "delete" and not JobRecord.objects.filter(pk=job.id).exists():
        return page.redirect(page.url("queue", job.queue, job.status.value))
    return page.redirect(page.url("job", job.id))


def _known(page: Page, job_id: str) -> JobData:
    """The job, even if only parts of it can be read."""
    try:
        return Queries(connection_of(job_id)).job(job_id)
    except CorruptJob as error:
        if not isinstance(error.known, JobData):
            raise
        return error.known


class Original(NamedTuple):
    """A job that can be copied."""

    job: JobData
    is_live: bool


def _original(page: Page, job_id: str) -> Original:
    """Raises InvalidOption for a job that cannot be copied."""
    detail = find(page, job_id)
    if detail.job is None or detail.problem:
        raise InvalidOption(f"the job cannot be copied: {detail.problem}")
    return Original(detail.job, detail.is_live)


def copy_job(page: Page, job_id: str) -> HttpResponse:
    """The form with the arguments of the job, and what it sends. It shows errors, and then has what
    was written."""
    page.require("enqueue_job")
    form, original, error = page.request.POST, None, ""
    try:
        original = _original(page, job_id)
        if page.request.method == "POST":
            return _enqueue_copy(page, original, *_arguments(form))
    except RedisQueueError as found:
        error = str(found)
    job = original.job if original else None
    return page.render(
        "copy_job",
        f"Copy job {job_id}",
        job_id=job_id,
        job=job,
        error=error,
        args=form.get("args", _shown(job.args if job else ())),
        kwargs=form.get("kwargs", _shown(job.kwargs if job else {})),
        signature=_signature(job) if job else "",
        redacted=REDACTED if job and REDACTED in (*job.args, *job.kwargs.values()) else "",
    )


def _shown(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _signature(job: JobData) -> str:
    """The call that the task takes, or '' if it is not known here."""
    task: Task | None = lookup(job.task)
    return f"{job.task}{task.parameters.signature}" if task else ""


def _arguments(form: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Raises InvalidOption."""
    values: dict[str, Any] = {}
    for name, (kind, wanted) in SHAPES.items():
        try:
            values[name] = loads(form.get(name, ""))
        except ValueError as error:
            raise InvalidOption(f"{name} is not JSON: {error}") from None
        if type(values[name]) is not kind:
            raise InvalidOption(f"{name} must be {wanted}")
    return values["args"], values["kwargs"]


def _enqueue_copy(
    page: Page, original: Original, args: list[Any], kwargs: dict[str, Any]
) -> HttpResponse:
    """Neither a unique key nor an Idempotency-Key is copied: the task's own rule applies."""
    job = original.job
    task: Task = get_task(job.task)
    _restore_redacted(original, args, kwargs)
    timeout_ms = int_or_none(job.options.get("timeout_ms"))
    copy = task.using(
        queue_name=job.queue,
        priority=job.priority,
        tags=dict(job.tags),
        max_attempts=job.options.get("max_attempts"),
        timeout=None if timeout_ms is None else timeout_ms / 1000,
    ).enqueue(*args, **kwargs)
    if copy.is_duplicate:
        page.add_message(messages.WARNING, "No copy was made: this job has its unique key.")
        return page.redirect(page.url("job", copy.id))
    log_jobs(page, [job.id], f"Enqueued a copy, {copy.id}")
    log_jobs(page, [copy.id], f"Enqueued as a copy of {job.id}")
    page.add_message(
        messages.SUCCESS, f"A copy was enqueued; this is it. The original is {job.id}."
    )
    return page.redirect(page.url("job", copy.id))


def _restore_redacted(original: Original, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Put the real values in the place of redacted ones that are as the form showed them.

    Raises InvalidOption when the real value is not known.
    """
    job = original.job
    places = [at for at, value in enumerate(args) if value == REDACTED]
    names = [name for name, value in kwargs.items() if value == REDACTED]
    if not places and not names:
        return
    if not original.is_live:
        raise InvalidOption(
            f"job {job.id} cannot be copied like this: it is not in Redis any more, and its record "
            f"has its arguments redacted; write values for {REDACTED}"
        )
    is_moved = any(at >= len(job.args) or job.args[at] != REDACTED for at in places)
    if is_moved or any(job.kwargs.get(name) != REDACTED for name in names):
        raise InvalidOption(f"{REDACTED} stands for a value only where the job itself has it")
    real_args, real_kwargs = decode_payload(Queries(connection_of(job.id)).payload(job.id))
    for at in places:
        args[at] = real_args[at]
    for name in names:
        kwargs[name] = real_kwargs[name]
