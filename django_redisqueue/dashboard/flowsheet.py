"""What a workflow's page shows of it: live from Redis, else as its record has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..clock import from_ms
from ..exceptions import CorruptJob
from ..flowdata import ENDED_COUNTS, JOB_COUNTS, FlowData
from ..mirror.flowchanges import LOST
from ..models import WorkflowRecord
from ..states import WorkflowStatus
from . import words


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSheet:
    """A workflow. ``source``: "Redis", or "the mirror" when Redis let it go."""

    id: str
    source: str
    status: str
    name: str = ""
    is_paused: bool = False
    reason: str = ""
    generation: int = 0
    total: int = 0
    counts: Sequence[tuple[str, int]] = ()
    made_at: datetime | None = None
    ended_at: datetime | None = None
    cleaned_at: datetime | None = None
    problem: str = ""

    @property
    def is_live(self) -> bool:
        return self.source == "Redis"

    @property
    def is_final(self) -> bool:
        return self.status in _FINAL

    @property
    def completed(self) -> int:
        return dict(self.counts).get("completed", 0)

    @property
    def failed(self) -> int:
        return dict(self.counts).get("failed", 0)

    @property
    def lasted(self) -> str:
        if self.made_at is None or self.ended_at is None:
            return ""
        return words.duration((self.ended_at - self.made_at).total_seconds() * 1000)

    @property
    def bar(self) -> list[tuple[str, float, float]]:
        """The parts of its bar: (status, where it begins, how wide it is), of 100."""
        parts, at = [], 0.0
        for name in ENDED_COUNTS:
            width = 100 * dict(self.counts).get(name, 0) / max(1, self.total)
            parts.append((name, round(at, 2), round(width, 2)))
            at += width
        return parts

    @property
    def progress(self) -> str:
        """In words."""
        parts = [f"{words.number(self.completed)} of {words.of_jobs(self.total)} completed"]
        others = [name for name in ("failed", "cancelled") if dict(self.counts).get(name)]
        parts += [f"{words.number(dict(self.counts)[name])} {name}" for name in others]
        return ", ".join(parts)


_FINAL = frozenset(status.value for status in WorkflowStatus if status.is_final)


def sheet_of(data: FlowData | CorruptJob | None, record: WorkflowRecord | None) -> FlowSheet | None:
    """What is known of a workflow; Redis knows better, where that can be read."""
    if isinstance(data, FlowData):
        return _from_redis(data)
    if data is not None and record is not None:
        return replace(from_record(record), problem=f"This is its record, for {data}.")
    return None if record is None else from_record(record)


def _from_redis(data: FlowData) -> FlowSheet:
    return FlowSheet(
        id=data.id, source="Redis", status=data.status.value, name=data.name,
        is_paused=data.is_paused, generation=data.generation, total=data.total,
        counts=[(name, getattr(data, name)) for name in JOB_COUNTS],
        made_at=from_ms(data.made_ms), ended_at=from_ms(data.ended_ms),
    )  # fmt: skip


def from_record(record: WorkflowRecord) -> FlowSheet:
    """As the mirror last saw it."""
    return FlowSheet(
        id=record.id, source="the mirror", status=record.status, name=record.name,
        is_paused=record.is_paused, reason=record.reason, generation=record.generation,
        total=record.total,
        counts=[(name, getattr(record, name)) for name in ENDED_COUNTS],
        made_at=record.made_at, ended_at=record.ended_at, cleaned_at=record.cleaned_at,
        problem=_problem(record),
    )  # fmt: skip


def _problem(record: WorkflowRecord) -> str:
    if record.reason == LOST:
        return "Redis lost this workflow: whether the rest of its jobs ran is not known."
    if record.cleaned_at is None and record.status not in _FINAL:
        return (
            "Redis does not know this workflow any more, though it had not ended when it was last "
            "heard of. If its data is lost, the mirror will say so once it has been reconciled."
        )
    return ""
