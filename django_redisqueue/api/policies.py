"""Limits, shares, pauses, unique keys, schedules and waits: their operations, and the
schemas of their answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django.http import JsonResponse
from django.http.response import HttpResponseBase

from ..broker import sums
from ..broker.policies import HOLDERS, QUEUES
from ..broker.schedules import UnreadableSchedule
from ..broker.shards import AllShards
from ..client.limits import (
    NO_KEY,
    parse_key,
    parse_number,
    parse_weight,
    release_unique_key,
    set_limit,
    set_weight,
)
from ..client.queue import JobQueue
from ..conf import get_settings
from ..core.job_data import WaitKind
from ..core.schedules import ScheduleData, Source
from ..core.text import printable
from .requests import ApiRequest
from .responses import (
    BOOLEAN,
    INSTANT,
    INTEGER,
    TEXT,
    TEXT_OR_NULL,
    ApiError,
    Field,
    Fields,
    Schema,
    an_object,
    answer,
    errors_for,
    instant_ms,
    list_of,
    ms_field,
    one_of,
    partial_object,
    schema_of,
    to_json,
)

COUNT_OR_NULL: Schema = {"type": ["integer", "null"], "description": "Null if unreadable."}
NEXT: Schema = {**TEXT_OR_NULL, "description": "The `after` parameter of the next page."}

Row = TypeVar("Row")


def _seconds(attribute: str, help: str) -> Field:
    """A duration; the attribute is in milliseconds."""

    def get(found: object) -> float | None:
        ms: float | None = getattr(found, attribute)
        return None if ms is None else ms / 1000

    return Field({"type": ["number", "null"]}, help, get)


def _page(
    request: ApiRequest,
    name: str,
    read: Callable[[AllShards, str, int], tuple[list[Row], str]],
    to_row: Callable[[Row], dict[str, Any]],
    **totals: Callable[[AllShards], Any],
) -> HttpResponseBase:
    """The page that the query names: ``totals``, the rows, and the ``after`` of the next page."""
    shards = AllShards()
    with errors_for("after"):
        rows, following = read(shards, request.query["after"], request.query["limit"])
    return answer(shards, {
        **{name: count(shards) for name, count in totals.items()},
        "next": printable(following) or None,
        name: [to_row(row) for row in rows],
    })  # fmt: skip


LIMIT: Fields = {
    "name": Field(TEXT, "The limit and the value of its key, such as stripe:42."),
    "kind": Field(
        one_of(["concurrency", "rate"]), get=lambda one: "rate" if one.is_rate else "concurrency"
    ),
    "used": Field(INTEGER, "Running jobs; 0 for a rate."),
    "most": Field({"type": ["integer", "null"]}, "The limit; null for a rate, or if unlimited."),
    "rate": Field(TEXT_OR_NULL, "Such as 100 in 1m.", lambda one: one.rate and str(one.rate)),
    "next_start_in": _seconds("next_ms", "Seconds until a job may start; null if not a rate."),
    "holders": Field(
        list_of(TEXT), f"Jobs that hold a slot, at most {HOLDERS}.",
        lambda one: [holder.job_id for holder in one.holders],
    ),
    "stuck": Field(list_of(TEXT), "The holders that are not running."),
    "parked_lanes": Field(INTEGER, "Lanes that wait for the limit.", lambda one: one.parked),
    "queues": Field(list_of(TEXT), f"The queues of those lanes, at most {QUEUES}."),
    "oldest_seconds": _seconds("oldest_ms", "How long the next job has waited."),
    "set_by_hand": Field(
        BOOLEAN, "A number set by hand overrides the code's.", lambda one: one.is_set
    ),
}  # fmt: skip


def limits(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/limits"""
    return _page(request, "limits", sums.limits, partial(to_json, LIMIT))


UNIQUE_KEY: Fields = {
    "key": Field(TEXT, get=lambda one: printable(one.key)),
    "job": Field(TEXT, "The job that has the key.", lambda one: printable(one.job_id)),
    "task": Field(TEXT),
    "status": Field(
        TEXT_OR_NULL, "Its status; null if it is gone.", lambda one: printable(one.status) or None
    ),
    "taken_at": ms_field("taken_ms"),
    "until": ms_field("until_ms", "Null if the key lasts as long as its job."),
}


