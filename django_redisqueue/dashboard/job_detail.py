"""How pages show a job, whether its data comes from Redis or from its record in the mirror."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..broker.queries import UnreadableJob
from ..core import formatting
from ..core.clock import from_ms
from ..core.codec import dumps, loads
from ..core.job_data import JobData
from ..core.statuses import Status
from ..core.text import printable
from ..exceptions import CorruptJob
from ..mirror.archive import decode_record
from ..models import JobEvent, JobRecord
from ..worker.identity import parse_child
from .filters import instant_of
from .pages import local_time

UNSPENT = (Status.PROCESSING, Status.COMPLETED)  # their current attempt is not counted as spent
DETAIL = 300  # characters of an event's detail


def read_record(record: JobRecord) -> JobData | UnreadableJob:
    """The job as the mirror last saw it. Columns that were not loaded are left out."""
    try:
        return decode_record(record)
    except CorruptJob as error:
        return UnreadableJob(record.id, str(error), error.known)


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job on its own page. ``job`` is None when not even its status can be read."""

    id: str
    job: JobData | None
    problem: str = ""
    is_live: bool = True  # in Redis; otherwise only in the mirror

    @property
    def workflow(self) -> str:
        """The id of the workflow that the job belongs to, or ''."""
        workflow_id, dot, _ = self.id.rpartition(".")
        is_workflow = workflow_id.startswith("flow_") and "." not in workflow_id
        return workflow_id if dot and is_workflow else ""

    @property
    def attempts(self) -> int:
        """Those that have begun: the spent ones, and the one that runs or has succeeded."""
        return self.job.attempts + (self.job.status in UNSPENT) if self.job else 0

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """(name or position, value as JSON)"""
        if self.job is None:
            return []
        if "payload" in self.job.unreadable:
            return [("", _unreadable(self.job, "payload"))]
        named = [(str(at), value) for at, value in enumerate(self.job.args, 1)]
        named += self.job.kwargs.items()
        return [(name, formatting.shorten(dumps(value), formatting.LONG)) for name, value in named]

    @property
    def result(self) -> str | None:
        """The result of a completed job, as JSON."""
        if self.job is None or self.job.status is not Status.COMPLETED:
            return None
        if "result" in self.job.unreadable:
            return _unreadable(self.job, "result")
        text = json.dumps(self.job.result, indent=2, ensure_ascii=False)
        return formatting.shorten(text, formatting.LONG)

    @property
    def other_unreadable(self) -> list[tuple[str, str]]:
        """(field, why it cannot be read), without arguments and result."""
        if self.job is None:
            return []
        names = [name for name in self.job.unreadable if name not in ("payload", "result")]
        return [(name, _unreadable(self.job, name)) for name in names]

    @property
    def worker(self) -> str:
        return worker_name(self.job.child) if self.job else ""

    @property
    def percent(self) -> int:
        progress = self.job.progress if self.job else None
        if progress is None or progress.total <= 0:
            return 0
        return max(0, min(100, round(100 * progress.done / progress.total)))

    @property
    def enqueued_at(self) -> datetime | None:
        return from_ms(self.job.enqueued_ms) if self.job else None

    @property
    def due_at(self) -> datetime | None:
        return from_ms(self.job.due_ms) if self.job else None

    @property
    def started_at(self) -> datetime | None:
        return from_ms(self.job.started_ms) if self.job else None

    @property
    def finished_at(self) -> datetime | None:
        return from_ms(self.job.finished_ms) if self.job else None

    @property
    def waited(self) -> str:
        return _between(self.job.enqueued_ms, self.job.started_ms) if self.job else ""

    @property
    def ran(self) -> str:
        return _between(self.job.started_ms, self.job.finished_ms) if self.job else ""

    @property
    def wait(self) -> str:
        """What a parked job waits for, as a sentence; '' for other jobs."""
        is_parked = self.job is not None and self.job.waits_for is not None
        return wait_text(self.job) if self.job is not None and is_parked else ""


def wait_text(job: JobData) -> str:
    """What a parked job waits for, since when, and until when at the most."""
    what = f"waits for {job.waits_for}" if job.waits_for else "sleeps"
    since = f", since {local_time(from_ms(job.parked_ms))}" if job.parked_ms else ""
    until = f", until {local_time(from_ms(job.due_ms))}" if job.due_ms else ""
    return f"{what}{since}{until}"


