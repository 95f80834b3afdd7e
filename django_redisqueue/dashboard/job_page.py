"""One job: its page, and what can be done to it there."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse

from ..broker.queries import Queries, UnreadableJob
from ..broker.workflows import WorkflowQueries
from ..client.registry import get_task
from ..client.tasks import Signature, Task
from ..client.transport import connection_of
from ..core.codec import decode_payload
from ..core.ids import check_job_id
from ..core.job_data import JobData
from ..core.parsing import is_storable
from ..core.redaction import REDACTED
from ..core.text import printable
from ..exceptions import (
    CorruptJob,
    InvalidName,
    InvalidOption,
    JobNotFound,
    RedisQueueError,
    WrongKeyType,
)
from ..models import JobEvent, JobRecord
from .actions import posted, requested_verb
from .job_detail import JobDetail, detail_of, read_record, timeline_entry
from .job_policies import read_job_policies
from .pages import Page, log_jobs
from .policies import RELEASE
from .verbs import Verb, verbs_for

EVENTS = 200  # of the history: the newest


def job_page(page: Page, job_id: str) -> HttpResponse:
    """The whole page, or with ``live`` in the query only the part that changes."""
    is_live = "live" in page.request.GET
    detail = find(page, job_id)
    events = list(JobEvent.objects.filter(job_id=job_id).order_by("-id")[:EVENTS])
    parents, dependants = _relatives(page, detail)
    policies = read_job_policies(page, detail, parents)
    context: dict[str, Any] = {
        "detail": detail,
        "why_record": ""
        if detail.is_live or detail.job is None
        else page.why_record("job", job_id),
        "job": detail.job,
        "policies": policies,
        "parents": parents,
        "dependants": dependants,
        "events": [timeline_entry(event) for event in reversed(events)],
        "more_events": len(events) == EVENTS,
        "verbs": _verbs(page, detail),
        "may_release": page.has_perm(RELEASE),
        "may_copy": detail.job is not None and page.has_perm("enqueue_job"),
    }
    if is_live:
        return page.render_parts(["job"], **context)
    live = page.live_options("job", job_id)
    is_unknown = page.is_away(job_id) and detail.job is None
    code = 503 if is_unknown else 200
    return page.render("job", f"Job {job_id}", code=code, **context, live=live)


def find(page: Page, job_id: str) -> JobDetail:
    """The job from Redis, else from the mirror. Raises Http404."""
    problem = ""
    try:
        return detail_of(page.queries_of(job_id).job(check_job_id(job_id)), is_live=True)
    except (InvalidName, JobNotFound):
        pass
    except CorruptJob as error:
        if error.known is not None:
            return detail_of(UnreadableJob(job_id, str(error), error.known), is_live=True)
        problem = str(error)
    except RedisQueueError as error:
        page.note(job_id, error)
        if page.is_away(job_id):
            problem = "Redis does not answer, and the mirror has no record of it."
    record = JobRecord.objects.filter(pk=job_id).first() if is_storable(job_id) else None
    if record is not None:
        return detail_of(read_record(record), is_live=False)
    if problem:
        return JobDetail(job_id, None, problem, is_live=not page.is_away(job_id))
    raise Http404(f"no job {job_id}, neither in Redis nor in the mirror")


def _relatives(page: Page, detail: JobDetail) -> tuple[list[str], list[str]]:
    """The ids of its parents and dependants, as far as Redis still has them."""
    if not detail.is_live:
        return [], []
    try:
        parents, dependants = WorkflowQueries(connection_of(detail.id)).relatives(detail.id)
        return list(map(printable, parents)), list(map(printable, dependants))
    except WrongKeyType:  # the page already says that the job's key is not a hash
        return [], []


def _verbs(page: Page, detail: JobDetail) -> list[Verb]:
    """What this user can do to the job; nothing when only the mirror has it."""
    if not detail.is_live or detail.job is None:
        return []
    return [verb for verb in verbs_for(detail.job.status) if page.has_perm(verb.permission)]


@posted
def act_on_job(page: Page, job_id: str) -> HttpResponse:
    """Retry, cancel, delete or copy one job."""
    if page.request.POST.get("verb") == "copy":
        return _copy(page, job_id)
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


def _copy(page: Page, job_id: str) -> HttpResponse:
    """Enqueue a new job with the same task, arguments, tags, queue and priority."""
    page.require("enqueue_job")
    detail = find(page, job_id)
    if detail.job is None or detail.problem:
        raise InvalidOption(f"the job cannot be copied: {detail.problem}")
    job = detail.job
    call = _call_of(page, job, detail.is_live)
    task = call.task.using(queue_name=job.queue, priority=job.priority, tags=job.tags)
    copy = task.enqueue(*call.args, **call.kwargs)
    log_jobs(page, [job_id], f"Enqueued a copy, {copy.id}")
    log_jobs(page, [copy.id], f"Enqueued as a copy of {job_id}")
    page.add_message(
        messages.SUCCESS, f"A copy was enqueued; this is it. The original is {job_id}."
    )
    return page.redirect(page.url("job", copy.id))


def _call_of(page: Page, job: JobData, is_live: bool) -> Signature:
    """The task with the original arguments, also those that are redacted where they are shown.

    Raises InvalidOption when only the redacted arguments are left.
    """
    task: Task = get_task(job.task)
    if REDACTED not in [*job.args, *job.kwargs.values()]:
        return task.s(*job.args, **job.kwargs)
    if not is_live:
        raise InvalidOption(
            f"job {job.id} cannot be copied: it is not in Redis any more, and its record has its "
            "arguments redacted"
        )
    return Signature(task, *decode_payload(Queries(connection_of(job.id)).payload(job.id)))
