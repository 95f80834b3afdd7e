"""How pages show a job from Redis or from its record, with its attempts and history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from django.utils import timezone

from ..broker.queries import UnreadableJob
from ..client.registry import lookup
from ..client.tasks import Task
from ..conf import get_settings
from ..core import formatting
from ..core.clock import from_ms, ms_of
from ..core.codec import dumps, loads
from ..core.errors import key_of
from ..core.ids import is_workflow_id
from ..core.instruments import CORRELATION, headers_in
from ..core.job_data import EXPIRES, JobData, JobError, decode_error
from ..core.parsing import int_or_none, object_or_none
from ..core.statuses import Status
from ..core.text import escape_bidi, printable
from ..exceptions import CorruptJob
from ..health.findings import local_time
from ..mirror.archive import decode_record
from ..mirror.changes import STATUSES_WITH_ERROR
from ..models import ErrorGroup, JobEvent, JobRecord
from ..worker.identity import name_and_number, parse_child
from .filters import instant_of

UNSPENT = (Status.PROCESSING, Status.COMPLETED)  # their current attempt is not counted as spent
ENDS = (Status.RETRYING, Status.FAILED, Status.COMPLETED)  # of an attempt
ATTEMPTS = 20  # the newest, which have a section
DETAIL = 300  # characters of an event's detail


def read_record(record: JobRecord) -> JobData | UnreadableJob:
    """The job as last mirrored. Columns that were not loaded are left out."""
    try:
        return decode_record(record)
    except CorruptJob as error:
        return UnreadableJob(record.id, str(error), error.known)


def split(job: JobData | UnreadableJob) -> tuple[str, JobData | None]:
    """What cannot be read about the job, or '', and the readable part."""
    return (job.problem, job.known) if isinstance(job, UnreadableJob) else ("", job)


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job on its own page. ``job`` is None when not even its status can be read."""

    id: str
    job: JobData | None
    problem: str = ""
    is_live: bool = True  # whether it is in Redis, not only in the mirror

    @property
    def workflow(self) -> str:
        """The id of the workflow that the job belongs to, or ''."""
        workflow_id = self.id.rpartition(".")[0]
        return workflow_id if is_workflow_id(workflow_id) else ""


def facts_of(job: JobData) -> dict[str, Any]:
    """What a job's own page shows in addition to the fields of its data."""
    others = [name for name in job.unreadable if name not in ("payload", "result")]
    return {
        "attempts": attempts_begun(job),
        "max_attempts": max_attempts_of(job),
        "arguments": _arguments(job),
        "result": _result(job),
        "other_unreadable": [(name, _unreadable(job, name)) for name in others],
        "worker": worker_name(job.child),
        "correlation_id": headers_in(job.options).get(CORRELATION, ""),
        "percent": percent_of(job) or 0,
        "waited": between(job.enqueued_ms, job.started_ms),
        "ran": between(job.started_ms, job.finished_ms),
        "wait": "" if job.waits_for is None else wait_text(job),
        "expires": _expires_text(job),
    }


def _arguments(job: JobData) -> list[tuple[str, str]]:
    """(name of the parameter, or position if the task is unknown here; value as JSON)"""
    if "payload" in job.unreadable:
        return [("", _unreadable(job, "payload"))]
    names = parameters_of(job)
    named = [(names.get(at, str(at + 1)), value) for at, value in enumerate(job.args)]
    return [(name, _as_json(value)) for name, value in (*named, *job.kwargs.items())]


def _result(job: JobData) -> str:
    """The result of a completed job, as JSON; '' for others."""
    if job.status is not Status.COMPLETED:
        return ""
    return _unreadable(job, "result") if "result" in job.unreadable else _as_json(job.result)


def percent_of(job: JobData) -> int | None:
    """The progress from 0 to 100; None if there is none."""
    if job.progress is None:
        return None
    if job.progress.total <= 0:
        return 0
    return max(0, min(100, round(100 * job.progress.done / job.progress.total)))


def attempts_begun(job: JobData) -> int:
    """The spent attempts, plus the one that is running or has succeeded."""
    return job.attempts + (job.status in UNSPENT)


