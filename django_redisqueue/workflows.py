"""Workflows: jobs that depend on jobs, pushed together and steered together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from .clock import Duration, to_ms
from .conf import get_settings
from .connection import blocking_link, producer_link
from .exceptions import (
    InvalidOption,
    WaitTimeout,
    WorkflowError,
    WorkflowFailed,
    WorkflowNotFound,
)
from .flowdata import FlowData
from .flows import Node, check_graph, flow_jobs, send_workflow
from .ids import check_workflow_id, new_workflow_id
from .jobdata import NewJob
from .jobs import RECHECK, Job
from .states import OnFailure, WorkflowStatus
from .store.transitions import Transitions
from .store.workflows import WorkflowReads
from .submit import Deferred, after_commit
from .tasks import Signature, Task

MAX_NAME = 200
TTL = 86_400  # s that an ended workflow stays
STEPS = 10_000  # of 100 jobs; a bound for what one call goes on with itself


@dataclass(frozen=True, slots=True)
class _Calls:
    """What a workflow's end calls for."""

    complete: Signature | None = None
    failure: Signature | None = None

    def fields(self) -> Iterator[str]:
        for name, signature in (("complete", self.complete), ("failure", self.failure)):
            if signature is not None:
                job = signature.new_job()
                yield from (f"{name}_task", job.task, f"{name}_payload", job.payload)
                yield from (f"{name}_queue", job.queue, f"{name}_options", job.options)
                yield from (f"{name}_priority", str(job.priority))


class Workflow:
    """A graph of jobs; ``with Workflow(...) as flow`` pushes it at the end of the block.

    ``queue_name`` and ``priority`` are those of jobs that do not set their own. ``on_complete`` and
    ``on_failure``: a task or signature that is enqueued when the workflow ends so, once each time
    it does. ``ttl``: how long an ended workflow stays before it is cleaned up (seconds or a
    timedelta; 0 for ever).
    """

    def __init__(
        self,
        name: str = "",
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        on_complete: Task | Signature | None = None,
        on_failure: Task | Signature | None = None,
        ttl: Duration = TTL,
        on_commit: bool | None = None,
    ) -> None:
        self.id = new_workflow_id()
        self.name = _check_name(name)
        self._defaults = {"queue_name": queue_name, "priority": priority}
        self._calls = _Calls(_signature(on_complete), _signature(on_failure))
        self._ttl_ms = to_ms(ttl, "ttl")
        self._on_commit = on_commit
        self._nodes: list[Node] = []
        self._is_pushed = False
        self._deferred = Deferred((), {"the workflow's push"})

    def __repr__(self) -> str:
        return f"<Workflow {self.id} {self.name!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.push()

    # -- putting it together

    def add(
        self,
        what: Task | Signature,
        /,
        *args: Any,
        after: Job | Sequence[Job] = (),
        on_failure: OnFailure | str = OnFailure.FAIL,
        **kwargs: Any,
    ) -> Job:
        """Add a job that starts when all jobs in ``after`` are done; returns its handle.

        ``on_failure``: what its failure means: ``fail`` (the workflow fails), ``skip`` (what
        depends on it is cancelled) or ``go_on`` (what depends on it runs without its result).
        Raises WorkflowError, InvalidOption, and what ``enqueue`` raises for wrong arguments.
        """
        if self._is_pushed:
            raise WorkflowError(f"{self!r} is pushed already; make another for further jobs")
        signature = _call(what, args, kwargs)
        parents = [self._number(job) for job in ([after] if isinstance(after, Job) else after)]
        new = replace(signature.with_defaults(self._defaults).new_job(), id=self._id(len(self)))
        self._nodes.append(Node(new, list(dict.fromkeys(parents)), _policy(on_failure)))
        return Job(new.id, deferred=self._deferred)

    def link(self, parent: Job, child: Job) -> None:
        """Let ``child`` wait for ``parent``, both of this workflow."""
        parents = self._nodes[self._number(child)].parents
        if self._number(parent) not in parents:
            parents.append(self._number(parent))

    def __len__(self) -> int:
        return len(self._nodes)

    def _id(self, number: int) -> str:
        return f"{self.id}.{number}"

    def _number(self, job: object) -> int:
        flow_id, _, number = job.id.rpartition(".") if isinstance(job, Job) else ("", "", "")
        if flow_id != self.id or not number.isdigit() or int(number) >= len(self._nodes):
            raise WorkflowError(
                f"{job!r} is not a job of {self!r}; pass what add() of the same workflow returned"
            )
        return int(number)

    def push(self) -> None:
        """Check the graph and send it; after commit inside ``atomic()``.

        Raises WorkflowError before anything is written, and RedisUnavailable or RedisRefused.
        """
        if self._is_pushed:
            raise WorkflowError(f"{self!r} is pushed already")
        check_graph(self._nodes, self.name)
        settings = get_settings()
        waits = settings.enqueue_on_commit if self._on_commit is None else self._on_commit
        after_commit(self._send, waits, self._for_later)
        self._is_pushed = True  # when sending fails, the same push may be tried again

    def _fields(self) -> list[str]:
        return ["name", self.name, "ttl_ms", str(self._ttl_ms), *self._calls.fields()]

    def _send(self) -> None:
        send_workflow(self.id, self._fields(), list(flow_jobs(self._nodes)))
        self._deferred.pending.clear()

    def _for_later(self) -> NewJob:
        """A job that pushes this workflow, for the outbox."""
        jobs = list(flow_jobs(self._nodes))
        return send_workflow.s(self.id, self._fields(), jobs).new_job()

    # -- looking at it, and steering it

    @property
    def data(self) -> FlowData:
        """Its state and counts now, in one read. Raises WorkflowNotFound."""
        found = WorkflowReads(producer_link()).workflow(self.id)
        if found is None:
            raise WorkflowNotFound(
                f"no workflow {self.id} in Redis: it was not pushed, or it has been cleaned up"
            )
        return found

    @property
    def status(self) -> WorkflowStatus:
        return self.data.status

    def jobs(self) -> list[Job]:
        """Handles of all its jobs, in the order they were added."""
        total = len(self._nodes) or self.data.total
        return [Job(self._id(n), deferred=self._deferred) for n in range(total)]

    def pause(self) -> bool:
        """Let nothing of it start; what runs finishes. False when that changed nothing."""
        return self._steer("pause")

    def release(self) -> bool:
        """Let it go on. False when it was not paused."""
        return self._steer("release")

    def cancel(self) -> bool:
        """Cancel all that has not ended. False when it had ended already."""
        return self._steer("cancel")

    def cleanup(self) -> bool:
        """Forget an ended workflow now; its finished jobs stay as long as others. False when it
        has not ended."""
        return self._steer("clean")

    def _steer(self, order: str) -> bool:
        store = Transitions(producer_link())
        code = store.steer(self.id, order)
        if code < 0:
            raise WorkflowNotFound(
                f"no workflow {self.id} in Redis: it was not pushed, or it has been cleaned up"
            )
        for _ in range(STEPS):  # a worker's maintenance would go on with it, too
            if not store.advance():
                break
        return code == 1

    def wait(self, timeout: Duration | None = None) -> FlowData:
        """Wait until it has ended. Raises WaitTimeout, or WorkflowFailed when it failed or was
        cancelled. Woken by a message of its own; does not poll."""
        deadline = None if timeout is None else time.monotonic() + to_ms(timeout, "timeout") / 1000
        link = blocking_link()
        try:
            link.subscribe(Transitions(producer_link()).keys.done(self.id))
            while not (data := self.data).status.is_final:
                left = RECHECK if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(f"workflow {self.id} had not ended in time: {data}")
                link.message(min(left, RECHECK))
        finally:
            link.close()
        if data.status is not WorkflowStatus.COMPLETED:
            raise WorkflowFailed(
                f"workflow {self.id} is {data.status.value}: {data.completed} of {data.total} jobs "
                f"completed, {data.failed} failed, {data.cancelled} cancelled"
            )
        return data


