"""What a test looks at: the jobs that were sent, and what it expects of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..codec import decode_payload, dumps, loads
from ..exceptions import JobNotFound
from ..jobdata import JobData, decode_job
from ..jobs import Job
from ..lookup import JobQuery
from ..registry import lookup
from ..submit import waiting_jobs
from .hashes import Hash, hash_of


class KeptJobs:
    """Jobs by their ids, as Redis would have them. ``jobs`` are handles to them in the order of
    their arrival."""

    def __init__(self) -> None:
        self._hashes: dict[str, Hash] = {}

    @property
    def jobs(self) -> list[Job]:
        """Every job that was sent, as it stands now."""
        return [Job(job_id, data=self.job(job_id)) for job_id in self._hashes]

    def job(self, job_id: str) -> JobData:
        """One job. Raises JobNotFound."""
        if job_id not in self._hashes:
            raise JobNotFound(f"no job {job_id} was enqueued in this test")
        return decode_job(job_id, self._hashes[job_id])

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
        """Fail unless jobs like this were enqueued, and return them.

        ``task``: an object or a registered name. What is not given matches everything; ``count``
        None means at least one.
        """
        wanted = {
            "args": None if args is None else loads(dumps(list(args))),
            "kwargs": None if kwargs is None else loads(dumps(dict(kwargs))),
            "queue_name": queue_name,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        name = _name(task)
        found = [
            job
            for job in self.jobs
            if job.task_name == name
            and all(self._fact(job, attribute) == value for attribute, value in given.items())
        ]
        if len(found) == count or (count is None and found):
            return found
        like = "".join(
            f", {attribute}={tuple(value) if attribute == 'args' else value!r}"
            for attribute, value in given.items()
        )
        much = "at least 1 job" if count is None else f"{count} job{'' if count == 1 else 's'}"
        raise AssertionError(
            f"expected {much} of {name}{like}; {len(found)} found.{self._listing()}"
        )

    def _fact(self, job: Job, attribute: str) -> object:
        if attribute == "queue_name":
            return job.queue_name
        # A job shows its arguments redacted; a test may ask for the real ones.
        args, kwargs = decode_payload(self._hashes[job.id]["payload"])
        return args if attribute == "args" else kwargs

    def _listing(self) -> str:
        lines = [_line(job.data) for job in self.jobs] or ["nothing"]
        text = "\nEnqueued:" + "".join(f"\n  {line}" for line in lines)
        waiting = waiting_jobs()
        if waiting:
            lines = [_line(decode_job(new.id, hash_of(new))) for new in waiting]
            text += "\nWaiting for a commit (see captureOnCommitCallbacks):"
            text += "".join(f"\n  {line}" for line in lines)
        return text


def _name(task: Any) -> str:
    """The registered name of a task of ours, of one of Django's, or of a name or alias."""
    name = task if isinstance(task, str) else getattr(task, "module_path", None) or task.name
    known = lookup(name)
    return str(name if known is None else known.name)


def _line(job: JobData) -> str:
    arguments = [repr(value) for value in job.args]
    arguments += [f"{name}={value!r}" for name, value in job.kwargs.items()]
    return f"{job.task}({', '.join(arguments)}) on {job.queue}, {job.status.value}"
