"""Limits, shares, pauses, unique keys, schedules and waits: what their operations do, and the
schemas of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.http import JsonResponse
from django.http.response import HttpResponseBase

from ..broker import sums
from ..broker.policies import HOLDERS, QUEUES, LimitState
from ..broker.schedules import UnreadableSchedule
from ..broker.shards import AllShards
from ..broker.steps import Wait
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
from ..core.policies import UniqueKey
from ..core.schedules import ScheduleData, Source
from ..core.text import printable
from .requests import ApiRequest
from .responses import (
    INSTANT,
    INTEGER,
    TEXT,
    TEXT_OR_NULL,
    ApiError,
    Schema,
    an_object,
    answer,
    errors_for,
    instant_ms,
    partial_object,
)

NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
COUNT_OR_NULL: Schema = {"type": ["integer", "null"], "description": "Null if it is unreadable."}
NEXT: Schema = {**TEXT_OR_NULL, "description": "The `after` of the next page."}

Row = TypeVar("Row")


def _page(
    request: ApiRequest,
    name: str,
    read: Callable[[AllShards, str, int], tuple[list[Row], str]],
    to_json: Callable[[Row], dict[str, Any]],
    **totals: Callable[[AllShards], Any],
) -> HttpResponseBase:
    """The page that the query names: ``totals``, the rows, and the ``after`` of the next page."""
    shards = AllShards()
    with errors_for("after"):
        rows, following = read(shards, request.query["after"], request.query["limit"])
    return answer(shards, {
        **{name: count(shards) for name, count in totals.items()},
        "next": printable(following) or None,
        name: [to_json(row) for row in rows],
    })  # fmt: skip


def limits(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/limits"""
    return _page(request, "limits", sums.limits, _limit_json)


def _limit_json(found: LimitState) -> dict[str, Any]:
    next_seconds = None if found.next_ms is None else found.next_ms / 1000
    return {
        "name": found.name, "kind": "rate" if found.is_rate else "concurrency",
        "used": found.used, "most": found.most, "rate": str(found.rate) if found.rate else None,
        "next_start_in": next_seconds, "holders": [one.job_id for one in found.holders],
        "stuck": found.stuck, "parked_lanes": found.parked, "queues": list(found.queues),
        "oldest_seconds": None if found.oldest_ms is None else found.oldest_ms / 1000,
        "set_by_hand": found.is_set,
    }  # fmt: skip


def limits_schema() -> Schema:
    texts: Schema = {"type": "array", "items": TEXT}
    limit = an_object(
        name={**TEXT, "description": "The limit, and the value of its key: stripe:42."},
        kind={"type": "string", "enum": ["concurrency", "rate"]},
        used={**INTEGER, "description": "Jobs that run; 0 for a rate."},
        most={"type": ["integer", "null"], "description": "Null for a rate, or if unlimited."},
        rate={**TEXT_OR_NULL, "description": "Such as 100 in 1m."},
        next_start_in={**NUMBER_OR_NULL, "description": "Seconds; null unless it is a rate."},
        holders={**texts, "description": f"Jobs that have a slot, at most {HOLDERS}."},
        stuck={**texts, "description": "Those of them that do not run."},
        parked_lanes={**INTEGER, "description": "Lanes that wait for it."},
        queues={**texts, "description": f"The queues of those lanes, at most {QUEUES}."},
        oldest_seconds={**NUMBER_OR_NULL, "description": "How long the job next in turn waits."},
        set_by_hand={"type": "boolean", "description": "Its number beats that of the code."},
    )
    return partial_object(next=NEXT, limits={"type": "array", "items": limit})


