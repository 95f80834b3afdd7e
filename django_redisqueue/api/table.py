"""The table of the API's endpoints."""

from __future__ import annotations

from ..core.statuses import Status
from . import policies, steering, views
from .endpoints import (
    AFTER,
    KEY,
    LAST_EVENT_ID,
    LIMIT,
    LIMIT_KEY,
    LIMIT_NAME,
    NUMBER,
    QUEUE,
    ROWS,
    SET_LIMIT,
    SET_SHARE,
    SHARE,
    SKIP,
    START,
    WAIT,
    WEIGHT,
    Endpoint,
    Operation,
)
from .error_groups import error_groups

VIEW = "view_jobrecord"


def _of_status(status: Status) -> Endpoint:
    operations = {
        "GET": Operation(
            name=f"list_{status}",
            summary=f"A page of the {status} jobs of a queue.",
            view=views.page,
            permission=VIEW,
            answer="Page",
            query=(QUEUE, START, LIMIT),
        )
    }
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


def _of_job(verb: str, view: Operation) -> Endpoint:
    return Endpoint(f"/{{id}}/{verb}", {"POST": view})


def _of_pauses(verb: str, summary: str) -> Endpoint:
    operation = Operation(
        name=verb,
        summary=summary,
        view=steering.pause,
        permission="pause_queue",
        answer="Changed",
        query=(QUEUE, SHARE, LIMIT_NAME, LIMIT_KEY),
    )
    return Endpoint(f"/pauses/{verb}", {"POST": operation}, {"verb": verb})


def _of_workflow(command: str, summary: str, permission: str) -> Endpoint:
    operation = Operation(
        name=f"{command}_workflow",
        summary=summary,
        view=views.control_workflow,
        permission=permission,
        answer="Workflow",
        errors=(404, 409),
    )
    return Endpoint(f"/workflows/{{flow}}/{command}", {"POST": operation}, {"command": command})


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("", {
        "POST": Operation(
            name="enqueue",
            summary="Enqueue a task that has api=True.",
            view=views.enqueue,
            permission="enqueue_job",
            status=201,
            answer="JobOrProblem",
            body=True,
            is_idempotent=True,
            errors=(413, 422),
        ),
    }),
    Endpoint("/stats", {
        "GET": Operation(
            name="stats",
            summary="How many jobs each queue has in each status.",
            view=views.stats,
            permission=VIEW,
            answer="Stats",
        ),
    }),
    Endpoint("/health", {
        "GET": Operation(
            name="health",
            summary="What is wrong: workers, queues, Redis and the mirror, each with its remedy.",
            view=views.health,
            permission=VIEW,
            answer="Health",
        ),
    }),
    Endpoint("/events", {
        "GET": Operation(
            name="events",
            summary="Events as they come (server-sent events; go on with Last-Event-ID).",
            view=views.events,
            permission=VIEW,
            answer="events",
            query=(LAST_EVENT_ID,),
            errors=(429,),
            is_stream=True,
        ),
    }),
    Endpoint("/errors", {
        "GET": Operation(
            name="errors",
            summary="A page of the errors of jobs in groups, those seen last first.",
            view=error_groups,
            permission=VIEW,
            answer="Errors",
            query=(SKIP, ROWS),
        ),
    }),
    *(_of_status(status) for status in Status),
    Endpoint("/limits", {
        "GET": Operation(
            name="limits",
            summary="A page of the limits that jobs hold or wait for.",
            view=policies.limits,
            permission=VIEW,
            answer="Limits",
            query=(AFTER, ROWS),
        ),
    }),
    Endpoint("/limits/set", {
        "POST": Operation(
            name="set_limit",
            summary="Set the number of a limit by hand, or remove it again with none.",
            view=steering.set_number,
            permission="pause_queue",
            answer="Changed",
            query=(SET_LIMIT, LIMIT_KEY, NUMBER),
        ),
    }),
    Endpoint("/shares/set", {
        "POST": Operation(
            name="set_weight",
            summary="Set the weight of a share by hand, or remove it again with none.",
            view=steering.set_share_weight,
            permission="pause_queue",
            answer="Changed",
            query=(SET_SHARE, WEIGHT),
        ),
    }),
    Endpoint("/pauses", {
        "GET": Operation(
            name="pauses",
            summary="What is paused: queues, and shares and limits in them.",
            view=steering.pauses,
            permission=VIEW,
            answer="Pauses",
        ),
    }),
    *(_of_pauses(verb, summary) for verb, summary in (
        ("pause", "Let no worker claim the jobs of a queue, or of one share or limit in it."),
        ("resume", "Let workers claim again what was paused."),
    )),
    Endpoint("/unique-keys", {
        "GET": Operation(
            name="unique_keys",
            summary="A page of the unique keys that jobs have, those taken first first.",
            view=policies.unique_keys,
            permission=VIEW,
            answer="UniqueKeys",
            query=(AFTER, ROWS),
        ),
    }),
    Endpoint("/unique-keys/release", {
        "POST": Operation(
            name="release_unique_key",
            summary="Free a unique key. The job that had it goes on.",
            view=policies.release,
            permission="cancel_job",
            answer="Released",
            query=(KEY,),
            errors=(404,),
        ),
    }),
    Endpoint("/schedules", {
        "GET": Operation(
            name="schedules",
            summary="A page of the schedules by their next due times, stopped ones last.",
            view=policies.schedules,
            permission=VIEW,
            answer="Schedules",
            query=(AFTER, ROWS),
        ),
    }),
    Endpoint("/waits", {
        "GET": Operation(
            name="waits",
            summary="A page of the jobs that are parked for an event, an approval or a sleep.",
            view=policies.waits,
            permission=VIEW,
            answer="Waits",
            query=(WAIT, AFTER, ROWS),
        ),
    }),
    Endpoint("/workflows/{flow}", {
        "GET": Operation(
            name="workflow",
            summary="One workflow, with its counts.",
            view=views.workflow,
            permission=VIEW,
            answer="Workflow",
            errors=(404,),
        ),
    }),
    _of_workflow("pause", "Let no more jobs of a workflow start.", "pause_queue"),
    _of_workflow("release", "Let a paused workflow go on.", "pause_queue"),
    _of_workflow("cancel", "Cancel what of a workflow has not ended.", "cancel_job"),
    Endpoint("/{id}", {
        "GET": Operation(
            name="job",
            summary="One job, and why it does not run.",
            view=views.job,
            permission=VIEW,
            answer="JobInDetailOrProblem",
            errors=(404,),
        ),
    }),
    _of_job("retry", Operation(
        name="retry",
        summary="Send a failed or cancelled job back to its queue.",
        view=views.retry,
        permission="retry_job",
        answer="JobOrProblem",
        errors=(404, 409),
    )),
    _of_job("cancel", Operation(
        name="cancel",
        summary="Cancel a job, or ask it to stop if it runs.",
        view=views.cancel,
        permission="cancel_job",
        answer="JobOrProblem",
        errors=(404, 409),
    )),
)  # fmt: skip
