"""Workflows: jobs that depend on jobs, pushed together and steered together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from ..clock import Duration, to_ms
from ..conf import get_settings
from ..connection import bulk_link, producer_link
from ..delivery import Deferred
from ..exceptions import WaitTimeout, WorkflowError, WorkflowFailed, WorkflowNotFound, shown
from ..flowdata import FlowData, Push
from ..ids import check_workflow_id, new_workflow_id
from ..jobs import Job
from ..patience import Patience, listen_until
from ..ports import filled, replaced_transport
from ..states import OnFailure, WorkflowStatus
from ..store.transitions import Transitions
from ..store.workflows import WorkflowReads
from ..submit import after_commit, in_atomic, way_of
from ..tasks import DjangoTask, Signature, Task
from .arguments import as_jobs, call_of, check_calls, check_name, policy_of
from .graph import Node, check_graph, flow_jobs, row_of, send_all, send_push

TTL = 86_400  # s that an ended workflow stays
STEPS = 10_000  # of 100 jobs; a bound for what one call goes on with itself


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
        on_complete: Task | Signature | DjangoTask | None = None,
        on_failure: Task | Signature | DjangoTask | None = None,
        ttl: Duration = TTL,
        on_commit: bool | None = None,
    ) -> None:
        self.id = new_workflow_id()
        self.name = check_name(name)
        defaults = {"queue_name": queue_name, "priority": priority}
        self._defaults = {name: value for name, value in defaults.items() if value is not None}
        self._calls = check_calls(on_complete, on_failure)
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
        what: Task | Signature | DjangoTask,
        /,
        *args: Any,
        after: Job | Iterable[Job] | None = None,
        on_failure: OnFailure | str = OnFailure.FAIL,
        **kwargs: Any,
    ) -> Job:
        """Add a job that starts when all jobs in ``after`` are done; returns its handle.

        ``on_failure``: what its failure means: ``fail`` (the workflow fails), ``skip`` (what
        depends on it is cancelled) or ``go_on`` (what depends on it runs without its result).
        Raises WorkflowError, InvalidOption, and what ``enqueue`` raises for wrong arguments.
        """
        self._check_open()
        signature = call_of(what, args, kwargs)
        del args, kwargs  # a page for an error shows them, and the task may redact them
        parents = [self._number(job) for job in as_jobs(after)]
        new = signature.with_defaults(self._defaults).new_job(self._id(len(self)))
        self._nodes.append(Node(new, list(dict.fromkeys(parents)), policy_of(on_failure)))
        return Job(new.id, deferred=self._deferred)

    def link(self, parent: Job, child: Job) -> None:
        """Let ``child`` wait for ``parent``, both of this workflow. Raises WorkflowError."""
        self._check_open()
        parents = self._nodes[self._number(child)].parents
        if self._number(parent) not in parents:
            parents.append(self._number(parent))

    def _check_open(self) -> None:
        if self._is_pushed:
            raise WorkflowError(f"{self!r} is pushed already; make another for further jobs")

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
        push = self._checked()
        way = way_of(self._on_commit, None)
        later = way.stored or (way.waits and in_atomic())
        self._deferred.rows = after_commit(
            lambda: self._send(push._replace(stored=way.stored), later),
            way,
            lambda: row_of(push),
        )
        self._is_pushed = True  # when sending fails, the same push may be tried again

    def _checked(self) -> Push:
        if self._is_pushed:
            raise WorkflowError(f"{self!r} is pushed already")
        check_graph(self._nodes, self.name)
        fields = ["name", self.name, "ttl_ms", str(self._ttl_ms), *self._calls.fields(self.id)]
        return Push(self.id, fields, list(flow_jobs(self._nodes)))

    def _send(self, push: Push, later: bool = False) -> None:
        if later:  # it has committed: if Redis is away its jobs wait for the relay
            self._deferred.pending.clear()
        send_push(push)
        self._sent()

    def _sent(self) -> None:
        self._is_pushed = True
        self._deferred.pending.clear()

    # -- looking at it, and steering it

    @property
    def data(self) -> FlowData:
        """Its state and counts now, in one read. Raises WorkflowNotFound."""
        found = self._read() or self._waiting() or self._read()
        if found is None:
            raise self._not_found()
        return found

    def _read(self) -> FlowData | None:
        return (replaced_transport() or WorkflowReads(producer_link())).workflow(self.id)

    def _waiting(self) -> FlowData | None:
        """What is known of a workflow that the outbox has, and Redis has not yet."""
        push = self._stored()
        if push is None:
            return None
        total, names = len(push.jobs), dict(zip(push.fields[::2], push.fields[1::2], strict=True))
        return FlowData(
            id=self.id, status=WorkflowStatus.BUILDING, name=names["name"], total=total,
            waiting=total,
        )  # fmt: skip

    def _stored(self) -> Push | None:
        settings = get_settings()
        may_be = settings.outbox or settings.mirror or self._deferred.rows
        if filled.outbox is None or replaced_transport() is not None or not may_be:
            return None
        return None if self._deferred.pending else filled.outbox.find_workflow(self.id)

    def _not_found(self) -> WorkflowNotFound:
        return WorkflowNotFound(
            f"no workflow {self.id} in Redis: it was not pushed, its transaction has not "
            "committed, it is in the outbox, or it has been cleaned up"
        )

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
        """Cancel all that has not ended. False when it had ended already. One that is in the outbox
        is cancelled, too, and nothing of it runs."""
        try:
            return self._steer("cancel")
        except WorkflowNotFound:
            push = self._stored()
            if push is None:
                raise
            deque(send_all(producer_link(), [push], starts=False), maxlen=0)
            return self._steer("cancel")

    def cleanup(self) -> bool:
        """Forget an ended workflow now; its finished jobs stay as long as others. False when it
        has not ended."""
        return self._steer("clean")

    def _steer(self, order: str) -> bool:
        transport = replaced_transport()
        if transport is not None:
            code = transport.steer(self.id, order)
        else:
            # A worker's maintenance would go on with it, too.
            code = Transitions(producer_link()).steer_on(self.id, order, STEPS)
        if code < 0:
            raise self._not_found()
        return code == 1

    def wait(self, timeout: Duration | None = None) -> FlowData:
        """Wait until it has ended. Raises WaitTimeout, or WorkflowFailed when it failed or was
        cancelled. Woken by a message of its own; does not poll."""
        patience = Patience(timeout, lambda _: self._late())
        if replaced_transport() is None:
            keys = WorkflowReads(producer_link()).keys
            listen_until(keys.done(self.id), lambda: self.status.is_final, patience)
        data = self.data
        if not data.status.is_final:
            raise WaitTimeout(self._late())
        if data.status is not WorkflowStatus.COMPLETED:
            raise WorkflowFailed(
                f"workflow {self.id} is {data.status.value}: {data.completed} of {data.total} jobs "
                f"completed, {data.failed} failed, {data.cancelled} cancelled"
            )
        return data

    def _late(self) -> str:
        return f"workflow {self.id} had not ended in time: {self.data}"


def push_many(flows: Iterable[Workflow]) -> int:
    """Push workflows and return how many; each becomes visible by itself.

    Redis takes some while the next are checked, and built if ``flows`` is a generator, so this is
    about twice as fast as one after another. Inside ``atomic()`` they go after the commit. Raises
    what ``push`` raises, with a note of how many were pushed; they may be pushed again.
    """
    done = 0
    if in_atomic() or way_of(None, None).stored or replaced_transport() is not None:
        for done, flow in enumerate(flows, 1):  # noqa: B007
            _check_workflow(flow).push()
        return done
    under_way: deque[Workflow] = deque()
    link = bulk_link()
    try:
        for _ in send_all(link, _pushes(flows, under_way)):
            under_way.popleft()._sent()
            done += 1
    except Exception as error:
        error.add_note(f"{done} workflows had been pushed before")
        raise
    finally:
        link.close()
    return done


def _pushes(flows: Iterable[Workflow], under_way: deque[Workflow]) -> Iterator[Push]:
    for flow in flows:
        push = _check_workflow(flow)._checked()
        under_way.append(flow)
        yield push


def _check_workflow(flow: object) -> Workflow:
    if isinstance(flow, Workflow):
        return flow
    raise WorkflowError(f"push_many takes workflows, not {shown(flow)}")


def get_workflow(flow_id: str) -> Workflow:
    """The workflow of that id. Raises InvalidName or WorkflowNotFound."""
    flow = Workflow()
    flow.id = check_workflow_id(flow_id)
    flow._deferred.pending.clear()
    flow.name = flow.data.name
    flow._is_pushed = True
    return flow


def chain(*signatures: Task | Signature | DjangoTask, **options: Any) -> Workflow:
    """Push jobs that run one after another; each gets the result of the one before as its first
    argument. ``options``: those of Workflow. Raises what ``Workflow``, ``add`` and ``push`` do."""
    flow = Workflow(**options)
    last: Job | None = None
    for what in signatures:
        signature = call_of(what, (), {})
        last = flow.add(signature if last is None else signature.taking_result(), after=last)
    flow.push()
    return flow