def get_workflow(flow_id: str) -> Workflow:
    """The workflow of that id. Raises InvalidName or WorkflowNotFound."""
    flow = Workflow()
    flow.id = check_workflow_id(flow_id)
    flow.name = flow.data.name
    flow._is_pushed = True
    flow._deferred.pending.clear()
    return flow


def chain(*signatures: Signature, **options: Any) -> Workflow:
    """Push jobs that run one after another; each gets the result of the one before as its first
    argument. ``options``: those of Workflow."""
    flow = Workflow(**options)
    last: Job | None = None
    for signature in signatures:
        last = flow.add(signature if last is None else signature.taking_result(), after=last or ())
    flow.push()
    return flow


def _signature(value: Task | Signature | None) -> Signature | None:
    return value.s() if isinstance(value, Task) else value


def _check_name(value: object) -> str:
    if isinstance(value, str) and len(value) <= MAX_NAME:
        return value
    raise InvalidOption(f"a workflow's name is a text of at most {MAX_NAME} letters, not {value!r}")


def _call(what: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    if isinstance(what, Task):
        return Signature(what, args, kwargs)
    if isinstance(what, Signature) and not args and not kwargs:
        return what
    raise WorkflowError(
        f"add takes a task with its arguments, or a signature (task.s(...)) alone, not {what!r}"
    )


def _policy(value: object) -> OnFailure:
    try:
        return OnFailure(str(value))
    except ValueError:
        raise InvalidOption(
            f"on_failure must be one of {', '.join(OnFailure)}, not {value!r}"
        ) from None
