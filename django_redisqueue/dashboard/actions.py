"""POST requests: act on jobs in a list or on a whole queue, and save a list's filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.contrib import messages
from django.db import Error as DatabaseError
from django.db import router
from django.db.models import Model
from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.http import urlencode

from ..broker.queries import PAGE
from ..client.queue import JobQueue
from ..conf import get_settings
from ..core import formatting
from ..core.ids import check_job_id
from ..core.statuses import Status
from ..exceptions import (
    InvalidOption,
    RedisQueueError,
    RedisRefused,
    RedisUnavailable,
    first_line,
)
from ..health.facts import savepoint
from ..models import SavedFilter
from . import bulk
from .bulk import VERBS, Verb
from .filters import given, parse_filter, text_of
from .pages import Page, PageView
from .queue_page import check_list
from .records_page import parse_record_query

MAX_FILTERS = 20  # per user
MAX_NAME = 80  # characters of a filter's name
# The parameters of a queue's page: its forms send them along, so that the user stays in place.
KEPT = ("task", "text", "tag", "worker", "since", "until", "span", "scale", "start")


def posted(origin: str | Callable[..., str]) -> Callable[[PageView], PageView]:
    """Makes a view of what a form does. ``origin``: the URL name of the form's page, which has the
    same arguments, or a function that returns its URL. Other methods than POST get a link to it;
    there, errors of the queue are shown as messages."""

    def decorate(view: PageView) -> PageView:
        def guarded(page: Page, **arguments: Any) -> HttpResponseBase:
            if page.request.method != "POST":
                return page.not_posted(url(page, arguments))
            try:
                return view(page, **arguments)
            except RedisQueueError as error:
                messages.error(page.request, str(error))
                return HttpResponseRedirect(url(page, arguments))

        return guarded

    def url(page: Page, arguments: Mapping[str, Any]) -> str:
        if callable(origin):
            return origin(page, **arguments)
        return page.url(origin, *arguments.values())

    return decorate


@contextmanager
def acting_on_shards(page: Page, name: str, what: str) -> Iterator[None]:
    """If a shard refuses or does not answer in the block, log and say that others have acted."""
    try:
        yield
    except (RedisUnavailable, RedisRefused):
        if get_settings().shards > 1 and not page.is_redis_away:
            page.log(name, f"{what}, but not in all shards")
            text = "This was done in the shards that accepted it. Repeat it when all answer."
            messages.warning(page.request, text)
        raise


@contextmanager
def writing(model: type[Model]) -> Iterator[None]:
    """Raise InvalidOption, which pages show, if the database refuses what the block writes."""
    try:
        with savepoint(model, router.db_for_write(model)):
            yield
    except DatabaseError as error:
        raise InvalidOption(
            f"the database does not accept this, so nothing was done: {first_line(error)}"
        ) from error


def _tab(page: Page) -> str:
    """The status whose list the form was on."""
    return page.request.POST.get("list", "queued")


def _list_of(page: Page, queue: str, status: str) -> tuple[str, dict[str, str]]:
    """The URL of the list that a form was on, with its filter, place and charts; and those."""
    fields = given(**{name: page.request.POST.get(name, "") for name in KEPT})
    return page.url("queue", queue, status, **fields), fields


def _list_url(page: Page, queue: str, status: str = "") -> str:
    return _list_of(page, queue, status or _tab(page))[0]


def requested_verb(page: Page, status: Status) -> Verb:
    """The verb of a form. Raises InvalidOption unless it suits the status, and PermissionDenied."""
    verb: Verb = chosen(page, VERBS)
    if status not in verb.statuses:
        raise InvalidOption(f"the action {verb.name!r} does not apply to {status.value} jobs")
    return verb


def chosen(page: Page, verbs: Mapping[str, Any]) -> Any:
    """The verb that a form names. Raises InvalidOption or PermissionDenied."""
    name = page.request.POST.get("verb", "")
    if name not in verbs:
        raise InvalidOption(f"{name!r} is not an action; use one of {', '.join(verbs)}")
    page.require(verbs[name].permission)
    return verbs[name]


@posted(_list_url)
def act_on_list(page: Page, queue: str, status: str) -> HttpResponse:
    """Act on the selected jobs of a list, or with ``scope=all`` on all that match.

    Asks for confirmation first, unless jobs were selected and the verb needs no confirmation.
    """
    name, which_status = check_list(queue, status)
    verb = requested_verb(page, which_status)
    form = page.request.POST
    wants_all = form.get("scope") == "all"
    ids = [] if wants_all else _ids(form.getlist("id"))
    which = parse_filter(form)
    here, fields = _list_of(page, name, status)
    if not wants_all and not ids:
        raise InvalidOption("no jobs are selected; select some jobs, or all of them")
    count = bulk.count_jobs(name, which_status) if wants_all else len(ids)
    if (wants_all or verb.needs_confirmation) and form.get("confirmed") != "yes":
        jobs = formatting.jobs(count)
        button = f"{verb.label} {'those that match' if wants_all and which else jobs}"
        scope = "all" if wants_all else "some"
        fields |= {"verb": verb.name, "scope": scope, "before_ms": str(bulk.now_ms())}
        return page.confirm(
            "jobs", verb.label, button, here, fields, is_dangerous=verb.needs_confirmation,
            verb=verb, ids=ids, which=which, queue=name, status=status, jobs=jobs,
            at_once=count <= bulk.INLINE,
        )  # fmt: skip
    if wants_all:
        action = bulk.BulkAction(verb, name, which_status, before_ms(page), which)
        what = f"{verb.label} all {status} jobs{f' that match {which}' if which else ''}"
        return perform_bulk(page, action, count, what, here, partial(page.log, f"queue {name}"))
    acted, problem = verb.act(ids)
    page.log_jobs(acted, f"{verb.label} (queue {name}, {status})")
    _report(page, verb, len(acted), len(ids), problem)
    return HttpResponseRedirect(here)


def _ids(given: list[str]) -> list[str]:
    if len(given) > PAGE:
        raise InvalidOption(f"{len(given)} jobs are selected; select at most {PAGE}")
    return [check_job_id(job_id) for job_id in given]


def before_ms(page: Page) -> int:
    """When the confirmation was shown: later jobs are left alone."""
    text = page.request.POST.get("before_ms", "")
    if not text.isdecimal() or len(text) > 15:
        raise InvalidOption(f"before_ms must be an instant in milliseconds, not {text!r}")
    return int(text)


def perform_bulk(
    page: Page,
    action: bulk.BulkAction,
    count: int,
    what: str,
    here: str,
    log: Callable[[str], None],
) -> HttpResponse:
    """Act on about ``count`` jobs: at once, or in a job if they are many."""
    if count > bulk.INLINE:
        job = bulk.enqueue_bulk(action)
        log(f"{what}, by job {job.id}")
        messages.success(
            page.request, f"{what}: a worker is doing this. This page shows the progress."
        )
        return HttpResponseRedirect(page.url("job", job.id))
    found = bulk.perform(action, lambda *_: True)
    done = formatting.jobs(sum(found.by_shard.values()))
    log(f"{what}: {done}")
    messages.success(page.request, f"{done} {action.verb.done}.")
    if found.problem:
        messages.error(page.request, f"Not all shards answered. {found.problem}.")
    return HttpResponseRedirect(here)


def _report(page: Page, verb: Verb, done: int, asked: int, problem: str) -> None:
    if done:
        messages.success(page.request, f"{formatting.jobs(done)} {verb.done}.")
    left, were = formatting.jobs(asked - done), "was" if asked - done == 1 else "were"
    if problem:
        messages.error(page.request, f"{left} {were} left alone. {problem}.")
    elif done < asked:
        messages.warning(page.request, f"{left} {verb.why_left}, and {were} left alone.")


@posted(_list_url)
def pause(page: Page, queue: str) -> HttpResponse:
    name, status = check_list(queue, _tab(page))
    page.require("pause_queue")
    verb = page.request.POST.get("verb", "")
    if verb not in ("pause", "resume"):
        raise InvalidOption(f"{verb!r} is not an action; use pause or resume")
    found = JobQueue(name)
    who = page.request.user.get_username()
    with acting_on_shards(page, f"queue {name}", verb.capitalize()):
        changed = found.pause(by=who) if verb == "pause" else found.resume(by=who)
    if changed:
        page.log(f"queue {name}", verb.capitalize())
    now = "is paused: running jobs finish, no others start" if verb == "pause" else "is resumed"
    messages.success(page.request, f"The queue {name} {now}.")
    if page.request.POST.get("back") == "overview":
        return HttpResponseRedirect(page.url("overview"))
    return HttpResponseRedirect(_list_url(page, name, status.value))


@posted("jobrecord_changelist")
def change_filters(page: Page) -> HttpResponse:
    """Save a list's filter, or delete one; redirects to the list."""
    query: dict[str, str] = {}
    with page.showing_invalid():
        query = parse_record_query(page.request.POST).query()
        deletes = page.request.POST.get("verb") == "delete"
        done = _delete_filter(page) if deletes else _save_filter(page, query)
        messages.success(page.request, done)
    return HttpResponseRedirect(_filtered_url(page, query))


