"""Workflows: jobs that depend on each other, pushed and controlled together."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, overload

from ..conf import get_settings
from ..core.clock import Deadline, Duration, to_ms
from ..core.ids import check_workflow_id, new_workflow_id, shard_of_id, shard_of_key
from ..core.job_data import NewJob
from ..core.ports import ports
from ..core.records import Push, WorkflowData
from ..core.statuses import OnFailure, WorkflowStatus, check_choice
from ..exceptions import (
    InvalidOption,
    WaitTimeout,
    WorkflowError,
    WorkflowFailed,
    WorkflowNotFound,
    short_repr,
)
from .enqueue import Deferred, after_commit, delivery_mode, in_atomic
from .jobs import Job
from .options import DjangoTask
from .placement import shard_key
from .tasks import P, Signature, Task, as_task, callback_fields, check_callback
from .transport import connection_of, send_workflows, transport, transport_of_jobs
from .workflow_graph import Node, check_graph, encode_jobs, to_outbox_row

OnFailureName = Literal["fail", "skip", "go_on"]
TTL = 86_400  # s that an ended workflow is kept
MAX_NAME = 200


class Workflow:
    """A graph of jobs; ``with Workflow(...) as workflow`` pushes it at the end of the block.

    ``queue_name`` and ``priority`` apply to jobs that do not set their own. ``on_complete`` and
    ``on_failure``: a task or signature that is enqueued each time the workflow ends that way.
    ``ttl``: how long an ended workflow is kept before cleanup (a duration; 0 means forever).
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
        self._id = new_workflow_id(random.randrange(get_settings().shards))
        self._shard_hint = ""  # once its shard is fixed: how to add a job for another shard
        self.name = _check_name(name)
        defaults = {"queue_name": queue_name, "priority": priority}
        self._defaults = {name: value for name, value in defaults.items() if value is not None}
        callbacks = {"complete": on_complete, "failure": on_failure}
        self._callbacks = {
            name: check_callback(what, f"on_{name}")
            for name, what in callbacks.items()
            if what is not None
        }
        self._ttl_ms = to_ms(ttl, "ttl")
        self._on_commit = on_commit
        self._nodes: list[Node] = []
        self._is_pushed = False
        self._deferred = Deferred((), {"the workflow's push"})

    def __repr__(self) -> str:
        return f"<Workflow {self._id} {self.name!r}>"

    @property
    def id(self) -> str:
        self._shard_hint = self._shard_hint or (
            "Add that job before anything reads the id of the workflow or of one of its jobs"
        )
        return self._id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.push()

    @overload
    def add(self, what: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Job: ...
    @overload
    def add(
        self,
        what: Signature,
        /,
        *,
        after: Job | Iterable[Job] | None = None,
        on_failure: OnFailure | OnFailureName = OnFailure.FAIL,
    ) -> Job: ...
    @overload  # in a call with these keywords, no type checker can check the task's arguments
    def add(
        self,
        what: Task | DjangoTask,
        /,
        *args: Any,
        after: Job | Iterable[Job] | None,
        on_failure: OnFailure | OnFailureName = OnFailure.FAIL,
        **kwargs: Any,
    ) -> Job: ...
    @overload
    def add(
        self,
        what: Task | DjangoTask,
        /,
        *args: Any,
        on_failure: OnFailure | OnFailureName,
        **kwargs: Any,
    ) -> Job: ...
    @overload
    def add(self, what: DjangoTask, /, *args: Any, **kwargs: Any) -> Job: ...
    def add(
        self,
        what: Task | Signature | DjangoTask,
        /,
        *args: Any,
        after: Any = None,
        on_failure: Any = OnFailure.FAIL,
        **kwargs: Any,
    ) -> Job:
        """Add a job that starts when all jobs in ``after`` are done; returns its handle.

        ``on_failure`` says what its failure means: ``fail`` (the workflow fails), ``skip`` (its
        dependants are cancelled) or ``go_on`` (its dependants run without its result).
        Raises WorkflowError, InvalidOption, and what ``enqueue`` raises for wrong arguments.
        """
        self._check_open()
        signature = _to_signature(what, args, kwargs)
        del args, kwargs  # error pages show locals, and the task may redact them
        parents = [] if after is None else self._numbers(after)
        number, has_shards = len(self._nodes), get_settings().shards > 1
        if self._defaults:
            signature = signature.with_defaults(self._defaults)
        new = signature.new_job(f"{self._id}.{number}")
        if has_shards:
            self._place(new)
        if not isinstance(on_failure, OnFailure):
            on_failure = check_choice(on_failure, OnFailure, "on_failure")
        self._nodes.append(Node(new, parents, on_failure))
        if has_shards:
            return _PlacedJob(self, number, self._deferred)
        return Job(new.id, deferred=self._deferred)

    def _place(self, job: NewJob) -> None:
        """Move to the shard of the jobs that share this job's limit or unique key, unless another
        job has fixed the shard or the caller has read an id. Raises WorkflowError."""
        shards = get_settings().shards
        key = shard_key(job) if shards > 1 else ""
        if not key:
            return
        before, shard = self._id, shard_of_key(key, shards)
        if shard != shard_of_id(before):
            if self._shard_hint:
                raise WorkflowError(
                    f"workflow {self.name!r} is in shard {shard_of_id(before)}, but the jobs that "
                    f"share the limit or unique key ({key}) of a job of {job.task} are in shard "
                    f"{shard}. {self._shard_hint}"
                )
            self._id = f"{before.rpartition('_')[0]}_{shard}"
            for one in (*(node.job for node in self._nodes), job):
                one.id = one.id.replace(before, self._id)
                one.options = one.options.replace(before, self._id)  # an index may name it
        self._shard_hint = (
            f"Its job of {job.task} determines the shard: put this one into another workflow, or "
            "let a job enqueue it"
        )

    def link(self, parent: Job, child: Job) -> None:
        """Make ``child`` wait for ``parent``, both jobs of this workflow. Raises WorkflowError."""
        self._check_open()
        parents = self._nodes[self._number(child)].parents
        if self._number(parent) not in parents:
            parents.append(self._number(parent))

    def _check_open(self) -> None:
        if self._is_pushed:
            raise WorkflowError(f"{self!r} has already been pushed; create another for more jobs")

    def __len__(self) -> int:
        return len(self._nodes)

    def _numbers(self, after: object) -> list[int]:
        """The numbers of the parents passed to ``add``, each once. Raises WorkflowError."""
        if isinstance(after, Job):
            return [self._number(after)]
        if isinstance(after, str) or not isinstance(after, Iterable):
            raise WorkflowError(
                f"after must be one or several jobs that add() returned, not {short_repr(after)}"
            )
        return list(dict.fromkeys([self._number(job) for job in after]))

    def _number(self, job: object) -> int:
        if isinstance(job, _PlacedJob) and job.workflow is self:
            return job.number
        workflow_id, _, number = job.id.rpartition(".") if isinstance(job, Job) else ("", "", "")
        if workflow_id != self._id or not number.isdigit() or int(number) >= len(self._nodes):
            raise WorkflowError(
                f"{job!r} is not a job of {self!r}; pass what add() of the same workflow returned"
            )
        return int(number)

    def push(self) -> None:
        """Check the graph and send it; after commit inside ``atomic()``.

        Raises WorkflowError before anything is written, and RedisUnavailable or RedisRefused.
        """
        push = self._checked()
        mode = delivery_mode(self._on_commit, None)
        self._deferred.rows = after_commit(
            lambda: self._send(push._replace(stored=mode.outbox)),
            mode,
            lambda: to_outbox_row(push),
            self._deferred.pending.clear,  # during an outage of Redis, the relay sends it
        )
        self._is_pushed = True  # when sending fails, the same push may be tried again

    def _checked(self) -> Push:
        if self._is_pushed:
            raise WorkflowError(f"{self!r} has already been pushed")
        check_graph(self._nodes, self.name)
        for signature in self._callbacks.values():
            self._place(signature.new_job(self._id))
        fields = ["name", self.name, "ttl_ms", str(self._ttl_ms)]
        for name, signature in self._callbacks.items():
            fields += callback_fields(name, signature, f"{self.id}.{name}")
        return Push(self.id, fields, encode_jobs(self._nodes))

    def _send(self, push: Push) -> None:
        transport().push_workflow(push)
        self._sent()

    def _sent(self) -> None:
        self._is_pushed = True
        self._deferred.pending.clear()

    @property
    def data(self) -> WorkflowData:
        """Its status and counts, read in one round trip. Raises WorkflowNotFound."""
        # The relay may send it between the reads of Redis and of the outbox.
        found = self._read() or self._read_from_outbox() or self._read()
        if found is None:
            raise self._not_found()
        return found

    def _read(self) -> WorkflowData | None:
        return transport_of_jobs(self.id).workflow(self.id)

    def _read_from_outbox(self) -> WorkflowData | None:
        push = self._outbox_push()
        if push is None:
            return None
        total, names = len(push.jobs), dict(zip(push.fields[::2], push.fields[1::2], strict=True))
        return WorkflowData(
            id=self.id, status=WorkflowStatus.BUILDING, name=names["name"], total=total,
            waiting=total,
        )  # fmt: skip

    def _outbox_push(self) -> Push | None:
        """This workflow if it is in the outbox and not yet in Redis."""
        settings = get_settings()
        may_be = settings.outbox or settings.mirror or self._deferred.rows
        if ports.outbox is None or transport().in_memory or not may_be:
            return None
        return None if self._deferred.pending else ports.outbox.find_workflow(self.id)

    def _not_found(self) -> WorkflowNotFound:
        return WorkflowNotFound(
            f"workflow {self.id} is not in Redis: it was not pushed, its transaction has not "
            "committed, it is in the outbox, or it was cleaned up"
        )

    @property
    def status(self) -> WorkflowStatus:
        return self.data.status

    def jobs(self) -> list[Job]:
        """Handles of all its jobs, in the order in which they were added."""
        total = len(self._nodes) or self.data.total
        return [Job(f"{self.id}.{n}", deferred=self._deferred) for n in range(total)]

    def pause(self) -> bool:
        """Start no more of its jobs; running ones finish. False when that changed nothing."""
        return self._control("pause")

    def release(self) -> bool:
        """Resume after a pause. False when it was not paused."""
        return self._control("release")

    def cancel(self) -> bool:
        """Cancel all its unfinished jobs; False when it had already ended. A workflow in the outbox
        is cancelled as well, and none of its jobs runs."""
        try:
            return self._control("cancel")
        except WorkflowNotFound:
            push = self._outbox_push()
            if push is None:
                raise
            deque(send_workflows(connection_of(self.id), [push], starts=False), maxlen=0)
            return self._control("cancel")

    def cleanup(self) -> bool:
        """Delete an ended workflow now, but not its jobs. False when it has not ended."""
        return self._control("clean")

    def _control(self, command: str) -> bool:
        code = transport().control_workflow(self.id, command)
        if code < 0:
            raise self._not_found()
        return code == 1

    def wait(self, timeout: Duration | None = None) -> WorkflowData:
        """Wait until it has ended. Raises WaitTimeout, or WorkflowFailed when it failed or was
        cancelled. A message from Redis ends the wait; there is no polling."""
        deadline = Deadline(timeout, lambda _: self._timeout_message())
        transport_of_jobs(self.id).wait_until(lambda: self.status.is_final, self.id, deadline)
        data = self.data
        if not data.status.is_final:
            raise WaitTimeout(self._timeout_message())
        if data.status is not WorkflowStatus.COMPLETED:
            raise WorkflowFailed(
                f"workflow {self.id} is {data.status.value}: {data.completed} of {data.total} jobs "
                f"completed, {data.failed} failed, {data.cancelled} cancelled"
            )
        return data

    def _timeout_message(self) -> str:
        return f"workflow {self.id} did not end in time: {self.data}"


class _PlacedJob(Job):
    """The handle of a job whose workflow may still move to another shard, until an id is read."""

    __slots__ = ("number", "workflow")

    def __init__(self, workflow: Workflow, number: int, deferred: Deferred) -> None:
        self.workflow = workflow
        self.number = number
        self._deferred = deferred
        self._is_duplicate = False
        self._data = None

    @property
    def id(self) -> str:  # type: ignore[override]
        return f"{self.workflow.id}.{self.number}"


def push_many(workflows: Iterable[Workflow]) -> int:
    """Push workflows and return how many; each becomes visible on its own.

    While Redis creates some, the next are checked (and built, if ``workflows`` is a generator),
    which is about twice as fast as one after another. Inside ``atomic()`` they are sent after the
    commit. Raises what ``push`` raises, with a note of how many were pushed; they may be pushed
    again.
    """
    done = 0
    if in_atomic() or delivery_mode(None, None).outbox:
        for done, workflow in enumerate(workflows, 1):  # noqa: B007
            _check_workflow(workflow).push()
        return done
    under_way: dict[str, Workflow] = {}
    try:
        for workflow_id in transport().push_workflows(_pushes(workflows, under_way)):
            under_way.pop(workflow_id)._sent()
            done += 1
    except Exception as error:
        error.add_note(f"{done} workflows were pushed before the error")
        raise
    return done


def _pushes(workflows: Iterable[Workflow], under_way: dict[str, Workflow]) -> Iterator[Push]:
    for workflow in workflows:
        push = _check_workflow(workflow)._checked()
        if workflow.id in under_way:
            raise WorkflowError(f"{workflow!r} occurs twice in push_many")
        under_way[workflow.id] = workflow
        yield push


def _check_workflow(workflow: object) -> Workflow:
    if isinstance(workflow, Workflow):
        return workflow
    raise WorkflowError(f"push_many accepts workflows, not {short_repr(workflow)}")


def get_workflow(workflow_id: str) -> Workflow:
    """The workflow with that id. Raises InvalidName or WorkflowNotFound."""
    workflow = Workflow()
    workflow._id = check_workflow_id(workflow_id)
    workflow._deferred.pending.clear()
    workflow.name = workflow.data.name
    workflow._is_pushed = True
    return workflow


def chain(*signatures: Task | Signature | DjangoTask, **options: Any) -> Workflow:
    """Push jobs that run one after another; each gets the result of the one before as its first
    argument. ``options``: those of Workflow. Raises what ``Workflow``, ``add`` and ``push`` do."""
    workflow = Workflow(**options)
    last: Job | None = None
    for what in signatures:
        signature = _to_signature(what, (), {})
        last = workflow.add(signature if last is None else signature.taking_result(), after=last)
    workflow.push()
    return workflow


def _check_name(value: object) -> str:
    """Return ``value``; raise InvalidOption unless it is at most 200 printable characters."""
    if isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable():
        return value
    raise InvalidOption(
        f"a workflow's name must be a string of at most {MAX_NAME} printable characters, "
        f"not {short_repr(value)}"
    )


def _to_signature(what: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    """What ``add`` was given as a Signature. Raises WorkflowError."""
    task = as_task(what)
    if isinstance(task, Task):
        return task.s(*args, **kwargs)
    if isinstance(what, Signature):
        if args or kwargs:
            raise WorkflowError("pass the arguments to the signature: add(task.s(...))")
        return what
    raise WorkflowError(
        f"add() accepts a task and its arguments, or a signature (task.s()), not {short_repr(what)}"
    )
