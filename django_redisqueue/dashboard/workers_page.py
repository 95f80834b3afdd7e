"""The page of workers: a row each, which opens to its children, and the orders to workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase

from ..broker.commands import Commands
from ..broker.overview import ChildOverview
from ..broker.queries import Queries
from ..broker.shards import AllShards
from ..broker.sums import FleetSummary, WorkerOverview, read_children, read_workers, summarize
from ..core import formatting
from ..core.clock import real_ms
from ..core.ids import claims_jobs
from ..core.records import WorkerOrder, WorkerReport, WorkerState
from ..exceptions import InvalidOption
from ..worker.identity import name_and_number, parse_child
from .actions import posted
from .filters import given
from .pages import Page

PART = "workerlist"
SIZE = 25  # workers per page
PERMISSION = "control_worker"


def workers(page: Page) -> HttpResponse:
    if page.wants_parts:
        return page.render_parts([PART], **_context(page))
    place = {**_fields(page), "page": page.request.GET.get("page", "")}
    return page.render(
        "workers",
        "Workers",
        **_context(page),
        queues=sorted(page.health.facts.settings.queues),
        live=page.live_options("workers", stream="workers_stream", **place),
    )


def workers_stream(page: Page) -> HttpResponseBase:
    return page.stream(lambda: page.live_parts([PART], **_context(page)))


def _fields(page: Page) -> dict[str, str]:
    """The filter: a part of an id or host, and a queue that the workers serve."""
    query = page.request.GET
    return given(q=query.get("q", "").strip()[:200], queue=query.get("queue", "")[:200])


def _matches(worker: WorkerOverview, q: str = "", queue: str = "") -> bool:
    report = worker.report
    if queue and (report is None or queue not in report.queues):
        return False
    return q.lower() in f"{worker.id} {report.host if report else ''}".lower()


def _context(page: Page) -> dict[str, Any]:
    """Four round trips."""
    fields = _fields(page)
    found: list[WorkerOverview] = []
    fleet: FleetSummary | None = None
    children: Mapping[str, Sequence[ChildOverview]] = {}
    with page.reading() as shards:
        every = read_workers(shards)
        fleet = summarize(every)
        found = [worker for worker in every if _matches(worker, **fields)]
    paged = page.paginate(found, SIZE, "workers", fields)
    with page.reading() as shards:  # workers are left out if their keys have the wrong type
        children = read_children(shards, list(paged["shown"]))
    return {
        **paged,
        "rows": [_row(worker, children.get(worker.id, [])) for worker in paged["shown"]],
        "fields": fields, "fleet": fleet,
        "may_control": page.has_perm(PERMISSION), "is_open": len(found) == 1,
    }  # fmt: skip


def _row(worker: WorkerOverview, children: Sequence[ChildOverview]) -> dict[str, Any]:
    """The children are sorted by number: those that run jobs come first."""
    report, identity = worker.report, parse_child(f"{worker.id}.0")
    held = sum(child.held for child in children)
    ordered = sorted(children, key=lambda one: (len(one.child), one.child))
    return {
        "worker": worker,
        "name": identity.name if identity else worker.id,
        "process": f"pid {identity.pid}" if identity else "",
        "state": (worker.state or "alive") if worker.is_alive else "expired",
        "is_draining": held > 0 and worker.state in (WorkerState.QUIET, WorkerState.STOPPING),
        "held": held,
        "busy": _busy(report, children) if report else formatting.NOTHING,
        "since": formatting.duration(max(0, real_ms() - report.started_ms) if report else None),
        "orders": _orders(worker),
        "children": [_child_row(child, report.children if report else {}) for child in ordered],
    }


def _busy(report: WorkerReport, children: Sequence[ChildOverview]) -> str:
    """``3 of 8``: how many slots for sync jobs are taken."""
    taken = sum(min(child.held, report.threads) for child in children)
    return f"{min(taken, report.slots)} of {report.slots}"


def _orders(worker: WorkerOverview) -> list[WorkerOrder]:
    """The orders that make sense now."""
    if worker.state in (None, WorkerState.STOPPING):
        return []
    quiet = worker.state is WorkerState.QUIET
    return [WorkerOrder.RESUME if quiet else WorkerOrder.QUIET, WorkerOrder.STOP]


def _child_row(child: ChildOverview, memory: Mapping[str, int]) -> dict[str, Any]:
    _, number = name_and_number(child.child)
    return {
        "child": child,
        "number": number,
        "lease": formatting.duration(abs(child.lease_ms)),
        "unstarted": max(0, child.held - 1),  # apart from the job that it runs
        "memory": memory.get(number, 0),
        # Maintenance and the bridge never run jobs.
        "is_idle": child.lease_ms > 0 and not child.job and claims_jobs(child.child),
    }


TEXTS: Mapping[WorkerOrder, str] = {
    WorkerOrder.QUIET: "finish its running jobs and take no more",
    WorkerOrder.RESUME: "take jobs again",
    WorkerOrder.STOP: "finish its running jobs within its grace period, and stop",
}


@posted("workers")
def order_worker(page: Page) -> HttpResponse:
    """Tell a worker to take no more jobs, to take them again, or to stop."""
    page.require(PERMISSION)
    form = page.request.POST
    worker, here = form.get("worker", ""), page.url("workers")
    order = form.get("order", "")
    if order not in TEXTS:
        raise InvalidOption(f"{order[:200]!r} is not an order; use {', '.join(TEXTS)}")
    if parse_child(f"{worker}.0") is None:
        raise InvalidOption(f"{worker[:200]!r} is not the id of a worker")
    text = TEXTS[WorkerOrder(order)]
    if order != WorkerOrder.RESUME and form.get("confirmed") != "yes":
        return page.confirm(
            "worker", "Workers", f"Yes, {order}", here, {"worker": worker, "order": order},
            worker=worker, order=order, text=text,
        )  # fmt: skip
    if tell(worker, WorkerOrder(order)):
        page.log(f"worker {worker}", f"told to {text}")
        messages.success(page.request, f"Worker {worker} was told to {text}.")
    else:
        messages.warning(
            page.request, f"Worker {worker} has not reported recently, so nothing was done."
        )
    return HttpResponseRedirect(here)


def tell(worker: str, order: WorkerOrder) -> bool:
    """Tell it in every shard, because it may not reach all of them. False if it is in none."""
    shards = AllShards()
    at_ms = max(shards.each(lambda one: Queries(one).now_ms()).by_shard.values())
    told = shards.each(lambda one: Commands(one).order_worker(worker, order, at_ms))
    return any(told.by_shard.values())
