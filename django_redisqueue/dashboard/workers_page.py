"""The page of workers: a row each, opened to its children, and what can be told to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from ..broker.commands import Commands
from ..broker.connection import producer_connection
from ..broker.fleet import (
    FleetSummary,
    WorkerOverview,
    read_children,
    read_workers,
    summarize,
)
from ..broker.overview import ChildOverview
from ..broker.queries import Queries
from ..broker.shards import AllShards
from ..core import formatting
from ..core.clock import real_ms
from ..core.ids import claims_jobs
from ..core.worker_data import WorkerOrder, WorkerState
from ..exceptions import InvalidOption
from ..health.report import HealthReport, read_health
from ..worker.identity import parse_child
from . import streaming
from .actions import posted
from .pages import Page, log_worker

PART = "workerlist"
SIZE = 25  # workers per page
PERMISSION = "control_worker"


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child of a worker as a table row."""

    child: ChildOverview
    memory_bytes: int  # 0 if unknown

    @property
    def number(self) -> str:
        return self.child.child.rpartition(".")[2]

    @property
    def is_alive(self) -> bool:
        return self.child.lease_ms > 0

    @property
    def lease(self) -> str:
        return formatting.duration(abs(self.child.lease_ms))

    @property
    def since(self) -> str:
        return formatting.duration(self.child.since_ms)

    @property
    def unstarted(self) -> int:
        """Jobs it has claimed besides the one it runs."""
        return max(0, self.child.held - 1)

    @property
    def memory(self) -> str:
        return _size(self.memory_bytes)

    @property
    def is_idle(self) -> bool:
        """Whether it could run a job now: maintenance and the bridge never do."""
        return self.is_alive and not self.child.job and claims_jobs(self.child.child)


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
    def memory(self) -> str:
        return _size(self.worker.report.memory if self.worker.report else 0)

    @property
    def since(self) -> str:
        report = self.worker.report
        return formatting.duration(max(0, real_ms() - report.started_ms) if report else None)

    @property
    def orders(self) -> list[WorkerOrder]:
        """What it can be told now."""
        if self.worker.state is None or self.worker.state is WorkerState.STOPPING:
            return []
        quiet = self.worker.state is WorkerState.QUIET
        return [WorkerOrder.RESUME if quiet else WorkerOrder.QUIET, WorkerOrder.STOP]


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What pages say of the workers together."""

    summary: FleetSummary
    running: int  # jobs

    @property
    def alive(self) -> str:
        alive, total = formatting.number(self.summary.alive), formatting.number(self.summary.total)
        return alive if alive == total else f"{alive} of {total}"

    @property
    def quiet(self) -> str:
        return formatting.number(self.summary.quiet)

    @property
    def slots(self) -> str:
        return formatting.number(self.summary.slots)

    @property
    def running_jobs(self) -> str:
        return formatting.number(self.running)

    @property
    def memory(self) -> str:
        return _size(self.summary.memory)


@dataclass(frozen=True, slots=True)
class WorkerFilter:
    """Which workers are shown: a part of an id or host, and a queue that they serve."""

    text: str = ""
    queue: str = ""

    def query(self) -> dict[str, str]:
        return {name: value for name, value in (("q", self.text), ("queue", self.queue)) if value}

    def matches(self, worker: WorkerOverview) -> bool:
        report = worker.report
        if self.queue and (report is None or self.queue not in report.queues):
            return False
        host = report.host if report else ""
        return self.text.lower() in f"{worker.id} {host}".lower()


def workers(page: Page) -> HttpResponse:
    """The whole page, or with ``live`` in the query the list."""
    if "live" in page.request.GET:
        return page.render_parts([PART], **_context(page))
    which, number = _which(page), _number(page)
    place = {**which.query(), "page": number if number > 1 else ""}
    stream = page.url("workers_stream", **place)
    return page.render(
        "workers",
        "Workers",
        **_context(page),
        queues=sorted(page.health.facts.settings.queues),
        live={
            **page.live_options("workers", **place),
            "stream": stream if streaming.can_stream(page) else "",
        },
    )


def workers_stream(page: Page) -> HttpResponseBase:
    """The list, as server-sent events."""

    def parts() -> dict[str, Any]:
        page.update_health(read_health(producer_connection()))
        return page.live_parts([PART], **_context(page))

    return streaming.stream(page, parts)


def _which(page: Page) -> WorkerFilter:
    query = page.request.GET
    return WorkerFilter(query.get("q", "").strip()[:200], query.get("queue", "")[:200])


def _number(page: Page) -> int:
    return max(1, page.int_param("page", 1))


def _context(page: Page) -> dict[str, Any]:
    """Four round trips."""
    which, number = _which(page), _number(page)
    found: list[WorkerOverview] = []
    rows: list[WorkerRow] = []
    fleet: FleetFacts | None = None
    with page.reading() as shards:
        every = read_workers(shards)
        fleet = fleet_facts(every, page.health)
        found = [worker for worker in every if which.matches(worker)]
        shown = found[(number - 1) * SIZE : number * SIZE]
        rows = [_row(worker, []) for worker in shown]  # if their keys are somebody else's
        children = read_children(shards, shown)
        rows = [_row(worker, children.get(worker.id, [])) for worker in shown]
    last = max(1, -(-len(found) // SIZE))

    def link(to: int) -> str:
        there = 1 <= to <= last and to != number
        return page.url("workers", **which.query(), page=to if to > 1 else "") if there else ""

    return {
        "rows": rows, "which": which, "fleet": fleet, "number": number, "last": last,
        "previous_url": link(number - 1), "next_url": link(number + 1),
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


def _size(memory: int) -> str:
    return formatting.size(memory) if memory else formatting.NOTHING


def fleet_facts(workers: Sequence[WorkerOverview], health: HealthReport) -> FleetFacts:
    """The workers together, with how many jobs run."""
    shard = health.facts.shard
    running = sum(queue.counts["processing"] for queue in shard.queues) if shard else 0
    return FleetFacts(summarize(workers), running)


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
        return page.render(
            "confirm_worker", "Workers: are you sure?", worker=worker, order=order, text=text,
            here=here,
        )  # fmt: skip
    if tell(worker, order):
        log_worker(page, worker, f"told to {text}")
        page.add_message(messages.SUCCESS, f"Worker {worker} was told to {text}.")
    else:
        page.add_message(
            messages.WARNING, f"Nothing was heard of worker {worker} lately, so nothing was done."
        )
    return page.redirect(here)


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
