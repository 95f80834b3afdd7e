"""``JobQueue`` adds jobs to a queue, inspects it and controls it; ``find_jobs`` finds jobs by their
properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, overload

from asgiref.sync import sync_to_async

from ..broker import sums
from ..broker.commands import Commands
from ..broker.connection import producer_connection
from ..broker.overview import MAX_NAME
from ..broker.policies import pause_name
from ..broker.queries import PAGE, Queries, UnreadableJob
from ..broker.replies import STEP, ContinuationStep, StepReply
from ..broker.shards import AllShards
from ..conf import get_settings
from ..core.ids import check_queue_name, check_task_name, check_workflow_id, new_job_id
from ..core.job_data import JobQuery
from ..core.parsing import is_int
from ..core.statuses import UNFINISHED, Status
from ..core.tags import check_tags
from ..core.text import printable
from ..exceptions import InvalidOption, InvalidTask, short_repr
from .jobs import Job
from .limits import NO_KEY, limit_keys, share_fields
from .options import check_integer
from .registry import get_task
from .tasks import Task
from .transport import jobs_of, transport
from .workflows import Workflow

MAX_FOUND = 1000  # jobs that find_jobs returns
P = ParamSpec("P")
Act = Callable[[Commands, str, str, int, ContinuationStep], StepReply]


class JobQueue:
    """The queue of that name. Raises InvalidName or UnknownQueue."""

    def __init__(self, name: str = "default") -> None:
        self.name = get_settings().check_queue(name)

    def __repr__(self) -> str:
        return f"<JobQueue {self.name}>"

    @overload
    def add_job(self, task: str, *args: Any, **kwargs: Any) -> Job: ...
    @overload
    def add_job(self, task: Task[P, Any], *args: P.args, **kwargs: P.kwargs) -> Job: ...
    def add_job(self, task: str | Task, *args: Any, **kwargs: Any) -> Job:
        """Enqueue a task, given as an object or by its registered name, on this queue.

        Raises UnknownTask, InvalidTask, and what ``Task.enqueue`` raises.
        """
        found: Task = get_task(task) if isinstance(task, str) else task
        if not isinstance(found, Task):
            raise InvalidTask(
                f"add_job accepts a registered name or a function decorated with @task, "
                f"not {short_repr(task)}"
            )
        call = found.s(*args, **kwargs)
        del args, kwargs  # error pages show locals, and the task may redact them
        return found.using(queue_name=self.name).enqueue(*call.args, **call.kwargs)

    def get_stats(self) -> dict[str, int]:
        """The number of jobs in each status, by one round trip of constant cost per shard."""
        shards = AllShards()
        found = sums.stats(shards, [self.name])[self.name]
        shards.require_all()
        return found

    def get_jobs(self, status: str, start: int = 0, stop: int = 49) -> list[Job | UnreadableJob]:
        """At most 100 jobs, both ends included: finished ones newest first, others in run order.

        A job whose hash is gone or unreadable is an ``UnreadableJob`` with its id and problem.
        """
        if not (is_int(start, 0, 2**32) and is_int(stop, start, start + PAGE - 1)):
            raise InvalidOption(
                f"a page has 1 to {PAGE} jobs among the first {2**32}, both ends included, "
                f"not {short_repr(start)} to {short_repr(stop)}"
            )
        shards = AllShards()
        ids = sums.job_ids(shards, self.name, _status(status), start, stop)
        shards.require_all()
        found = jobs_of(ids)
        return [job if isinstance(job, UnreadableJob) else Job(job.id, data=job) for job in found]

    def clear(self, status: str, *, limit: int | None = None) -> int:
        """Empty a list of the jobs now in it, in small steps; returns how many left it.

        Finished jobs are deleted, except completed ones whose result other jobs may still read.
        Queued, scheduled and retrying jobs are cancelled. ``limit``: only so many, oldest first.
        """
        if limit is not None:
            check_integer(limit, "limit", 0, 2**32)
        which = _status(status)
        if which in (Status.PROCESSING, Status.WAITING):
            raise InvalidOption(f"{status} jobs cannot be cleared; cancel them one by one")
        return self._in_steps(which, Commands.clear, limit)

    def requeue_all(self, status: str = "failed") -> int:
        """Requeue the jobs now in the failed (or cancelled) list, in small steps; returns how many.

        Jobs of a workflow that is cancelled or cleaned up stay in the list.
        """
        which = _status(status)
        if which not in (Status.FAILED, Status.CANCELLED):
            raise InvalidOption(f"only failed or cancelled jobs can be requeued, not {status}")
        return self._in_steps(which, Commands.requeue_oldest)

    def _in_steps(self, which: Status, act: Act, limit: int | None = None) -> int:
        """Apply ``act`` to the jobs now in the list, oldest first, one shard after another; returns
        how many it changed. If this process dies between two steps, a worker continues."""
        found = AllShards().read(lambda one: Queries(one).length.read(self.name, which))
        present = found.complete()
        allowed, done = sum(present) if limit is None else limit, 0
        for shard, count in enumerate(present):
            left = jobs = min(count, allowed)
            allowed -= jobs
            connection = producer_connection(shard)
            token = f"{Queries(connection).now_ms()}-{new_job_id()}" if jobs else ""
            while left > 0:
                step = ContinuationStep(token, left, int(left == jobs))
                taken = act(Commands(connection), self.name, which.value, min(left, STEP), step)
                if taken.seen == 0:
                    break
                left, done = left - taken.seen, done + taken.done
        return done

    def pause(
        self,
        *,
        by: str = "",
        share: object = NO_KEY,
        limit: str | Task | None = None,
        key: object = NO_KEY,
    ) -> bool:
        """Stop workers from claiming from this queue; running jobs finish. True when it was not
        paused.

        ``share`` pauses only the jobs with one value of ``fair_by``, and ``limit`` those with one
        limit and one value of its key, as in ``set_weight`` and ``set_limit``. ``by`` names who
        paused it; pages and commands show it.
        """
        return self._pause(True, _parts(share, limit, key), by)

    def resume(
        self,
        *,
        by: str = "",
        share: object = NO_KEY,
        limit: str | Task | None = None,
        key: object = NO_KEY,
    ) -> bool:
        """Let workers claim again what ``pause`` held back. True when it was paused."""
        return self._pause(False, _parts(share, limit, key), by)

    def _pause(self, paused: bool, parts: list[str], by: str) -> bool:
        if not isinstance(by, str):
            raise InvalidOption(f"by must be a name, not {short_repr(by)}")
        name = printable(by[:MAX_NAME])
        changed = [transport().pause(self.name, part, paused, name) for part in parts or [""]]
        return any(changed)

    def get_pauses(self) -> list[str]:
        """Shares and limits whose jobs are paused in this queue, such as ``share gold``."""
        return sorted(set(map(pause_name, transport().pauses(self.name))))

    @property
    def is_paused(self) -> bool:
        return transport().is_paused(self.name)


def _parts(share: object, limit: str | Task | None, key: object) -> list[str]:
    """The share or the limit keys to pause; none for the whole queue."""
    if share is not NO_KEY and limit is not None:
        raise InvalidOption("pause a share or a limit, not both at once")
    if limit is not None:
        return limit_keys(limit, key)
    if key is not NO_KEY:
        raise InvalidOption("key= is the value of a limit's key; name the limit as limit=")
    return [] if share is NO_KEY else share_fields(share)


def _status(value: str) -> Status:
    try:
        return Status(value)
    except ValueError:
        raise InvalidOption(
            f"{short_repr(value)} is not a status; use one of {', '.join(Status)}"
        ) from None


def find_jobs(
    *,
    task: str | Task = "",
    workflow: str | Workflow = "",
    status: str | Sequence[str] = (),
    queue: str = "",
    tags: Mapping[str, str] | None = None,
    limit: int = 100,
) -> list[Job]:
    """The newest jobs that have all these properties, at most ``limit`` (1 to 1,000) of them.

    ``status``: one, several, or ``"unfinished"``; by default any. Redis answers if only unfinished
    jobs are requested and ``INDEXED`` names all the other properties (except the queue). Otherwise
    the mirror does, which is a few milliseconds behind. Raises NotIndexed when neither can answer,
    and InvalidOption or InvalidName for invalid properties.
    """
    task_name = task.name if isinstance(task, Task) else task
    workflow_id = workflow.id if isinstance(workflow, Workflow) else workflow
    query = JobQuery(
        task=check_task_name(task_name) if task_name else "",
        workflow=check_workflow_id(workflow_id) if workflow_id else "",
        statuses=_to_statuses(status),
        queue=check_queue_name(queue) if queue else "",
        tags=check_tags(tags or {}),
        limit=check_integer(limit, "limit", 1, MAX_FOUND),
    )
    return [Job(job.id, data=job) for job in transport().find(query)]


afind_jobs = sync_to_async(find_jobs)


def _to_statuses(value: str | Sequence[str]) -> frozenset[Status]:
    if value == "unfinished":
        return UNFINISHED
    try:
        return frozenset(Status(name) for name in ([value] if isinstance(value, str) else value))
    except (ValueError, TypeError):
        raise InvalidOption(
            f'status must be "unfinished", or one or more of {", ".join(Status)}, '
            f"not {short_repr(value)}"
        ) from None
