"""Limits, unique keys, schedules and waits: what their operations do, and the schemas of
their answers."""

from __future__ import annotations

from typing import Any

from django.http import JsonResponse
from django.http.response import HttpResponseBase

from ..broker import sums
from ..broker.limits import HOLDERS, QUEUES, LimitState
from ..broker.schedules import UnreadableSchedule
from ..broker.shards import AllShards
from ..broker.steps import Wait
from ..client.unique_keys import release_unique_key
from ..core.clock import from_ms
from ..core.job_data import WaitKind
from ..core.schedule_data import ScheduleData, Source
from ..core.text import printable
from ..core.unique import UniqueKey
from .endpoints import ApiRequest
from .errors import ApiError, errors_for
from .partial import answer, partial_object
from .rendering import INSTANT, INTEGER, TEXT, Schema, an_object, instant

TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
COUNT_OR_NULL: Schema = {"type": ["integer", "null"], "description": "Null if it is unreadable."}
NEXT: Schema = {**TEXT_OR_NULL, "description": "The `after` of the next page."}


def limits(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/limits"""
    shards = AllShards()
    with errors_for("after"):
        found, following = sums.limits(shards, request.query["after"], request.query["limit"])
    document = {"next": printable(following) or None, "limits": [_limit_json(one) for one in found]}
    return answer(shards, document)


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
    shards = AllShards()
    with errors_for("after"):
        found, following = sums.unique_keys(shards, request.query["after"], request.query["limit"])
    return answer(shards, {
        "total": sums.unique_key_count(shards),
        "next": following or None,
        "keys": [_key_json(one) for one in found],
    })  # fmt: skip


def _key_json(found: UniqueKey) -> dict[str, Any]:
    return {
        "key": printable(found.key), "job": printable(found.job_id), "task": found.task,
        "status": printable(found.status) or None, "taken_at": _instant(found.taken_ms),
        "until": _instant(found.until_ms),
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


def released_schema() -> Schema:
    return an_object(key=TEXT, job={**TEXT, "description": "The job that had it; it goes on."})


def schedules(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/schedules"""
    shards = AllShards()
    with errors_for("after"):
        found, following = sums.schedules(shards, request.query["after"], request.query["limit"])
    return answer(shards, {
        "total": sums.schedule_count(shards),
        "next": following or None,
        "schedules": [_schedule_json(one) for one in found],
    })  # fmt: skip


def _schedule_json(found: ScheduleData | UnreadableSchedule) -> dict[str, Any]:
    if isinstance(found, UnreadableSchedule):
        known = dict.fromkeys(_schedule_fields())
        return {**known, "name": printable(found.name), "error": found.problem}
    return {
        "name": printable(found.name), "task": found.task, "queue": found.queue,
        "source": found.source.value, "due": found.due, "error": found.error or None,
        "paused_at": _instant(found.paused_ms),
        "next_due_at": None if found.is_stopped else _instant(found.next_ms),
        "last_due_at": _instant(found.last_due_ms), "last_run_at": _instant(found.last_ms),
        "last_job": found.last_job or None, "runs": found.fired, "missed": found.missed,
        "skipped": found.skipped,
    }  # fmt: skip


def _schedule_fields() -> dict[str, Schema]:
    return {
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


def schedules_schema() -> Schema:
    schedule = an_object(**_schedule_fields())
    return partial_object(total=INTEGER, next=NEXT, schedules={"type": "array", "items": schedule})


def waits(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/waits"""
    shards, kind = AllShards(), WaitKind(request.query["kind"])
    after, count = request.query["after"], request.query["limit"]
    with errors_for("after"):
        found, following = sums.waits(shards, kind, after, count)
    return answer(shards, {
        "totals": sums.wait_counts(shards),
        "next": following or None,
        "waits": [_wait_json(one) for one in found],
    })  # fmt: skip


def _wait_json(found: Wait) -> dict[str, Any]:
    return {
        "job": found.job_id, "task": found.task, "queue": found.queue, "kind": found.kind.value,
        "name": found.name, "parked_at": _instant(found.since_ms),
        "until": _instant(found.until_ms),
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


def _instant(value_ms: int | None) -> str | None:
    return instant(from_ms(value_ms))
