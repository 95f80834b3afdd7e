"""The search box: by id, task, tag, correlation id, gather key, or error text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

from django.db.models import Q
from django.http import Http404, HttpResponse, HttpResponseRedirect

from ..client.registry import task_names
from ..conf import get_settings
from ..core.ids import is_workflow_id
from ..core.text import printable
from ..models import ErrorGroup
from . import job_page, workflows_page
from .filters import JobListFilter, text_of
from .gathers_page import key_of, search_gathers
from .pages import Page
from .records_page import RecordQuery
from .records_page import search as search_records

SHOWN = 20  # finds of each kind
Find = tuple[str, str, str]  # kind, text, URL
_ID = re.compile(r"(?:job|flow|gather|periodic)_[\w.-]+")


def search(page: Page) -> HttpResponse:
    """The page of the job or workflow with this id, or a list of what matches the words."""
    words = ""
    with page.showing_invalid():
        words = text_of(page.request.GET, "q")
    if words and (address := _address_of(page, words)):
        return HttpResponseRedirect(address)
    finds = [*_finds(page, words)] if words else []
    return page.render("search", "Search", words=words, finds=finds)


def _address_of(page: Page, words: str) -> str:
    """The page of the job, workflow or gather that has this id, or ''."""
    if not _ID.fullmatch(words):
        return ""
    if words.startswith("gather_") and "." not in words:
        key = key_of(page, f"{words}.0")
        return page.optional_url("gather", key) if key else ""
    is_workflow = is_workflow_id(words)
    name, find = ("workflow", workflows_page.find) if is_workflow else ("job", job_page.find)
    try:
        find(page, words)
    except Http404:
        return ""
    return page.url(name, words)


def _finds(page: Page, words: str) -> Iterator[Find]:
    """Names, keys, errors and ids that contain the words; and searches of the records for them."""
    for name in _with_part(words, sorted(get_settings().queues)):
        yield "Queue", name, page.url("queue", name, "queued")
    for name in _with_part(words, task_names()):
        yield "Task", name, page.url("jobrecord_changelist", task=name)
    for key in search_gathers(page, words)[:SHOWN]:
        if url := page.optional_url("gather", key):
            yield "Gather", printable(key), url
    errors = ErrorGroup.objects.filter(
        Q(exception__icontains=words) | Q(message__icontains=words)
    ).order_by("-last_seen")
    for group in errors[:SHOWN]:
        yield "Error", f"{group}: {group.message}", page.url("error", group.id)
    for record in search_records(RecordQuery(JobListFilter(), prefix=words)).rows[:SHOWN]:
        if url := page.optional_url("job", record.id):
            yield "Job", f"{record.id} {record.task}", url
    yield from _searches(page, words)


def _with_part(words: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if words.casefold() in name.casefold()][:SHOWN]


def _searches(page: Page, words: str) -> Iterator[Find]:
    """Searches of the records that may have results."""
    records = partial(page.url, "jobrecord_changelist")
    if search_records(RecordQuery(correlation=words)).rows:
        yield "Jobs", f"with the correlation id {words}", records(correlation=words)
    if "=" in words:
        yield "Jobs", f"with the tag {words}", records(tag=words)
    yield "Jobs", f"with {words} in arguments or error", records(text=words)
