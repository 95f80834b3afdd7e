"""The list of workflows, with live counts; the page of one, and its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase

from ..broker.commands import Commands
from ..broker.workflows import STEPS_A_REQUEST, WorkflowQueries
from ..client.transport import connection_of
from ..conf import get_settings
from ..core import formatting
from ..core.ids import check_workflow_id, shard_of_id
from ..core.parsing import is_storable
from ..core.records import WorkflowData
from ..core.statuses import Status, WorkflowStatus
from ..exceptions import CorruptJob, InvalidName, InvalidOption, RedisQueueError
from ..models import WorkflowEvent, WorkflowRecord
from .actions import chosen, posted
from .bulk import RETRY as RETRY_JOBS
from .filters import given, status_of, text_of
from .job_detail import JobRow, JobRowPage
from .pages import Page
from .records_page import PageKey, after_key, merge_pages, parse_key
from .workflow_detail import (
    ENDED,
    WorkflowDetail,
    WorkflowGraph,
    first_failure,
    from_redis,
    ids_with_status,
    list_workflow_jobs,
    load_graph,
    prefer_redis,
    timeline,
)

EVENTS = 50  # the newest of the history
PARTS = ("workflow", "workflowgraph", "workflowtimes", "workflowjobs")
RETRIED = 1000  # jobs that one request retries
SEARCHED = 50_000  # jobs that it searches for those that failed


def workflow_list(page: Page) -> HttpResponse:
    query, after = dict[str, str](), None
    rows, following = list[WorkflowDetail](), None
    with page.showing_invalid():
        query, after = parse_workflow_query(page.request.GET)
        records, following = search_workflows(query, after)
        rows = _details(page, records)
    if page.wants_parts:
        return page.render_parts(["workflows"], rows=rows)
    after_text = after.text() if after else ""
    following_text = following.text() if following else ""
    return page.render(
        "workflows",
        "Workflows",
        rows=rows,
        fields=query,
        statuses=[status.value for status in WorkflowStatus],
        is_mirrored=get_settings().mirror,
        first_url=page.url("workflows", **query) if after else "",
        next_url=page.url("workflows", **query, after=following_text) if following else "",
        live=page.live_options("workflows", **query, after=after_text),
    )


def parse_workflow_query(query: Mapping[str, Any]) -> tuple[dict[str, str], PageKey | None]:
    """The filter and the position in a URL. Raises InvalidOption if either is invalid."""
    status, after = status_of(query, WorkflowStatus), parse_key(str(query.get("after", "")))
    return given(status=status, name=text_of(query, "name")), after


def search_workflows(
    query: Mapping[str, str], after: PageKey | None
) -> tuple[Sequence[WorkflowRecord], PageKey | None]:
    """A page, and the key of the next page. At most five queries, each answered by an index."""
    found = WorkflowRecord.objects.filter(**query).order_by("-made_at", "-id")
    if after:
        found = after_key(found, "made_at", after)
    by_status = (found.filter(status=status.value) for status in WorkflowStatus)
    return merge_pages(by_status if set(query) == {"name"} else [found], "made_at")


def _details(page: Page, records: Sequence[WorkflowRecord]) -> list[WorkflowDetail]:
    """Read those that Redis still has from Redis, by one round trip per server."""
    places = [(one.id, shard_of_id(one.id)) for one in records if one.cleaned_at is None]
    found = page.ask_for(places, lambda one, ids: WorkflowQueries(one).workflows.read(ids))
    away = {key: page.missing[shard] for key, shard in places if shard in page.missing}
    return [prefer_redis(away.get(one.id) or found.get(one.id), one) for one in records]


def workflow_page(page: Page, workflow_id: str) -> HttpResponse:
    context = _context(page, workflow_id)
    if page.wants_parts:
        return page.render_parts(PARTS, **context)
    live = page.live_options("workflow", workflow_id, stream="workflow_stream", **_place(page))
    name = context["workflow"].name or workflow_id
    code = 503 if context["workflow"].is_unknown else 200
    return page.render("workflow", f"Workflow {name}", code=code, **context, live=live)


def workflow_stream(page: Page, workflow_id: str) -> HttpResponseBase:
    return page.stream(lambda: page.live_parts(PARTS, **_context(page, workflow_id)))


def _place(page: Page) -> dict[str, str]:
    """Which jobs are listed: the valid parameters of the URL."""
    status, start = page.request.GET.get("status", ""), page.int_param("start", 0)
    return {
        "status": status if status in set(Status) else "",
        "start": str(start) if start else "",  # URLs leave out empty parameters
        "boxes": "all" if page.request.GET.get("boxes") == "all" else "",
    }


def _context(page: Page, workflow_id: str) -> dict[str, Any]:
    """A few round trips for the workflow, and three for every 500 of its jobs, at most 5,000."""
    workflow, place = find(page, workflow_id), _place(page)
    graph, failure, jobs = _jobs_of(page, workflow, place)
    events = list(WorkflowEvent.objects.filter(workflow_id=workflow.id).order_by("-id")[:EVENTS])
    verbs = [verb for verb in WORKFLOW_VERBS.values() if is_applicable(verb, workflow)]
    status, start = place["status"], int(place["start"] or 0)
    here = partial(page.url, "workflow", workflow.id, status=status)
    return {
        "workflow": workflow,
        "why_record": "" if workflow.is_live else page.why_record("workflow", workflow.id),
        "graph": graph,
        "boxes": place["boxes"],
        "failure": failure,
        "gantt": timeline(graph),
        "jobs": jobs,
        "is_away": page.is_away(workflow.id),
        "events": events[::-1],
        "callbacks": _callbacks(page, workflow),
        "verbs": page.allowed(verbs),
        "statuses": [each.value for each in Status],
        "status": status,
        "first_url": here() if start else "",
        "next_url": here(start=jobs.following) if jobs.following else "",
        "seen": jobs.place(start, is_filtered=bool(status)),
    }


def _jobs_of(
    page: Page, workflow: WorkflowDetail, place: Mapping[str, str]
) -> tuple[WorkflowGraph, JobRow | None, JobRowPage]:
    """The graph, the job that failed first, and a page of the list, if Redis answers."""
    graph, failure, jobs = WorkflowGraph(why="Redis does not answer."), None, JobRowPage()
    total, start = workflow.total, int(place["start"] or 0)
    try:
        queries = page.queries_of(workflow.id)
        graph = load_graph(queries, workflow.id, total, is_unfolded=bool(place["boxes"]))
        failure = first_failure(queries, workflow.id, graph)
        jobs = list_workflow_jobs(queries, workflow.id, total, place["status"], start)
    except RedisQueueError as error:
        page.note(workflow.id, error)
    return graph, failure, jobs


def find(page: Page, workflow_id: str) -> WorkflowDetail:
    """The workflow from Redis, else from the mirror. Raises Http404."""
    data: WorkflowData | RedisQueueError | None = None
    try:
        queries = page.queries_of(workflow_id)
        data = WorkflowQueries(queries.connection).workflow(check_workflow_id(workflow_id))
    except InvalidName:
        pass
    except CorruptJob as error:
        data = error
    except RedisQueueError as error:
        page.note(workflow_id, error)
        data = error
    if isinstance(data, WorkflowData):
        return from_redis(data)
    records = WorkflowRecord.objects.filter(pk=workflow_id)
    record = records.first() if is_storable(workflow_id) else None
    if record is not None:
        return prefer_redis(data, record)
    if data is not None:
        is_live = isinstance(data, CorruptJob)
        return WorkflowDetail(id=workflow_id, is_live=is_live, problem=f"{data}.")
    raise Http404(f"workflow {workflow_id} is neither in Redis nor in the mirror")


def _callbacks(page: Page, workflow: WorkflowDetail) -> list[tuple[str, str]]:
    """(id, status) of the callbacks that the workflow has enqueued, while Redis has them."""
    ids = [f"{workflow.id}.{which}{workflow.generation}" for which in ("complete", "failure")]
    try:
        found = page.queries_of(workflow.id).statuses(ids) if workflow.status in ENDED else []
    except RedisQueueError:  # the page already shows the error
        found = []
    return [(job_id, status) for job_id, status in zip(ids, found, strict=False) if status]


RUNNING = frozenset(WorkflowStatus) - ENDED
UNENDED = RUNNING | {WorkflowStatus.FAILED}  # a failed workflow can resume


@dataclass(frozen=True, slots=True)
class WorkflowVerb:
    name: str
    label: str
    done: str  # "The workflow <done>."
    permission: str
    statuses: frozenset[WorkflowStatus]
    warning: str = ""  # shown with the request for confirmation; without it, there is none


PAUSE = WorkflowVerb(
    "pause", "Pause", "is paused: running jobs finish, no others start", "pause_queue", RUNNING
)
RELEASE = WorkflowVerb("release", "Release", "was released", "pause_queue", UNENDED)
RETRY = WorkflowVerb("retry", "Retry failed jobs", "was resumed", "retry_job", UNENDED)
CANCEL = WorkflowVerb(
    "cancel", "Cancel", "was cancelled", "cancel_job", UNENDED,
    "Jobs that have not started are cancelled, and running jobs are asked to stop. A cancelled "
    "workflow cannot be resumed.",
)  # fmt: skip
CLEAN = WorkflowVerb(
    "clean", "Clean up", "is being cleaned up", "clear_queue", ENDED,
    "Redis forgets the workflow: jobs that have not started are cancelled, and its jobs can no "
    "longer be retried as part of it. Its record is kept.",
)  # fmt: skip
WORKFLOW_VERBS = {verb.name: verb for verb in (PAUSE, RELEASE, RETRY, CANCEL, CLEAN)}


def is_applicable(verb: WorkflowVerb, workflow: WorkflowDetail) -> bool:
    """False for a workflow that is not in Redis, or if the verb would change nothing."""
    if not workflow.is_live or workflow.status not in verb.statuses:
        return False
    if verb in (PAUSE, RELEASE):
        return workflow.is_paused == (verb is RELEASE)
    return verb is not RETRY or workflow.failed > 0


@posted("workflow")
def act_on_workflow(page: Page, workflow_id: str) -> HttpResponse:
    """Pause, release, cancel or clean up a workflow, or retry its failed jobs."""
    verb: WorkflowVerb = chosen(page, WORKFLOW_VERBS)
    workflow = find(page, workflow_id)
    if page.is_away(workflow_id):
        raise page.missing[shard_of_id(workflow_id)]
    here = page.url("workflow", workflow.id)
    if not is_applicable(verb, workflow):
        raise InvalidOption(
            f"{verb.label} would change nothing now: the workflow is {_state(workflow)}"
        )
    if verb.warning and page.request.POST.get("confirmed") != "yes":
        return page.confirm(
            "workflow", verb.label, f"{verb.label} the workflow", here, {"verb": verb.name},
            verb=verb, workflow=workflow,
        )  # fmt: skip
    if verb is RETRY:
        _retry(page, workflow)
        return HttpResponseRedirect(here)
    commands = Commands(connection_of(workflow.id))
    if commands.control_workflow_and_advance(workflow.id, verb.name, STEPS_A_REQUEST) > 0:
        _log(page, workflow, verb.label)
        messages.success(page.request, f"The workflow {verb.done}.")
    else:
        messages.warning(
            page.request, "The workflow has changed in the meantime; nothing was done."
        )
    return HttpResponseRedirect(here)


def _state(workflow: WorkflowDetail) -> str:
    if not workflow.is_live:
        return "no longer in Redis"
    return f"{workflow.status} and paused" if workflow.is_paused else workflow.status


def _log(page: Page, workflow: WorkflowDetail, what: str) -> None:
    page.log(f"workflow {workflow.id}", what, pk=workflow.id, model=WorkflowRecord)


def _retry(page: Page, workflow: WorkflowDetail) -> None:
    queries, limit = WorkflowQueries(connection_of(workflow.id)), min(workflow.failed, RETRIED)
    ids = ids_with_status(queries, workflow.id, min(workflow.total, SEARCHED), "failed", limit)
    done, _ = RETRY_JOBS.act(ids)
    _log(page, workflow, f"{RETRY.label}: {formatting.jobs(len(done))}")
    messages.success(page.request, f"{formatting.jobs(len(done))} {RETRY_JOBS.done}.")
    if len(done) < workflow.failed:
        left = formatting.jobs(workflow.failed - len(done))
        messages.warning(page.request, f"Not retried yet: {left}. Retry again, or from the queue.")
