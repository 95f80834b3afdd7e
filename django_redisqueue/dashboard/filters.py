"""Filters for jobs in a list: by task, tag, worker, text in arguments and error, and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..broker.queries import UnreadableJob
from ..client.registry import lookup
from ..core import formatting
from ..core.clock import from_ms, ms_of
from ..core.job_data import JobData
from ..core.parsing import is_storable
from ..exceptions import InvalidOption


@dataclass(frozen=True, slots=True)
class JobListFilter:
    """Empty fields match every job. ``task`` is the name of a registered task, or a part of names;
    ``tag`` a part of ``name=value``; ``worker`` a part of a child's id. Times apply to the end of
    finished jobs, and to the enqueueing of others."""

    task: str = ""
    text: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    tag: str = ""
    worker: str = ""

    def __bool__(self) -> bool:
        return self != EVERYTHING

    def matches(self, job: JobData | UnreadableJob) -> bool:
        """Whether the job matches. An unreadable job only matches an empty filter."""
        if isinstance(job, UnreadableJob):
            return not self
        at_ms = instant_of(job)
        return (
            (self.since_ms is None or self.since_ms <= at_ms)
            and (self.until_ms is None or at_ms <= self.until_ms)
            and (job.task == self.task if self.is_exact_task else _is_part(self.task, job.task))
            and _is_part(self.worker, job.child)
            and (not self.tag or any(_is_part(self.tag, f"{n}={v}") for n, v in job.tags.items()))
            and (not self.text or _is_part(self.text, searched_text(job)))
        )

    @property
    def is_exact_task(self) -> bool:
        return lookup(self.task) is not None

    @property
    def since(self) -> datetime | None:
        return from_ms(self.since_ms)

    @property
    def until(self) -> datetime | None:
        return from_ms(self.until_ms)

    def query(self) -> dict[str, str]:
        """The filter as the parameters of a URL."""
        since, until = _local(self.since), _local(self.until)
        return given(task=self.task, text=self.text, since=since, until=until, **self.more())

    def more(self) -> dict[str, str]:
        """The filters by tag and worker, if they are set."""
        return given(tag=self.tag, worker=self.worker)

    def __str__(self) -> str:
        """The filter as part of a sentence; '' for one that matches every job."""
        parts = [
            f"task {'' if self.is_exact_task else 'like '}{self.task}" if self.task else "",
            f"“{self.text}” in arguments or error" if self.text else "",
            f"tag like {self.tag}" if self.tag else "",
            f"worker like {self.worker}" if self.worker else "",
            f"from {_local(self.since)}" if self.since_ms is not None else "",
            f"until {_local(self.until)}" if self.until_ms is not None else "",
        ]
        return ", ".join(filter(None, parts))


EVERYTHING = JobListFilter()


def given(**fields: str) -> dict[str, str]:
    """The fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


def searched_text(job: JobData) -> str:
    """The text that is searched: the arguments, and the error's type and message."""
    return f"{formatting.arguments(job.args, job.kwargs)}\n{job.error or ''}"


def _is_part(part: str, text: str) -> bool:
    return part.casefold() in text.casefold()


def instant_of(job: JobData) -> int:
    """The time that lists are filtered by: the end of a finished job, else its enqueueing."""
    return (job.finished_ms if job.status.is_final else job.enqueued_ms) or 0


def parse_filter(query: Mapping[str, Any]) -> JobListFilter:
    """The filter in the parameters of a request. Raises InvalidOption."""
    return JobListFilter(
        text_of(query, "task"),
        text_of(query, "text"),
        _instant(query, "since"),
        _instant(query, "until"),
        text_of(query, "tag"),
        text_of(query, "worker"),
    )


def text_of(query: Mapping[str, Any], name: str) -> str:
    """A parameter of a request. Raises InvalidOption for a character that no database stores."""
    found = str(query.get(name, "")).strip()
    if not is_storable(found):
        raise InvalidOption(f"{name}: {found!r} has a character that is not allowed in text")
    return found


def status_of(query: Mapping[str, Any], statuses: type[StrEnum]) -> str:
    """The status in a request, or ''. Raises InvalidOption."""
    status = str(query.get("status", ""))
    if status and status not in set(statuses):
        raise InvalidOption(f"{status!r} is not a status; use one of {', '.join(statuses)}")
    return status


def _instant(query: Mapping[str, Any], name: str) -> int | None:
    text = str(query.get(name, "")).strip()
    if not text:
        return None
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise InvalidOption(f"{name}: {text!r} is not a valid time; write it as 2026-01-31 14:30")
    if timezone.is_naive(found):
        found = timezone.make_aware(found)
    return ms_of(found)


def _local(instant: datetime | None) -> str:
    """The value of an input of type datetime-local."""
    if instant is None:
        return ""
    return timezone.localtime(instant).replace(tzinfo=None).isoformat(timespec="seconds")
