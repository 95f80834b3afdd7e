"""Which jobs of a list a page shows or an order means: by task, text in the arguments, and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..clock import from_ms, ms_of
from ..exceptions import InvalidOption
from ..jobdata import JobData
from ..parsing import is_storable
from .words import call


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Empty fields let everything pass. Times are ms since the epoch: when a finished job ended,
    when another was enqueued."""

    task: str = ""
    text: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def __bool__(self) -> bool:
        return self != EVERYTHING

    def matches(self, job: JobData) -> bool:
        if self.task and job.task != self.task:
            return False
        if not self._is_in_time(instant_of(job)):
            return False
        return not self.text or self.text.casefold() in call(job.args, job.kwargs).casefold()

    def _is_in_time(self, at_ms: int) -> bool:
        after = self.since_ms is None or at_ms >= self.since_ms
        return after and (self.until_ms is None or at_ms <= self.until_ms)

    @property
    def since(self) -> datetime | None:
        return from_ms(self.since_ms)

    @property
    def until(self) -> datetime | None:
        return from_ms(self.until_ms)

    def query(self) -> dict[str, str]:
        """The parameters of an address that say the same."""
        found = {"task": self.task, "text": self.text}
        found |= {"since": _local(self.since), "until": _local(self.until)}
        return {name: value for name, value in found.items() if value}

    def __str__(self) -> str:
        """In words, as part of a sentence; '' for all jobs."""
        parts = [
            f"task {self.task}" if self.task else "",
            f"“{self.text}” in the arguments" if self.text else "",
            f"from {_local(self.since)}" if self.since_ms is not None else "",
            f"until {_local(self.until)}" if self.until_ms is not None else "",
        ]
        return ", ".join(filter(None, parts))


EVERYTHING = JobFilter()


def instant_of(job: JobData) -> int:
    """The time that a list is filtered by."""
    return (job.finished_ms if job.status.is_final else job.enqueued_ms) or 0


def parse_filter(query: Mapping[str, Any]) -> JobFilter:
    """The filter that the parameters of a request name. Raises InvalidOption for a bad time."""
    return JobFilter(
        text_of(query, "task"),
        text_of(query, "text"),
        _instant(query, "since"),
        _instant(query, "until"),
    )


def text_of(query: Mapping[str, Any], name: str) -> str:
    """A parameter of a request. Raises InvalidOption for what no database can be asked for."""
    found = str(query.get(name, "")).strip()
    if not is_storable(found):
        raise InvalidOption(f"{name}: {found!r} has a character that no text can have")
    return found


def _instant(query: Mapping[str, Any], name: str) -> int | None:
    text = str(query.get(name, "")).strip()
    if not text:
        return None
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise InvalidOption(f"{name}: {text!r} is no time; write it as 2026-01-31 14:30")
    if timezone.is_naive(found):
        found = timezone.make_aware(found)
    return ms_of(found)


def _local(instant: datetime | None) -> str:
    """As a field for date and time takes it."""
    if instant is None:
        return ""
    return timezone.localtime(instant).replace(tzinfo=None).isoformat(timespec="seconds")
