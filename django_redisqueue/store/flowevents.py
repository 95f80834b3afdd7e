"""The events of workflows, which stand in the stream between those of jobs."""

from __future__ import annotations

from typing import NamedTuple

from ..clock import LAST_MS
from ..parsing import INT32, Fields, text
from ..states import WorkflowStep

STEPS = frozenset(WorkflowStep)
MOST_ID, MOST_NAME = 64, 200  # what the columns of a record take
COUNTS = ("generation", "total", "completed", "failed", "cancelled")


class FlowEvent(NamedTuple):
    """One transition of one workflow, as flow_emit.lua wrote it: the whole of its state at
    ``at_ms``, so that the last event alone says how it stands."""

    position: tuple[int, int]  # in the stream
    workflow_id: str
    step: WorkflowStep
    at_ms: int
    made_ms: int
    name: str
    generation: int
    total: int
    completed: int
    failed: int
    cancelled: int
    is_paused: bool
    reason: str = ""  # "lost", or "reconciled", when it is the mirror that tells


def flow_event(position: tuple[int, int], fields: Fields, name: str | None) -> FlowEvent | None:
    """From what the stream says; None when it does not say of which workflow, or what became of
    it."""
    flow_id = fields.text("workflowId", MOST_ID, needed=True)
    status = fields.text("status", MOST_ID, needed=True)
    if fields.faults or status not in STEPS:
        fields.fault("status", status)
        return None
    step = WorkflowStep(status)
    at_ms = fields.instant_ms("timestamp", min(position[0], LAST_MS))
    named = text(name or "", MOST_NAME)
    if named != (name or ""):
        fields.fault("name", name)
    generation, total, completed, failed, cancelled = (
        fields.whole(count, INT32, needed=True) for count in COUNTS
    )
    return FlowEvent(
        position, flow_id, step, at_ms, fields.instant_ms("madeMs", at_ms), named or "",
        generation, total, completed, failed, cancelled,
        fields["paused"] is True or step is WorkflowStep.PAUSED,
    )  # fmt: skip
