"""The gathers that Redis has, and the page of one: its parts, its results and its timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from heapq import merge
from typing import Any

from django.http import Http404, HttpResponse

from ..broker.connection import RedisConnection
from ..broker.gathers import GatherQueries
from ..broker.reads import Read
from ..core.clock import from_ms
from ..core.gather_data import GatherData
from ..core.ids import check_gather_key
from ..core.text import printable
from ..core.workflow_data import ENDED_COUNTS
from ..exceptions import CorruptJob, InvalidName, RedisQueueError
from .pages import Page
from .workflow_detail import WorkflowDetail, WorkflowGraph, load_jobs
from .workflow_times import first_failure, timeline

SIZE = 50  # gathers per page
LAST_START = 9_950  # of a page: each shard reads all keys before it
PARTS = ("gather", "flowtimes", "gatherjobs")


def gather_list(page: Page) -> HttpResponse:
    """The whole page, or with ``live`` in the query only the rows."""
    start = min(page.int_param("start", 0), LAST_START)
    keys = _keys(page, start)
    rows = [_row(key, found) for key, found in _read(page, keys[:SIZE]).items()]
    if "live" in page.request.GET:
        return page.render_parts(["gathers"], rows=rows)
    return page.render(
        "gathers",
        "Gathers",
        rows=rows,
        first_url=page.url("gathers") if start else "",
        next_url=page.url("gathers", start=start + SIZE) if len(keys) > SIZE else "",
        live=page.live_options("gathers", start=start or ""),
    )


def _keys(page: Page, start: int) -> list[tuple[str, int]]:
    """The keys from ``start`` on with their shards, by the instants of their next checks; one more
    than a page has."""

    def read(connection: RedisConnection) -> Read[list[tuple[float, str, int]]]:
        found = yield from GatherQueries(connection).first.read(start + SIZE + 1)
        return [(at, key, connection.shard) for key, at in found]

    merged = merge(*page.ask(read).values())
    return [(key, shard) for _, key, shard in merged][start : start + SIZE + 1]


def _read(page: Page, keys: list[tuple[str, int]]) -> Mapping[str, GatherData | CorruptJob]:
    """Those that are there, in this order. One round trip a shard."""
    parts: dict[int, list[str]] = {}
    for key, shard in keys:
        parts.setdefault(shard, []).append(key)
    answers = page.ask(lambda one: GatherQueries(one).outlines.read(parts[one.shard]), parts)
    found = {key: data for some in answers.values() for key, data in some.items()} if parts else {}
    return {key: found[key] for key, _ in keys if key in found}


def _row(key: str, found: GatherData | CorruptJob) -> WorkflowDetail:
    """As the pages of workflows show one: listeners with a result count as completed."""
    if isinstance(found, CorruptJob):
        return WorkflowDetail(
            id="", name=printable(key), status="unreadable", is_live=True, problem=f"{found}."
        )
    return _detail(found, {"completed": found.done_count})


def _detail(data: GatherData, counts: Mapping[str, int]) -> WorkflowDetail:
    return WorkflowDetail(
        id=printable(data.id), name=printable(data.key), status=data.status.value, is_live=True,
        reason=data.reason.value, total=len(data.listeners),
        counts=[(name, counts.get(name, 0)) for name in ENDED_COUNTS],
        made_at=from_ms(data.made_ms), ended_at=from_ms(data.ended_ms),
    )  # fmt: skip


def gather_page(page: Page, key: str) -> HttpResponse:
    """The whole page, or with ``live`` in the query only the parts that change."""
    found = _find(page, key)
    context = _context(page, key, found)
    if "live" in page.request.GET:
        return page.render_parts(PARTS, **context)
    live = page.live_options("gather", key)
    code = 503 if found is None else 200
    return page.render("gather", f"Gather {key}", code=code, **context, key=key, live=live)


def _find(page: Page, key: str) -> GatherData | CorruptJob | None:
    """The gather, in whatever shard; None if a shard that may have it does not answer. Raises
    Http404."""

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
        raise Http404(f"no gather {key}: it is over and forgotten, or was never started")
    return found


def _context(page: Page, key: str, found: GatherData | CorruptJob | None) -> dict[str, Any]:
    graph = WorkflowGraph()
    if not isinstance(found, GatherData):
        problem = f"{found}." if found else "Redis does not answer, and gathers have no record."
        gather = WorkflowDetail(
            id="", name=key, status="unreadable", is_live=False, problem=problem
        )
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