def unique_keys(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/unique-keys"""
    to_row = partial(to_json, UNIQUE_KEY)
    return _page(request, "keys", sums.unique_keys, to_row, total=sums.unique_key_count)


def release(request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/unique-keys/release"""
    key = request.query["key"]
    job_id = release_unique_key(key)
    if not job_id:
        raise ApiError(404, "not_found", f"no job has the unique key {key!r}", "key")
    return JsonResponse({"key": key, "job": printable(job_id)})


SCHEDULE: Fields = {
    "name": Field(TEXT, get=lambda one: printable(one.name)),
    "task": Field(TEXT_OR_NULL),
    "queue": Field(TEXT_OR_NULL),
    "source": Field({"type": ["string", "null"], "enum": [*Source, None]}),
    "due": Field(TEXT_OR_NULL, "A cron expression with a time zone, or a period."),
    "error": Field(TEXT_OR_NULL, "Why it does not run.", lambda one: one.error or None),
    "paused_at": ms_field("paused_ms"),
    "next_due_at": Field(
        INSTANT, "Null if it is paused or has an error.",
        lambda one: None if one.is_stopped else instant_ms(one.next_ms),
    ),
    "last_due_at": ms_field("last_due_ms"),
    "last_run_at": ms_field("last_ms", "When the job of the last due time was created."),
    "last_job": Field(TEXT_OR_NULL, get=lambda one: one.last_job or None),
    "runs": Field(COUNT_OR_NULL, get=lambda one: one.fired),
    "missed": Field(COUNT_OR_NULL, "Due times without a run, because no worker was running."),
    "skipped": Field(COUNT_OR_NULL, "Due times skipped because the last run had not finished."),
}  # fmt: skip


def schedules(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/schedules"""
    return _page(request, "schedules", sums.schedules, _schedule_json, total=sums.schedule_count)


def _schedule_json(found: ScheduleData | UnreadableSchedule) -> dict[str, Any]:
    if isinstance(found, UnreadableSchedule):
        known = dict.fromkeys(SCHEDULE)
        return {**known, "name": printable(found.name), "error": found.problem}
    return to_json(SCHEDULE, found)


WAIT: Fields = {
    "job": Field(TEXT, get=lambda one: one.job_id),
    "task": Field(TEXT),
    "queue": Field(TEXT),
    "kind": Field(one_of(WaitKind)),
    "name": Field(TEXT, "The event or approval; empty for a sleep."),
    "parked_at": ms_field("since_ms"),
    "until": ms_field("until_ms", "The timeout, or the end of the sleep; null if none."),
}
WAIT_TOTALS = an_object(**dict.fromkeys(WaitKind, INTEGER))


def waits(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/waits"""
    kind = WaitKind(request.query["kind"])
    return _page(
        request, "waits", lambda shards, *page: sums.waits(shards, kind, *page),
        partial(to_json, WAIT), totals=sums.wait_counts,
    )  # fmt: skip


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
    with errors_for("weight"):
        weight = parse_weight(request.query["weight"])
        changed = set_weight(request.query["share"], weight)
    return JsonResponse({"changed": changed})


def pause(verb: str, request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/pauses/pause, resume"""
    queue, share, limit = (request.query[name] for name in ("queue", "share", "limit"))
    with errors_for("limit"):
        part: dict[str, Any] = {
            "share": share or NO_KEY,
            "limit": limit or None,
            "key": parse_key(request.query["key"]),
        }
        found = JobQueue(queue)
        act = found.pause if verb == "pause" else found.resume
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
        {"queue": queue, "part": part, "since": instant_ms(since), "by": by or None}
        for queue, part, since, by in rows
    ]})  # fmt: skip


PAUSE = an_object(
    queue=TEXT,
    part={
        **TEXT_OR_NULL,
        "description": "Such as share gold or limit stripe:42; null for the whole queue.",
    },
    since=INSTANT,
    by={**TEXT_OR_NULL, "description": "Who paused it, if known."},
)


def page_schemas() -> dict[str, Schema]:
    """The schemas of the pages by their names in the OpenAPI document."""
    return {
        "Limits": partial_object(next=NEXT, limits=list_of(schema_of(LIMIT))),
        "UniqueKeys": partial_object(total=INTEGER, next=NEXT, keys=list_of(schema_of(UNIQUE_KEY))),
        "Schedules": partial_object(
            total=INTEGER, next=NEXT, schedules=list_of(schema_of(SCHEDULE))
        ),
        "Waits": partial_object(totals=WAIT_TOTALS, next=NEXT, waits=list_of(schema_of(WAIT))),
        "Pauses": partial_object(pauses=list_of(PAUSE)),
    }
