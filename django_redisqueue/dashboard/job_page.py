"""The page of one job, and its actions: verbs, and a copy with other arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from django.contrib import messages
from django.db import Error as DatabaseError
from django.http import Http404, HttpResponse, HttpResponseRedirect

from ..broker.policies import UniqueQueries
from ..broker.queries import Queries
from ..broker.steps import StepQueries
from ..broker.workflows import WorkflowQueries
from ..client.registry import get_task, is_own, lookup
from ..client.tasks import Task
from ..client.transport import connection_of
from ..conf import get_settings
from ..core.clock import ms_of
from ..core.codec import decode_payload, loads
from ..core.ids import check_job_id, periodic_prefix
from ..core.job_data import JobData, WaitKind, split_wait
from ..core.parsing import int_or_none, is_storable
from ..core.records import worker_of
from ..core.redaction import REDACTED
from ..core.text import escape_bidi, printable
from ..exceptions import (
    CorruptJob,
    InvalidName,
    InvalidOption,
    JobNotFound,
    RedisQueueError,
    WrongKeyType,
)
from ..health.facts import savepoint
from ..health.waiting import why_not_running
from ..models import Approval, JobEvent, JobRecord, PeriodicJob
from .actions import posted, requested_verb
from .bulk import RUN_NOW, Verb, verbs_for
from .gathers_page import key_of
from .job_detail import (
    JobDetail,
    attempts_of,
    facts_of,
    fold,
    read_record,
    split,
    time_left,
    with_groups,
)
from .pages import Page
from .policies import RELEASE

EVENTS = 200  # the newest of the history
SCHEDULES = 5000  # names that are compared with a job's id
REMEMBERED = 100  # steps and waits that are listed
LABELS = {"step": "Steps done", "cursor": "Walks", "wait": "Waits", "sleep": "Sleeps"}
SHAPES: dict[str, tuple[type, str]] = {
    "args": (list, 'a list, such as [1, "a"]'),
    "kwargs": (dict, "an object, such as {}"),
}


def job_page(page: Page, job_id: str) -> HttpResponse:
    detail = find(page, job_id)
    job = detail.job
    events = list(JobEvent.objects.filter(job_id=job_id).order_by("-id")[:EVENTS])
    parents, dependants = _relatives(detail)
    context: dict[str, Any] = {
        "detail": detail,
        "job": job,
        "policies": _policies(page, detail, parents),
        "parents": parents,
        "dependants": dependants,
        "events": fold(events[::-1]),
        "more_events": len(events) == EVENTS,
        "verbs": _verbs(page, detail),
        "may_release": page.has_perm(RELEASE),
    }
    if job is not None:
        context |= {
            "why_record": "" if detail.is_live else page.why_record("job", job_id),
            "facts": facts_of(job),
            "links": _links(page, detail, job),
            "time_left": time_left(job, ms_of(page.health.facts.now)),
            "attempts": with_groups(job.task, attempts_of(job, events[::-1])),
            "may_copy": page.has_perm("enqueue_job") and not is_own(job.task),
        }
    if page.wants_parts:
        return page.render_parts(["job"], **context)
    live = page.live_options("job", job_id)
    code = 503 if page.is_away(job_id) and job is None else 200
    return page.render("job", f"Job {job_id}", code=code, **context, live=live)


def find(page: Page, job_id: str) -> JobDetail:
    """The job from Redis, else from the mirror. Raises Http404."""
    problem = ""
    try:
        return JobDetail(job_id, page.queries_of(job_id).job(check_job_id(job_id)))
    except (InvalidName, JobNotFound):
        pass
    except CorruptJob as error:
        if error.known is not None:
            return JobDetail(job_id, error.known, str(error))
        problem = str(error)
    except RedisQueueError as error:
        page.note(job_id, error)
        if page.is_away(job_id):
            problem = "Redis does not answer, and the mirror has no record of the job."
    record = JobRecord.objects.filter(pk=job_id).first() if is_storable(job_id) else None
    if record is not None:
        problem, job = split(read_record(record))
        return JobDetail(job_id, job, problem, is_live=False)
    if problem:
        return JobDetail(job_id, None, problem, is_live=not page.is_away(job_id))
    raise Http404(f"job {job_id} is neither in Redis nor in the mirror")


def _relatives(detail: JobDetail) -> tuple[list[str], list[str]]:
    """The ids of its parents and dependants, if Redis still has them."""
    if not detail.is_live:
        return [], []
    try:
        parents, dependants = WorkflowQueries(connection_of(detail.id)).relatives(detail.id)
        return list(map(printable, parents)), list(map(printable, dependants))
    except WrongKeyType:  # the page already says that the job's key is not a hash
        return [], []


def _links(page: Page, detail: JobDetail, job: JobData) -> dict[str, str]:
    """The URLs of what the job belongs to, or '', and the names of its gather and schedule."""
    is_known = job.queue in get_settings().queues
    is_of_gather = detail.is_live and job.id.startswith("gather_")
    schedule, schedule_url = _schedule(page, job.id)
    return {
        "task": page.url("task", name=job.task),
        "queue": page.url("queue", job.queue, job.status.value) if is_known else "",
        "gather": printable(key_of(page, job.id)) if is_of_gather else "",
        "schedule": schedule,
        "schedule_url": schedule_url,
        "worker": page.url("workers", q=worker_of(job.child)) if job.child else "",
    }


def _schedule(page: Page, job_id: str) -> tuple[str, str]:
    """The name and page of the schedule that created the job: the id has a hash of the name."""
    if not job_id.startswith("periodic_"):
        return "", ""
    for pk, name in PeriodicJob.objects.values_list("pk", "name")[:SCHEDULES]:
        if job_id.startswith(periodic_prefix(name)):
            return name, page.optional_url("periodicjob_change", pk)
    return "", ""


def _verbs(page: Page, detail: JobDetail) -> list[Verb]:
    if not detail.is_live or detail.job is None:
        return []
    is_parked = detail.job.waits_for is not None
    verbs = verbs_for(detail.job.status)
    return page.allowed(verb for verb in verbs if not (is_parked and verb is RUN_NOW))


def _policies(page: Page, detail: JobDetail, parents: Sequence[str]) -> dict[str, Any]:
    """Why an unfinished job is not running, its unique keys, and the names of its steps, walks and
    waits. At most ten round trips."""
    job = detail.job
    if job is None or not detail.is_live or job.status.is_final:
        return {}
    connection = connection_of(job.id)
    try:
        why = why_not_running(job, page.health.facts.shard, connection, parents)
        unique = UniqueQueries(connection).held_by(job.id, job.unique) if job.unique else []
        names = StepQueries(connection).names(job.id)
    except RedisQueueError as error:
        return {"why": f"The reason why it is not running cannot be read: {error}."}
    shown = names[:REMEMBERED]
    remembered = [
        (LABELS.get(kind, printable(kind)), [printable(name) for _, name in group])
        for kind, group in groupby(shown, key=lambda one: one[0])
    ]
    return {
        "why": why,
        "unique": unique,
        "remembered": remembered,
        "more_remembered": len(names) - len(shown),
        "approval_url": _approval_url(page, job),
    }


def _approval_url(page: Page, job: JobData) -> str:
    """The page of the approval that the job waits for, for those who may see it."""
    kind, name = split_wait(job.id, job.waits_for or "")
    if kind is not WaitKind.APPROVAL or not page.has_perm("view_approval"):
        return ""
    row: Approval | None = None
    with suppress(DatabaseError), savepoint(Approval):
        row = Approval.objects.filter(job_id=job.id, name=name).first()
    return page.optional_url("approval_change", row.pk) if row else ""


@posted("job")
def act_on_job(page: Page, job_id: str) -> HttpResponse:
    """Retry, cancel, delete or copy one job. Asks for confirmation as a list of jobs does."""
    if page.request.POST.get("verb") == "copy":
        page.require("enqueue_job")
        job, is_live = _original(page, job_id)
        return _enqueue_copy(page, job, is_live, [*job.args], {**job.kwargs})
    job = _readable_job(check_job_id(job_id))
    verb = requested_verb(page, job.status)
    if verb.needs_confirmation and page.request.POST.get("confirmed") != "yes":
        return page.confirm(
            "jobs", verb.label, f"{verb.label} the job", page.url("job", job.id),
            {"verb": verb.name}, verb=verb, ids=[job.id], queue=job.queue, status=job.status.value,
            jobs="1 job",
        )  # fmt: skip
    done, _ = verb.act([job.id])
    page.log_jobs(done, verb.label)
    if done:
        messages.success(page.request, f"The job was {verb.done}.")
    else:
        messages.warning(page.request, "The job has changed in the meantime; nothing was done.")
    if verb.name == "delete" and not JobRecord.objects.filter(pk=job.id).exists():
        return HttpResponseRedirect(page.url("queue", job.queue, job.status.value))
    return HttpResponseRedirect(page.url("job", job.id))


def _readable_job(job_id: str) -> JobData:
    """The job, even if only a part of it can be read."""
    try:
        return Queries(connection_of(job_id)).job(job_id)
    except CorruptJob as error:
        if not isinstance(error.known, JobData):
            raise
        return error.known


def _original(page: Page, job_id: str) -> tuple[JobData, bool]:
    """The job, and whether Redis has it. Raises InvalidOption when it cannot be copied."""
    detail = find(page, job_id)
    if detail.job is None or detail.problem:
        raise InvalidOption(f"the job cannot be copied: {detail.problem}")
    if is_own(detail.job.task):
        raise InvalidOption(
            f"the job cannot be copied: {detail.job.task} does what other permissions are for"
        )
    return detail.job, detail.is_live


def copy_job(page: Page, job_id: str) -> HttpResponse:
    """The form for a copy of the job, and its submission. After an error it keeps the input."""
    page.require("enqueue_job")
    form, job, error = page.request.POST, None, ""
    try:
        job, is_live = _original(page, job_id)
        if page.request.method == "POST":
            return _enqueue_copy(page, job, is_live, *_arguments(form))
    except RedisQueueError as found:
        error = str(found)
    task: Task | None = lookup(job.task) if job else None
    return page.render(
        "copy_job",
        f"Copy job {job_id}",
        job_id=job_id,
        job=job,
        error=error,
        args=form.get("args", _shown(job.args if job else ())),
        kwargs=form.get("kwargs", _shown(job.kwargs if job else {})),
        signature=f"{job.task}{task.parameters.signature}" if job and task else "",
        redacted=REDACTED if job and REDACTED in (*job.args, *job.kwargs.values()) else "",
    )


def _shown(value: object) -> str:
    return escape_bidi(json.dumps(value, indent=2, ensure_ascii=False))


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
    page: Page, job: JobData, is_live: bool, args: list[Any], kwargs: dict[str, Any]
) -> HttpResponse:
    """Copies neither a unique key nor an Idempotency-Key: the task's own rule applies."""
    task: Task = get_task(job.task)
    _restore_redacted(job, is_live, args, kwargs)
    timeout_ms = int_or_none(job.options.get("timeout_ms"))
    copy = task.using(
        queue_name=job.queue,
        priority=job.priority,
        tags=dict(job.tags),
        max_attempts=job.options.get("max_attempts"),
        timeout=None if timeout_ms is None else timeout_ms / 1000,
    ).enqueue(*args, **kwargs)
    if copy.is_duplicate:
        messages.warning(page.request, "The job was not copied: this job holds the unique key.")
        return HttpResponseRedirect(page.url("job", copy.id))
    page.log_jobs([job.id], f"Enqueued a copy, {copy.id}")
    page.log_jobs([copy.id], f"Enqueued as a copy of {job.id}")
    messages.success(page.request, f"This copy was enqueued. The original is {job.id}.")
    return HttpResponseRedirect(page.url("job", copy.id))


def _restore_redacted(job: JobData, is_live: bool, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Restore the real values of redacted arguments. Raises InvalidOption if one is unknown."""
    given, shown = _by_place(args, kwargs), _by_place(job.args, job.kwargs)
    places = [place for place, value in given.items() if value == REDACTED]
    if not places:
        return
    if not is_live:
        raise InvalidOption(
            f"job {job.id} cannot be copied like this: it is no longer in Redis, and in its record "
            f"the arguments are redacted; replace {REDACTED} by values"
        )
    if any(shown.get(place) != REDACTED for place in places):
        raise InvalidOption(f"use {REDACTED} only for values that the job itself has redacted")
    real = _by_place(*decode_payload(Queries(connection_of(job.id)).payload(job.id)))
    for place in places:
        values: Any = args if isinstance(place, int) else kwargs
        values[place] = real[place]


def _by_place(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    return dict[int | str, Any]([*enumerate(args), *kwargs.items()])