def _save_filter(page: Page, query: dict[str, str]) -> str:
    name = text_of(page.request.POST, "name")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidOption(f"a filter's name must have 1 to {MAX_NAME} characters")
    if not query:
        raise InvalidOption("there is no filter to save; set a filter first")
    if page.saved_filters.exclude(name=name).count() >= MAX_FILTERS:
        raise InvalidOption(f"you already have {MAX_FILTERS} filters; delete one first")
    with writing(SavedFilter):
        SavedFilter.objects.update_or_create(
            user_id=page.user_id, name=name, defaults={"query": urlencode(query)}
        )
    return f"The filter {name} was saved."


def _delete_filter(page: Page) -> str:
    number = page.request.POST.get("filter", "")
    known = number.isdecimal() and len(number) < 19
    found = page.saved_filters.filter(pk=number).first() if known else None
    if found is None:
        raise InvalidOption("the filter does not exist; it was probably deleted")
    with writing(SavedFilter):
        found.delete()
    return f"The filter {found.name} was deleted."


def _filtered_url(page: Page, query: dict[str, str]) -> str:
    """The URL of the list: ``<queue>/<status>``, or '' for the records."""
    queue, _, status = page.request.POST.get("list", "").partition("/")
    if not queue:
        return page.url("jobrecord_changelist", **query)
    check_list(queue, status)
    return page.url("queue", queue, status, **query)
