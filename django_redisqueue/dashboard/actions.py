"""What a POST does: to some jobs of a list, to all that match, to one job, to a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseNotAllowed
from django.http.response import HttpResponseBase

from ..exceptions import InvalidOption, RedisQueueError
from ..ids import check_job_id
from ..queue import JobQueue
from ..states import Status
from ..store.reads import PAGE
from ..store.transitions import Transitions
from . import bulk, words
from .audit import log_jobs, log_queue
from .filters import parse_filter
from .pages import Page, View
from .queuepage import names
from .verbs import VERBS, Verb


def posted(view: View) -> View:
    """Refuse anything but POST; what the queue refuses becomes a message where one came from."""

    def guarded(page: Page, **arguments: Any) -> HttpResponseBase:
        if page.request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            return view(page, **arguments)
        except RedisQueueError as error:
            page.tell(messages.ERROR, str(error))
            return page.go(_origin(page, arguments))

    return guarded


def _origin(page: Page, arguments: Mapping[str, Any]) -> str:
    if "job_id" in arguments:
        return page.url("job", arguments["job_id"])
    if "flow_id" in arguments:
        return page.url("workflow", arguments["flow_id"])
    return page.url("queue", arguments["queue"], arguments.get("status", "queued"))


def the_verb(page: Page, status: Status) -> Verb:
    """The one asked for, if it is of use for these jobs and the user may. Raises InvalidOption."""
    name = page.request.POST.get("verb", "")
    verb = VERBS.get(name)
    if verb is None:
        raise InvalidOption(f"{name!r} is no action; use one of {', '.join(VERBS)}")
    page.require(verb.permission)
    if status not in verb.statuses:
        raise InvalidOption(f"{status.value} jobs cannot be acted on by {name!r}")
    return verb


@posted
def act_on_list(page: Page, queue: str, status: str) -> HttpResponse:
    """Some jobs of a list, or with ``scope=all`` all that match; what destroys asks first."""
    name, which_status = names(queue, status)
    verb = the_verb(page, which_status)
    form = page.request.POST
    wants_all = form.get("scope") == "all"
    ids = [] if wants_all else _ids(form.getlist("id"))
    which = parse_filter(form)
    here = page.url("queue", name, status, **which.query())
    if not wants_all and not ids:
        raise InvalidOption("no jobs were selected; tick some, or choose “all that match”")
    if (wants_all or verb.warns) and form.get("confirmed") != "yes":
        count = JobQueue(name).get_stats().get(status, 0) if wants_all else len(ids)
        return page.draw(
            "confirm", f"{verb.label}: are you sure?", verb=verb, ids=ids, which=which,
            fields=which.query(), queue=name, status=status, scope="all" if wants_all else "some",
            jobs=words.of_jobs(count), here=here, at_once=count <= bulk.INLINE,
            before_ms=page.reads.now_ms(),
        )  # fmt: skip
    if wants_all:
        order = bulk.Order(verb, name, which_status, _before_ms(page), which)
        return _act_on_all(page, order, here)
    done = verb.act(Transitions(page.reads.link), ids)
    log_jobs(page, done, f"{verb.label} (queue {name}, {status})")
    _say(page, verb, len(done), len(ids))
    return page.go(here)


def _ids(given: list[str]) -> list[str]:
    if len(given) > PAGE:
        raise InvalidOption(f"{len(given)} jobs were selected; at most {PAGE} can be")
    return [check_job_id(job_id) for job_id in given]


def _before_ms(page: Page) -> int:
    """When the user was asked: what has come into the list since then is not meant."""
    text = page.request.POST.get("before_ms", "")
    if not text.isdecimal() or len(text) > 15:
        raise InvalidOption(f"before_ms must be an instant in milliseconds, not {text!r}")
    return int(text)


def _act_on_all(page: Page, order: bulk.Order, here: str) -> HttpResponse:
    """At once, or by a worker when the list is long."""
    count = JobQueue(order.queue).get_stats().get(order.status.value, 0)
    what = f"{order.verb.label} all {order.status.value} jobs"
    what += f" that match {order.which}" if order.which else ""
    if count > bulk.INLINE:
        job = bulk.give(order)
        log_queue(page, order.queue, f"{what}, by job {job.id}")
        page.tell(messages.SUCCESS, f"{what}: a worker does it now, and here is how far it is.")
        return page.go(page.url("job", job.id))
    done = bulk.carry_out(order, lambda *_: True)
    log_queue(page, order.queue, f"{what}: {words.of_jobs(done)}")
    page.tell(messages.SUCCESS, f"{words.of_jobs(done)} {order.verb.done}.")
    return page.go(here)


def _say(page: Page, verb: Verb, done: int, asked: int) -> None:
    if done:
        page.tell(messages.SUCCESS, f"{words.of_jobs(done)} {verb.done}.")
    if done < asked:
        left = asked - done
        text = f"{words.of_jobs(left)} had changed or gone meanwhile, and "
        page.tell(messages.WARNING, text + ("was left alone." if left == 1 else "were left alone."))


@posted
def pause(page: Page, queue: str) -> HttpResponse:
    """Pause a queue, or with ``resume`` let its workers go on."""
    name, _ = names(queue, "queued")
    page.require("pause_queue")
    verb = page.request.POST.get("verb", "")
    if verb not in ("pause", "resume"):
        raise InvalidOption(f"{verb!r} is no action; use pause or resume")
    found = JobQueue(name)
    changed = found.pause() if verb == "pause" else found.resume()
    if changed:
        log_queue(page, name, verb.capitalize())
    now = "is paused: running jobs finish, no other begins" if verb == "pause" else "runs again"
    page.tell(messages.SUCCESS, f"The queue {name} {now}.")
    if page.request.POST.get("back") == "overview":
        return page.go(page.url("overview"))
    return page.go(page.url("queue", name, "queued"))
