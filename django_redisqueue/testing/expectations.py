"""Captured jobs, and assertions about them.

An expectation is validated as strictly as an enqueue. Otherwise an assertion with a typo would fail
for the wrong reason, or pass with ``count=0``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ..client.enqueue import uncommitted_jobs
from ..client.jobs import Job
from ..client.options import check_integer
from ..client.registry import get_task
from ..client.tasks import Task
from ..conf import get_settings
from ..core.clock import real_ms
from ..core.codec import decode_payload, encode_payload
from ..core.job_data import JobData, JobQuery, NewJob, decode_job
from ..core.statuses import JobReason
from ..exceptions import InvalidArguments, InvalidTask, short_repr
from .hashes import new_hash
from .index import JobHashes

WHERE = "assert_enqueued()"


class CapturedJobs(ABC):
    """The jobs of a test by id, as Redis would store them, and the test's clock."""

    def __init__(self) -> None:
        self.hashes = JobHashes()
        self._ahead_ms = 0  # how far it is ahead of the wall clock

    @abstractmethod
    def put(self, new: NewJob) -> bool:
        """What enqueue.lua does for one job. Returns whether it was created."""

    @abstractmethod
    def cancel_job(self, job_id: str, reason: JobReason = JobReason.NONE) -> int:
        """What cancel.lua does; its codes."""

    def now_ms(self) -> int:
        """The test's current time, in ms since the epoch."""
        return real_ms() + self._ahead_ms

    def move_clock_to(self, instant_ms: int) -> None:
        """Set the time to this instant, unless it is already later: the clock never goes back."""
        self._ahead_ms = max(self._ahead_ms, instant_ms - real_ms())

    @property
    def jobs(self) -> list[Job]:
        """Handles of all jobs in their current state, in the order in which they arrived."""
        return [
            Job(job_id, data=decode_job(job_id, found)) for job_id, found in self.hashes.items()
        ]

    def find(self, query: JobQuery) -> list[JobData]:
        """The newest jobs that match."""
        found = [job.data for job in self.jobs[::-1] if query.matches(job.data)]
        return found[: query.limit]

    def assert_enqueued(
        self,
        task: Any,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue_name: str | None = None,
        count: int | None = None,
    ) -> list[Job]:
        """Fail unless matching jobs were enqueued, and return them.

        ``task``: an object or a registered name. Options that are not given match everything;
        without ``count``, at least one job must match. An expectation that could not be enqueued
        raises what ``enqueue`` would raise: UnknownTask, InvalidArguments and so on.
        """
        name = _name(task)
        facts = _arguments(name, args, kwargs)
        if queue_name is not None:
            facts["queue_name"] = get_settings().check_queue(queue_name)
        if count is not None:
            check_integer(count, "count", 0, 2**32)
        found = [
            job
            for job in self.jobs
            if job.task_name == name and facts.items() <= self._facts(job).items()
        ]
        if len(found) == count or (found and count is None):
            return found
        expected = _expectation(name, facts, count)
        raise AssertionError(f"expected {expected}; {len(found)} found.{self._listing()}")

    def _facts(self, job: Job) -> dict[str, object]:
        # A job shows redacted arguments; a test may compare the real ones.
        args, kwargs = decode_payload(self.hashes[job.id]["payload"])
        return {"args": args, "kwargs": kwargs, "queue_name": job.queue_name}

    def _listing(self) -> str:
        lines = ["\nEnqueued:", *([_line(job.data) for job in self.jobs] or ["  nothing"])]
        if waiting := uncommitted_jobs():
            lines.append("Waiting for a commit (see captureOnCommitCallbacks):")
            lines += [_line(decode_job(new.id, new_hash(new, self.now_ms()))) for new in waiting]
        return "\n".join(lines)


def _expectation(name: str, facts: Mapping[str, Any], count: int | None) -> str:
    """``2 jobs of shop.tasks.charge, args=(42,)``"""
    much = "at least 1 job" if count is None else f"{count} job{'' if count == 1 else 's'}"
    shown = {**facts, "args": tuple(facts["args"])} if "args" in facts else facts
    return ", ".join([f"{much} of {name}", *(f"{fact}={one!r}" for fact, one in shown.items())])


def _line(job: JobData) -> str:
    arguments = [repr(value) for value in job.args]
    arguments += [f"{name}={value!r}" for name, value in job.kwargs.items()]
    return f"  {job.task}({', '.join(arguments)}) on {job.queue}, {job.status.value}"


def _name(task: object) -> str:
    """The registered name of a task, a Django task, a name or an alias."""
    if isinstance(task, Task):
        return task.name
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    if not isinstance(name, str):
        raise InvalidTask(
            f"{WHERE} accepts a registered name or a function decorated with @task, "
            f"not {short_repr(task)}"
        )
    known: Task = get_task(name)
    return known.name


def _arguments(task: str, args: object, kwargs: object) -> dict[str, Any]:
    """The given arguments as JSON returns them."""
    given = {"args": _by_place(args), "kwargs": _by_name(kwargs)}
    limit = get_settings().max_payload_bytes
    payload = encode_payload(given["args"] or (), given["kwargs"] or {}, limit, task)
    sent = dict(zip(given, decode_payload(payload), strict=True))
    return {name: value for name, value in sent.items() if given[name] is not None}


def _by_place(args: object) -> Any:
    if args is None or isinstance(args, tuple | list):
        return args
    raise InvalidArguments(
        f"{WHERE}: args must be a tuple of the job's arguments, such as ({short_repr(args)},), not "
        f"{short_repr(args)}"
    )


def _by_name(kwargs: object) -> Any:
    if kwargs is None:
        return None
    if isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs):
        return kwargs
    raise InvalidArguments(
        f"{WHERE}: kwargs must be a dict of the job's arguments by their names, such as "
        f'{{"amount": 100}}, not {short_repr(kwargs)}'
    )
