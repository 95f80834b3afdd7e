"""The search box: by id, task, tag, correlation id, key of a gather, or the text of an error."""

from __future__ import annotations

import re

from django.db.models import Q
from django.http import Http404, HttpResponse, HttpResponseRedirect

from ..client.registry import task_names
from ..conf import get_settings
from ..core.text import printable
from ..models import ErrorGroup
from . import job_page, workflows_page
from .filters import JobFilter, text_of
from .gathers_page import key_of, search_gathers
from .pages import Page
from .records_page import RecordQuery
from .records_page import search as search_records

SHOWN = 20  # finds of a kind
_ID = re.compile(r"(?:job|flow|gather|periodic)_[\w.-]+")


def search(page: Page) -> HttpResponse:
    """The page of the job or workflow with this id, or a list of what the words may mean."""
    words = ""
    with page.showing_invalid():
        words = text_of(page.request.GET, "q")
    if words and (address := _address_of(page, words)):
        return HttpResponseRedirect(address)
    return page.render("search", "Search", words=words, finds=_finds(page, words) if words else [])


def _address_of(page: Page, words: str) -> str:
    """The page of the job, workflow or gather that has this id, or ''."""
    if not _ID.fullmatch(words):
        return ""
    if words.startswith("gather_") and "." not in words:
        key = key_of(page, f"{words}.0")
        return page.optional_url("gather", key) if key else ""
    is_workflow = words.startswith("flow_") and "." not in words
    name, find = ("workflow", workflows_page.find) if is_workflow else ("job", job_page.find)
    try:
        find(page, words)
    except Http404:
        return ""
    return page.url(name, words)


def _finds(page: Page, words: str) -> list[tuple[str, str, str]]:
    """(kind, text, URL): names of queues and tasks, keys of gathers, error groups and ids that have
    the words; and searches for them in the records, which are bounded."""
    part = words.casefold()
    found = [
        ("Queue", name, page.url("queue", name, "queued"))
        for name in sorted(get_settings().queues)
        if part in name.casefold()
    ][:SHOWN]
    found += [
        ("Task", name, page.url("jobrecord_changelist", task=name))
        for name in task_names()
        if part in name.casefold()
    ][:SHOWN]
    found += [
        ("Gather", printable(key), url)
        for key in search_gathers(page, words)[:SHOWN]
        if (url := page.optional_url("gather", key))
    ]
    errors = ErrorGroup.objects.filter(
        Q(exception__icontains=words) | Q(message__icontains=words)
    ).order_by("-last_seen")
    found += [
        ("Error", f"{group}: {group.message}", page.url("error", group.id))
        for group in errors[:SHOWN]
    ]
    found += [
        ("Job", f"{record.id} {record.task}", page.url("job", record.id))
        for record in search_records(RecordQuery(JobFilter(), prefix=words)).rows[:SHOWN]
    ]
    if search_records(RecordQuery(correlation=words)).rows:
        url = page.url("jobrecord_changelist", correlation=words)
        found.append(("Jobs", f"with the correlation id {words}", url))
    if "=" in words:
        url = page.url("jobrecord_changelist", tag=words)
        found.append(("Jobs", f"with the tag {words}", url))
    url = page.url("jobrecord_changelist", text=words)
    return [*found, ("Jobs", f"with {words} in arguments or error", url)]
