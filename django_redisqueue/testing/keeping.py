"""What a test looks at: the jobs that were sent, and what it expects of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Never

from ..codec import decode_payload
from ..exceptions import JobNotFound
from ..jobdata import JobData, decode_job
from ..jobs import Job
from ..lookup import JobQuery
from ..submit import waiting_jobs
from .expected import expect, refuse_others
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
        *more: Never,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue_name: str | None = None,
        count: int | None = None,
        **options: Never,
    ) -> list[Job]:
        """Fail unless jobs like this were enqueued, and return them.

        ``task``: an object or a registered name. What is not given matches everything; ``count``
        None means at least one. What could not be enqueued cannot be expected either: it raises
        UnknownTask, InvalidArguments and so on, as there.
        """
        refuse_others(more, options)
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


def _line(job: JobData) -> str:
    arguments = [repr(value) for value in job.args]
    arguments += [f"{name}={value!r}" for name, value in job.kwargs.items()]
    return f"{job.task}({', '.join(arguments)}) on {job.queue}, {job.status.value}"
