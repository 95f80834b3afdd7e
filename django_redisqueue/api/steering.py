"""Numbers of limits, weights of shares, and pauses: what their operations do."""

from __future__ import annotations

from typing import Any

from django.http import JsonResponse
from django.http.response import HttpResponseBase

from ..broker import sums
from ..broker.shards import AllShards
from ..client.limits import NO_KEY, parse_key, parse_number, set_limit, set_weight
from ..client.queue import JobQueue
from ..conf import get_settings
from ..core.clock import from_ms
from ..core.parsing import int_or_none
from ..exceptions import InvalidOption
from .endpoints import ApiRequest
from .errors import errors_for
from .partial import answer, partial_object
from .rendering import INSTANT, TEXT, Schema, an_object, instant

NONE = "none"  # removes what was set
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def set_number(request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/limits/set"""
    with errors_for("number"):
        number = parse_number(request.query["number"])
    with errors_for("limit"):
        key = parse_key(request.query["key"])
        changed = set_limit(request.query["limit"], number, key=key)
    return JsonResponse({"changed": changed})


def set_share_weight(request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/shares/set"""
    text = request.query["weight"]
    with errors_for("weight"):
        weight = None if text == NONE else int_or_none(text)
        if weight is None and text != NONE:
            raise InvalidOption(f"weight must be a whole number, or none, not {text!r}")
        changed = set_weight(request.query["share"], weight)
    return JsonResponse({"changed": changed})


def pause(request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/pauses/pause, resume"""
    queue, share, limit = (request.query[name] for name in ("queue", "share", "limit"))
    with errors_for("limit"):
        part: dict[str, Any] = {
            "share": share or NO_KEY,
            "limit": limit or None,
            "key": parse_key(request.query["key"]),
        }
        found = JobQueue(queue)
        act = found.pause if request.path["verb"] == "pause" else found.resume
        changed = act(by=request.caller, **part)
    return JsonResponse({"changed": changed})


def pauses(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/pauses"""
    shards, names = AllShards(), sorted(get_settings().queues)
    whole = [queue for queue in sums.overview(shards, names) if queue.is_paused]
    parts = sums.pauses(shards, names)
    rows = [
        *((one.name, None, one.paused_ms, one.paused_by) for one in whole),
        *((one.queue, one.name, one.since_ms, one.by) for one in parts),
    ]
    return answer(shards, {"pauses": [
        {"queue": queue, "part": part, "since": instant(from_ms(since)), "by": by or None}
        for queue, part, since, by in rows
    ]})  # fmt: skip


def pauses_schema() -> Schema:
    row = an_object(
        queue=TEXT,
        part={
            **TEXT_OR_NULL,
            "description": "share gold or limit stripe:42; null for the whole queue.",
        },
        since=INSTANT,
        by={**TEXT_OR_NULL, "description": "Who paused it, if known."},
    )
    return partial_object(pauses={"type": "array", "items": row})