def detail_of(job: JobData | UnreadableJob, *, is_live: bool) -> JobDetail:
    if isinstance(job, UnreadableJob):
        return JobDetail(job.id, job.known, job.problem, is_live)
    return JobDetail(job.id, job, is_live=is_live)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list. ``job`` is None when not even its status can be read."""

    id: str
    job: JobData | None
    at: datetime | None
    problem: str = ""

    @property
    def arguments(self) -> str:
        if self.job is None:
            return ""
        return formatting.shorten(
            _unreadable(self.job, "payload")
            if "payload" in self.job.unreadable
            else formatting.arguments(self.job.args, self.job.kwargs)
        )

    @property
    def ran(self) -> str:
        return _between(self.job.started_ms, self.job.finished_ms) if self.job else ""

    @property
    def detail(self) -> str:
        """What matters most in the job's status: its progress, when it is due, why it failed."""
        job = self.job
        if job is None:
            return ""
        text = str(job.error) if job.error else job.reason
        if job.status is Status.PROCESSING and job.progress:
            text = f"{job.progress.done:g} of {job.progress.total:g} {job.progress.note}"
        elif job.waits_for is not None:
            text = wait_text(job)
        elif job.status in (Status.SCHEDULED, Status.RETRYING) and job.due_ms:
            due = f"due {local_time(from_ms(job.due_ms))}"
            text = f"{due}, {job.error}" if job.error else due
        return formatting.shorten(text)


def row_of(job: JobData | UnreadableJob, at: datetime | None = None) -> JobRow:
    """The row; ``at`` is the time that it shows, by default the one that lists are filtered by."""
    problem, known = (job.problem, job.known) if isinstance(job, UnreadableJob) else ("", job)
    if known is None:
        return JobRow(printable(job.id), None, at, problem)
    return JobRow(known.id, known, at or from_ms(instant_of(known)), problem)


@dataclass(frozen=True, slots=True)
class JobRowPage:
    """One page of a list. ``seen`` jobs were looked at; the next page has ``following`` in its URL,
    which is '' at the end."""

    rows: Sequence[JobRow] = ()
    seen: int = 0
    following: str = ""

    def place(self, start: int, *, is_filtered: bool) -> str:
        """Which part of the list the page shows, in words."""
        if not self.seen:
            return "No jobs were looked at." if is_filtered else ""
        first, last = formatting.number(start + 1), formatting.number(start + self.seen)
        if not is_filtered:
            return f"{first} to {last}"
        return (
            f"{formatting.jobs(len(self.rows))} of the {formatting.number(self.seen)} looked at "
            f"(places {first} to {last})"
        )


def _unreadable(job: JobData, name: str) -> str:
    return f"unreadable: {job.unreadable[name]}"


def _between(first_ms: int | None, last_ms: int | None) -> str:
    if not first_ms or not last_ms or last_ms < first_ms:
        return ""
    return formatting.duration(last_ms - first_ms)


def worker_name(child: str) -> str:
    """A child's id without its random parts."""
    worker = parse_child(child)
    return f"{worker.name}, child {child.rpartition('.')[2]}" if worker else child


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """An event in a job's history."""

    at: datetime
    status: str
    attempt: int
    worker: str
    detail: str


def timeline_entry(event: JobEvent) -> TimelineEntry:
    worker = worker_name(event.worker)
    return TimelineEntry(event.at, event.status, event.attempt, worker, _event_detail(event.detail))


def _event_detail(detail: str) -> str:
    """The event's other fields as text; unchanged if they cannot be read."""
    if not detail:
        return ""
    try:
        fields = dict(loads(detail))
        parts = []
        if progress := fields.pop("progress", None):
            note = f", {progress['note']}" if progress.get("note") else ""
            parts.append(f"{progress['done']:g} of {progress['total']:g}{note}")
        if error := fields.pop("error", None):
            parts.append(f"{error['type']}: {error['message']}")
        if due_ms := fields.pop("dueMs", None):
            parts.append(f"due {local_time(from_ms(int(due_ms)))}")
        parts += [f"{name} {value}" for name, value in fields.items()]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return formatting.shorten(detail, DETAIL)
    return formatting.shorten("; ".join(parts), DETAIL)
