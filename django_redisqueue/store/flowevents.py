"""The events of workflows, which stand in the stream between those of jobs."""

from __future__ import annotations

from typing import NamedTuple

from ..codec import loads
from ..states import WorkflowStep


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


def flow_event(position: tuple[int, int], json: str, name: str | None) -> FlowEvent:
    """From what the stream says. Raises ValueError, KeyError or TypeError when it is no such
    event."""
    raw = loads(json)
    step = WorkflowStep(raw["status"])
    return FlowEvent(
        position, raw["workflowId"], step, int(raw["timestamp"]), int(raw["madeMs"]),
        name or "", int(raw["generation"]), int(raw["total"]),
        int(raw["completed"]), int(raw["failed"]), int(raw["cancelled"]),
        raw.get("paused", False) or step is WorkflowStep.PAUSED,
    )  # fmt: skip
