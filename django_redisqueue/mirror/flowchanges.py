"""A batch of workflows' events, collapsed to one state a workflow.

Each event tells the whole state, so the last one wins. The order is (epoch, place in the stream):
what is older than what is known changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..states import WorkflowStatus, WorkflowStep
from ..store.flowevents import FlowEvent

Order = tuple[int, int, int]  # epoch, and the place in the stream
LOST = "lost"  # the reason of a workflow that Redis does not know any more
ENDS = frozenset({WorkflowStep.COMPLETED, WorkflowStep.FAILED, WorkflowStep.CANCELLED})


@dataclass(frozen=True, slots=True)
class Known:
    """What the mirror knows of a workflow and an event need not tell; instants in ms."""

    order: Order
    status: str
    reason: str
    ended_ms: int | None
    cleaned_ms: int | None


@dataclass(slots=True)
class FlowChange:
    """What becomes of one workflow's record: ``event`` was the last that was applied."""

    event: FlowEvent
    order: Order
    is_new: bool
    status: str = WorkflowStatus.RUNNING.value
    reason: str = ""
    ended_ms: int | None = None
    cleaned_ms: int | None = None

    def apply(self, event: FlowEvent) -> None:
        self.event = event
        if event.step is WorkflowStep.PAUSED:
            return
        if event.step is WorkflowStep.CLEANED:
            self.cleaned_ms = event.at_ms
            if self.ended_ms is None:  # its push was never finished
                self.status, self.ended_ms = WorkflowStatus.CANCELLED.value, event.at_ms
            return
        self.status, self.reason = event.step.value, event.reason if event.reason == LOST else ""
        self.ended_ms = event.at_ms if event.step in ENDS else None
        self.cleaned_ms = None


def collapse_flows(
    events: Sequence[FlowEvent], known: Mapping[str, Known], epoch: int
) -> dict[str, FlowChange]:
    """One change a workflow that the events move on, by id."""
    changes: dict[str, FlowChange] = {}
    for event in events:
        order = (epoch, *event.position)
        change = changes.get(event.workflow_id)
        if change is None:
            change = _begin(event, known.get(event.workflow_id), order)
            if change is None:
                continue
            changes[event.workflow_id] = change
        change.order = order
        change.apply(event)
    return changes


def _begin(event: FlowEvent, known: Known | None, order: Order) -> FlowChange | None:
    if known is None:
        # What was never seen to run, and is gone, is not worth a record.
        return None if event.step is WorkflowStep.CLEANED else FlowChange(event, order, True)
    if order < known.order:
        return None
    return FlowChange(
        event, order, False, known.status, known.reason, known.ended_ms, known.cleaned_ms
    )
