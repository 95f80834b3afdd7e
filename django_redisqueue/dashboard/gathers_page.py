"""The gathers in Redis, and the page of one: its parts, results and timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from heapq import merge
from typing import Any

from django.http import Http404, HttpResponse

from ..broker.base import Read
from ..broker.connection import RedisConnection
from ..broker.workflows import GatherQueries
from ..core.clock import from_ms
from ..core.ids import check_gather_key
from ..core.records import ENDED_COUNTS, GatherData
from ..core.statuses import GatherStatus
from ..core.text import printable
from ..exceptions import CorruptJob, InvalidName, RedisQueueError
from .filters import given, text_of
from .pages import Page
from .workflow_detail import WorkflowDetail, WorkflowGraph, first_failure, load_jobs, timeline

SIZE = 50  # gathers per page
SLICE = 1000  # gathers that a request with a filter, or a search, looks through
LAST_START = 9_950  # the last page: each shard reads all keys before a page
PARTS = ("gather", "workflowtimes", "gatherjobs")

Place = tuple[str, int]  # a key and its shard


def gather_list(page: Page) -> HttpResponse:
    fields, start = _fields(page), min(page.int_param("start", 0), LAST_START)
    count = SLICE if fields else SIZE
    listed = _newest(page, start, count + 1)
    matching = _matching(page, listed[:count], **fields)
    shown = matching[:SIZE]
    found = page.ask_for(shown, lambda one, keys: GatherQueries(one).outlines.read(keys))
    rows = [_row(key, data) for key, _ in shown if (data := found.get(key))]
    is_full = len(matching) > SIZE
    following = start + (listed.index(matching[SIZE]) if is_full else count)
    has_more = (is_full or len(listed) > count) and following <= LAST_START
    looked_through = SLICE if fields and has_more and not is_full else 0
    parts: dict[str, Any] = {"rows": rows, "looked_through": looked_through}
    if page.wants_parts:
        return page.render_parts(["gathers"], **parts)
    return page.render(
        "gathers",
        "Gathers",
        **parts,
        fields=fields,
        statuses=[status.value for status in GatherStatus],
        first_url=page.url("gathers", **fields) if start else "",
        next_url=page.url("gathers", **fields, start=following) if has_more else "",
        live=page.live_options("gathers", **fields, start=start or ""),
    )


def _fields(page: Page) -> dict[str, str]:
    """The filter, as the parameters of a URL."""
    found: dict[str, str] = {}
    with page.showing_invalid():
        found = {name: text_of(page.request.GET, name) for name in ("status", "key")}
    if found.get("status") not in set(GatherStatus):
        found["status"] = ""
    return given(**found)


def _newest(page: Page, start: int, count: int) -> list[Place]:
    """The keys from ``start`` with their shards, newest first."""

    def read(connection: RedisConnection) -> Read[list[tuple[float, str, int]]]:
        found = yield from GatherQueries(connection).newest.read(start + count)
        return [(at, key, connection.shard) for key, at in found]

    merged = merge(*page.ask(read).values(), reverse=True)
    return [(key, shard) for _, key, shard in merged][start : start + count]


def _matching(page: Page, places: list[Place], status: str = "", key: str = "") -> list[Place]:
    """Those with this status and this text in the key. With a status, one round trip per shard."""
    found = [place for place in places if key.casefold() in place[0].casefold()]
    if not status:
        return found
    statuses = page.ask_for(found, lambda one, keys: GatherQueries(one).statuses.read(keys))
    return [place for place in found if statuses.get(place[0]) == status]


def search_gathers(page: Page, text: str) -> list[str]:
    """The key that is ``text``, and the newest that contain it. One round trip per shard."""
    parts = page.ask(lambda one: GatherQueries(one).matching.read(text, SLICE)).values()
    found = sorted(((at, key) for part in parts for key, at in part), reverse=True)
    return [key for _, key in found]


def key_of(page: Page, job_id: str) -> str:
    """The key of the gather that the job belongs to, as long as Redis has the job; or ''."""
    try:
        return GatherQueries(page.queries_of(job_id).connection).key_of(job_id) or ""
    except RedisQueueError as error:
        page.note(job_id, error)
        return ""


def _row(key: str, found: GatherData | CorruptJob) -> WorkflowDetail:
    """A gather in the form of a workflow: listeners with a result count as completed."""
    if isinstance(found, CorruptJob):
        return WorkflowDetail(id="", name=printable(key), is_live=True, problem=f"{found}.")
    return _detail(found, {"completed": found.done_count})


def _detail(data: GatherData, counts: Mapping[str, int]) -> WorkflowDetail:
    return WorkflowDetail(
        id=printable(data.id), name=printable(data.key), status=data.status.value, is_live=True,
        reason=data.reason.value, total=len(data.listeners),
        counts={name: counts.get(name, 0) for name in ENDED_COUNTS},
        made_at=from_ms(data.made_ms), ended_at=from_ms(data.ended_ms),
    )  # fmt: skip


def gather_page(page: Page, key: str) -> HttpResponse:
    found = _find(page, key)
    context = _context(page, key, found)
    if page.wants_parts:
        return page.render_parts(PARTS, **context)
    live = page.live_options("gather", key)
    code = 503 if found is None else 200
    return page.render("gather", f"Gather {key}", code=code, **context, key=key, live=live)


def _find(page: Page, key: str) -> GatherData | CorruptJob | None:
    """The gather; None if a shard that may have it does not answer. Raises Http404."""

    def read(connection: RedisConnection) -> Read[GatherData | CorruptJob | None]:
        try:
            return (yield from GatherQueries(connection).gather.read(key))
        except CorruptJob as error:
            return error

    try:
        check_gather_key(key)
    except InvalidName as error:
        raise Http404(str(error)) from None
    found = next((one for one in page.ask(read).values() if one), None)
    if found is None and not page.missing and not page.errors:
        raise Http404(
            f"gather {key} does not exist: it ended and was deleted, or was never started"
        )
    return found


def _context(page: Page, key: str, found: GatherData | CorruptJob | None) -> dict[str, Any]:
    graph = WorkflowGraph()
    if not isinstance(found, GatherData):
        problem = f"{found}." if found else "Redis does not answer, and gathers have no record."
        gather = WorkflowDetail(id="", name=key, problem=problem)
        return {"workflow": gather, "gather": None, "gantt": timeline(graph), "rows": ()}
    failure, follow_up = None, None
    try:
        queries = page.queries_of(found.id)
        graph = load_jobs(queries, found.id, len(found.listeners))
        failure = first_failure(queries, found.id, graph)
        follow_up = queries.statuses([found.follow_up_id])[0] if found.follow_up_id else None
    except RedisQueueError as error:
        page.note(found.id, error)
    return {
        "workflow": _detail(found, Counter(node.status for node in graph.nodes)),
        "gather": found,
        "failure": failure,
        "callbacks": [(found.follow_up_id, follow_up)] if follow_up else [],
        "gantt": timeline(graph),
        "rows": list(graph.rows.values()),
    }
