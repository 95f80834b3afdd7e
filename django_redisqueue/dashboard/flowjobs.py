"""The jobs of a workflow: all of them for a drawing, or a page of those of one status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..flowdata import FlowNode
from ..models import JobRecord
from ..store.reads import Broken, Reads
from ..store.workflows import WorkflowReads
from . import graph
from .rows import Row, row_of, row_of_record

CHUNK = 500  # jobs a round trip, and a query
DRAWN = 5000  # jobs at the most that are read for a drawing
NAMES = 262_144  # bytes of the names of all parents, some 50,000 edges
SIZE = 50  # jobs a page
SCANNED = 1000  # jobs that one page looks at for those of a status
UNKNOWN = "unknown"  # the status of a job that neither Redis nor the mirror has


@dataclass(frozen=True, slots=True)
class Picture:
    """``gone``: of how many jobs it is not known any more what they waited for. Without a drawing
    ``why`` says why."""

    drawing: graph.Drawing | None = None
    gone: int = 0
    why: str = ""


def picture(reads: WorkflowReads, flow_id: str, total: int) -> Picture:
    """The graph as far as Redis has its jobs, for who waits for whom stands nowhere else."""
    if total > DRAWN:
        return Picture(why=f"The graph is too large to be drawn ({total:,} jobs).")
    found = _in_redis(reads, flow_id, range(total))
    gone = found.count(None)
    if gone == total:
        why = "Redis has let the jobs go, and with them which of them waited for which."
        return Picture(gone=gone, why=why)
    too_much = f"The graph of {total:,} jobs is too large to be drawn, even with like jobs as one."
    nodes = _linked(reads, flow_id, _completed(flow_id, range(total), found))
    drawing = graph.draw(nodes) if nodes else None
    return Picture(drawing, gone, "" if drawing else too_much)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of jobs. ``following``: the number at which the list goes on, None at its end."""

    rows: Sequence[Row] = field(default_factory=list)
    seen: int = 0
    following: int | None = None


def look(reads: Reads, flow_id: str, total: int, status: str, start: int) -> Found:
    """The jobs from number ``start`` on, of one status or of any (''). At most SCANNED of them are
    looked at: four round trips and four queries."""
    at, wanted = start, list[FlowNode]()
    flows = WorkflowReads(reads.link)
    while at < min(total, start + SCANNED) and len(wanted) < SIZE:
        numbers = range(at, min(total, start + SCANNED, at + CHUNK))
        for node in _completed(flow_id, numbers, _in_redis(flows, flow_id, numbers)):
            at = node.number + 1
            if not status or node.status == status:
                wanted.append(node)
                if len(wanted) == SIZE:
                    break
    return Found(_rows(reads, flow_id, wanted), at - start, at if at < total else None)


def with_status(
    reads: WorkflowReads, flow_id: str, total: int, status: str, most: int
) -> list[str]:
    """The ids of up to ``most`` jobs of that status, looking at no more than ``total``."""
    found: list[str] = []
    for at in range(0, total, CHUNK):
        nodes = reads.nodes(flow_id, range(at, min(total, at + CHUNK)))
        found += [f"{flow_id}.{node.number}" for node in nodes if node and node.status == status]
        if len(found) >= most:
            return found[:most]
    return found


def _in_redis(reads: WorkflowReads, flow_id: str, numbers: Sequence[int]) -> list[FlowNode | None]:
    found: list[FlowNode | None] = []
    for at in range(0, len(numbers), CHUNK):
        found += reads.nodes(flow_id, numbers[at : at + CHUNK])
    return found


def _linked(reads: WorkflowReads, flow_id: str, nodes: Sequence[FlowNode]) -> list[FlowNode] | None:
    """With their parents; None when these are too many."""
    found: list[FlowNode] = []
    left = NAMES
    for at in range(0, len(nodes), CHUNK):
        some = nodes[at : at + CHUNK]
        read = reads.parents(flow_id, [node.number for node in some], left)
        if read is None:
            return None
        left -= read[1]
        found += [replace(node, after=after) for node, after in zip(some, read[0], strict=True)]
    return found


def _completed(
    flow_id: str, numbers: Sequence[int], nodes: Sequence[FlowNode | None]
) -> list[FlowNode]:
    """With what the mirror knows of those that Redis does not have."""
    gone = [n for n, node in zip(numbers, nodes, strict=True) if node is None]
    records: dict[int, FlowNode] = {n: FlowNode(n, UNKNOWN, "") for n in gone}
    for at in range(0, len(gone), CHUNK):
        ids = {f"{flow_id}.{n}": n for n in gone[at : at + CHUNK]}
        rows = JobRecord.objects.filter(pk__in=ids).values_list("pk", "status", "task")
        records |= {ids[pk]: FlowNode(ids[pk], status, task) for pk, status, task in rows}
    return [node or records[n] for n, node in zip(numbers, nodes, strict=True)]


def _rows(reads: Reads, flow_id: str, nodes: Sequence[FlowNode]) -> list[Row]:
    ids = [f"{flow_id}.{node.number}" for node in nodes]
    found = reads.outlines(ids)
    gone = [job.id for job in found if isinstance(job, Broken)]
    records = JobRecord.objects.in_bulk(gone) if gone else {}
    return [row_of_record(records[job.id]) if job.id in records else row_of(job) for job in found]
