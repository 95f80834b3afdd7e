"""Filters of lists of jobs that a user saves under names: each fits every list."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.utils.http import urlencode

from ..exceptions import InvalidOption
from ..models import SavedFilter
from .actions import posted
from .filters import text_of
from .pages import Page
from .queue_page import check_list
from .records_page import parse_record_query

MAX_FILTERS = 20  # of a user
MAX_NAME = 80


@posted
def change_filters(page: Page) -> HttpResponse:
    """Save the filter of a list, or delete one; leads back to the list."""
    query: dict[str, str] = {}
    try:
        query = parse_record_query(page.request.POST).query()
        done = _delete(page) if page.request.POST.get("verb") == "delete" else _save(page, query)
        page.add_message(messages.SUCCESS, done)
    except InvalidOption as error:
        page.add_message(messages.ERROR, str(error))
    return page.redirect(_list_url(page, query))


def _save(page: Page, query: dict[str, str]) -> str:
    name = text_of(page.request.POST, "name")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidOption(f"the name of a filter has 1 to {MAX_NAME} characters")
    if not query:
        raise InvalidOption("there is no filter to save; set one first")
    if page.saved_filters.exclude(name=name).count() >= MAX_FILTERS:
        raise InvalidOption(f"you have {MAX_FILTERS} filters, which is the most; delete one first")
    SavedFilter.objects.update_or_create(
        user_id=page.user_id, name=name, defaults={"query": urlencode(query)}
    )
    return f"The filter {name} is saved."


def _delete(page: Page) -> str:
    number = page.request.POST.get("filter", "")
    known = number.isdecimal() and len(number) < 19
    found = page.saved_filters.filter(pk=number).first() if known else None
    if found is None:
        raise InvalidOption("you do not have this filter; it was deleted meanwhile")
    found.delete()
    return f"The filter {found.name} is deleted."


def _list_url(page: Page, query: dict[str, str]) -> str:
    """The list that was looked at: ``<queue>/<status>``, or '' for the records."""
    queue, _, status = page.request.POST.get("list", "").partition("/")
    if not queue:
        return page.url("jobrecord_changelist", **query)
    check_list(queue, status)
    return page.url("queue", queue, status, **query)
