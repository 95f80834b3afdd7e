"""A page where a person asks for a report; its script asks for ``states`` until all have ended.

There is no login, as the people in the report are made up: put ``login_required`` around these, and
an owner into the record, where they are real.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.formats import date_format
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from django_redisqueue.exceptions import RedisQueueError

from .models import FileDownloadRecord, User
from .tasks import request_report

PAGE = "reports/reports.html"
SHOWN = 20  # records on the page, the newest ones


@never_cache
@require_http_methods(["GET", "POST"])
def reports(request: HttpRequest) -> HttpResponse:
    """The reports there are; POST asks for another and comes back."""
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
    """What the page shows of each of its records."""
    return JsonResponse({"records": [_state(record) for record in _shown()]})


@never_cache
@require_GET
def download(request: HttpRequest, record_id: UUID) -> FileResponse:
    """The file of a report that is ready."""
    ready = FileDownloadRecord.Status.READY
    record = get_object_or_404(FileDownloadRecord, pk=record_id, status=ready)
    try:
        file = record.file.open()
    except FileNotFoundError:
        raise Http404("The report was ready, but its file is no longer there.") from None
    name = f"report {record.requested_at:%Y-%m-%d %H-%M}.csv"
    return FileResponse(file, as_attachment=True, filename=name)


def _page(request: HttpRequest, problem: str = "", status: int = 200) -> HttpResponse:
    shown = [_state(record) for record in _shown()]
    context = {
        "records": shown,
        "is_open": not all(state["ended"] for state in shown),
        "users": User.objects.filter(active=True).count(),
        "problem": problem,
    }
    return render(request, PAGE, context, status=status)


def _shown() -> list[FileDownloadRecord]:
    return list(FileDownloadRecord.objects.all()[:SHOWN])


def _state(record: FileDownloadRecord) -> dict[str, Any]:
    is_ready = record.status == FileDownloadRecord.Status.READY
    seconds = (record.ended_at - record.requested_at).total_seconds() if record.ended_at else None
    note = record.problem
    if record.missing:
        note = f"{note} Missing: {', '.join(record.missing)}."
    if is_ready:
        note = f"{record.rows:,} rows in {seconds:.2f} s"
    return {
        "id": str(record.pk),
        "requested": date_format(record.requested_at, "Y-m-d H:i:s"),
        "status": record.status,
        "ended": record.status != FileDownloadRecord.Status.REQUESTED,
        "note": note,
        "url": reverse("reports:download", args=[record.pk]) if is_ready else "",
    }
