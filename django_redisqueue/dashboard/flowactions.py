"""What a POST does to a workflow."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse

from ..exceptions import InvalidOption
from ..store.transitions import Transitions
from ..store.workflows import STEPS_A_REQUEST, WorkflowReads
from . import words
from .actions import posted
from .audit import log_workflow
from .flowjobs import with_status
from .flowpage import find
from .flowsheet import FlowSheet
from .flowverbs import FLOW_VERBS, RETRY, FlowVerb, is_of_use
from .pages import Page
from .verbs import RETRY as RETRY_JOBS

RETRIED = 1000  # jobs that one order sends back
SEARCHED = 50_000  # jobs that it looks at for those that failed


@posted
def act_on_flow(page: Page, flow_id: str) -> HttpResponse:
    """Pause, release, cancel, clean up, or retry what failed; what cannot be undone asks first."""
    verb = _verb(page)
    sheet = find(page, flow_id)
    here = page.url("workflow", sheet.id)
    if not is_of_use(verb, sheet):
        raise InvalidOption(f"{verb.label} is of no use now: the workflow is {_state(sheet)}")
    if verb.warning and page.request.POST.get("confirmed") != "yes":
        return page.draw(
            "confirm_workflow", f"{verb.label}: are you sure?", verb=verb, sheet=sheet, here=here
        )
    if verb is RETRY:
        _retry(page, sheet)
        return page.go(here)
    code = Transitions(page.reads.link).steer_on(sheet.id, verb.order, STEPS_A_REQUEST)
    if code > 0:
        log_workflow(page, sheet.id, verb.label)
        page.tell(messages.SUCCESS, f"The workflow {verb.done}.")
    else:
        page.tell(messages.WARNING, "The workflow had changed meanwhile, and stayed as it was.")
    return page.go(here)


def _verb(page: Page) -> FlowVerb:
    name = page.request.POST.get("verb", "")
    verb = FLOW_VERBS.get(name)
    if verb is None:
        raise InvalidOption(f"{name!r} is no action; use one of {', '.join(FLOW_VERBS)}")
    page.require(verb.permission)
    return verb


def _state(sheet: FlowSheet) -> str:
    if not sheet.is_live:
        return "not in Redis any more"
    return f"{sheet.status} and paused" if sheet.is_paused else sheet.status


def _retry(page: Page, sheet: FlowSheet) -> None:
    """The failed ones, as many as one order may."""
    reads, most = WorkflowReads(page.reads.link), min(sheet.failed, RETRIED)
    ids = with_status(reads, sheet.id, min(sheet.total, SEARCHED), "failed", most)
    done = RETRY_JOBS.act(Transitions(page.reads.link), ids)
    log_workflow(page, sheet.id, f"{RETRY.label}: {words.of_jobs(len(done))}")
    page.tell(messages.SUCCESS, f"{words.of_jobs(len(done))} {RETRY_JOBS.done}.")
    if len(done) < sheet.failed:
        left = words.of_jobs(sheet.failed - len(done))
        page.tell(messages.WARNING, f"{left} more had failed; retry again, or from their queue.")
