"""The attempts of one job, from its events: when each ran, where, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ..core import formatting
from ..core.clock import from_ms
from ..core.codec import dumps, loads
from ..core.errors import TracebackPart, key_of, traceback_parts
from ..core.job_data import JobData, JobError, decode_error
from ..core.parsing import int_or_none
from ..core.statuses import Status
from ..models import ErrorGroup, JobEvent
from .job_detail import attempts_begun, worker_name

SHOWN = 20  # attempts that have a section: the newest
WITH_ERROR = (Status.RETRYING, Status.FAILED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt; ``number`` begins again when somebody retries the job (``generation``)."""

    number: int
    generation: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    status: str = ""  # what the job became at its end, '' while it runs
    children: Sequence[str] = ()  # that ran it: a recovered or parked job runs again
    error: JobError | None = None
    group: str = ""  # the id of the error's group, if that has a row

    @property
    def ran(self) -> str:
        if self.started_at is None or self.ended_at is None:
            return ""
        return formatting.duration((self.ended_at - self.started_at).total_seconds() * 1000)

    @property
    def name(self) -> str:
        return f"{self.generation}-{self.number}"

    @property
    def workers(self) -> str:
        return ", then ".join(map(worker_name, self.children))

    @property
    def is_cut(self) -> bool:
        """Whether it failed with an error that is not known any more."""
        return self.error is None and self.status in (Status.RETRYING, Status.FAILED)

    @property
    def message(self) -> str:
        return formatting.shorten(str(self.error or ""), formatting.LONG)

    @property
    def traceback(self) -> list[TracebackPart]:
        return shown_traceback(self.error)


def shown_traceback(error: JobError | None) -> list[TracebackPart]:
    """Its frames. One that is too long loses its beginning: the error is at the end."""
    text = error.traceback if error else ""
    if len(text) > formatting.LONG:
        text = f"…\n{text[-formatting.LONG :]}"
    return list(traceback_parts(text))


def attempts_of(job: JobData, events: Sequence[JobEvent]) -> list[Attempt]:
    """The newest attempts, newest first. ``events``: the newest of the job, oldest first."""
    found = _from_events(job, events)
    if _is_behind(job, found):
        found.append(_from_job(job))
    ended = [at for at, attempt in enumerate(found) if attempt.status in WITH_ERROR]
    if job.error and ended:  # an event leaves out what is over 1 KB, the job does not
        found[ended[-1]] = replace(found[ended[-1]], error=job.error)
    return found[: -SHOWN - 1 : -1]


def with_groups(task: str, attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts with the groups of their errors, by one query."""
    groups = [
        key_of(task, error.type, error.message, error.traceback).fingerprint if error else ""
        for error in (attempt.error for attempt in attempts)
    ]
    if not any(groups):
        return list(attempts)
    known = set(ErrorGroup.objects.filter(pk__in=set(groups)).values_list("pk", flat=True))
    return [
        replace(attempt, group=group if group in known else "")
        for attempt, group in zip(attempts, groups, strict=True)
    ]


def _is_behind(job: JobData, found: Sequence[Attempt]) -> bool:
    """Whether the job knows an attempt that its events do not have, or not yet."""
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
        (job.child,) if job.child else (),
        job.error if is_over else None,
    )


def _from_events(job: JobData, events: Sequence[JobEvent]) -> list[Attempt]:
    details = [_detail(event) for event in events]
    requeues = [number for detail in details if (number := int_or_none(detail.get("requeues")))]
    generation = requeues[0] - 1 if requeues else job.generation
    found: list[Attempt] = []
    for event, detail in zip(events, details, strict=True):
        generation = int_or_none(detail.get("requeues")) or generation
        if event.status == Status.PROCESSING:
            if "progress" not in detail:
                _begin(found, event, generation)
        elif found and not found[-1].status:
            error = _error(detail)
            found[-1] = replace(found[-1], ended_at=event.at, status=event.status, error=error)
        elif event.status in (Status.RETRYING, Status.FAILED, Status.COMPLETED) and event.attempt:
            # @task(audit=...) has left out its begin
            found.append(
                Attempt(
                    event.attempt, generation, ended_at=event.at, status=event.status,
                    children=(event.worker,) if event.worker else (), error=_error(detail),
                )
            )  # fmt: skip
    return found


def _begin(found: list[Attempt], event: JobEvent, generation: int) -> None:
    """A run: of a new attempt, or of the last one once more."""
    children = (event.worker,) if event.worker else ()
    last = found[-1] if found else None
    if last and (last.number, last.generation) == (event.attempt, generation):
        more = tuple(dict.fromkeys((*last.children, *children)))
        found[-1] = replace(last, ended_at=None, status="", children=more, error=None)
    else:
        found.append(Attempt(event.attempt, generation, event.at, children=children))


def _detail(event: JobEvent) -> dict[str, Any]:
    try:
        return dict(loads(event.detail)) if event.detail else {}
    except (ValueError, TypeError):
        return {}


def _error(detail: dict[str, Any]) -> JobError | None:
    try:
        return decode_error(dumps(detail["error"]), str(detail.get("reason", "")))
    except (KeyError, ValueError, TypeError):
        return None
