"""What the operations of workflows do."""

from __future__ import annotations

from django.http import JsonResponse
from django.http.response import HttpResponseBase

from ..connection import producer_link
from ..exceptions import WorkflowNotFound
from ..mirror.archive import find_flow
from ..store.transitions import Transitions
from ..store.workflows import STEPS_A_REQUEST, WorkflowReads
from .endpoints import Call
from .errors import ApiError
from .flowpresent import show_flow, show_record


def workflow(call: Call) -> HttpResponseBase:
    """GET /jobs/workflows/<id>"""
    flow_id = call.path["flow"]
    data = WorkflowReads(producer_link()).workflow(flow_id)
    if data is not None:
        return JsonResponse(show_flow(data))
    record = find_flow(flow_id)
    if record is None:
        raise WorkflowNotFound(f"no workflow {flow_id}, neither in Redis nor in the mirror")
    return JsonResponse(show_record(record))


def steer(call: Call) -> HttpResponseBase:
    """POST /jobs/workflows/<id>/pause, release, cancel"""
    flow_id, order = call.path["flow"], call.path["order"]
    code = Transitions(producer_link()).steer_on(flow_id, order, STEPS_A_REQUEST)
    if code < 0:
        raise WorkflowNotFound(
            f"no workflow {flow_id} in Redis: it was not pushed, or it has been cleaned up"
        )
    data = WorkflowReads(producer_link()).workflow(flow_id)
    if data is None:
        raise WorkflowNotFound(f"workflow {flow_id} has just been cleaned up")
    if code == 0:
        state = f"{data.status.value} and paused" if data.is_paused else data.status.value
        raise ApiError(
            409, "wrong_state", f"workflow {flow_id} is {state}: {order} changes nothing"
        )
    return JsonResponse(show_flow(data))
