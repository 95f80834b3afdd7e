"""How a workflow looks to a client: from Redis, else from its record."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..clock import from_ms
from ..flowdata import ENDED_COUNTS, JOB_COUNTS, FlowData
from ..mirror.flowchanges import LOST
from ..models import WorkflowRecord
from ..states import WorkflowStatus
from .present import INSTANT, TEXT, WHOLE, Schema, an_object, instant

OR_NULL: Schema = {
    "type": ["integer", "null"],
    "description": "Null when only the mirror knows the workflow.",
}


def schema() -> Schema:
    """For the OpenAPI document."""
    return an_object(
        id=TEXT,
        name=TEXT,
        status={"type": "string", "enum": list(WorkflowStatus)},
        paused={"type": "boolean"},
        lost={"type": "boolean", "description": "Redis lost it before it had ended."},
        generation={**WHOLE, "description": "How often a retry has taken it up again."},
        total=WHOLE,
        counts=an_object(
            **{name: WHOLE if name in ENDED_COUNTS else OR_NULL for name in JOB_COUNTS}
        ),
        made_at=INSTANT,
        ended_at=INSTANT,
        cleaned_at={**INSTANT, "description": "When Redis let it go."},
    )


def show_flow(data: FlowData) -> dict[str, Any]:
    """As Redis has it now."""
    counts = {name: getattr(data, name) for name in JOB_COUNTS}
    instants = (from_ms(data.made_ms), from_ms(data.ended_ms), None)
    return _shown(data, data.status.value, False, counts, instants)


def show_record(record: WorkflowRecord) -> dict[str, Any]:
    """As the mirror last saw it."""
    counts = {name: getattr(record, name) if name in ENDED_COUNTS else None for name in JOB_COUNTS}
    instants = (record.made_at, record.ended_at, record.cleaned_at)
    return _shown(record, record.status, record.reason == LOST, counts, instants)


def _shown(
    flow: FlowData | WorkflowRecord,
    status: str,
    is_lost: bool,
    counts: dict[str, int | None],
    instants: tuple[datetime | None, datetime | None, datetime | None],
) -> dict[str, Any]:
    made, ended, cleaned = map(instant, instants)
    return {
        "id": flow.id, "name": flow.name, "status": status, "paused": flow.is_paused,
        "lost": is_lost, "generation": flow.generation, "total": flow.total, "counts": counts,
        "made_at": made, "ended_at": ended, "cleaned_at": cleaned,
    }  # fmt: skip
