"""One job: all that is known of it, from Redis or from the mirror."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse

from ..codec import decode_payload
from ..exceptions import (
    CorruptJob,
    InvalidName,
    InvalidOption,
    JobNotFound,
    RedisQueueError,
    WrongKeyType,
)
from ..ids import check_job_id
from ..jobdata import JobData
from ..models import JobEvent, JobRecord
from ..parsing import is_storable
from ..redaction import REDACTED
from ..registry import get_task
from ..states import Status
from ..store.transitions import Transitions
from ..store.workflows import WorkflowReads
from ..tasks import Signature, Task
from ..texts import printable
from .actions import posted, the_verb
from .audit import log_jobs
from .pages import Page
from .sheet import Sheet, from_record, from_redis, moment_of
from .verbs import verbs_for

EVENTS = 200  # of the timeline: the newest


def find(page: Page, job_id: str, *, told: bool = True) -> Sheet:
    """From Redis, else from the mirror. Raises Http404."""
    problem = ""
    try:
        return from_redis(page.reads.job(check_job_id(job_id)))
    except (InvalidName, JobNotFound):
        pass
    except CorruptJob as error:
        if error.known is not None:
            return from_redis(error.known, str(error))
        problem = str(error)
    except RedisQueueError as error:
        if told:
            page.tell(messages.ERROR, str(error))
    record = JobRecord.objects.filter(pk=job_id).first() if is_storable(job_id) else None
    if record is not None:
        return from_record(record)
    if problem:
        return Sheet(id=job_id, source="Redis", problem=problem)
    raise Http404(f"no job {job_id}, neither in Redis nor in the mirror")


def job_page(page: Page, job_id: str) -> HttpResponse:
    """The page; with ``live`` in the query only what changes."""
    live = "live" in page.request.GET
    sheet = find(page, job_id, told=not live)
    events = list(JobEvent.objects.filter(job_id=job_id).order_by("-id")[:EVENTS])
    parents, dependants = _relatives(page, sheet)
    context: dict[str, Any] = {
        "sheet": sheet,
        "parents": parents,
        "dependants": dependants,
        "events": [moment_of(event) for event in reversed(events)],
        "more_events": len(events) == EVENTS,
        "verbs": _verbs(page, sheet),
        "may_copy": bool(sheet.task) and page.may("enqueue_job"),
    }
    if live:
        return page.answer(["job"], **context)
    return page.draw(
        "job",
        f"Job {sheet.id}",
        **context,
        live=page.live("job", job_id),
    )


def _relatives(page: Page, sheet: Sheet) -> tuple[list[str], list[str]]:
    """Whom it waits for, and who waits for it, where Redis still knows."""
    if sheet.source != "Redis":
        return [], []
    try:
        parents, dependants = WorkflowReads(page.reads.link).relatives(sheet.id)
        return list(map(printable, parents)), list(map(printable, dependants))
    except WrongKeyType:  # its hash is none, which the page says already
        return [], []


def _verbs(page: Page, sheet: Sheet) -> list[Any]:
    """What can be done to it: nothing to a job that Redis has let go."""
    if sheet.source != "Redis" or not sheet.status:
        return []
    return [verb for verb in verbs_for(Status(sheet.status)) if page.may(verb.permission)]


@posted
def act_on_job(page: Page, job_id: str) -> HttpResponse:
    """Retry, cancel, delete, or with ``copy`` enqueue it once more."""
    if page.request.POST.get("verb") == "copy":
        return _copy(page, job_id)
    job = _known(page, check_job_id(job_id))
    verb = the_verb(page, job.status)
    done = verb.act(Transitions(page.reads.link), [job.id])
    log_jobs(page, done, verb.label)
    if done:
        page.tell(messages.SUCCESS, f"The job was {verb.done}.")
    else:
        page.tell(messages.WARNING, "The job had changed meanwhile, and stayed as it was.")
    if verb.name == "delete" and not JobRecord.objects.filter(pk=job.id).exists():
        return page.go(page.url("queue", job.queue, job.status.value))
    return page.go(page.url("job", job.id))


def _known(page: Page, job_id: str) -> JobData:
    """The job, also one of which only a part can be read."""
    try:
        return page.reads.job(job_id)
    except CorruptJob as error:
        if not isinstance(error.known, JobData):
            raise
        return error.known


def _copy(page: Page, job_id: str) -> HttpResponse:
    """A new job of the same task with the same arguments and tags, on the same queue."""
    page.require("enqueue_job")
    sheet = find(page, job_id)
    if sheet.problem:
        raise InvalidOption(f"the job cannot be copied: {sheet.problem}")
    call = _call_of(page, sheet)
    task = call.task.using(queue_name=sheet.queue, priority=sheet.priority, tags=sheet.tags or {})
    copy = task.enqueue(*call.args, **call.kwargs)
    log_jobs(page, [job_id], f"Enqueued a copy, {copy.id}")
    log_jobs(page, [copy.id], f"Enqueued as a copy of {job_id}")
    page.tell(messages.SUCCESS, f"A copy was enqueued; this is it. The first was {job_id}.")
    return page.go(page.url("job", copy.id))


def _call_of(page: Page, sheet: Sheet) -> Signature:
    """With what is redacted where it is shown, and which a Signature's repr leaves out. Raises
    InvalidOption when nobody has that still."""
    task: Task = get_task(sheet.task)
    args, kwargs = sheet.args, sheet.kwargs or {}
    if REDACTED not in [*args, *kwargs.values()]:
        return task.s(*args, **kwargs)
    if sheet.source != "Redis":
        raise InvalidOption(
            f"job {sheet.id} cannot be copied: Redis has let it go, and its record has its "
            "arguments redacted"
        )
    return Signature(task, *decode_payload(page.reads.payload(sheet.id)))
