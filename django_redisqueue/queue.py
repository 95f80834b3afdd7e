"""A named queue: adding jobs, looking at it, steering it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conf import get_settings
from .connection import producer_link
from .exceptions import InvalidOption, InvalidTask, shown
from .ids import new_job_id
from .jobs import Job
from .options import check_whole
from .registry import get_task
from .states import Status
from .store.continuations import STEP, Step, Taken
from .store.reads import PAGE, Broken, Reads
from .store.transitions import Transitions
from .tasks import Task

REQUEUABLE = (Status.FAILED, Status.CANCELLED)


class JobQueue:
    """The queue of that name. Raises InvalidName or UnknownQueue."""

    def __init__(self, name: str = "default") -> None:
        self.name = get_settings().check_queue(name)

    def __repr__(self) -> str:
        return f"<JobQueue {self.name}>"

    def add_job(self, task: str | Task, *args: Any, **kwargs: Any) -> Job:
        """Enqueue a task, given as an object or by its registered name, on this queue.

        Raises UnknownTask, InvalidTask, and what ``Task.enqueue`` raises.
        """
        found: Task = get_task(task) if isinstance(task, str) else task
        if not isinstance(found, Task):
            raise InvalidTask(
                f"add_job takes a registered name or a function decorated with @task, "
                f"not {shown(task)}"
            )
        call = found.s(*args, **kwargs)
        del args, kwargs  # a page for an error shows them, and the task may redact them
        return found.using(queue_name=self.name).enqueue(*call.args, **call.kwargs)

    def get_stats(self) -> dict[str, int]:
        """How many jobs are in each status, in one round trip of constant cost."""
        return Reads(producer_link()).stats([self.name])[self.name]

    def get_jobs(self, status: str, start: int = 0, stop: int = 49) -> list[Job | Broken]:
        """At most 100 jobs, both ends included: finished ones newest first, others next out first.

        A job whose hash is gone or unreadable comes as ``Broken`` with its id and problem.
        """
        whole = all(isinstance(place, int) for place in (start, stop))
        if not (whole and 0 <= start <= stop < start + PAGE):
            raise InvalidOption(
                f"a page is 1 to {PAGE} jobs, both ends included, "
                f"not {shown(start)} to {shown(stop)}"
            )
        reads = Reads(producer_link())
        found = reads.jobs(reads.ids(self.name, _status(status), start, stop))
        return [job if isinstance(job, Broken) else Job(job.id, data=job) for job in found]

    def clear(self, status: str, *, limit: int | None = None) -> int:
        """Empty a list of what is in it now, in small steps; how many jobs left it.

        Finished jobs are deleted, but for completed ones whose result other jobs may still read;
        queued, scheduled and retrying ones become cancelled. With a ``limit`` the oldest end of a
        long list.
        """
        if limit is not None:
            check_whole(limit, "limit", 0, 2**32)
        which = _status(status)
        if which in (Status.PROCESSING, Status.WAITING):
            raise InvalidOption(f"{status} jobs cannot be cleared; cancel them one by one")
        return self._in_steps(which, Transitions(producer_link()).clear, limit)

    def requeue_all(self, status: str = "failed") -> int:
        """Requeue what is in the failed (or cancelled) list now, in small steps; how many.

        Those of a workflow that is cancelled or cleaned up stay in the list.
        """
        which = _status(status)
        if which not in REQUEUABLE:
            raise InvalidOption(f"only failed or cancelled jobs can be requeued, not {status}")
        return self._in_steps(which, Transitions(producer_link()).requeue_oldest)

    def _in_steps(
        self, which: Status, act: Callable[[str, str, int, Step], Taken], limit: int | None = None
    ) -> int:
        """Let ``act`` look at what the list holds now, from the oldest end; to how many jobs it did
        what it does. If this process dies between two steps, a worker's maintenance goes on."""
        present = self.get_stats()[which.value]
        left = present = present if limit is None else min(present, limit)
        token, done = new_job_id() if present > STEP else "", 0
        while left > 0:
            step = Step(token, left, int(left == present))
            taken = act(self.name, which.value, min(left, STEP), step)
            if taken.seen == 0:
                break
            left, done = left - taken.seen, done + taken.done
        return done

    def pause(self) -> bool:
        """Let no worker claim from this queue; running jobs finish. True when it was not paused."""
        return Transitions(producer_link()).pause(self.name, True)

    def resume(self) -> bool:
        """Let workers claim again. True when it was paused."""
        return Transitions(producer_link()).pause(self.name, False)

    @property
    def is_paused(self) -> bool:
        return "paused" in Reads(producer_link()).meta(self.name)


def _status(value: str) -> Status:
    try:
        return Status(value)
    except ValueError:
        raise InvalidOption(
            f"{shown(value)} is not a status; use one of {', '.join(Status)}"
        ) from None
