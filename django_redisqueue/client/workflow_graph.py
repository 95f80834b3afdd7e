"""The graph of a new workflow: validated, and encoded for Redis and for the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..broker.base import BATCH, MAX_CALL_BYTES
from ..core.clock import real_ms
from ..core.codec import dumps
from ..core.job_data import NewJob, fix_expiry
from ..core.records import Push, WorkflowJob
from ..core.statuses import OnFailure
from ..exceptions import PayloadTooLarge, WorkflowError
from .decorator import task
from .transport import transport

WIDE = 100  # dependants; a parent with more keeps them in a separate list
MAX_NAMES_BYTES = 262_144  # of a job's parents
MAX_ROW_BYTES = 16_000_000  # of a workflow in the outbox: MariaDB's default packet size


@dataclass(slots=True)
class Node:
    """A new job, and the numbers of its parents in the order they were given."""

    job: NewJob
    parents: list[int] = field(default_factory=list)
    on_failure: OnFailure = OnFailure.FAIL


def check_graph(nodes: Sequence[Node], name: str) -> None:
    """Raise WorkflowError when the workflow is empty or cyclic."""
    if not nodes:
        named = f" {name!r}" if name else ""
        raise WorkflowError(f"workflow{named} is empty; add at least one job")
    # add() accepts only earlier jobs as parents, so only link() can make a cycle.
    if any(parent >= n for n, node in enumerate(nodes) for parent in node.parents):
        _check_cycles(nodes, name)
    if any(node.job.unique for node in nodes):
        _check_unique(nodes, name)
    for n, node in enumerate(nodes):
        if len(node.parents) > WIDE and len(_names(node.parents)) > MAX_NAMES_BYTES:
            raise WorkflowError(
                f"workflow {name!r}: job .{n} ({node.job.task}) has {len(node.parents)} parents; "
                "add jobs in between, each of which waits for some of them"
            )


def _check_unique(nodes: Sequence[Node], name: str) -> None:
    """Redis creates all jobs with unique keys in one call, and only if all keys are free."""
    owners: dict[str, int] = {}
    size = 0
    for n, node in enumerate(nodes):
        if not node.job.unique:
            continue
        key = node.job.unique.split()[0]
        if (other := owners.setdefault(key, n)) != n:
            raise WorkflowError(
                f"workflow {name!r}: jobs .{other} and .{n} ({node.job.task}) have the same unique "
                f"key, {key}"
            )
        size += len(node.job.payload)
    if len(owners) > BATCH or size > MAX_CALL_BYTES:
        raise WorkflowError(
            f"workflow {name!r} has {len(owners)} jobs with unique keys, with {size} bytes of "
            f"arguments; at most {BATCH} with {MAX_CALL_BYTES} bytes are allowed: use "
            "using(unique=False) for the others"
        )


def _check_cycles(nodes: Sequence[Node], name: str) -> None:
    try:
        TopologicalSorter({n: node.parents for n, node in enumerate(nodes)}).prepare()
    except CycleError as error:
        cycle = " -> ".join(f"{nodes[n].job.task} (.{n})" for n in reversed(error.args[1]))
        raise WorkflowError(
            f"workflow {name!r} has a cycle, so none of these jobs can ever start: {cycle}"
        ) from None


def encode_jobs(nodes: Sequence[Node]) -> list[WorkflowJob]:
    """The jobs in the form that Redis expects (enqueue_workflow.lua)."""
    names = [f".{n}" for n in range(len(nodes))]
    children: list[list[str]] = [[] for _ in nodes]
    for name, node in zip(names, nodes, strict=True):
        for parent in node.parents:
            children[parent].append(name)
    wide = {n for n, found in enumerate(children) if len(found) > WIDE}
    jobs = []
    for n, node in enumerate(nodes):
        job, parents = node.job, node.parents
        then = "*" if n in wide else " ".join(children[n])
        after = " ".join([names[parent] for parent in parents])
        joins = " ".join([names[parent] for parent in parents if parent in wide]) if wide else ""
        on_fail = "" if node.on_failure is OnFailure.FAIL else node.on_failure.value
        jobs.append(
            WorkflowJob(
                job.id, job.queue, job.task, job.payload, job.options, job.priority, job.when,
                job.audit, len(parents), then, after, on_fail, joins, job.unique, job.lane,
            )
        )  # fmt: skip
    return jobs


def _names(numbers: Sequence[int]) -> str:
    return " ".join([f".{n}" for n in numbers])


@task(
    name="django_redisqueue.send_workflow",
    max_attempts=100,
    no_retry_on=(WorkflowError,),
    redact=("jobs",),  # their tasks may redact arguments
)
def send_workflow(workflow_id: str, fields: Sequence[str], jobs: Sequence[Sequence[Any]]) -> None:
    """Push a workflow; pushing it again changes nothing. Outbox rows of older versions run this."""
    transport().push_workflow(Push(workflow_id, fields, [WorkflowJob(*job) for job in jobs]))


def to_outbox_row(push: Push) -> NewJob:
    """The outbox row of a workflow, with its jobs as the payload. Raises PayloadTooLarge."""
    now_ms = real_ms()
    jobs = [job._replace(options=fix_expiry(job.options, job.after, now_ms)) for job in push.jobs]
    payload = dumps([[push.workflow_id, push.fields, jobs], {}])
    if len(payload.encode()) > MAX_ROW_BYTES:
        raise PayloadTooLarge(
            f"workflow {push.workflow_id} with its {len(push.jobs)} jobs is too large for the "
            f"outbox, whose rows hold {MAX_ROW_BYTES} bytes: split it, or push it with "
            "on_commit=False"
        )
    return NewJob(push.workflow_id, push.jobs[0][1], send_workflow.name, payload)
