"""The graph of a workflow that is put together: checked, and sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..batches import MAX_CALL_BYTES
from ..codec import dumps
from ..connection import producer_link
from ..exceptions import PayloadTooLarge, WorkflowError, WorkflowNotFound
from ..flowdata import FlowJob, Push
from ..jobdata import NewJob
from ..link import Link
from ..ports import replaced_transport
from ..states import OnFailure
from ..store.transitions import Transitions
from ..store.verbs import BATCH
from ..tasks import task

WIDE = 100  # dependants; a parent of more keeps them in a list of their own
MAX_NAMES_BYTES = 262_144  # of a job's parents
MAX_ROW_BYTES = 16_000_000  # of a workflow in the outbox; MariaDB's packets are as large by default
GONE = -2  # push.lua's code for a workflow that was cleaned up and would be made anew


@dataclass(slots=True)
class Node:
    """One job to be, and the numbers of its parents in the order they were given."""

    job: NewJob
    parents: list[int] = field(default_factory=list)
    on_failure: OnFailure = OnFailure.FAIL


def check_graph(nodes: Sequence[Node], name: str) -> None:
    """Raise WorkflowError when the workflow is empty or has a circle, naming the jobs."""
    if not nodes:
        raise WorkflowError(f"workflow {name!r} is empty; add at least one job")
    # add() knows only parents that are there already, so it takes a link() to make a circle.
    if any(parent >= n for n, node in enumerate(nodes) for parent in node.parents):
        _check_circles(nodes, name)
    for n, node in enumerate(nodes):
        if len(_names(node.parents)) > MAX_NAMES_BYTES:
            raise WorkflowError(
                f"workflow {name!r}: job .{n} ({node.job.task}) has {len(node.parents)} parents; "
                "let jobs in between gather them"
            )


def _check_circles(nodes: Sequence[Node], name: str) -> None:
    try:
        TopologicalSorter({n: node.parents for n, node in enumerate(nodes)}).prepare()
    except CycleError as error:
        circle = " -> ".join(f"{nodes[n].job.task} (.{n})" for n in reversed(error.args[1]))
        raise WorkflowError(
            f"workflow {name!r} has a circle, so none of these could ever start: {circle}"
        ) from None


def flow_jobs(nodes: Sequence[Node]) -> Iterator[FlowJob]:
    """The jobs as push.lua takes them."""
    children: list[list[int]] = [[] for _ in nodes]
    for n, node in enumerate(nodes):
        for parent in node.parents:
            children[parent].append(n)
    wide = {n for n, found in enumerate(children) if len(found) > WIDE}
    for n, node in enumerate(nodes):
        job = node.job
        yield FlowJob(
            job.id, job.queue, job.task, job.payload, job.options, job.priority, job.when,
            job.audit, len(node.parents), "*" if n in wide else _names(children[n]),
            _names(node.parents),
            "" if node.on_failure is OnFailure.FAIL else node.on_failure.value,
            _names([parent for parent in node.parents if parent in wide]),
        )  # fmt: skip


def _names(numbers: Sequence[int]) -> str:
    return " ".join([f".{n}" for n in numbers])


@task(
    name="django_redisqueue.send_workflow",
    max_attempts=100,
    no_retry_on=(WorkflowError,),  # it would be refused again
    redact=("jobs",),  # whose own tasks may redact some of their arguments
)
def send_workflow(flow_id: str, fields: Sequence[str], jobs: Sequence[Sequence[Any]]) -> None:
    """Send a workflow; sending it again changes nothing. A task, for the outbox of an older version
    has workflows as its jobs."""
    send_push(Push(flow_id, fields, jobs))


def send_push(push: Push) -> None:
    """Send a workflow; sending it again changes nothing."""
    transport = replaced_transport()
    if transport is not None:
        _check_taken(transport.push(push), push.flow_id)
    else:
        deque(send_all(producer_link(), [push]), maxlen=0)


def row_of(push: Push) -> NewJob:
    """The workflow as the outbox keeps it: under its own id, with its jobs as the arguments. Raises
    PayloadTooLarge."""
    payload = dumps([[push.flow_id, push.fields, push.jobs], {}])
    if len(payload.encode()) > MAX_ROW_BYTES:
        raise PayloadTooLarge(
            f"workflow {push.flow_id} with its {len(push.jobs)} jobs is too large for the outbox, "
            f"whose rows take {MAX_ROW_BYTES} bytes: make several of it, or push it with "
            "on_commit=False"
        )
    return NewJob(push.flow_id, push.jobs[0][1], send_workflow.name, payload)


def _check_taken(code: int, flow_id: str, at: int = 0) -> None:
    """Raise what the code of push.lua means for the call of this number."""
    if code == GONE:
        raise WorkflowError(
            f"workflow {flow_id} was cleaned up (half-pushed for a day, or ended), and jobs of "
            "it are still in Redis; it was not made again: push it as a new one"
        )
    if code < 0:
        raise WorkflowNotFound(f"workflow {flow_id} vanished as it was pushed (batch {at + 1})")


def send_all(link: Link, pushes: Iterable[Push], *, starts: bool = True) -> Iterator[str]:
    """Send workflows, in calls of up to 100 jobs of which two are under way; yields the id of each
    once Redis has all of it. Nothing else may use the link meanwhile. Unless it ``starts``, a
    workflow stays ``building``, to be cancelled, or to be started by sending it again."""
    store = Transitions(link)
    calls = _calls(store, pushes, starts)
    for (flow_id, at, is_last), code in link.stream_scripts(calls, store.wait):
        _check_taken(code, flow_id, at)
        if is_last:
            yield flow_id


def _calls(
    store: Transitions, pushes: Iterable[Push], starts: bool
) -> Iterator[tuple[tuple[str, int, bool], tuple[Any, ...]]]:
    for flow_id, fields, jobs, stored in pushes:
        batches = list(_batches(jobs))
        for at, batch in enumerate(batches):
            last = at == len(batches) - 1
            call = store.push_call(
                flow_id, () if at else fields, batch,
                first=at == 0, last=last and starts, stored=stored,
            )  # fmt: skip
            yield (flow_id, at, last), call


def _batches(jobs: Sequence[Sequence[Any]]) -> Iterator[list[FlowJob]]:
    batch: list[FlowJob] = []
    size = 0
    for job in (FlowJob(*fields) for fields in jobs):
        weight = len(job.payload) + len(job.then) + len(job.after)
        if len(batch) == BATCH or (batch and size + weight > MAX_CALL_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += weight
    if batch:
        yield batch
