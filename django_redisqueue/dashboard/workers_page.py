"""The page of workers: a row each, opened to its children, and the orders that one can get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase

from ..broker.commands import Commands
from ..broker.overview import ChildOverview
from ..broker.queries import Queries
from ..broker.shards import AllShards
from ..broker.sums import (
    FleetSummary,
    WorkerOverview,
    read_children,
    read_workers,
    summarize,
)
from ..core import formatting
from ..core.clock import real_ms
from ..core.ids import claims_jobs
from ..core.records import WorkerOrder, WorkerState
from ..exceptions import InvalidOption
from ..worker.identity import parse_child
from .actions import posted
from .filters import given
from .pages import Page

PART = "workerlist"
SIZE = 25  # workers per page
PERMISSION = "control_worker"


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child of a worker as a table row."""

    child: ChildOverview
    memory: int  # bytes; 0 if unknown

    @property
    def number(self) -> str:
        return self.child.child.rpartition(".")[2]

    @property
    def lease(self) -> str:
        return formatting.duration(abs(self.child.lease_ms))

    @property
    def unstarted(self) -> int:
        """Jobs it has claimed besides the one it runs."""
        return max(0, self.child.held - 1)

    @property
    def is_idle(self) -> bool:
        """Whether it could run a job now: maintenance and the bridge never do."""
        return self.child.lease_ms > 0 and not self.child.job and claims_jobs(self.child.child)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as a table row."""

    worker: WorkerOverview
    children: Sequence[ChildRow]

    @property
    def name(self) -> str:
        found = parse_child(f"{self.worker.id}.0")
        return found.name if found else self.worker.id

    @property
    def process(self) -> str:
        found = parse_child(f"{self.worker.id}.0")
        return f"pid {found.pid}" if found else ""

    @property
    def state(self) -> str:
        """``running``, ``quiet``, ``stopping``, ``lapsed``, or ``alive`` if it does not say."""
        if not self.worker.is_alive:
            return "lapsed"
        return self.worker.state or "alive"

    @property
    def held(self) -> int:
        """Jobs that its children have claimed."""
        return sum(row.child.held for row in self.children)

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more jobs, and still has some."""
        return self.held > 0 and self.state in (WorkerState.QUIET, WorkerState.STOPPING)

    @property
    def busy(self) -> str:
        """``3 of 8``: how many slots for sync jobs are taken."""
        report = self.worker.report
        if report is None:
            return formatting.NOTHING
        taken = sum(min(row.child.held, report.threads) for row in self.children)
        return f"{min(taken, report.slots)} of {report.slots}"

    @property
    def since(self) -> str:
        report = self.worker.report
        return formatting.duration(max(0, real_ms() - report.started_ms) if report else None)

    @property
    def orders(self) -> list[WorkerOrder]:
        """The orders that make sense now."""
        if self.worker.state is None or self.worker.state is WorkerState.STOPPING:
            return []
        quiet = self.worker.state is WorkerState.QUIET
        return [WorkerOrder.RESUME if quiet else WorkerOrder.QUIET, WorkerOrder.STOP]


def workers(page: Page) -> HttpResponse:
    """The whole page, or with ``live`` in the query the list."""
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
    """The list, as server-sent events."""
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
    with page.reading() as shards:  # without them if their keys are somebody else's
        children = read_children(shards, list(paged["shown"]))
    return {
        **paged,
        "rows": [_row(worker, children.get(worker.id, [])) for worker in paged["shown"]],
        "fields": fields, "fleet": fleet,
        "may_control": page.has_perm(PERMISSION), "is_open": len(found) == 1,
    }  # fmt: skip


def _row(worker: WorkerOverview, children: Sequence[ChildOverview]) -> WorkerRow:
    """The children by their numbers: those that run jobs come first."""
    memory = worker.report.children if worker.report else {}
    ordered = sorted(children, key=lambda one: (len(one.child), one.child))
    return WorkerRow(
        worker,
        [ChildRow(child, memory.get(child.child.rpartition(".")[2], 0)) for child in ordered],
    )


# What a worker can be told

TEXTS: Mapping[WorkerOrder, str] = {
    WorkerOrder.QUIET: "finish what it runs, and take no more jobs",
    WorkerOrder.RESUME: "take jobs again",
    WorkerOrder.STOP: "finish what it runs, within its grace period, and stop",
}


@posted
def order_worker(page: Page) -> HttpResponse:
    """Tell a worker to take no more jobs, to take them again, or to stop."""
    page.require(PERMISSION)
    form = page.request.POST
    worker, here = form.get("worker", ""), page.url("workers")
    order = _order(form.get("order", ""))
    if parse_child(f"{worker}.0") is None:
        raise InvalidOption(f"{worker[:200]!r} is not the id of a worker")
    text = TEXTS[order]
    if order is not WorkerOrder.RESUME and form.get("confirmed") != "yes":
        return page.confirm(
            "worker", "Workers", f"Yes, {order}", here, {"worker": worker, "order": order},
            worker=worker, order=order, text=text,
        )  # fmt: skip
    if tell(worker, order):
        page.log(f"worker {worker}", f"told to {text}")
        messages.success(page.request, f"Worker {worker} was told to {text}.")
    else:
        messages.warning(
            page.request, f"Worker {worker} has not reported lately, so nothing was done."
        )
    return HttpResponseRedirect(here)


def _order(text: str) -> WorkerOrder:
    try:
        return WorkerOrder(text)
    except ValueError:
        raise InvalidOption(f"{text[:200]!r} is not an order; use {', '.join(TEXTS)}") from None


def tell(worker: str, order: WorkerOrder) -> bool:
    """Tell it in every shard, because it may not reach all of them. False if none knows it."""
    shards = AllShards()
    at_ms = max(shards.each(lambda one: Queries(one).now_ms()).by_shard.values())
    told = shards.each(lambda one: Commands(one).order_worker(worker, order, at_ms))
    return any(told.by_shard.values())
