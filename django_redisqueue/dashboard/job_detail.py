"""How pages show a job, whether its data comes from Redis or from its record in the mirror."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from django.utils import timezone

from ..broker.queries import UnreadableJob
from ..client.registry import lookup
from ..client.tasks import Task
from ..conf import get_settings
from ..core import formatting
from ..core.clock import from_ms, ms_of
from ..core.codec import loads
from ..core.instruments import CORRELATION, headers_in
from ..core.job_data import JobData
from ..core.parsing import int_or_none
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
        return attempts_begun(self.job) if self.job else 0

    @property
    def max_attempts(self) -> int | None:
        """None for a task that is not known here."""
        return max_attempts_of(self.job) if self.job else None

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """(name of the parameter, or position if the task is not known here; value as JSON)"""
        if self.job is None:
            return []
        if "payload" in self.job.unreadable:
            return [("", _unreadable(self.job, "payload"))]
        names = parameters_of(self.job)
        named = [(names.get(at, str(at + 1)), value) for at, value in enumerate(self.job.args)]
        named += self.job.kwargs.items()
        return [(name, _as_json(value)) for name, value in named]

    @property
    def result(self) -> str | None:
        """The result of a completed job, as JSON."""
        if self.job is None or self.job.status is not Status.COMPLETED:
            return None
        if "result" in self.job.unreadable:
            return _unreadable(self.job, "result")
        return _as_json(self.job.result)

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
    def correlation_id(self) -> str:
        return headers_in(self.job.options).get(CORRELATION, "") if self.job else ""

    @property
    def percent(self) -> int:
        return (percent_of(self.job) if self.job else None) or 0

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
        return between(self.job.enqueued_ms, self.job.started_ms) if self.job else ""

    @property
    def ran(self) -> str:
        return between(self.job.started_ms, self.job.finished_ms) if self.job else ""

    @property
    def wait(self) -> str:
        """What a parked job waits for, as a sentence; '' for other jobs."""
        is_parked = self.job is not None and self.job.waits_for is not None
        return wait_text(self.job) if self.job is not None and is_parked else ""


def percent_of(job: JobData) -> int | None:
    """How far it is, from 0 to 100; None without progress."""
    if job.progress is None:
        return None
    if job.progress.total <= 0:
        return 0
    return max(0, min(100, round(100 * job.progress.done / job.progress.total)))


def attempts_begun(job: JobData) -> int:
    """The spent attempts, and the one that runs or has succeeded."""
    return job.attempts + (job.status in UNSPENT)


def parameters_of(job: JobData) -> dict[int, str]:
    """The names of its positional arguments; none of a task that is not known here."""
    task: Task | None = lookup(job.task)
    if task is None:
        return {}
    found = task.parameters.signature.parameters.values()
    names = [
        one.name for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    return dict(enumerate(names[bool(job.options.get("takes_result")) :]))


def max_attempts_of(job: JobData) -> int | None:
    """How many attempts the job has; None for a task that is not known here."""
    task: Task | None = lookup(job.task)
    own = int_or_none(job.options.get("max_attempts"))
    return own or (task.options.max_attempts if task else None)


def timeout_ms_of(job: JobData) -> int:
    """How long the job may run; 0 for no limit."""
    task: Task | None = lookup(job.task)
    own = int_or_none(job.options.get("timeout_ms"))
    if own is None and task is not None:
        own = task.options.timeout_ms
    return get_settings().timeout_ms if own is None else own


def time_left(job: JobData, now_ms: int) -> tuple[str, str]:
    """(what, how long): until a running job's timeout, or until a job is due. Empty for others."""
    if job.status is Status.PROCESSING and job.started_ms:
        timeout_ms = timeout_ms_of(job)
        left_ms = job.started_ms + timeout_ms - now_ms
        of = f"of {formatting.duration(timeout_ms)}"
        left = f"{formatting.duration(left_ms)} {of}" if left_ms > 0 else f"none {of}"
        return ("Time left", left) if timeout_ms else ("", "")
    if job.status in (Status.RETRYING, Status.SCHEDULED) and job.due_ms:
        what = "Next attempt" if job.status is Status.RETRYING else "Due"
        left_ms = job.due_ms - now_ms
        return what, f"in {formatting.duration(left_ms)}" if left_ms > 0 else "now"
    return "", ""


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
        """How long it has run, or runs by now."""
        if self.job is None:
            return ""
        runs = self.job.status is Status.PROCESSING
        return between(self.job.started_ms, ms_of(timezone.now()) if runs else self.job.finished_ms)

    @property
    def attempts(self) -> str:
        """``2 of 5``"""
        if self.job is None:
            return ""
        most = max_attempts_of(self.job)
        return f"{attempts_begun(self.job)} of {most}" if most else str(attempts_begun(self.job))

    @property
    def worker(self) -> str:
        return worker_name(self.job.child) if self.job and self.job.child else ""

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


@dataclass(frozen=True, slots=True)
class Choices:
    """What the filters offer: the tags and workers of the jobs that the page shows."""

    tags: Sequence[str]
    workers: Sequence[str]


def choices_of(rows: Iterable[JobRow]) -> Choices:
    jobs = [row.job for row in rows if row.job is not None]
    tags = {f"{name}={value}" for job in jobs for name, value in job.tags.items()}
    children = [parse_child(job.child) for job in jobs]
    return Choices(sorted(tags), sorted({child.name for child in children if child}))


def _as_json(value: object) -> str:
    return formatting.shorten(json.dumps(value, indent=2, ensure_ascii=False), formatting.LONG)


def _unreadable(job: JobData, name: str) -> str:
    return f"unreadable: {job.unreadable[name]}"


def between(first_ms: int | None, last_ms: int | None) -> str:
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
    is_progress: bool = False


def timeline_entry(event: JobEvent) -> TimelineEntry:
    worker, detail = worker_name(event.worker), _event_detail(event.detail)
    is_progress = event.status == Status.PROCESSING and '"progress"' in event.detail
    return TimelineEntry(event.at, event.status, event.attempt, worker, detail, is_progress)


def fold(events: Sequence[JobEvent]) -> list[tuple[TimelineEntry, Sequence[TimelineEntry]]]:
    """The history: of consecutive reports of progress the last one, with those before it."""
    found: list[tuple[TimelineEntry, Sequence[TimelineEntry]]] = []
    for _, group in groupby(
        map(timeline_entry, events), key=lambda entry: entry.is_progress and entry.attempt
    ):
        entries = list(group)
        if entries[0].is_progress:
            found.append((entries[-1], entries[:-1]))
        else:
            found += [(entry, ()) for entry in entries]
    return found


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
