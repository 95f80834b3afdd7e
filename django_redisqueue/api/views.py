"""What each operation does, once its user is authorized and its query is checked."""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from ..broker import sums
from ..broker.commands import Commands
from ..broker.connection import producer_connection
from ..broker.queries import UnreadableJob
from ..broker.shards import AllShards
from ..broker.workflows import STEPS_A_REQUEST, WorkflowQueries
from ..client.jobs import Job, get_job
from ..client.queue import JobQueue
from ..client.tasks import Task, once_per_request
from ..client.workflows import get_workflow
from ..conf import get_settings
from ..core.ids import shard_of_id
from ..core.job_data import JobData
from ..core.redaction import REDACTED, redact, without_frames
from ..core.statuses import Status
from ..exceptions import CorruptJob, IdempotencyConflict, RedisQueueError, WorkflowNotFound
from ..health.report import as_json, read_health
from ..health.waiting import read_why
from ..mirror.archive import find_workflow
from ..models import ErrorGroup
from .hub import STREAM_HEADERS, stream_limiter
from .requests import IDEMPOTENCY_KEY, ApiRequest, read_body, read_idempotency_key, to_positions
from .responses import (
    BOOLEAN,
    INSTANT,
    INTEGER,
    JOB_IN_PAGE,
    TEXT,
    WORKFLOW,
    ApiError,
    Field,
    Fields,
    answer,
    errors_for,
    instant,
    job_json,
    list_of,
    to_json,
)
from .streaming import ends_of_streams, poll, stream

CLEARED = 10_000  # jobs that one request deletes, which takes a few hundred milliseconds


def enqueue(request: ApiRequest) -> HttpResponseBase:
    """POST /jobs"""
    body, fingerprint = read_body(request.http)
    idempotency_key = read_idempotency_key(request.http)
    task: Task = body.pop("task")
    args, kwargs = body.pop("args", []), body.pop("kwargs", {})
    if "queue" in body:
        body["queue_name"] = body.pop("queue")
    try:
        with errors_for("args"):
            sent = task.using(**body)
        if idempotency_key:
            sent = once_per_request(sent, f"{request.user.pk} {idempotency_key}", fingerprint)
        with errors_for("args"), errors_for(IDEMPOTENCY_KEY, IdempotencyConflict):
            job = sent.enqueue(*args, **kwargs)
    except Exception as error:
        if task.redaction is not None:
            args, kwargs = [REDACTED], {}
            without_frames(error)
        raise
    document = job_json(_accepted(job, task, args, kwargs, body))
    here = request.http.path.rstrip("/")
    status = 200 if job.is_duplicate else 201
    return JsonResponse(document, status=status, headers={"Location": f"{here}/{job.id}"})


def _accepted(
    job: Job, task: Task, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]
) -> JobData | UnreadableJob:
    try:
        return job.data
    except RedisQueueError:
        # The job is in Redis or the outbox: after an error, the client would enqueue it again and
        # it would run twice.
        if task.redaction is not None:
            args, kwargs = redact(args, kwargs, task.redaction.marks(args, kwargs))
        return JobData(
            id=job.id, task=task.name, args=tuple(args), kwargs=kwargs,
            queue=options.get("queue_name", task.queue_name),
            priority=options.get("priority", task.priority), tags=options.get("tags", {}),
            status=Status.SCHEDULED if "run_after" in options else Status.QUEUED,
        )  # fmt: skip


