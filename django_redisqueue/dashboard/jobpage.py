"""One job: all that is known of it, from Redis or from the mirror."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse

from ..clock import from_ms
from ..codec import decode_payload, dumps
from ..exceptions import (
    CorruptJob,
    InvalidName,
    InvalidOption,
    JobNotFound,
    RedisQueueError,
)
from ..ids import check_job_id
from ..jobdata import JobData, JobError, Progress
from ..models import JobEvent, JobRecord
from ..redaction import REDACTED
from ..registry import get_task
from ..states import Status
from ..store.transitions import Transitions
from . import words
from .actions import posted, the_verb
from .audit import log_jobs
from .pages import Page
from .verbs import verbs_for

EVENTS = 200  # of the timeline: the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A job as its page shows it. ``source``: "Redis", or "the mirror" when Redis let it go."""

    id: str
    source: str
    task: str = ""
    queue: str = ""
    status: str = ""
    priority: int = 0
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    result: Any = None
    error: JobError | None = None
    progress: Progress | None = None
    worker: str = ""
    attempts: int = 0
    recoveries: int | None = None
    requeues: int = 0
    enqueued_at: datetime | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_asked: bool = False
    problem: str = ""

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """(name or place, value as JSON)"""
        placed = [(str(at), dumps(value)) for at, value in enumerate(self.args, 1)]
        return placed + [(name, dumps(value)) for name, value in (self.kwargs or {}).items()]

    @property
    def result_text(self) -> str:
        return dumps(self.result)

    @property
    def is_completed(self) -> bool:
        return self.status == Status.COMPLETED

    @property
    def percent(self) -> int:
        if self.progress is None or self.progress.total <= 0:
            return 0
        return max(0, min(100, round(100 * self.progress.done / self.progress.total)))

    @property
    def waited(self) -> str:
        return _between(self.enqueued_at, self.started_at)

    @property
    def ran(self) -> str:
        return _between(self.started_at, self.finished_at)


def _between(first: datetime | None, last: datetime | None) -> str:
    if first is None or last is None or last < first:
        return ""
    return words.duration((last - first).total_seconds() * 1000)


def from_redis(job: JobData) -> Sheet:
    return Sheet(
        id=job.id, source="Redis", task=job.task, queue=job.queue, status=job.status.value,
        priority=job.priority, args=job.args, kwargs=dict(job.kwargs), result=job.result,
        error=job.error, progress=job.progress, worker=job.child, attempts=job.attempts,
        recoveries=job.recoveries, requeues=job.generation, enqueued_at=from_ms(job.enqueued_ms),
        due_at=from_ms(job.due_ms), started_at=from_ms(job.started_ms),
        finished_at=from_ms(job.finished_ms), cancel_asked=job.cancel_ms is not None,
    )  # fmt: skip


def from_record(record: JobRecord) -> Sheet:
    shared: dict[str, Any] = {
        "id": record.id, "source": "the mirror", "task": record.task, "queue": record.queue,
        "status": record.status, "priority": record.priority, "worker": record.worker,
        "attempts": record.attempts, "requeues": record.requeues,
        "enqueued_at": record.enqueued_at, "due_at": record.due_at,
        "started_at": record.started_at, "finished_at": record.finished_at,
    }  # fmt: skip
    try:
        args, kwargs = (record.args, dict(record.kwargs)) if record.payload else ((), {})
        return Sheet(
            **shared, args=args, kwargs=kwargs, result=record.result_value,
            error=record.job_error, progress=record.job_progress,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        return Sheet(**shared, problem=f"its record can not be read: {error}")


def find(page: Page, job_id: str, *, told: bool = True) -> Sheet:
    """From Redis, else from the mirror. Raises Http404."""
    problem = ""
    try:
        return from_redis(page.reads.job(check_job_id(job_id)))
    except (InvalidName, JobNotFound):
        pass
    except CorruptJob as error:
        problem = str(error)
    except RedisQueueError as error:
        if told:
            page.tell(messages.ERROR, str(error))
    record = JobRecord.objects.filter(pk=job_id).first()
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
    context: dict[str, Any] = {
        "sheet": sheet,
        "events": events[::-1],
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
        live={"url": page.url("job", job_id, live=1), "poll": 2000},
    )


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
    job = page.reads.job(check_job_id(job_id))
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


def _copy(page: Page, job_id: str) -> HttpResponse:
    """A new job of the same task with the same arguments, on the same queue."""
    page.require("enqueue_job")
    sheet = find(page, job_id)
    if sheet.problem:
        raise InvalidOption(f"the job can not be copied: {sheet.problem}")
    args, kwargs = _real_arguments(page, sheet)
    task = get_task(sheet.task).using(queue_name=sheet.queue, priority=sheet.priority)
    copy = task.enqueue(*args, **kwargs)
    log_jobs(page, [job_id], f"Enqueued a copy, {copy.id}")
    log_jobs(page, [copy.id], f"Enqueued as a copy of {job_id}")
    page.tell(messages.SUCCESS, f"A copy was enqueued; this is it. The first was {job_id}.")
    return page.go(page.url("job", copy.id))


def _real_arguments(page: Page, sheet: Sheet) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """With what is redacted where it is shown. Raises InvalidOption when nobody has that still."""
    args, kwargs = sheet.args, sheet.kwargs or {}
    if REDACTED not in [*args, *kwargs.values()]:
        return args, kwargs
    if sheet.source != "Redis":
        raise InvalidOption(
            f"job {sheet.id} can not be copied: Redis has let it go, and its record has its "
            "arguments redacted"
        )
    return decode_payload(page.reads.payload(sheet.id))
