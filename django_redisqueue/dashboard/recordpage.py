"""The records of all jobs: the changelist of ``JobRecordAdmin``."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse

from ..conf import get_settings
from ..exceptions import InvalidOption
from ..registry import task_names
from ..states import Status
from .pages import Page
from .rows import row_of_record
from .search import SLICE, Records, Wanted, parse_wanted, search


def record_page(page: Page) -> HttpResponse:
    """One page of records, and the way to the next."""
    wanted, found = Wanted(), Records()
    try:
        wanted = parse_wanted(page.request.GET)
        found = search(wanted)
    except InvalidOption as error:
        page.tell(messages.ERROR, str(error))
    query = wanted.query()
    following = found.following.text() if found.following else ""
    return page.draw(
        "records",
        "Job records",
        rows=[row_of_record(record) for record in found.rows],
        fields=query,
        statuses=[status.value for status in Status],
        queues=sorted(get_settings().queues),
        tasks=task_names(),
        back_to=found.back_to,
        slice=SLICE,
        first_url=page.url("jobrecord_changelist", **query) if wanted.after else "",
        next_url=page.url("jobrecord_changelist", **query, after=following) if following else "",
    )
