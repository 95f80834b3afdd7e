"""What can be done to limits and shares, each with a confirmation: a number by hand, a pause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpResponse

from ..broker.limits import pause_name
from ..client.limits import NO_KEY, parse_key, parse_number, set_limit, set_weight
from ..client.queue import JobQueue
from ..client.transport import transport
from ..core.text import printable
from ..exceptions import InvalidOption
from .actions import posted
from .pages import Page, log_limit

CHANGE = "pause_queue"  # the permission: both decide what may start
FIELDS = ("limit", "key", "number", "share", "weight", "queue")


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a form asks for: what it does in words, and how."""

    name: str  # "limit stripe:42"
    text: str  # "set limit stripe:42 to 10"
    act: Callable[[str], bool]  # gets the name of the user


@posted
def change_limit(page: Page) -> HttpResponse:
    """Set the number of a limit or the weight of a share, or pause either in a queue; asks for
    confirmation first."""
    page.require(CHANGE)
    form = page.request.POST
    fields = {name: form.get(name, "").strip() for name in FIELDS}
    verb = form.get("verb", "")
    change = _change(verb, fields)
    here = page.url("limits")
    if form.get("confirmed") != "yes":
        return page.render(
            "confirm_limit", "Limits: are you sure?", text=change.text, fields=fields, verb=verb,
            here=here,
        )  # fmt: skip
    if change.act(page.request.user.get_username()):
        log_limit(page, change.name, change.text)
        page.add_message(messages.SUCCESS, f"Done: {change.text}.")
    else:
        page.add_message(messages.WARNING, f"It was so already: {change.text}.")
    return page.redirect(here)


def _change(verb: str, fields: Mapping[str, str]) -> Change:
    """Raises InvalidOption or InvalidArguments."""
    if verb == "set":
        return _set_limit(fields)
    if verb == "weigh":
        return _set_weight(fields)
    if verb == "pause":
        return _pause(fields)
    raise InvalidOption(f"{verb!r} is not an action; use set, weigh or pause")


def _limit_name(fields: Mapping[str, str]) -> str:
    name, key = fields["limit"], fields["key"]
    return printable(f"limit {name}:{key}" if key else f"limit {name}")


def _set_limit(fields: Mapping[str, str]) -> Change:
    number, key = parse_number(fields["number"]), parse_key(fields["key"])
    name = _limit_name(fields)
    text = f"remove the number of {name}" if number is None else f"set {name} to {fields['number']}"
    return Change(name, text, lambda by: set_limit(fields["limit"], number, key=key))


def _set_weight(fields: Mapping[str, str]) -> Change:
    share, given = fields["share"], fields["weight"]
    if given != "none" and not given.isdecimal():
        raise InvalidOption(f"a weight must be a whole number, or none, not {given!r}")
    weight = None if given == "none" else int(given[:9])
    name = printable(f"share {share}")
    removes = weight is None
    text = f"remove the weight of {name}" if removes else f"set the weight of {name} to {weight}"
    return Change(name, text, lambda by: set_weight(share, weight))


def _pause(fields: Mapping[str, str]) -> Change:
    queue, share, limit = JobQueue(fields["queue"]), fields["share"], fields["limit"]
    if not (share or limit):
        raise InvalidOption("name a share or a limit; a whole queue is paused on its own page")
    key = parse_key(fields["key"])
    what = printable(f"share {share}") if share else _limit_name(fields)

    def act(by: str) -> bool:
        return queue.pause(by=by, share=share or NO_KEY, limit=limit or None, key=key)

    return Change(what, f"pause {what} in queue {queue.name}", act)


@posted
def resume_part(page: Page) -> HttpResponse:
    """Resume what a queue has paused, by its key in the list of pauses."""
    page.require(CHANGE)
    queue = JobQueue(page.request.POST.get("queue", "")).name
    key = page.request.POST.get("part", "")
    name = pause_name(key)
    if transport().pause(queue, key, False, page.request.user.get_username()):
        log_limit(page, name, f"resume {name} in queue {queue}")
        page.add_message(messages.SUCCESS, f"{name} goes on in queue {queue}.")
    else:
        page.add_message(messages.WARNING, "It was resumed meanwhile; nothing was done.")
    return page.redirect(page.url("limits"))
