"""The pages of limits, unique keys, schedules and waits, and the actions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst

from ..broker import sums
from ..broker.commands import Commands
from ..broker.policies import LanePause, LimitState, pause_name
from ..broker.schedules import UnreadableSchedule
from ..broker.steps import Wait
from ..client.limits import (
    NO_KEY,
    keys_to_set,
    limit_keys,
    limit_names,
    parse_key,
    parse_number,
    parse_weight,
    set_limit,
    set_weight,
)
from ..client.queue import JobQueue
from ..client.transport import connection_of, transport
from ..conf import get_settings
from ..core import formatting
from ..core.job_data import WaitKind
from ..core.parsing import is_storable
from ..core.policies import UniqueKey
from ..core.schedules import ScheduleData
from ..core.text import printable
from ..exceptions import InvalidOption
from ..health.policies import SCHEDULE_LATE, WAITS
from ..models import Approval, PeriodicJob
from .actions import acting_on_shards, posted
from .pages import Page

SIZE = 50  # rows per page
PAUSES = 100  # of shares and limits, shown at most
KINDS = {
    "limits": "Limits",
    "unique_keys": "Unique keys",
    "schedules": "Schedules",
    "waits": "Waits",
}
RELEASE = "cancel_job"  # the permission: a cancelled job releases its keys as well
CHANGE = "pause_queue"  # the permission: both determine what may start
FIELDS = ("limit", "key", "number", "share", "weight", "queue")  # of the forms for changes


def limits(page: Page) -> HttpResponse:
    """The limits that jobs hold or wait for, sorted by name."""
    found: Sequence[LimitState] = ()
    paused: Sequence[LanePause] = ()
    following, queues = "", sorted(get_settings().queues)
    with page.reading() as shards:
        found, following = sums.limits(shards, page.request.GET.get("after", ""), SIZE)
        paused = sums.pauses(shards, queues)[:PAUSES]
    rows = [(one, one.used - len(one.holders)) for one in found]  # and how many more hold it
    return _render(
        page, "limits", rows, following, queues=queues, may_change=page.has_perm(CHANGE),
        limit_names=limit_names(), pauses=paused,
    )  # fmt: skip


def unique_keys(page: Page) -> HttpResponse:
    """The keys that jobs hold, oldest first; or only that in the query's ``key``."""
    key = page.request.GET.get("key", "").strip()
    rows: Sequence[UniqueKey] = ()
    following, total = "", 0
    with page.reading() as shards:
        if key:
            rows = sums.unique_key(shards, key)
        else:
            rows, following = sums.unique_keys(shards, page.request.GET.get("after", ""), SIZE)
        total = sums.unique_key_count(shards)
    return _render(
        page, "unique_keys", rows, following, {"key": key}, total=total, key=key,
        may_release=page.has_perm(RELEASE),
    )  # fmt: skip


def schedules(page: Page) -> HttpResponse:
    """The schedules by next due time, stopped ones last."""
    found: Sequence[ScheduleData | UnreadableSchedule] = ()
    following, total = "", 0
    with page.reading() as shards:
        found, following = sums.schedules(shards, page.request.GET.get("after", ""), SIZE)
        total = sums.schedule_count(shards)
    names = [one.name for one in found if is_storable(one.name)]
    ids = dict(PeriodicJob.objects.filter(name__in=names).values_list("name", "pk"))
    rows = [_schedule_row(page, one, ids.get(one.name)) for one in found]
    return _render(page, "schedules", rows, following, total=total)


def waits(page: Page) -> HttpResponse:
    """The parked jobs, oldest first: of the ``kind`` in the query, by default those for events."""
    asked = page.request.GET.get("kind")
    kind = WaitKind(asked) if asked in set(WaitKind) else WaitKind.EVENT
    found: Sequence[Wait] = ()
    following, counts = "", dict.fromkeys(WaitKind, 0)
    with page.reading() as shards:
        found, following = sums.waits(shards, kind, page.request.GET.get("after", ""), SIZE)
        counts.update(sums.wait_counts(shards))
    tabs = [
        (one, WAITS[one].capitalize(), formatting.number(counts[one]), page.url("waits", kind=one))
        for one in WaitKind
    ]
    return _render(
        page, "waits", _wait_rows(page, found), following, {"kind": kind}, wait_kind=kind,
        wait_tabs=tabs,
    )  # fmt: skip


def _wait_rows(page: Page, found: Sequence[Wait]) -> list[dict[str, Any]]:
    """The rows, with the approvals that jobs wait for if the user may see them."""
    rows: dict[tuple[str, str], dict[str, Any]]
    rows = {(wait.job_id, wait.name): {"wait": wait} for wait in found}
    asked = [wait.job_id for wait in found if wait.kind is WaitKind.APPROVAL]
    if asked and page.has_perm("view_approval"):
        for row in Approval.objects.filter(job_id__in=asked):
            if of_job := rows.get((row.job_id, row.name)):
                url = page.optional_url("approval_change", row.pk)
                of_job |= {"approval": row, "approval_url": url}
    return list(rows.values())


def _schedule_row(
    page: Page, found: ScheduleData | UnreadableSchedule, pk: int | None
) -> dict[str, Any]:
    """``pk``: the primary key of its PeriodicJob."""
    row = {"name": printable(found.name), "pk": pk}
    if isinstance(found, UnreadableSchedule):
        return {**row, "problem": found.problem}
    next_ms = None if found.is_stopped else found.next_ms
    is_late = next_ms is not None and next_ms < _now_ms(page) - SCHEDULE_LATE
    return {
        **row, "problem": found.error, "schedule": found, "next_ms": next_ms, "is_late": is_late,
    }  # fmt: skip


