"""The page of one job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpResponse

from ..broker.gathers import GatherQueries
from ..broker.queries import UnreadableJob
from ..broker.workflows import WorkflowQueries
from ..client.transport import connection_of
from ..conf import get_settings
from ..core.clock import ms_of
from ..core.ids import check_job_id, periodic_prefix
from ..core.job_data import JobData
from ..core.parsing import is_storable
from ..core.text import printable
from ..core.worker_data import worker_of
from ..exceptions import CorruptJob, InvalidName, JobNotFound, RedisQueueError, WrongKeyType
from ..models import JobEvent, JobRecord, PeriodicJob
from .attempts import Attempt, attempts_of, with_groups
from .job_detail import JobDetail, detail_of, fold, read_record, time_left
from .job_policies import read_job_policies
from .pages import Page
from .policies import RELEASE
from .verbs import RUN_NOW, Verb, verbs_for

EVENTS = 200  # of the history: the newest
SCHEDULES = 5000  # names that are compared with a job's id


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
        "links": _links(page, detail),
        "time_left": time_left(detail.job, ms_of(page.health.facts.now)) if detail.job else None,
        "attempts": _attempts(detail.job, events[::-1]) if detail.job else [],
        "events": fold(events[::-1]),
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


def _attempts(job: JobData, events: Sequence[JobEvent]) -> list[Attempt]:
    return with_groups(job.task, attempts_of(job, events))


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


@dataclass(frozen=True, slots=True)
class JobLinks:
    """Where the parts of a job have pages; '' where they have none."""

    task: str
    queue: str = ""
    gather: str = ""  # its key
    schedule: str = ""
    schedule_url: str = ""
    worker: str = ""


def _links(page: Page, detail: JobDetail) -> JobLinks | None:
    job = detail.job
    if job is None:
        return None
    is_known = job.queue in get_settings().queues
    return JobLinks(
        page.url("task", name=job.task),
        page.url("queue", job.queue, job.status.value) if is_known else "",
        _gather(page, detail),
        *_schedule(page, job.id),
        page.url("workers", q=worker_of(job.child)) if job.child else "",
    )


def _gather(page: Page, detail: JobDetail) -> str:
    """The key of the gather that the job belongs to, or ''."""
    if not detail.is_live or not detail.id.startswith("gather_"):
        return ""
    try:
        return printable(GatherQueries(connection_of(detail.id)).key_of(detail.id) or "")
    except RedisQueueError as error:
        page.note(detail.id, error)
        return ""


def _schedule(page: Page, job_id: str) -> tuple[str, str]:
    """The name and page of the schedule that made the job: a hash of the name is in the id."""
    if not job_id.startswith("periodic_"):
        return "", ""
    for pk, name in PeriodicJob.objects.values_list("pk", "name")[:SCHEDULES]:
        if job_id.startswith(periodic_prefix(name)):
            return name, page.optional_url("periodicjob_change", pk)
    return "", ""


def _verbs(page: Page, detail: JobDetail) -> list[Verb]:
    """What this user can do to the job; nothing when only the mirror has it."""
    if not detail.is_live or detail.job is None:
        return []
    found = [verb for verb in verbs_for(detail.job.status) if page.has_perm(verb.permission)]
    is_parked = detail.job.waits_for is not None
    return [verb for verb in found if not (is_parked and verb is RUN_NOW)]
