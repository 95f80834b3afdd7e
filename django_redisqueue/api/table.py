"""The API's endpoints: each path with its operations, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from django.http.response import HttpResponseBase

from ..broker.queries import PAGE
from ..core.job_data import WaitKind
from ..core.statuses import Status
from . import policies, views
from .requests import (
    ApiRequest,
    ChoiceParameter,
    IntegerParameter,
    LastEventIdParameter,
    Parameter,
    QueueParameter,
    TextParameter,
)

VIEW = "view_jobrecord"

OperationView = Callable[[ApiRequest], HttpResponseBase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. ``answer`` names a schema of the OpenAPI document; ``errors`` are the
    statuses besides those that every operation may return."""

    name: str
    summary: str
    view: OperationView
    permission: str
    answer: str
    query: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    is_stream: bool = False
    is_enqueue: bool = False  # takes a body and an Idempotency-Key; 200 says that the job existed


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path below the mount, such as ``/{id}/retry``, with its operations by method."""

    path: str
    operations: Mapping[str, Operation]
    fixed: Mapping[str, str] = field(default_factory=dict)  # path arguments for the views

    def find(self, method: str) -> Operation | None:
        """The operation; HEAD is GET, except for streams."""
        if method == "HEAD":
            found = self.operations.get("GET")
            return None if found is None or found.is_stream else found
        return self.operations.get(method)

    @property
    def allow(self) -> str:
        """The value of the header Allow."""
        return ", ".join(m for m in ("GET", "HEAD", "POST", "DELETE") if self.find(m))


START = IntegerParameter("start", "How many jobs to skip.", 0, 0, 10_000_000)
LIMIT = IntegerParameter("limit", "How many jobs to show.", 50, 1, PAGE)
QUEUE = QueueParameter("queue", "A queue of the settings.")
SKIP = IntegerParameter("start", "How many rows to skip.", 0, 0, 100_000)
ROWS = IntegerParameter("limit", "How many rows to show.", 50, 1, PAGE)
AFTER = TextParameter("after", "The `next` of the page before.")
KEY = TextParameter("key", "A unique key, as the list has it.", required=True)
WAIT = ChoiceParameter("kind", "What the jobs wait for.", tuple(WaitKind))
LIMIT_NAME = TextParameter("limit", "A limit of REDISQUEUE, or a task that has one.")
SET_LIMIT = TextParameter("limit", LIMIT_NAME.help, required=True)
LIMIT_KEY = TextParameter(
    "key", "The value of the limit's key; a JSON array for a key of several parameters."
)
NUMBER = TextParameter("number", "10, 100 in 1m, 100 in 1m burst 10, or none.", required=True)
SHARE = TextParameter("share", "A share, by the value of fair_by.")
SET_SHARE = TextParameter("share", SHARE.help, required=True)
WEIGHT = TextParameter("weight", "From 1 to 100, or none.", required=True)
LAST_EVENT_ID = LastEventIdParameter(
    "last_event_id", "For a first request: go on behind this event. The header Last-Event-ID wins."
)


def _get(
    path: str,
    name: str,
    summary: str,
    view: OperationView,
    answer: str,
    *query: Parameter,
    **more: Any,
) -> Endpoint:
    return Endpoint(path, {"GET": _read(name, summary, view, answer, *query, **more)})


def _read(
    name: str, summary: str, view: OperationView, answer: str, *query: Parameter, **more: Any
) -> Operation:
    return Operation(
        name=name, summary=summary, view=view, permission=VIEW, answer=answer, query=query, **more
    )


def _post(
    path: str,
    name: str,
    summary: str,
    view: OperationView,
    answer: str,
    permission: str,
    *query: Parameter,
    fixed: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> Endpoint:
    operation = Operation(
        name=name, summary=summary, view=view, permission=permission, answer=answer, query=query,
        **more,
    )  # fmt: skip
    return Endpoint(path, {"POST": operation}, fixed)


def _of_status(status: Status) -> Endpoint:
    summary = f"A page of the {status} jobs of a queue."
    operations = {"GET": _read(f"list_{status}", summary, views.page, "Page", QUEUE, START, LIMIT)}
    if status not in (Status.PROCESSING, Status.WAITING):
        effect = "Delete" if status.is_final else "Cancel"
        operations["DELETE"] = Operation(
            name=f"clear_{status}",
            summary=f"{effect} the {status} jobs of a queue, up to {views.CLEARED} a request.",
            view=views.clear,
            permission="clear_queue",
            answer="Cleared",
            query=(QUEUE,),
        )
    return Endpoint(f"/{status}", operations, {"status": status.value})


def _of_pauses(verb: str, summary: str) -> Endpoint:
    return _post(
        f"/pauses/{verb}", verb, summary, policies.pause, "Changed", "pause_queue",
        QUEUE, SHARE, LIMIT_NAME, LIMIT_KEY, fixed={"verb": verb},
    )  # fmt: skip


def _of_workflow(command: str, summary: str, permission: str) -> Endpoint:
    return _post(
        f"/workflows/{{flow}}/{command}", f"{command}_workflow", summary, views.control_workflow,
        "Workflow", permission, errors=(404, 409), fixed={"command": command},
    )  # fmt: skip


ENDPOINTS: tuple[Endpoint, ...] = (
    _post(
        "", "enqueue", "Enqueue a task that has api=True.",
        views.enqueue, "JobOrProblem", "enqueue_job",
        is_enqueue=True, errors=(413, 422),
    ),
    _get(
        "/stats", "stats", "How many jobs each queue has in each status.", views.stats, "Stats",
    ),
    _get(
        "/health", "health",
        "What is wrong: workers, queues, Redis and the mirror, each with its remedy.",
        views.health, "Health",
    ),
    _get(
        "/events", "events",
        "Events as they come (server-sent events; go on with Last-Event-ID).",
        views.events, "events", LAST_EVENT_ID, errors=(429,), is_stream=True,
    ),
    _get(
        "/errors", "errors", "A page of the errors of jobs in groups, the latest first.",
        views.error_groups, "Errors", SKIP, ROWS,
    ),
    *(_of_status(status) for status in Status),
    _get(
        "/limits", "limits", "A page of the limits that jobs hold or wait for.",
        policies.limits, "Limits", AFTER, ROWS,
    ),
    _post(
        "/limits/set", "set_limit",
        "Set the number of a limit by hand, or remove it again with none.",
        policies.set_number, "Changed", "pause_queue", SET_LIMIT, LIMIT_KEY, NUMBER,
    ),
    _post(
        "/shares/set", "set_weight",
        "Set the weight of a share by hand, or remove it again with none.",
        policies.set_share_weight, "Changed", "pause_queue", SET_SHARE, WEIGHT,
    ),
    _get(
        "/pauses", "pauses", "What is paused: queues, and shares and limits in them.",
        policies.pauses, "Pauses",
    ),
    _of_pauses(
        "pause", "Let no worker claim the jobs of a queue, or of one share or limit in it."
    ),
    _of_pauses("resume", "Let workers claim again what was paused."),
    _get(
        "/unique-keys", "unique_keys",
        "A page of the unique keys that jobs have, the oldest first.",
        policies.unique_keys, "UniqueKeys", AFTER, ROWS,
    ),
    _post(
        "/unique-keys/release", "release_unique_key",
        "Free a unique key. The job that had it goes on.",
        policies.release, "Released", "cancel_job", KEY, errors=(404,),
    ),
    _get(
        "/schedules", "schedules",
        "A page of the schedules by their next due times, stopped ones last.",
        policies.schedules, "Schedules", AFTER, ROWS,
    ),
    _get(
        "/waits", "waits",
        "A page of the jobs that are parked for an event, an approval or a sleep.",
        policies.waits, "Waits", WAIT, AFTER, ROWS,
    ),
    _get(
        "/workflows/{flow}", "workflow", "One workflow, with its counts.",
        views.workflow, "Workflow", errors=(404,),
    ),
    _of_workflow("pause", "Let no more jobs of a workflow start.", "pause_queue"),
    _of_workflow("release", "Let a paused workflow go on.", "pause_queue"),
    _of_workflow("cancel", "Cancel what of a workflow has not ended.", "cancel_job"),
    _get(
        "/{id}", "job", "One job, and why it does not run.",
        views.job, "JobInDetailOrProblem", errors=(404,),
    ),
    _post(
        "/{id}/retry", "retry", "Send a failed or cancelled job back to its queue.",
        views.retry, "JobOrProblem", "retry_job", errors=(404, 409),
    ),
    _post(
        "/{id}/cancel", "cancel", "Cancel a job, or ask it to stop if it runs.",
        views.cancel, "JobOrProblem", "cancel_job", errors=(404, 409),
    ),
)  # fmt: skip
