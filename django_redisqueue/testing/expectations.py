"""Captured jobs, and assertions about them.

An expectation is validated as strictly as an enqueue: an assertion with a typo would fail for the
wrong reason, or pass for it with ``count=0``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never

from ..client.enqueue import uncommitted_jobs
from ..client.jobs import Job
from ..client.options import check_integer, unknown_option
from ..client.registry import get_task
from ..client.tasks import Task
from ..conf import get_settings
from ..core.codec import decode_payload, encode_payload
from ..core.job_data import JobData, JobQuery, decode_job
from ..exceptions import InvalidArguments, InvalidOption, InvalidTask, JobNotFound, short_repr
from .hashes import InMemoryClock, JobHash, new_hash

WHERE = "assert_enqueued()"
OPTIONS = ("args", "kwargs", "queue_name", "count")


class CapturedJobs:
    """Jobs by their ids, as Redis would have them."""

    def __init__(self) -> None:
        self._hashes: dict[str, JobHash] = {}
        self.clock = InMemoryClock()

    @property
    def jobs(self) -> list[Job]:
        """Handles to all jobs in the order of their arrival, as they are now."""
        return [Job(job_id, data=self.job(job_id)) for job_id in self._hashes]

    def job(self, job_id: str) -> JobData:
        """One job. Raises JobNotFound."""
        if job_id not in self._hashes:
            raise JobNotFound(f"no job {job_id} was enqueued in this test")
        return decode_job(job_id, self._hashes[job_id])

    def has_job(self, job_id: str) -> bool:
        return job_id in self._hashes

    def find(self, query: JobQuery) -> list[JobData]:
        """The newest jobs that match."""
        found = [job.data for job in self.jobs[::-1] if query.matches(job.data)]
        return found[: query.limit]

    def assert_enqueued(
        self,
        task: Any,
        *more: Never,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue_name: str | None = None,
        count: int | None = None,
        **options: Never,
    ) -> list[Job]:
        """Fail unless matching jobs were enqueued, and return them.

        ``task``: an object or a registered name. Options that are not given match everything;
        without ``count`` at least one job must match. A job that could not be enqueued raises what
        ``enqueue`` would raise: UnknownTask, InvalidArguments and so on.
        """
        check_no_extra_arguments(more, options)
        expected = expect(task, args, kwargs, queue_name, count)
        found = [
            job
            for job in self.jobs
            if job.task_name == expected.task
            and all(self._fact(job, name) == value for name, value in expected.facts.items())
        ]
        if expected.is_met_by(len(found)):
            return found
        raise AssertionError(f"expected {expected}; {len(found)} found.{self._listing()}")

    def _fact(self, job: Job, attribute: str) -> object:
        if attribute == "queue_name":
            return job.queue_name
        # A job shows redacted arguments; a test may compare the real ones.
        args, kwargs = decode_payload(self._hashes[job.id]["payload"])
        return args if attribute == "args" else kwargs

    def _listing(self) -> str:
        lines = [_line(job.data) for job in self.jobs] or ["nothing"]
        text = "\nEnqueued:" + "".join(f"\n  {line}" for line in lines)
        waiting = uncommitted_jobs()
        if waiting:
            now_ms = self.clock.now_ms()
            lines = [_line(decode_job(new.id, new_hash(new, now_ms))) for new in waiting]
            text += "\nWaiting for a commit (see captureOnCommitCallbacks):"
            text += "".join(f"\n  {line}" for line in lines)
        return text


def _line(job: JobData) -> str:
    arguments = [repr(value) for value in job.args]
    arguments += [f"{name}={value!r}" for name, value in job.kwargs.items()]
    return f"{job.task}({', '.join(arguments)}) on {job.queue}, {job.status.value}"


@dataclass(frozen=True, slots=True)
class ExpectedJobs:
    """``count`` jobs (None: at least one) of a task, by its name, that have these ``facts``."""

    task: str
    facts: Mapping[str, Any]
    count: int | None

    def __str__(self) -> str:
        much = "at least 1 job" if self.count is None else f"{self.count} job"
        much += "" if self.count in (None, 1) else "s"
        return f"{much} of {self.task}" + "".join(
            f", {name}={tuple(value) if name == 'args' else value!r}"
            for name, value in self.facts.items()
        )

    def is_met_by(self, found: int) -> bool:
        """Whether this number of jobs is the expected one."""
        return found > 0 if self.count is None else found == self.count


def expect(
    task: object,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    queue_name: str | None,
    count: int | None,
) -> ExpectedJobs:
    """Raises InvalidTask, UnknownTask, InvalidArguments, PayloadTooLarge, InvalidName, UnknownQueue
    or InvalidOption."""
    name = _name(task)
    facts = _arguments(name, args, kwargs)
    if queue_name is not None:
        facts["queue_name"] = get_settings().check_queue(queue_name)
    if count is not None:
        check_integer(count, "count", 0, 2**32)
    return ExpectedJobs(name, facts, count)


def check_no_extra_arguments(more: Sequence[object], options: Mapping[str, object]) -> None:
    """Raise InvalidOption for what ``assert_enqueued`` does not take."""
    if more:
        raise InvalidOption(
            f"{WHERE} takes only the task as a positional argument, and the job's arguments as "
            "args=(...) and kwargs={...}"
        )
    for name in options:
        raise unknown_option(name, OPTIONS, WHERE)


def _name(task: object) -> str:
    """The registered name of a task, a Django task, a name or an alias."""
    if isinstance(task, Task):
        return task.name
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    if not isinstance(name, str):
        raise InvalidTask(
            f"{WHERE} takes a registered name or a function decorated with @task, "
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
