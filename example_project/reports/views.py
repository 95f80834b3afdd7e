"""A page for requesting a report; its script polls ``states`` until all reports have ended.

It requires no login, because the people in the report are made up. If they are real, use
``login_required``, and give the record an owner.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from django_redisqueue import get_gather
from django_redisqueue.exceptions import GatherNotFound, RedisQueueError, RedisUnavailable

from .downloads import fail
from .models import FileDownloadRecord, User
from .tasks import request_report

Status = FileDownloadRecord.Status
PAGE = "reports/reports.html"
SHOWN = 20  # the newest records, on the page
LOST_AFTER = timedelta(minutes=15)  # for a gather to appear; it is kept for at least 10


@never_cache
@require_http_methods(["GET", "POST"])
def reports(request: HttpRequest) -> HttpResponse:
    """List the reports; POST requests another one and returns here."""
    if request.method == "GET":
        return _page(request)
    if not User.objects.exists():
        return _page(request, "There are no users to report on.", 409)
    try:
        request_report()
    except RedisQueueError as error:
        return _page(request, str(error), 503)
    return redirect("reports:list")


@never_cache
@require_GET
def states(request: HttpRequest) -> JsonResponse:
    """Return what the page shows of each record."""
    return JsonResponse({"records": _states()})


@never_cache
@require_GET
def download(request: HttpRequest, record_id: UUID) -> FileResponse:
    """Return the file of a report that is ready."""
    record = get_object_or_404(FileDownloadRecord, pk=record_id, status=Status.READY)
    try:
        file = record.file.open()
    except FileNotFoundError:
        raise Http404("The report was ready, but its file is no longer there.") from None
    name = f"report {record.requested_at:%Y-%m-%d %H-%M}.csv"
    return FileResponse(file, as_attachment=True, filename=name)


def _page(request: HttpRequest, problem: str = "", status: int = 200) -> HttpResponse:
    shown = _states()
    context = {
        "records": shown,
        "is_open": not all(state["ended"] for state in shown),
        "users": User.objects.filter(active=True).count(),
        "problem": problem,
    }
    return render(request, PAGE, context, status=status)


def _states() -> list[dict[str, Any]]:
    found = list(FileDownloadRecord.objects.all()[:SHOWN])
    progress: dict[UUID, str] = {}
    try:
        for record in found:
            if not record.ended_at:
                progress[record.pk] = _progress(record)
    except RedisUnavailable:
        pass  # the page shows what the database has
    return [
        _state(record, _note(record) if record.ended_at else progress.get(record.pk, ""))
        for record in found
    ]


def _note(record: FileDownloadRecord) -> str:
    """The outcome of a report."""
    if record.status == Status.READY:
        return f"{record.rows:,} rows in {record.seconds:.2f} s"
    missing = f" Missing: {', '.join(record.missing)}." if record.missing else ""
    return record.problem + missing


def _progress(record: FileDownloadRecord) -> str:
    """How many listeners have answered. Raises RedisUnavailable.

    Redis deletes a gather some time after its end. A gather that is not in Redis either waits in
    the outbox until Redis is back, or was lost by Redis. In that case nothing else would ever end
    the report.
    """
    try:
        gather = get_gather(record.key).data
    except GatherNotFound:
        if timezone.now() - record.requested_at > LOST_AFTER:
            fail(str(record.pk), "The queue lost this report. Please request another one.")
            record.refresh_from_db()
        return ""
    return f"{gather.done_count} of {len(gather.listeners)} sources answered"


def _state(record: FileDownloadRecord, note: str) -> dict[str, Any]:
    is_ready = record.status == Status.READY
    return {
        "id": str(record.pk),
        "requested": date_format(record.requested_at, "Y-m-d H:i:s"),
        "status": record.status,
        "ended": record.status != Status.REQUESTED,
        "note": note,
        "url": reverse("reports:download", args=[record.pk]) if is_ready else "",
    }