def _now_ms(page: Page) -> int:
    return page.health.facts.shard.now_ms if page.health.facts.shard else 0


def _render(
    page: Page,
    kind: str,
    rows: Sequence[Any],
    following: str,
    kept: Mapping[str, str] | None = None,
    **context: Any,
) -> HttpResponse:
    """``kept``: other parameters that all URLs on the page keep."""
    kept = kept or {}
    after = page.request.GET.get("after", "")
    shared: dict[str, Any] = {"rows": rows, "now_ms": _now_ms(page), **context}
    if page.wants_parts:
        return page.render_parts([kind], **shared)
    return page.render(
        "policies",
        KINDS[kind],
        **shared,
        kind=kind,
        table=f"admin/django_redisqueue/_{kind}.html",
        kinds=[(name, label, page.url(name)) for name, label in KINDS.items()],
        first_url=page.url(kind, **kept) if after else "",
        next_url=page.url(kind, after=following, **kept) if following else "",
        live=page.live_options(kind, after=after, **kept),
    )


@posted("unique_keys")
def release_key(page: Page) -> HttpResponse:
    """Free a unique key, after a confirmation; the job that had it is not changed."""
    page.require(RELEASE)
    fields = {name: page.request.POST.get(name, "") for name in ("key", "job", "back")}
    key, job_id = fields["key"], fields["job"]
    back = page.optional_url("job", job_id) if fields["back"] == "job" else ""
    here = back or page.url("unique_keys")
    if page.request.POST.get("confirmed") != "yes":
        return page.confirm("key", "Release", "Release the key", here, fields)
    connection = connection_of(job_id)  # a job and its keys are in one shard
    if not Commands(connection).release_unique(key, job_id):
        messages.warning(page.request, "The job no longer has this key; nothing was done.")
    else:
        page.log_jobs([printable(job_id)], f"Release unique key {printable(key)}")
        messages.success(page.request, f"{printable(key)} is free. Job {job_id} was not changed.")
    return HttpResponseRedirect(here)


class Change(NamedTuple):
    """A change that a form requests: its name, its description, and how to make it."""

    name: str  # "limit stripe:42"
    text: str  # "set limit stripe:42 to 10"
    act: Callable[[str], bool]  # receives the user's name


@posted("limits")
def change_limit(page: Page) -> HttpResponse:
    """Set the number of a limit or the weight of a share, or pause either, after confirmation."""
    page.require(CHANGE)
    form = page.request.POST
    fields = {name: form.get(name, "").strip() for name in FIELDS}
    verb = form.get("verb", "")
    changes = {"set": _set_limit, "weigh": _set_weight, "pause": _pause}
    if verb not in changes:
        raise InvalidOption(f"{verb!r} is not an action; use set, weigh or pause")
    change = changes[verb](fields)
    here = page.url("limits")
    if form.get("confirmed") != "yes":
        button = f"Yes, {change.text}"
        return page.confirm(
            "limit", "Limits", button, here, {**fields, "verb": verb}, text=change.text
        )
    with acting_on_shards(page, change.name, capfirst(change.text)):
        is_changed = change.act(page.request.user.get_username())
    if is_changed:
        page.log(change.name, capfirst(change.text))
        messages.success(page.request, f"Done: {change.text}.")
    else:
        messages.warning(page.request, f"Already done: {change.text}.")
    return HttpResponseRedirect(here)


def _limit_name(fields: Mapping[str, str]) -> str:
    name, key = fields["limit"], fields["key"]
    return printable(f"limit {name}:{key}" if key else f"limit {name}")


def _set_limit(fields: Mapping[str, str]) -> Change:
    number, key = parse_number(fields["number"]), parse_key(fields["key"])
    keys_to_set(fields["limit"], number, key)  # an impossible change needs no confirmation
    name = _limit_name(fields)
    text = f"remove the number of {name}" if number is None else f"set {name} to {fields['number']}"
    return Change(name, text, lambda by: set_limit(fields["limit"], number, key=key))


def _set_weight(fields: Mapping[str, str]) -> Change:
    share, weight = fields["share"], parse_weight(fields["weight"])
    name = printable(f"share {share}")
    text = f"remove the weight of {name}"
    if weight is not None:
        text = f"set the weight of {name} to {weight}"
    return Change(name, text, lambda by: set_weight(share, weight))


def _pause(fields: Mapping[str, str]) -> Change:
    queue, share, limit = JobQueue(fields["queue"]), fields["share"], fields["limit"]
    if not (share or limit):
        raise InvalidOption("name a share or a limit; to pause a whole queue, use its page")
    key = parse_key(fields["key"])
    if limit:
        limit_keys(limit, key)
    what = printable(f"share {share}") if share else _limit_name(fields)

    def act(by: str) -> bool:
        return queue.pause(by=by, share=share or NO_KEY, limit=limit or None, key=key)

    return Change(what, f"pause {what} in queue {queue.name}", act)


@posted("limits")
def resume_part(page: Page) -> HttpResponse:
    """Resume a share or limit of a queue, by its key in the list of pauses."""
    page.require(CHANGE)
    queue = JobQueue(page.request.POST.get("queue", "")).name
    key = page.request.POST.get("part", "")
    name = pause_name(key)
    what = f"Resume {name} in queue {queue}"
    with acting_on_shards(page, name, what):
        is_resumed = transport().pause(queue, key, False, page.request.user.get_username())
    if is_resumed:
        page.log(name, what)
        messages.success(page.request, f"{name} is resumed in queue {queue}.")
    else:
        messages.warning(page.request, "It was already resumed; nothing was done.")
    return HttpResponseRedirect(page.url("limits"))