def unique_keys(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/unique-keys"""
    return _page(request, "keys", sums.unique_keys, _key_json, total=sums.unique_key_count)


def _key_json(found: UniqueKey) -> dict[str, Any]:
    return {
        "key": printable(found.key), "job": printable(found.job_id), "task": found.task,
        "status": printable(found.status) or None, "taken_at": instant_ms(found.taken_ms),
        "until": instant_ms(found.until_ms),
    }  # fmt: skip


def unique_keys_schema() -> Schema:
    key = an_object(
        key=TEXT,
        job={**TEXT, "description": "The job that has it."},
        task=TEXT,
        status={**TEXT_OR_NULL, "description": "Of that job; null if it is gone."},
        taken_at=INSTANT,
        until={**INSTANT, "description": "Null if the key lasts as long as its job."},
    )
    return partial_object(total=INTEGER, next=NEXT, keys={"type": "array", "items": key})


def release(request: ApiRequest) -> HttpResponseBase:
    """POST /jobs/unique-keys/release"""
    key = request.query["key"]
    job_id = release_unique_key(key)
    if not job_id:
        raise ApiError(404, "not_found", f"no job has the unique key {key!r}", "key")
    return JsonResponse({"key": key, "job": printable(job_id)})


SCHEDULE_FIELDS: Mapping[str, Schema] = {
    "name": TEXT,
    "task": TEXT_OR_NULL,
    "queue": TEXT_OR_NULL,
    "source": {"type": ["string", "null"], "enum": [*Source, None]},
    "due": {
        **TEXT_OR_NULL,
        "description": "A cron expression with its time zone, or a period.",
    },
    "error": {**TEXT_OR_NULL, "description": "Why it does not run."},
    "paused_at": INSTANT,
    "next_due_at": {**INSTANT, "description": "Null if it is paused or has an error."},
    "last_due_at": INSTANT,
    "last_run_at": {**INSTANT, "description": "When the job of the last due time was created."},
    "last_job": TEXT_OR_NULL,
    "runs": COUNT_OR_NULL,
    "missed": {**COUNT_OR_NULL, "description": "Due times without a run: no worker was there."},
    "skipped": {**COUNT_OR_NULL, "description": "Due times while the last run went on."},
}


def schedules(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/schedules"""
    return _page(request, "schedules", sums.schedules, _schedule_json, total=sums.schedule_count)


def _schedule_json(found: ScheduleData | UnreadableSchedule) -> dict[str, Any]:
    if isinstance(found, UnreadableSchedule):
        known = dict.fromkeys(SCHEDULE_FIELDS)
        return {**known, "name": printable(found.name), "error": found.problem}
    return {
        "name": printable(found.name), "task": found.task, "queue": found.queue,
        "source": found.source.value, "due": found.due, "error": found.error or None,
        "paused_at": instant_ms(found.paused_ms),
        "next_due_at": None if found.is_stopped else instant_ms(found.next_ms),
        "last_due_at": instant_ms(found.last_due_ms), "last_run_at": instant_ms(found.last_ms),
        "last_job": found.last_job or None, "runs": found.fired, "missed": found.missed,
        "skipped": found.skipped,
    }  # fmt: skip


def schedules_schema() -> Schema:
    schedule = an_object(**SCHEDULE_FIELDS)
    return partial_object(total=INTEGER, next=NEXT, schedules={"type": "array", "items": schedule})


def waits(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/waits"""
    kind = WaitKind(request.query["kind"])

    def read(shards: AllShards, after: str, count: int) -> tuple[list[Wait], str]:
        return sums.waits(shards, kind, after, count)

    return _page(request, "waits", read, _wait_json, totals=sums.wait_counts)


def _wait_json(found: Wait) -> dict[str, Any]:
    return {
        "job": found.job_id, "task": found.task, "queue": found.queue, "kind": found.kind.value,
        "name": found.name, "parked_at": instant_ms(found.since_ms),
        "until": instant_ms(found.until_ms),
    }  # fmt: skip


def waits_schema() -> Schema:
    wait = an_object(
        job=TEXT,
        task=TEXT,
        queue=TEXT,
        kind={"type": "string", "enum": list(WaitKind)},
        name={**TEXT, "description": "Of the event or approval; empty of a sleep."},
        parked_at=INSTANT,
        until={**INSTANT, "description": "Its timeout, or the end of the sleep; null if none."},
    )
    totals = an_object(**dict.fromkeys(WaitKind, INTEGER))
    return partial_object(totals=totals, next=NEXT, waits={"type": "array", "items": wait})


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
        {"queue": queue, "part": part, "since": instant_ms(since), "by": by or None}
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