def parameters_of(job: JobData) -> dict[int, str]:
    """The names of its positional arguments; empty if the task is unknown here."""
    task: Task | None = lookup(job.task)
    if task is None:
        return {}
    found = task.parameters.signature.parameters.values()
    names = [
        one.name for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    return dict(enumerate(names[bool(job.options.get("takes_result")) :]))


def max_attempts_of(job: JobData) -> int | None:
    """How many attempts the job has; None if the task is unknown here."""
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
    """(label, how long): until the timeout of a running job or of a wait, or until a job is due.
    Empty for others."""
    if job.status is Status.PROCESSING and job.started_ms:
        timeout_ms = timeout_ms_of(job)
        left_ms = job.started_ms + timeout_ms - now_ms
        of = f"of {formatting.duration(timeout_ms)}"
        left = f"{formatting.duration(left_ms)} {of}" if left_ms > 0 else f"none {of}"
        return ("Time left", left) if timeout_ms else ("", "")
    if job.status in (Status.RETRYING, Status.SCHEDULED) and job.due_ms:
        what = "Next attempt" if job.status is Status.RETRYING else "Due"
        what = "Timeout" if job.waits_for else what
        left_ms = job.due_ms - now_ms
        return what, f"in {formatting.duration(left_ms)}" if left_ms > 0 else "now"
    return "", ""


def wait_text(job: JobData) -> str:
    """What a parked job waits for, since when, and until when at most."""
    what = f"waits for {job.waits_for}" if job.waits_for else "sleeps"
    since = f", since {local_time(from_ms(job.parked_ms))}" if job.parked_ms else ""
    until = f", until {local_time(from_ms(job.due_ms))}" if job.due_ms else ""
    return f"{what}{since}{until}"


def _expires_text(job: JobData) -> str:
    """The latest start, or how long the job may wait to start; '' if it does not expire."""
    text = str(job.options.get(EXPIRES, ""))
    ms = int_or_none(text.removeprefix("+"))
    if ms is None:
        return ""
    return f"after {formatting.duration(ms)}" if text.startswith("+") else local_time(from_ms(ms))


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list. ``job`` is None when not even its status can be read."""

    id: str
    job: JobData | None
    at: datetime | None
    problem: str = ""
    arguments: str = ""
    ran: str = ""  # how long it ran, or has been running
    attempts: str = ""  # ``2 of 5``
    worker: str = ""
    detail: str = ""  # what matters most in its status


def row_of(job: JobData | UnreadableJob, at: datetime | None = None) -> JobRow:
    """The row; ``at`` is the time that it shows, by default the one that lists are filtered by."""
    problem, known = split(job)
    if known is None:
        return JobRow(printable(job.id), None, at, problem)
    runs = known.status is Status.PROCESSING
    begun, most = attempts_begun(known), max_attempts_of(known)
    return JobRow(
        known.id,
        known,
        at or from_ms(instant_of(known)),
        problem,
        arguments=formatting.shorten(
            _unreadable(known, "payload")
            if "payload" in known.unreadable
            else escape_bidi(formatting.arguments(known.args, known.kwargs))
        ),
        ran=between(known.started_ms, ms_of(timezone.now()) if runs else known.finished_ms),
        attempts=f"{begun} of {most}" if most else str(begun),
        worker=worker_name(known.child),
        detail=_row_detail(known),
    )


def row_of_record(record: JobRecord) -> JobRow:
    """The row of a job as last mirrored, with the time when it was enqueued."""
    return row_of(read_record(record), record.enqueued_at)


def _row_detail(job: JobData) -> str:
    """Its progress, when it is due, or why it failed."""
    text = str(job.error) if job.error else job.reason
    if job.status is Status.PROCESSING and job.progress:
        text = f"{job.progress.done:g} of {job.progress.total:g} {job.progress.note}"
    elif job.waits_for is not None:
        text = wait_text(job)
    elif job.status in (Status.SCHEDULED, Status.RETRYING) and job.due_ms:
        due = f"due {local_time(from_ms(job.due_ms))}"
        text = f"{due}, {job.error}" if job.error else due
    return formatting.shorten(escape_bidi(text))


@dataclass(frozen=True, slots=True)
class JobRowPage:
    rows: Sequence[JobRow] = ()
    seen: int = 0  # jobs that were searched
    following: str = ""  # in the URL of the next page; '' at the end

    def place(self, start: int, *, is_filtered: bool) -> str:
        """The part of the list that the page shows, in words."""
        if not self.seen:
            return "No jobs were searched." if is_filtered else ""
        first, last = formatting.number(start + 1), formatting.number(start + self.seen)
        if not is_filtered:
            return f"{first} to {last}"
        return (
            f"{formatting.jobs(len(self.rows))} of the {formatting.number(self.seen)} searched "
            f"(positions {first} to {last})"
        )


def choices_of(rows: Iterable[JobRow]) -> dict[str, list[str]]:
    """The filters' suggestions: the tags and workers of the jobs that the page shows."""
    jobs = [row.job for row in rows if row.job is not None]
    tags = {f"{name}={value}" for job in jobs for name, value in job.tags.items()}
    children = [parse_child(job.child) for job in jobs]
    workers = {child.name for child in children if child}
    return {"tags": sorted(tags), "workers": sorted(workers)}


def _as_json(value: object) -> str:
    text = escape_bidi(json.dumps(value, indent=2, ensure_ascii=False))
    return formatting.shorten(text, formatting.LONG)


def _unreadable(job: JobData, name: str) -> str:
    return f"unreadable: {job.unreadable[name]}"


def between(first_ms: int | None, last_ms: int | None) -> str:
    if not first_ms or not last_ms or last_ms < first_ms:
        return ""
    return formatting.duration(last_ms - first_ms)


def worker_name(child: str) -> str:
    """A child's id without its random parts."""
    name, number = name_and_number(child)
    return child if name == child else f"{name}, child {number}"


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at: datetime
    status: str
    attempt: int
    worker: str
    detail: str


def fold(events: Sequence[JobEvent]) -> list[tuple[TimelineEntry, Sequence[TimelineEntry]]]:
    """The history: consecutive reports of progress are folded into the last one."""

    def kind(event: JobEvent) -> tuple[bool, int]:
        is_progress = event.status == Status.PROCESSING and '"progress"' in event.detail
        return is_progress, event.attempt if is_progress else 0

    found: list[tuple[TimelineEntry, Sequence[TimelineEntry]]] = []
    for (is_progress, _), group in groupby(events, key=kind):
        entries = list(map(_entry, group))
        if is_progress:
            found.append((entries[-1], entries[:-1]))
        else:
            found += [(entry, ()) for entry in entries]
    return found


def _entry(event: JobEvent) -> TimelineEntry:
    worker, detail = worker_name(event.worker), escape_bidi(_event_detail(event.detail))
    return TimelineEntry(event.at, event.status, event.attempt, worker, detail)


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


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt; ``number`` starts over when someone retries the job (``generation``)."""

    number: int
    generation: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    status: str = ""  # of the job when the attempt ended; '' while it runs
    children: Sequence[str] = ()  # that ran it, several if the job was recovered or parked
    error: JobError | None = None
    group: str = ""  # the id of the error's group, if it has a row

    @property
    def ran(self) -> str:
        if self.started_at is None or self.ended_at is None:
            return ""
        return formatting.duration((self.ended_at - self.started_at).total_seconds() * 1000)

    @property
    def workers(self) -> str:
        return ", then ".join(map(worker_name, filter(None, self.children)))

    @property
    def is_cut(self) -> bool:
        """Whether it failed with an error that is no longer known."""
        return self.error is None and self.status in (Status.RETRYING, Status.FAILED)


def attempts_of(job: JobData, events: Sequence[JobEvent]) -> list[Attempt]:
    """The newest attempts, newest first. ``events``: the job's newest, oldest first."""
    found = _from_events(job, events)
    if _is_behind(job, found):
        found.append(_from_job(job))
    ended = [at for at, attempt in enumerate(found) if attempt.status in STATUSES_WITH_ERROR]
    if job.error and ended:  # events leave out errors over 1 KB, the job does not
        found[ended[-1]] = replace(found[ended[-1]], error=job.error)
    return found[: -ATTEMPTS - 1 : -1]


def with_groups(task: str, attempts: Sequence[Attempt]) -> list[Attempt]:
    groups = [
        key_of(task, error.type, error.message, error.traceback).fingerprint if error else ""
        for error in (attempt.error for attempt in attempts)
    ]
    asked = {group for group in groups if group}  # no query if empty
    known = set(ErrorGroup.objects.filter(pk__in=asked).values_list("pk", flat=True))
    return [
        replace(attempt, group=group if group in known else "")
        for attempt, group in zip(attempts, groups, strict=True)
    ]


def _is_behind(job: JobData, found: Sequence[Attempt]) -> bool:
    """Whether the job has an attempt that its events do not have, or not yet."""
    number = attempts_begun(job)
    if not found:
        return bool(job.error or job.started_ms)
    newest = (found[-1].generation, found[-1].number)
    return number > 0 and (job.generation, number) > newest


def _from_job(job: JobData) -> Attempt:
    """The last attempt of a job without events."""
    is_over = job.status is not Status.PROCESSING
    return Attempt(
        attempts_begun(job) or 1,
        job.generation,
        from_ms(job.started_ms),
        from_ms(job.finished_ms) if is_over else None,
        job.status.value if is_over else "",
        (job.child,),
        job.error if is_over else None,
    )


def _from_events(job: JobData, events: Sequence[JobEvent]) -> list[Attempt]:
    details = [object_or_none(event.detail) or {} for event in events]
    requeues = [number for detail in details if (number := int_or_none(detail.get("requeues")))]
    generation = requeues[0] - 1 if requeues else job.generation
    found: list[Attempt] = []
    for event, detail in zip(events, details, strict=True):
        generation = int_or_none(detail.get("requeues")) or generation
        if event.status == Status.PROCESSING:
            if "progress" not in detail:
                _begin(found, event, generation)
            continue
        if found and not found[-1].status:
            begun = found.pop()
        elif event.status in ENDS and event.attempt:  # @task(audit=...) left out its start
            begun = Attempt(event.attempt, generation, children=(event.worker,))
        else:
            continue
        found.append(replace(begun, ended_at=event.at, status=event.status, error=_error(detail)))
    return found


def _begin(found: list[Attempt], event: JobEvent, generation: int) -> None:
    """Add a run: of a new attempt, or another one of the last attempt."""
    last = found[-1] if found else None
    if last and (last.number, last.generation) == (event.attempt, generation):
        children = tuple(dict.fromkeys((*last.children, event.worker)))
        found[-1] = replace(last, ended_at=None, status="", children=children, error=None)
    else:
        found.append(Attempt(event.attempt, generation, event.at, children=(event.worker,)))


def _error(detail: dict[str, Any]) -> JobError | None:
    try:
        return decode_error(dumps(detail["error"]), str(detail.get("reason", "")))
    except (KeyError, ValueError, TypeError):
        return None
