"""What each operation does, once its caller is known and its query is checked."""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from ..conf import get_settings
from ..connection import producer_link
from ..exceptions import CorruptJob, RedisQueueError
from ..jobdata import JobData
from ..jobs import Job, get_job
from ..queue import JobQueue
from ..redaction import REDACTED, redact, without_frames
from ..states import Status
from ..store.overview import QueueOverview
from ..store.reads import Broken, Reads
from ..streams import RETRY_AFTER, TooManyStreams, places
from ..tasks import Task
from .body import read_body
from .endpoints import Call
from .errors import ApiError, naming
from .params import to_position
from .present import show, show_in_page
from .streaming import end_of_stream, poll, stream

CLEARED = 10_000  # jobs a request at the most: some hundred milliseconds


def enqueue(call: Call) -> HttpResponseBase:
    """POST /jobs"""
    body = read_body(call.request)
    task: Task = body.pop("task")
    args, kwargs = body.pop("args", []), body.pop("kwargs", {})
    if "queue" in body:
        body["queue_name"] = body.pop("queue")
    try:
        with naming("args"):
            job = task.using(**body).enqueue(*args, **kwargs)
    except Exception as error:
        if task.redaction is not None:
            args, kwargs = [REDACTED], {}
            without_frames(error)
        raise
    shown = show(_as_taken(job, task, args, kwargs, body))
    here = call.request.path.rstrip("/")
    return JsonResponse(shown, status=201, headers={"Location": f"{here}/{job.id}"})


def _as_taken(
    job: Job, task: Task, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]
) -> JobData | Broken:
    try:
        return job.data
    except RedisQueueError:
        # It is in (or in the outbox): an error now would make the client send it again, and it
        # would run twice.
        if task.redaction is not None:
            args, kwargs = redact(args, kwargs, task.redaction.marks(args, kwargs))
        return JobData(
            id=job.id, task=task.name, args=tuple(args), kwargs=kwargs,
            queue=options.get("queue_name", task.queue_name),
            priority=options.get("priority", task.priority), tags=options.get("tags", {}),
            status=Status.SCHEDULED if "run_after" in options else Status.QUEUED,
        )  # fmt: skip


def stats(call: Call) -> HttpResponseBase:
    """GET /jobs/stats"""
    found = Reads(producer_link()).overview(list(get_settings().queues))
    statuses = found[0].counts
    return JsonResponse({
        "total": {name: sum(queue.counts[name] for queue in found) for name in statuses},
        "queues": {queue.name: _queue(queue) for queue in found},
    })  # fmt: skip


def _queue(queue: QueueOverview) -> dict[str, Any]:
    age = None if queue.oldest_ms is None else queue.oldest_ms / 1000
    return {"counts": queue.counts, "paused": queue.is_paused, "oldest_seconds": age}


def page(call: Call) -> HttpResponseBase:
    """GET /jobs/<status>"""
    queue, start, limit = (call.query[name] for name in ("queue", "start", "limit"))
    status = call.path["status"]
    reads = Reads(producer_link())
    ids = reads.ids(queue, Status(status), start, start + limit - 1)
    rows = [show_in_page(job) for job in reads.outlines(ids)]
    return JsonResponse({
        "queue": queue, "status": status, "start": start, "limit": limit,
        "next": start + limit if len(rows) == limit else None, "jobs": rows,
    })  # fmt: skip


def clear(call: Call) -> HttpResponseBase:
    """DELETE /jobs/<status>"""
    queue, status = JobQueue(call.query["queue"]), call.path["status"]
    cleared = queue.clear(status, limit=CLEARED)
    left = queue.get_stats()[status]
    return JsonResponse({"queue": queue.name, "status": status, "cleared": cleared, "left": left})


def job(call: Call) -> HttpResponseBase:
    """GET /jobs/<id>"""
    return JsonResponse(show(_find(call.path["id"])))


def _find(job_id: str) -> JobData | Broken:
    try:
        return get_job(job_id).data
    except CorruptJob as error:
        return Broken(job_id, str(error))


def retry(call: Call) -> HttpResponseBase:
    """POST /jobs/<id>/retry"""
    job_id = call.path["id"]
    Job(job_id).requeue()
    return JsonResponse(show(_find(job_id)))


def cancel(call: Call) -> HttpResponseBase:
    """POST /jobs/<id>/cancel"""
    job_id = call.path["id"]
    if not Job(job_id).cancel():
        raise ApiError(409, "wrong_state", f"job {job_id} has finished; there is nothing to cancel")
    return JsonResponse(show(_find(job_id)))


def events(call: Call) -> HttpResponseBase:
    """GET /jobs/events"""
    after = call.query["last_event_id"]
    header = call.request.headers.get("Last-Event-ID", "").strip()
    if header:
        after = to_position(header, "Last-Event-ID")
    headers = {"X-Accel-Buffering": "no"}  # else nginx holds events back until a buffer is full
    content_type = "text/event-stream; charset=utf-8"
    if not isinstance(call.request, ASGIRequest):
        return HttpResponse(poll(after), content_type=content_type, headers=headers)
    try:
        places.check(call.user.pk)
    except TooManyStreams as error:
        headers = {"Retry-After": str(RETRY_AFTER)}
        raise ApiError(error.status, "too_many_streams", str(error), headers=headers) from error
    try:
        begin = end_of_stream() if after is None else after
    finally:
        producer_link().close()  # this thread is the request's own, and lives as long as the stream
    return StreamingHttpResponse(
        stream(call.user.pk, begin), content_type=content_type, headers=headers
    )
