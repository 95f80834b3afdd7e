"""All that a job's page shows of it, whether it comes from Redis or from the mirror."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..clock import from_ms
from ..codec import dumps, loads
from ..jobdata import JobData, JobError, Progress, decode_tags
from ..models import JobEvent, JobRecord
from ..states import Status
from ..worker.identity import parse_child
from . import words
from .rows import bodies_of, problem_of

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
    unreadable: Mapping[str, str] = field(default_factory=dict)  # why, by the field's name

    @property
    def workflow(self) -> str:
        """The id of the workflow that it is a job of, or ''."""
        flow_id, dot, _ = self.id.rpartition(".")
        return flow_id if dot and flow_id.startswith("flow_") and "." not in flow_id else ""

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """(name or place, value as JSON)"""
        if why := words.unreadable_as(self.unreadable, "payload"):
            return [("", why)]
        named = [(str(at), value) for at, value in enumerate(self.args, 1)]
        named += (self.kwargs or {}).items()
        return [(name, words.shorten(dumps(value), words.LONG)) for name, value in named]

    @property
    def result_text(self) -> str:
        text = json.dumps(self.result, indent=2, ensure_ascii=False)
        return words.unreadable_as(self.unreadable, "result") or words.shorten(text, words.LONG)

    @property
    def others_unreadable(self) -> list[tuple[str, str]]:
        """(field, what is shown in its place), but for arguments and result."""
        names = [name for name in self.unreadable if name not in ("payload", "result")]
        return [(name, words.unreadable_as(self.unreadable, name)) for name in names]

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


def from_redis(job: JobData, problem: str = "") -> Sheet:
    return Sheet(
        problem=problem, unreadable=job.unreadable,
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
    bodies = bodies_of(record, "payload", "result", "error", "progress")
    texts = {"tags": record.tags} if record.tags else {}
    tags = bodies.read(texts, "tags", decode_tags)
    fields = bodies.fields
    return Sheet(
        id=record.id, source="the mirror", task=record.task, queue=record.queue,
        status=record.status, priority=record.priority, worker=record.worker,
        attempts=record.attempts, requeues=record.requeues, enqueued_at=record.enqueued_at,
        due_at=record.due_at, started_at=record.started_at, finished_at=record.finished_at,
        args=fields.get("args", ()), kwargs=fields.get("kwargs"), result=fields["result"],
        error=fields["error"], progress=fields["progress"], tags=tags,
        unreadable=bodies.unreadable, problem=problem_of(bodies),
    )  # fmt: skip


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
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return words.shorten(detail, 300)
    return words.shorten("; ".join(parts), 300)
