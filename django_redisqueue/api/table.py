"""The API's endpoints: each path with its operations, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import attrgetter

from django.http.response import HttpResponseBase

from ..broker.queries import PAGE
from ..core.job_data import WaitKind
from ..core.statuses import Status
from . import policies, views
from .requests import ApiRequest, Parameter, a_choice, a_queue, a_text, an_event_id, an_integer

VIEW = "view_jobrecord"

OperationView = Callable[[ApiRequest], HttpResponseBase]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path below the mount, such as ``/{id}/retry``. ``answer`` names a schema in
    the OpenAPI document; ``errors`` are the statuses in addition to those of every operation.
    """

    method: str
    path: str
    name: str
    summary: str
    view: OperationView
    answer: str
    permission: str = VIEW
    query: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    is_stream: bool = False
    is_enqueue: bool = False  # takes a body and an Idempotency-Key; 200 if the job already existed


@dataclass(frozen=True, slots=True)
class Endpoint:
    path: str
    operations: Mapping[str, Operation]

    def find(self, method: str) -> Operation | None:
        """The operation; HEAD counts as GET, except for streams."""
        if method == "HEAD":
            found = self.operations.get("GET")
            return None if found is None or found.is_stream else found
        return self.operations.get(method)

    @property
    def allow(self) -> str:
        return ", ".join(m for m in ("GET", "HEAD", "POST", "DELETE") if self.find(m))


START = an_integer("start", "How many jobs to skip.", 0, 0, 10_000_000)
LIMIT = an_integer("limit", "How many jobs to show.", 50, 1, PAGE)
QUEUE = a_queue("queue", "A queue from the settings.")
SKIP = an_integer("start", "How many rows to skip.", 0, 0, 100_000)
ROWS = an_integer("limit", "How many rows to show.", 50, 1, PAGE)
AFTER = a_text("after", "The `next` of the previous page.")
KEY = a_text("key", "A unique key, as in the list.", required=True)
WAIT = a_choice("kind", "What the jobs wait for.", tuple(WaitKind))
LIMIT_NAME = a_text("limit", 'A limit in REDISQUEUE["LIMITS"], or a task that has one.')
SET_LIMIT = a_text("limit", LIMIT_NAME.help, required=True)
LIMIT_KEY = a_text(
    "key", "The value of the limit's key; a JSON array for a key of several parameters."
)
NUMBER = a_text("number", "10, 100 in 1m, 100 in 1m burst 10, or none.", required=True)
SHARE = a_text("share", "A share, by the value of fair_by.")
SET_SHARE = a_text("share", SHARE.help, required=True)
WEIGHT = a_text("weight", "From 1 to 100, or none.", required=True)
LAST_EVENT_ID = an_event_id(
    "last_event_id", "Start after this event. The header Last-Event-ID takes precedence."
)


def _of_status(status: Status) -> Iterator[Operation]:
    path = f"/{status}"
    yield Operation(
        "GET", path, f"list_{status}", f"A page of the {status} jobs of a queue.",
        partial(views.page, status), "Page", query=(QUEUE, START, LIMIT),
    )  # fmt: skip
    if status not in (Status.PROCESSING, Status.WAITING):
        effect = "Delete" if status.is_final else "Cancel"
        yield Operation(
            "DELETE", path, f"clear_{status}",
            f"{effect} the {status} jobs of a queue, up to {views.CLEARED} a request.",
            partial(views.clear, status), "Cleared", "clear_queue", (QUEUE,),
        )  # fmt: skip


def _of_pauses(verb: str, summary: str) -> Operation:
    return Operation(
        "POST", f"/pauses/{verb}", verb, summary,
        partial(policies.pause, verb), "Changed", "pause_queue",
        (QUEUE, SHARE, LIMIT_NAME, LIMIT_KEY),
    )  # fmt: skip


