"""When the jobs of a workflow waited and ran, and which of them failed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils import timezone

from ..broker.queries import Queries
from ..core import formatting
from ..core.clock import ms_of
from ..core.job_data import JobData
from ..core.statuses import Status
from ..core.workflow_data import WorkflowNode
from .job_detail import JobRow
from .workflow_detail import WorkflowGraph, rows_by_number

SHOWN = 100  # jobs in the timeline: those that started first
LOOKED_AT = 100  # failed jobs, for the one that failed first
SCALE = 1000  # units of a bar's width


@dataclass(frozen=True, slots=True)
class Bar:
    """A job in the timeline. It waited from ``x`` on, and ran from ``x + waited`` on."""

    row: JobRow
    status: str
    x: int
    waited: int
    ran: int
    wait: str
    run: str

    @property
    def ran_x(self) -> int:
        return self.x + self.waited


@dataclass(frozen=True, slots=True)
class Timeline:
    bars: Sequence[Bar] = ()
    length: str = ""
    is_cut: bool = False  # more jobs have started


def first_failure(queries: Queries, workflow_id: str, graph: WorkflowGraph) -> JobRow | None:
    """The job that failed first, of those that are known to have failed."""
    failed = [node for node in graph.nodes if node.status == Status.FAILED][:LOOKED_AT]
    missing = [node for node in failed if node.number not in graph.rows]
    rows = {**graph.rows, **rows_by_number(queries, workflow_id, missing)}
    found = [row for node in failed if (row := rows[node.number]).job and row.job.error]
    return min(found, key=lambda row: (row.job and row.job.finished_ms) or 0, default=None)


def timeline(graph: WorkflowGraph) -> Timeline:
    """The bars of the jobs that have started, of those that were read."""
    now_ms = ms_of(timezone.now())
    jobs = {n: row.job for n, row in graph.rows.items() if row.job and row.job.started_ms}
    if not jobs:
        return Timeline()
    spans = {n: _span(job, now_ms) for n, job in jobs.items()}
    parents = {node.number: node for node in graph.nodes}
    ready = {n: _ready_ms(jobs[n], parents.get(n), spans) for n in jobs}
    first, last = min(ready.values()), max(end for _, end in spans.values())
    unit = SCALE / max(1, last - first)
    shown = sorted(jobs, key=lambda n: (ready[n], spans[n], n))[:SHOWN]
    bars = []
    for n in shown:
        (start, end), since = spans[n], ready[n]
        bars.append(
            Bar(
                graph.rows[n], jobs[n].status.value, round((since - first) * unit),
                round((start - since) * unit), max(2, round((end - start) * unit)),
                formatting.duration(start - since), formatting.duration(end - start),
            )
        )  # fmt: skip
    is_cut = len(jobs) > SHOWN or len(graph.rows) < len(graph.nodes)
    return Timeline(bars, formatting.duration(last - first), is_cut)


def _span(job: JobData, now_ms: int) -> tuple[int, int]:
    """From the start of its last run to its end, or to now."""
    start = job.started_ms or 0
    end = now_ms if job.status is Status.PROCESSING else job.finished_ms or start
    return start, max(start, end)


def _ready_ms(job: JobData, node: WorkflowNode | None, spans: Mapping[int, tuple[int, int]]) -> int:
    """Since when it could have run: its parents had ended, and it was there."""
    start, _ = spans[node.number] if node else (job.started_ms or 0, 0)
    ends = [spans[parent][1] for parent in (node.after if node else ()) if parent in spans]
    return min(start, max([job.enqueued_ms or start, *ends]))