def stats(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/stats"""
    shards = AllShards()
    found = sums.overview(shards, list(get_settings().queues))
    statuses = found[0].counts
    return answer(shards, {
        "total": {name: sum(queue.counts[name] for queue in found) for name in statuses},
        "queues": {
            queue.name: {
                "counts": queue.counts, "paused": queue.is_paused,
                "oldest_seconds": None if queue.oldest_ms is None else queue.oldest_ms / 1000,
            }
            for queue in found
        },
    })  # fmt: skip


def health(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/health"""
    return JsonResponse(as_json(read_health()))


def page(status: Status, request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/<status>"""
    queue, start, limit = (request.query[name] for name in ("queue", "start", "limit"))
    shards = AllShards()
    with errors_for("start"):
        ids = sums.job_ids(shards, queue, status, start, start + limit - 1)
    rows = [job_json(job, JOB_IN_PAGE) for job in sums.outlines(shards, ids)]
    return answer(shards, {
        "queue": queue, "status": status, "start": start, "limit": limit,
        "next": start + limit if len(ids) == limit else None, "jobs": rows,
    })  # fmt: skip


def clear(status: Status, request: ApiRequest) -> HttpResponseBase:
    """DELETE /jobs/<status>"""
    queue = JobQueue(request.query["queue"])
    cleared = queue.clear(status, limit=CLEARED)
    left = queue.get_stats()[status]
    return JsonResponse({"queue": queue.name, "status": status, "cleared": cleared, "left": left})


def job(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/<id>"""
    found = _find(request.path["id"])
    document = job_json(found)
    if isinstance(found, JobData):
        document["why_not_running"] = read_why(found, producer_connection(shard_of_id(found.id)))
    return JsonResponse(document)


def _find(job_id: str) -> JobData | UnreadableJob:
    try:
        return get_job(job_id).data
    except CorruptJob as error:
        return UnreadableJob(job_id, str(error))


def retry(request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/<id>/retry"""
    job_id = request.path["id"]
    Job(job_id).requeue()
    return JsonResponse(job_json(_find(job_id)))


def cancel(request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/<id>/cancel"""
    job_id = request.path["id"]
    if not Job(job_id).cancel():
        raise ApiError(409, "wrong_state", f"job {job_id} has finished and cannot be cancelled")
    return JsonResponse(job_json(_find(job_id)))


def events(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/events"""
    after = request.query["last_event_id"]
    header = request.http.headers.get("Last-Event-ID", "").strip()
    if header:
        with errors_for("Last-Event-ID"):
            after = to_positions(header, "Last-Event-ID")
    content_type = "text/event-stream; charset=utf-8"
    if not isinstance(request.http, ASGIRequest):
        return HttpResponse(poll(after), content_type=content_type)
    stream_limiter.check(request.user.pk)
    try:
        begin = ends_of_streams() if after is None else after
    finally:
        # This thread is the request's own, and lives as long as the stream.
        producer_connection().close_all()
    return StreamingHttpResponse(
        stream(request.user.pk, begin), content_type=content_type, headers=STREAM_HEADERS
    )


def workflow(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/workflows/<id>"""
    workflow_id = request.path["flow"]
    connection = producer_connection(shard_of_id(workflow_id))
    found = WorkflowQueries(connection).workflow(workflow_id) or find_workflow(workflow_id)
    if found is None:
        try:
            found = get_workflow(workflow_id).data  # from the outbox
        except WorkflowNotFound:
            text = f"workflow {workflow_id} is neither in Redis nor in the mirror"
            raise WorkflowNotFound(text) from None
    return JsonResponse(to_json(WORKFLOW, found))


def control_workflow(command: str, request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/workflows/<id>/pause, release, cancel"""
    workflow_id = request.path["flow"]
    connection = producer_connection(shard_of_id(workflow_id))
    code = Commands(connection).control_workflow_and_advance(workflow_id, command, STEPS_A_REQUEST)
    if code < 0 and command == "cancel":
        code = int(get_workflow(workflow_id).cancel())  # it may be in the outbox
    if code < 0:
        raise WorkflowNotFound(
            f"workflow {workflow_id} is not in Redis: it was not pushed, or it was cleaned up"
        )
    data = WorkflowQueries(connection).workflow(workflow_id)
    if data is None:
        raise WorkflowNotFound(f"workflow {workflow_id} was just cleaned up")
    if code == 0:
        state = f"{data.status.value} and paused" if data.is_paused else data.status.value
        raise ApiError(
            409, "wrong_state", f"workflow {workflow_id} is {state}: {command} changes nothing"
        )
    return JsonResponse(to_json(WORKFLOW, data))


ERROR_GROUP: Fields = {
    "id": Field(TEXT),
    "task": Field(TEXT),
    "exception": Field(TEXT, "Empty for unknown errors, and for those beyond the cap on groups."),
    "message": Field(TEXT, "The message, with placeholders for values."),
    "frame": Field(TEXT, "The last frame in the application's own code."),
    "queues": Field(list_of(TEXT), get=lambda group: group.queue_names),
    "failed": Field(INTEGER, "How often a job failed with this error."),
    "retried": Field(INTEGER, "How often an attempt was retried after this error."),
    "first_seen": Field(INSTANT, get=lambda group: instant(group.first_seen)),
    "last_seen": Field(INSTANT, get=lambda group: instant(group.last_seen)),
    "last_job": Field(TEXT, get=lambda group: group.job_id),
    "silenced": Field(BOOLEAN, get=lambda group: group.silenced_at is not None),
}


def error_groups(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/errors"""
    start, limit = request.query["start"], request.query["limit"]
    rows = ErrorGroup.objects.defer("error", "hours").order_by("-last_seen", "pk")
    found = list(rows[start : start + limit + 1])
    following = start + limit if len(found) > limit else None
    errors = [to_json(ERROR_GROUP, group) for group in found[:limit]]
    return JsonResponse({"next": following, "errors": errors})