def _of_workflow(command: str, summary: str, permission: str) -> Operation:
    return Operation(
        "POST", f"/workflows/{{flow}}/{command}", f"{command}_workflow", summary,
        partial(views.control_workflow, command), "Workflow", permission, errors=(404, 409),
    )  # fmt: skip


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST", "", "enqueue", "Enqueue a task that has api=True.",
        views.enqueue, "JobOrProblem", "enqueue_job",
        is_enqueue=True, errors=(413, 422),
    ),
    Operation(
        "GET", "/stats", "stats", "How many jobs each queue has in each status.",
        views.stats, "Stats",
    ),
    Operation(
        "GET", "/health", "health",
        "What is wrong: workers, queues, Redis and the mirror, each with its remedy.",
        views.health, "Health",
    ),
    Operation(
        "GET", "/events", "events",
        "Events as they happen, as server-sent events; resume with Last-Event-ID.",
        views.events, "events", query=(LAST_EVENT_ID,), errors=(429,), is_stream=True,
    ),
    Operation(
        "GET", "/errors", "errors", "A page of the error groups, the latest first.",
        views.error_groups, "Errors", query=(SKIP, ROWS),
    ),
    *chain.from_iterable(map(_of_status, Status)),
    Operation(
        "GET", "/limits", "limits", "A page of the limits that jobs hold or wait for.",
        policies.limits, "Limits", query=(AFTER, ROWS),
    ),
    Operation(
        "POST", "/limits/set", "set_limit",
        "Set the number of a limit, or remove it with none.",
        policies.set_number, "Changed", "pause_queue", (SET_LIMIT, LIMIT_KEY, NUMBER),
    ),
    Operation(
        "POST", "/shares/set", "set_weight",
        "Set the weight of a share, or remove it with none.",
        policies.set_share_weight, "Changed", "pause_queue", (SET_SHARE, WEIGHT),
    ),
    Operation(
        "GET", "/pauses", "pauses", "What is paused: queues, and shares and limits in them.",
        policies.pauses, "Pauses",
    ),
    _of_pauses(
        "pause", "Stop workers from claiming jobs of a queue, or of one share or limit in it."
    ),
    _of_pauses("resume", "Let workers claim again what was paused."),
    Operation(
        "GET", "/unique-keys", "unique_keys",
        "A page of the unique keys that jobs hold, the oldest first.",
        policies.unique_keys, "UniqueKeys", query=(AFTER, ROWS),
    ),
    Operation(
        "POST", "/unique-keys/release", "release_unique_key",
        "Free a unique key. The job that had it is not changed.",
        policies.release, "Released", "cancel_job", (KEY,), errors=(404,),
    ),
    Operation(
        "GET", "/schedules", "schedules",
        "A page of the schedules by next due time, stopped ones last.",
        policies.schedules, "Schedules", query=(AFTER, ROWS),
    ),
    Operation(
        "GET", "/waits", "waits",
        "A page of the jobs that are parked until an event, an approval or the end of a sleep.",
        policies.waits, "Waits", query=(WAIT, AFTER, ROWS),
    ),
    Operation(
        "GET", "/workflows/{flow}", "workflow", "One workflow, with its counts.",
        views.workflow, "Workflow", errors=(404,),
    ),
    _of_workflow("pause", "Stop a workflow from starting more jobs.", "pause_queue"),
    _of_workflow("release", "Resume a paused workflow.", "pause_queue"),
    _of_workflow("cancel", "Cancel the unfinished jobs of a workflow.", "cancel_job"),
    Operation(
        "GET", "/{id}", "job", "One job, and why it is not running.",
        views.job, "JobInDetailOrProblem", errors=(404,),
    ),
    Operation(
        "POST", "/{id}/retry", "retry", "Send a failed or cancelled job back to its queue.",
        views.retry, "JobOrProblem", "retry_job", errors=(404, 409),
    ),
    Operation(
        "POST", "/{id}/cancel", "cancel", "Cancel a job, or ask it to stop if it is running.",
        views.cancel, "JobOrProblem", "cancel_job", errors=(404, 409),
    ),
)  # fmt: skip
ENDPOINTS = tuple(
    Endpoint(path, {one.method: one for one in operations})
    for path, operations in groupby(OPERATIONS, attrgetter("path"))
)
