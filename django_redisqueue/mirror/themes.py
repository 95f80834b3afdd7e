"""What signals tell of: the events of jobs, and those of workflows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Model
from django.dispatch import Signal

from ..models import JobEvent, JobRecord, WorkflowEvent, WorkflowRecord
from ..parsing import mapping
from ..signals import JOB_SIGNALS, WORKFLOW_SIGNALS


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What is told of: the events in ``event``, which name their ``record`` by ``key``. ``cursor``
    is the field of MirrorState that says how far."""

    word: str
    record: type[Model]
    event: type[Model]
    key: str
    cursor: str
    signals: Mapping[str, Signal]
    is_told: Callable[[Any], bool] = lambda event: True


def _is_transition(event: JobEvent) -> bool:
    """False for a mere report of progress."""
    return '"progress"' not in event.detail or "progress" not in (mapping(event.detail) or {})


JOBS = Theme(
    word="job", record=JobRecord, event=JobEvent, key="job_id", cursor="signalled",
    signals={status.value: signal for status, signal in JOB_SIGNALS.items()},
    is_told=_is_transition,
)  # fmt: skip
WORKFLOWS = Theme(
    word="workflow", record=WorkflowRecord, event=WorkflowEvent, key="workflow_id",
    cursor="flows_signalled",
    signals={step.value: signal for step, signal in WORKFLOW_SIGNALS.items()},
)  # fmt: skip
