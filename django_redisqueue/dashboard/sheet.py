"""All that a job's page shows of it, whether it comes from Redis or from the mirror."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..clock import from_ms
from ..codec import dumps, loads
from ..jobdata import JobData, JobError, Progress
from ..models import JobEvent, JobRecord
from ..states import Status
from ..worker.identity import parse_child
from . import words

RUN_AGAIN = (Status.PROCESSING, Status.COMPLETED)  # an attempt that is not spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A job as its page shows it. ``source``: "Redis", or "the mirror" when Redis let it go."""

    id: str
    source: str
    task: str = ""
    queue: str = ""
    status: str = ""
    priority: int = 0
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    tags: Mapping[str, str] | None = None
    result: Any = None
    error: JobError | None = None
    progress: Progress | None = None
    worker: str = ""
    attempts: int = 0
    recoveries: int | None = None
    requeues: int = 0
    enqueued_at: datetime | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_asked: bool = False
    problem: str = ""

    @property
    def workflow(self) -> str:
        """The id of the workflow that it is a job of, or ''."""
        flow_id, dot, _ = self.id.rpartition(".")
        return flow_id if dot and flow_id.startswith("flow_") and "." not in flow_id else ""

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """(name or place, value as JSON)"""
        placed = [(str(at), dumps(value)) for at, value in enumerate(self.args, 1)]
        return placed + [(name, dumps(value)) for name, value in (self.kwargs or {}).items()]

    @property
    def result_text(self) -> str:
        return json.dumps(self.result, indent=2, ensure_ascii=False)

    @property
    def worker_name(self) -> str:
        return worker_name(self.worker)

    @property
    def is_completed(self) -> bool:
        return self.status == Status.COMPLETED

    @property
    def percent(self) -> int:
        if self.progress is None or self.progress.total <= 0:
            return 0
        return max(0, min(100, round(100 * self.progress.done / self.progress.total)))

    @property
    def waited(self) -> str:
        return _between(self.enqueued_at, self.started_at)

    @property
    def ran(self) -> str:
        return _between(self.started_at, self.finished_at)


def _between(first: datetime | None, last: datetime | None) -> str:
    if first is None or last is None or last < first:
        return ""
    return words.duration((last - first).total_seconds() * 1000)


def from_redis(job: JobData) -> Sheet:
    return Sheet(
        id=job.id, source="Redis", task=job.task, queue=job.queue, status=job.status.value,
        priority=job.priority, args=job.args, kwargs=dict(job.kwargs), result=job.result,
        tags=job.tags,
        error=job.error, progress=job.progress, worker=job.child,
        attempts=job.attempts + (job.status in RUN_AGAIN),
        recoveries=job.recoveries, requeues=job.generation, enqueued_at=from_ms(job.enqueued_ms),
        due_at=from_ms(job.due_ms), started_at=from_ms(job.started_ms),
        finished_at=from_ms(job.finished_ms), cancel_asked=job.cancel_ms is not None,
    )  # fmt: skip


def from_record(record: JobRecord) -> Sheet:
    shared: dict[str, Any] = {
        "id": record.id, "source": "the mirror", "task": record.task, "queue": record.queue,
        "status": record.status, "priority": record.priority, "worker": record.worker,
        "attempts": record.attempts, "requeues": record.requeues,
        "enqueued_at": record.enqueued_at, "due_at": record.due_at,
        "started_at": record.started_at, "finished_at": record.finished_at,
    }  # fmt: skip
    try:
        args, kwargs = (record.args, dict(record.kwargs)) if record.payload else ((), {})
        return Sheet(
            **shared, args=args, kwargs=kwargs, result=record.result_value,
            tags=loads(record.tags) if record.tags else None,
            error=record.job_error, progress=record.job_progress,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        return Sheet(**shared, problem=f"its record can not be read: {error}")


def worker_name(child: str) -> str:
    """A child's id, as short as it is still of use."""
    worker = parse_child(child)
    return f"{worker.name}, child {child.rpartition('.')[2]}" if worker else child


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of the timeline."""

    at: datetime
    status: str
    attempt: int
    worker: str
    detail: str


def moment_of(event: JobEvent) -> Moment:
    worker = worker_name(event.worker)
    return Moment(event.at, event.status, event.attempt, worker, _in_words(event.detail))


def _in_words(detail: str) -> str:
    """What else an event says; as it stands where that is not understood."""
    if not detail:
        return ""
    try:
        said = dict(loads(detail))
        parts = []
        if progress := said.pop("progress", None):
            note = f", {progress['note']}" if progress.get("note") else ""
            parts.append(f"{progress['done']:g} of {progress['total']:g}{note}")
        if error := said.pop("error", None):
            parts.append(f"{error['type']}: {error['message']}")
        if due_ms := said.pop("dueMs", None):
            parts.append(f"due {words.shown(from_ms(int(due_ms)))}")
        parts += [f"{name} {value}" for name, value in said.items()]
    except (ValueError, TypeError, KeyError, AttributeError):
        return detail
    return words.shorten("; ".join(parts), 300)
