"""Pages of job records, newest first: by key instead of OFFSET, and never counted.

What an index can answer in order is answered whole. What it cannot (text in the arguments, a task
together with a status) is looked for in a slice of SLICE records at a time, and the reader goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.db import connections
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Concat

from ..exceptions import InvalidOption
from ..models import JobRecord
from ..states import Status
from .filters import EVERYTHING, JobFilter, parse_filter, text_of
from .keyset import Key, behind, parse_key

SIZE = 50  # records a page
SLICE = 5000  # records that one answer looks through
ORDER = ("-enqueued_at", "-id")
SHOWN = (
    "id", "task", "queue", "status", "payload", "error", "reason", "attempts", "enqueued_at",
    "started_at", "finished_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records. With ``prefix`` the rest counts for nothing: an id is precise enough."""

    which: JobFilter = EVERYTHING
    status: str = ""
    queue: str = ""
    prefix: str = ""
    after: Key | None = None

    def query(self) -> dict[str, str]:
        found = {"status": self.status, "queue": self.queue, "id": self.prefix}
        return {**self.which.query(), **{name: value for name, value in found.items() if value}}


def parse_wanted(query: Mapping[str, Any]) -> Wanted:
    """Raises InvalidOption for a bad time, status or place."""
    status = str(query.get("status", ""))
    if status and status not in set(Status):
        raise InvalidOption(f"{status!r} is not a status; use one of {', '.join(Status)}")
    return Wanted(
        parse_filter(query),
        status,
        text_of(query, "queue"),
        text_of(query, "id"),
        parse_key(str(query.get("after", ""))),
    )


@dataclass(frozen=True, slots=True)
class Records:
    """``back_to``: the search stopped there, after SLICE records, and goes on at ``following``."""

    rows: Sequence[JobRecord] = field(default_factory=list)
    following: Key | None = None
    back_to: datetime | None = None


def search(wanted: Wanted) -> Records:
    """A page of records. At most eight queries, each of them bounded."""
    if wanted.prefix:
        return _by_id(wanted)
    driving, rest = _split(wanted)
    if rest:
        return _slice(_in_order(wanted, driving), rest)
    if wanted.queue and not wanted.status:
        # An index has the records of a queue in order for each status: the pages of all, merged.
        pages = [
            list(_in_order(wanted, {**driving, "status": status.value})[: SIZE + 1])
            for status in Status
        ]
        rows = [row for page in pages for row in page]
        return _page(sorted(rows, key=attrgetter("enqueued_at", "id"), reverse=True))
    return _page(list(_in_order(wanted, driving)[: SIZE + 1]))


def _split(wanted: Wanted) -> tuple[dict[str, str], dict[str, str]]:
    """What an index of the model serves in the order of time, and what is left to look at."""
    asked = {"queue": wanted.queue, "status": wanted.status, "task": wanted.which.task}
    asked = {name: value for name, value in asked.items() if value}
    if {"queue", "status"} <= asked.keys():
        served = {"queue", "status"}
    elif "task" in asked:
        served = {"task"}
    elif wanted.which.text and "queue" in asked:
        served = set()
    else:
        served = set(asked)
    rest = {name: value for name, value in asked.items() if name not in served}
    if wanted.which.text:
        rest["text"] = wanted.which.text
    return {name: asked[name] for name in served}, rest


def _in_order(wanted: Wanted, driving: Mapping[str, str]) -> QuerySet[JobRecord]:
    found = JobRecord.objects.only(*SHOWN).filter(**driving).order_by(*ORDER)
    if wanted.which.since:
        found = found.filter(enqueued_at__gte=wanted.which.since)
    if wanted.which.until:
        found = found.filter(enqueued_at__lte=wanted.which.until)
    if wanted.after:
        found = behind(found, "enqueued_at", wanted.after)
    return found


def _slice(base: QuerySet[JobRecord], rest: Mapping[str, str]) -> Records:
    edge = base.values_list("enqueued_at", "id")[SLICE - 1 : SLICE].first()
    found = base
    if edge:
        found = found.filter(enqueued_at__gte=edge[0])
        found = found.exclude(enqueued_at=edge[0], id__lt=edge[1])
    for name, value in rest.items():
        if name == "text":
            found = found.filter(payload__icontains=value)
        else:
            # As an expression, so that no planner takes this column's index instead of the slice.
            found = found.alias(**{f"{name}_": Concat(F(name), Value(""))})
            found = found.filter(**{f"{name}_": value})
    page = _page(list(found[: SIZE + 1]))
    if page.following or not edge:
        return page
    return Records(page.rows, Key(*edge), edge[0])


def _by_id(wanted: Wanted) -> Records:
    found = JobRecord.objects.only(*SHOWN).order_by("-id")
    vendor = connections[found.db].vendor
    if vendor == "sqlite":  # its LIKE uses no index of this collation
        found = found.filter(id__gte=wanted.prefix, id__lt=f"{wanted.prefix}\U0010ffff")
    elif vendor == "mysql":  # startswith would compare bytes, for which there is no index
        found = found.filter(id__istartswith=wanted.prefix)
    else:
        found = found.filter(id__startswith=wanted.prefix)
    if wanted.after:
        found = found.filter(id__lt=wanted.after.id)
    return _page(list(found[: SIZE + 1]))


def _page(rows: Sequence[JobRecord]) -> Records:
    if len(rows) <= SIZE:
        return Records(rows)
    last = rows[SIZE - 1]
    return Records(rows[:SIZE], Key(last.enqueued_at, last.id))
