"""Errors of jobs in groups, as the mirror has counted them."""

from __future__ import annotations

from typing import Any

from django.http import JsonResponse
from django.http.response import HttpResponseBase

from ..models import ErrorGroup
from . import rendering
from .endpoints import ApiRequest
from .rendering import INSTANT, INTEGER, TEXT, Schema


def error_groups(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/errors"""
    start, limit = request.query["start"], request.query["limit"]
    rows = ErrorGroup.objects.defer("error", "hours").order_by("-last_seen", "pk")
    found = list(rows[start : start + limit + 1])
    following = start + limit if len(found) > limit else None
    return JsonResponse({"next": following, "errors": [_json(group) for group in found[:limit]]})


def _json(group: ErrorGroup) -> dict[str, Any]:
    return {
        "id": group.pk, "task": group.task, "exception": group.exception, "message": group.message,
        "frame": group.frame, "queues": group.queue_names, "failed": group.failed,
        "retried": group.retried, "first_seen": rendering.instant(group.first_seen),
        "last_seen": rendering.instant(group.last_seen), "last_job": group.job_id,
        "silenced": group.silenced_at is not None,
    }  # fmt: skip


def error_groups_schema() -> Schema:
    group = rendering.an_object(
        id=TEXT,
        task=TEXT,
        exception={**TEXT, "description": "'' for errors that are not known, or beyond the bound."},
        message={**TEXT, "description": "With placeholders for values."},
        frame={**TEXT, "description": "The last one of the application's own code."},
        queues={"type": "array", "items": TEXT},
        failed={**INTEGER, "description": "How often a job failed with it."},
        retried={**INTEGER, "description": "How often an attempt was retried after it."},
        first_seen=INSTANT,
        last_seen=INSTANT,
        last_job=TEXT,
        silenced={"type": "boolean"},
    )
    following = {"type": ["integer", "null"], "description": "The next page's start."}
    return rendering.an_object(next=following, errors={"type": "array", "items": group})
