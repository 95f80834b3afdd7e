"""What pages show about a workflow: state, graph, jobs, timeline, and the first failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

from django.utils import timezone

from ..broker.base import slices
from ..broker.queries import Queries, UnreadableJob
from ..broker.workflows import WorkflowQueries
from ..core import formatting
from ..core.clock import from_ms, ms_of
from ..core.job_data import JobData
from ..core.records import ENDED_COUNTS, JOB_COUNTS, WorkflowData, WorkflowNode
from ..core.statuses import Status, WorkflowStatus
from ..exceptions import RedisQueueError, RedisUnavailable
from ..mirror.changes import LOST
from ..models import JobRecord, WorkflowRecord
from .graph import SINGLE, Drawing, draw
from .job_detail import JobRow, JobRowPage, percent_of, row_of, row_of_record

CHUNK = 500  # jobs per round trip, and per query
DRAWN = 5000  # jobs that are read for a drawing
NAMES = 262_144  # bytes of the names of all parents, about 50,000 edges
SIZE = 50  # jobs per page
SCANNED = 1000  # jobs that one page searches for those with a status
UNREADABLE = "unreadable"  # the status of a workflow that could not be read at all
UNKNOWN = "unknown"  # the status of a job that is neither in Redis nor in the mirror
ENDED = frozenset(status for status in WorkflowStatus if status.is_final)
SHOWN = 100  # jobs in the timeline: those that started first
FAILURES_SEARCHED = 100  # failed jobs that are searched for the first failure
SCALE = 1000  # units of a bar's width


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDetail:
    id: str
    status: str = UNREADABLE
    is_live: bool = False  # whether it is in Redis, not only in the mirror
    name: str = ""
    is_paused: bool = False
    reason: str = ""
    generation: int = 0
    total: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    made_at: datetime | None = None
    ended_at: datetime | None = None
    cleaned_at: datetime | None = None
    problem: str = ""

    @property
    def is_unknown(self) -> bool:
        """Whether neither Redis nor the mirror could be read or had it."""
        return self.status == UNREADABLE and not self.is_live

    @property
    def failed(self) -> int:
        return self.counts.get("failed", 0)

    @property
    def lasted(self) -> str:
        if self.made_at is None or self.ended_at is None:
            return ""
        return formatting.duration((self.ended_at - self.made_at).total_seconds() * 1000)

    @property
    def bar(self) -> list[tuple[str, float, float]]:
        """The segments of its progress bar, in percent: (status, start, width)."""
        segments, at = [], 0.0
        for name in ENDED_COUNTS:
            width = 100 * self.counts.get(name, 0) / max(1, self.total)
            segments.append((name, round(at, 2), round(width, 2)))
            at += width
        return segments

    @property
    def progress(self) -> str:
        """As text: ``3 of 5 jobs completed, 1 failed``"""
        completed = formatting.number(self.counts.get("completed", 0))
        ended = [(name, self.counts.get(name)) for name in ("failed", "cancelled")]
        others = [f"{formatting.number(count)} {name}" for name, count in ended if count]
        return ", ".join([f"{completed} of {formatting.jobs(self.total)} completed", *others])


def from_redis(data: WorkflowData) -> WorkflowDetail:
    return WorkflowDetail(
        id=data.id, is_live=True, status=data.status.value, name=data.name,
        is_paused=data.is_paused, generation=data.generation, total=data.total,
        counts={name: getattr(data, name) for name in JOB_COUNTS},
        made_at=from_ms(data.made_ms), ended_at=from_ms(data.ended_ms),
    )  # fmt: skip


def from_record(record: WorkflowRecord) -> WorkflowDetail:
    return WorkflowDetail(
        id=record.id, is_live=False, status=record.status, name=record.name,
        is_paused=record.is_paused, reason=record.reason, generation=record.generation,
        total=record.total,
        counts={name: getattr(record, name) for name in ENDED_COUNTS},
        made_at=record.made_at, ended_at=record.ended_at, cleaned_at=record.cleaned_at,
        problem=_problem(record),
    )  # fmt: skip


def _problem(record: WorkflowRecord) -> str:
    if record.reason == LOST:
        return "Redis lost this workflow. It is unknown whether the rest of its jobs ran."
    if record.cleaned_at is None and record.status not in ENDED:
        return (
            "Redis no longer has this workflow, although the mirror has not seen it end. If Redis "
            "lost it, the mirror will show this once it has been reconciled."
        )
    return ""


def prefer_redis(
    data: WorkflowData | RedisQueueError | None, record: WorkflowRecord
) -> WorkflowDetail:
    """The workflow from Redis, else its record, with the reason if Redis could not be read."""
    if isinstance(data, WorkflowData):
        return from_redis(data)
    detail = from_record(record)
    if isinstance(data, RedisUnavailable):
        # Redis may still have the workflow.
        return detail if record.reason == LOST else replace(detail, problem="")
    return (
        detail if data is None else replace(detail, problem=f"This is its record, because {data}.")
    )


@dataclass(frozen=True, slots=True)
class WorkflowGraph:
    drawing: Drawing | None = None
    gone: int = 0  # jobs whose parents are no longer known
    why: str = ""  # the reason why there is no drawing
    nodes: Sequence[WorkflowNode] = ()
    rows: Mapping[int, JobRow] = field(default_factory=dict)  # of the first jobs, by number


def load_graph(
    queries: Queries, workflow_id: str, total: int, *, is_unfolded: bool = False
) -> WorkflowGraph:
    """The graph of the jobs that Redis still has: only Redis knows their parents."""
    if total > DRAWN:
        return WorkflowGraph(why=f"The graph is too large to draw ({total:,} jobs).")
    workflows = WorkflowQueries(queries.connection)
    known, gone = _nodes(workflows, workflow_id, range(total))
    rows = rows_by_number(queries, workflow_id, known[: SINGLE if total <= SINGLE else SIZE])
    if gone == total:
        why = "Redis has pruned the jobs, so it is no longer known which job waited for which."
        return WorkflowGraph(gone=gone, why=why, nodes=known, rows=rows)
    nodes = _with_parents(workflows, workflow_id, known)
    about = {
        number: (row.arguments, row.ran, percent_of(row.job) if row.job else None)
        for number, row in rows.items()
    }
    drawing = draw(nodes, about, is_unfolded=is_unfolded) if nodes else None
    too_large = (
        f"The graph of {total:,} jobs is too large to draw, even with one box for jobs alike."
    )
    return WorkflowGraph(drawing, gone, "" if drawing else too_large, nodes or known, rows)


def load_jobs(queries: Queries, workflow_id: str, total: int) -> WorkflowGraph:
    """A few jobs, all with their rows, and without edges: those of a gather."""
    nodes, _ = _nodes(WorkflowQueries(queries.connection), workflow_id, range(total))
    return WorkflowGraph(nodes=nodes, rows=rows_by_number(queries, workflow_id, nodes))


def rows_by_number(
    queries: Queries, workflow_id: str, nodes: Sequence[WorkflowNode]
) -> dict[int, JobRow]:
    """One round trip, and one query if Redis has pruned some."""
    if not nodes:
        return {}
    jobs = queries.outlines([f"{workflow_id}.{node.number}" for node in nodes])
    gone = [job.id for job in jobs if isinstance(job, UnreadableJob)]
    records = JobRecord.objects.in_bulk(gone) if gone else {}
    return {
        node.number: row_of_record(records[job.id]) if job.id in records else row_of(job)
        for node, job in zip(nodes, jobs, strict=True)
    }


def list_workflow_jobs(
    queries: Queries, workflow_id: str, total: int, status: str, start: int
) -> JobRowPage:
    """The jobs from number ``start``, with one status or any (''). Searches at most SCANNED jobs:
    four round trips and four queries."""
    workflows, end = WorkflowQueries(queries.connection), max(start, min(total, start + SCANNED))
    parts = slices(range(start, end), CHUNK)
    nodes = (node for some in parts for node in _nodes(workflows, workflow_id, some)[0])
    chosen = list(islice((node for node in nodes if status in ("", node.status)), SIZE))
    following = chosen[-1].number + 1 if len(chosen) == SIZE else end
    rows = list(rows_by_number(queries, workflow_id, chosen).values())
    return JobRowPage(rows, following - start, str(following) if following < total else "")


def ids_with_status(
    queries: WorkflowQueries, workflow_id: str, total: int, status: str, limit: int
) -> list[str]:
    """The ids of up to ``limit`` jobs with that status, among the first ``total``."""
    nodes = (
        node for some in slices(range(total), CHUNK) for node in queries.nodes(workflow_id, some)
    )
    found = (f"{workflow_id}.{one.number}" for one in nodes if one and one.status == status)
    return list(islice(found, limit))


def _nodes(
    queries: WorkflowQueries, workflow_id: str, numbers: Sequence[int]
) -> tuple[list[WorkflowNode], int]:
    """The nodes, and how many of them are not in Redis but from the mirror."""
    found: dict[int, WorkflowNode] = {}
    gone = 0
    for some in slices(numbers, CHUNK):
        nodes = dict(zip(some, queries.nodes(workflow_id, some), strict=True))
        ids = {f"{workflow_id}.{n}": n for n, node in nodes.items() if node is None}
        found |= {n: node or WorkflowNode(n, UNKNOWN, "") for n, node in nodes.items()}
        records = JobRecord.objects.filter(pk__in=ids).values_list("pk", "status", "task")
        found |= {ids[pk]: WorkflowNode(ids[pk], status, task) for pk, status, task in records}
        gone += len(ids)
    return list(found.values()), gone


def _with_parents(
    queries: WorkflowQueries, workflow_id: str, nodes: Sequence[WorkflowNode]
) -> list[WorkflowNode] | None:
    """The nodes with their parents, or None if there are too many parents."""
    found: list[WorkflowNode] = []
    left = NAMES
    for some in slices(nodes, CHUNK):
        read = queries.parents(workflow_id, [node.number for node in some], left)
        if read is None:
            return None
        left -= read[1]
        found += [replace(node, after=after) for node, after in zip(some, read[0], strict=True)]
    return found


def first_failure(queries: Queries, workflow_id: str, graph: WorkflowGraph) -> JobRow | None:
    """The job that failed first, among those known to have failed."""
    failed = [node for node in graph.nodes if node.status == Status.FAILED][:FAILURES_SEARCHED]
    missing = [node for node in failed if node.number not in graph.rows]
    rows = {**graph.rows, **rows_by_number(queries, workflow_id, missing)}
    found = [row for node in failed if (row := rows[node.number]).job and row.job.error]
    return min(found, key=lambda row: (row.job and row.job.finished_ms) or 0, default=None)


def timeline(graph: WorkflowGraph) -> dict[str, Any]:
    """Bars of the jobs that have started: each waited from ``x``, and ran from ``ran_x``."""
    now_ms = ms_of(timezone.now())
    jobs = {n: row.job for n, row in graph.rows.items() if row.job and row.job.started_ms}
    if not jobs:
        return {}
    spans = {n: _span(job, now_ms) for n, job in jobs.items()}
    parents = {node.number: node for node in graph.nodes}
    ready = {n: _ready_ms(jobs[n], parents.get(n), spans) for n in jobs}
    first, last = min(ready.values()), max(end for _, end in spans.values())
    unit = SCALE / max(1, last - first)

    def bar(n: int) -> dict[str, Any]:
        (start, end), since = spans[n], ready[n]
        x, waited = round((since - first) * unit), round((start - since) * unit)
        return {
            "row": graph.rows[n], "status": jobs[n].status.value,
            "x": x, "waited": waited, "wait": formatting.duration(start - since),
            "ran_x": x + waited, "ran": max(2, round((end - start) * unit)),
            "run": formatting.duration(end - start),
        }  # fmt: skip

    return {
        "bars": [bar(n) for n in sorted(jobs, key=lambda n: (ready[n], spans[n], n))[:SHOWN]],
        "length": formatting.duration(last - first),
        "is_cut": len(jobs) > SHOWN or len(graph.rows) < len(graph.nodes),
    }


def _span(job: JobData, now_ms: int) -> tuple[int, int]:
    """From the start of its last run to its end, or to now."""
    start = job.started_ms or 0
    end = now_ms if job.status is Status.PROCESSING else job.finished_ms or start
    return start, max(start, end)


def _ready_ms(job: JobData, node: WorkflowNode | None, spans: Mapping[int, tuple[int, int]]) -> int:
    """When it could have run: its parents had ended, and it existed."""
    start, _ = spans[node.number] if node else (job.started_ms or 0, 0)
    ends = [spans[parent][1] for parent in (node.after if node else ()) if parent in spans]
    return min(start, max([job.enqueued_ms or start, *ends]))
