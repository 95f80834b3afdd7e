"""The policies: limits, unique keys and schedules, page by page, and the release of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse

from ..broker.commands import Commands
from ..broker.limits import LimitQueries, LimitState
from ..broker.schedules import ScheduleQueries, UnreadableSchedule
from ..broker.uniques import UniqueKey, UniqueQueries
from ..core import formatting
from ..core.clock import from_ms
from ..core.parsing import is_storable
from ..core.schedule_data import ScheduleData
from ..core.text import printable
from ..exceptions import RedisQueueError
from ..health.limits import limit_use
from ..models import PeriodicJob
from .actions import posted
from .pages import Page, log_jobs

SIZE = 50  # rows a page
KINDS = {"limits": "Limits", "unique_keys": "Unique keys", "schedules": "Schedules"}
RELEASE = "cancel_job"  # the permission: a cancelled job gives its keys back, too


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit as a table row."""

    state: LimitState

    @property
    def used(self) -> str:
        """``5 of 5``, or the rate."""
        return limit_use(self.state)

    @property
    def next_start(self) -> str:
        """When a rate allows one, or ''."""
        left_ms = self.state.next_ms
        if left_ms is None:
            return ""
        return f"in {formatting.duration(left_ms)}" if left_ms else "now"

    @property
    def more_holders(self) -> int:
        return self.state.used - len(self.state.holders)

    @property
    def oldest(self) -> str:
        return "" if self.state.oldest_ms is None else formatting.duration(self.state.oldest_ms)


@dataclass(frozen=True, slots=True)
class UniqueRow:
    """A unique key as a table row."""

    found: UniqueKey
    now_ms: int

    @property
    def key(self) -> str:
        return printable(self.found.key)

    @property
    def age(self) -> str:
        return formatting.duration(max(0, self.now_ms - self.found.taken_ms))

    @property
    def left(self) -> str:
        """How long a key with a time of its own still lasts."""
        until_ms = self.found.until_ms
        return "" if until_ms is None else formatting.duration(max(0, until_ms - self.now_ms))


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as a table row. ``row``: the primary key of its PeriodicJob."""

    name: str
    schedule: ScheduleData | None
    problem: str
    now_ms: int
    row: int | None = None

    @property
    def due(self) -> str:
        return self.schedule.due if self.schedule else ""

    @property
    def next_at(self) -> datetime | None:
        if self.schedule is None or self.schedule.is_stopped:
            return None
        return from_ms(self.schedule.next_ms)

    @property
    def last_at(self) -> datetime | None:
        return from_ms(self.schedule.last_ms) if self.schedule else None

    @property
    def is_late(self) -> bool:
        due_ms = self.schedule.next_ms if self.schedule and self.next_at else None
        return due_ms is not None and due_ms < self.now_ms - 60_000

    @property
    def paused(self) -> str:
        """``3 h``, or ''."""
        since = self.schedule.paused_ms if self.schedule else None
        return "" if since is None else formatting.duration(max(0, self.now_ms - since))


def limits(page: Page) -> HttpResponse:
    """The limits that jobs hold or wait for, by their names."""
    found: Sequence[LimitState] = ()
    following = ""
    try:
        page.check_redis()
        queries = LimitQueries(page.queries.connection)
        found, following = queries.after(page.request.GET.get("after", ""), SIZE)
    except RedisQueueError as error:
        page.report(error)
    return _render(page, "limits", list(map(LimitRow, found)), following)


def unique_keys(page: Page) -> HttpResponse:
    """The keys that jobs have, those taken first first; or with ``key`` in the query one."""
    key = page.request.GET.get("key", "").strip()
    rows: Sequence[UniqueKey] = ()
    following, total = "", 0
    try:
        page.check_redis()
        queries = UniqueQueries(page.queries.connection)
        if key:
            one = queries.find(key)
            rows = [one] if one else []
        else:
            rows, following = queries.after(page.request.GET.get("after", ""), SIZE)
        total = queries.count()
    except RedisQueueError as error:
        page.report(error)
    found = [UniqueRow(row, _now_ms(page)) for row in rows]
    return _render(
        page, "unique_keys", found, following, total=total, key=key,
        may_release=page.has_perm(RELEASE),
    )  # fmt: skip


def schedules(page: Page) -> HttpResponse:
    """The schedules by their next due times; those that are stopped come last."""
    found: Sequence[ScheduleData | UnreadableSchedule] = ()
    following, total = "", 0
    try:
        page.check_redis()
        queries = ScheduleQueries(page.queries.connection)
        found, following = queries.after(page.request.GET.get("after", ""), SIZE)
        total = queries.count()
    except RedisQueueError as error:
        page.report(error)
    names = [one.name for one in found if is_storable(one.name)]
    ids = dict(PeriodicJob.objects.filter(name__in=names).values_list("name", "pk"))
    rows = [_schedule_row(one, _now_ms(page), ids) for one in found]
    return _render(page, "schedules", rows, following, total=total)


def _schedule_row(
    found: ScheduleData | UnreadableSchedule, now_ms: int, ids: Mapping[str, int]
) -> ScheduleRow:
    name, row = printable(found.name), ids.get(found.name)
    if isinstance(found, UnreadableSchedule):
        return ScheduleRow(name, None, found.problem, now_ms, row)
    return ScheduleRow(name, found, found.error, now_ms, row)


def _now_ms(page: Page) -> int:
    return page.health.facts.shard.now_ms if page.health.facts.shard else 0


def _render(
    page: Page, kind: str, rows: Sequence[Any], following: str, *, key: str = "", **context: Any
) -> HttpResponse:
    """The whole page, or with ``live`` in the query only its table."""
    after = page.request.GET.get("after", "")
    shared: dict[str, Any] = {"rows": rows, "key": key, **context}
    if "live" in page.request.GET:
        return page.render_parts([kind], **shared)
    return page.render(
        "policies",
        KINDS[kind],
        **shared,
        kind=kind,
        table=f"admin/django_redisqueue/_{kind}.html",
        kinds=[(name, label, page.url(name)) for name, label in KINDS.items()],
        first_url=page.url(kind) if after else "",
        next_url=page.url(kind, after=following) if following else "",
        live=page.live_options(kind, after=after, key=key),
    )


@posted
def release_key(page: Page) -> HttpResponse:
    """Free a unique key; the job that had it goes on."""
    page.require(RELEASE)
    key, job_id = (page.request.POST.get(name, "") for name in ("key", "job"))
    connection = page.queries.connection
    owner = UniqueQueries(connection).find(key)
    if owner is None or owner.job_id != job_id:
        page.add_message(messages.WARNING, "The key has changed hands meanwhile; nothing was done.")
    else:
        Commands(connection).release_unique(key)
        log_jobs(page, [printable(job_id)], f"Release unique key {printable(key)}")
        page.add_message(messages.SUCCESS, f"{printable(key)} is free. Job {job_id} goes on.")
    if page.request.POST.get("back") == "job":
        return page.redirect(page.url("job", job_id))
    return page.redirect(page.url("unique_keys"))
