"""The part of a batch that tells of workflows, into the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..models import WorkflowEvent, WorkflowRecord
from ..store.flowevents import FlowEvent
from .flowchanges import FlowChange, Known, collapse_flows
from .tables import Instants, Row, Table, ms_or_none

STATE = (
    "name", "status", "is_paused", "reason", "generation", "total", "completed", "failed",
    "cancelled", "made_at", "ended_at", "cleaned_at", "epoch", "entry_ms", "entry_no",
)  # fmt: skip
EVENT = (
    "workflow_id", "status", "reason", "generation", "total", "completed", "failed", "cancelled",
    "epoch", "at", "entry_ms", "entry_no",
)  # fmt: skip


@dataclass(slots=True)
class FlowRows:
    """What is to be written in the transaction of the batch."""

    known: dict[str, Known] = field(default_factory=dict)  # of those that events tell of
    ids: Sequence[str] = ()
    new: list[Row] = field(default_factory=list)
    changed: list[Row] = field(default_factory=list)
    history: list[Row] = field(default_factory=list)


class FlowWriter:
    """Used by the Writer: ``rows`` before its transaction, ``write`` in it."""

    def __init__(self, alias: str) -> None:
        self._records = Table(WorkflowRecord, alias)
        self._history = Table(WorkflowEvent, alias)

    def rows(self, events: Sequence[FlowEvent], epoch: int, instants: Instants) -> FlowRows:
        """What these events mean for what is known."""
        rows = FlowRows()
        if not events:
            return rows
        rows.ids = list({event.workflow_id for event in events})
        rows.known = self._known(rows.ids)
        for flow_id, change in collapse_flows(events, rows.known, epoch).items():
            (rows.new if change.is_new else rows.changed).append(
                [*_state(change, instants), flow_id]
            )
        rows.history = [_event(event, epoch, instants) for event in events]
        return rows

    def write(self, rows: FlowRows, *, check: bool) -> bool:
        """Add and change them; False, and nothing is written, when with ``check`` something else is
        known of them by now."""
        if check and self._known(rows.ids) != rows.known:
            return False
        self._records.insert((*STATE, "id"), rows.new)
        self._records.update(STATE, rows.changed)
        self._history.insert(EVENT, rows.history)
        return True

    def _known(self, ids: Sequence[str]) -> dict[str, Known]:
        found: dict[str, Known] = {}
        for records in self._records.of(ids):
            rows = records.values_list(
                "pk", "epoch", "entry_ms", "entry_no", "status", "reason", "ended_at", "cleaned_at"
            )
            for pk, epoch, ms, number, status, reason, ended, cleaned in rows:
                found[pk] = Known(
                    (epoch, ms, number), status, reason, ms_or_none(ended), ms_or_none(cleaned)
                )
        return found


def _state(change: FlowChange, instants: Instants) -> Row:
    event = change.event
    ended, cleaned = (
        None if ms is None else instants(ms) for ms in (change.ended_ms, change.cleaned_ms)
    )
    return (
        event.name, change.status, event.is_paused, change.reason, event.generation, event.total,
        event.completed, event.failed, event.cancelled, instants(event.made_ms), ended, cleaned,
        *change.order,
    )  # fmt: skip


def _event(event: FlowEvent, epoch: int, instants: Instants) -> Row:
    return (
        event.workflow_id, event.step.value, event.reason, event.generation, event.total,
        event.completed, event.failed, event.cancelled, epoch, instants(event.at_ms),
        *event.position,
    )  # fmt: skip
