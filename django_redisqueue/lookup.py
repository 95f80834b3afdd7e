"""What jobs are looked up by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .jobdata import JobData
from .states import FINAL, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Properties that a job must have, all of them; an empty one matches every job. The newest
    ``limit`` are wanted."""

    task: str = ""
    workflow: str = ""
    statuses: frozenset[Status] = frozenset()
    queue: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    limit: int = 100

    @property
    def is_unfinished(self) -> bool:
        """True when only jobs that have not ended are wanted."""
        return bool(self.statuses) and self.statuses.isdisjoint(FINAL)

    def matches(self, job: JobData) -> bool:
        """Whether this is such a job."""
        return (
            (not self.task or job.task == self.task)
            and (not self.workflow or job.id.rpartition(".")[0] == self.workflow)
            and (not self.statuses or job.status in self.statuses)
            and (not self.queue or job.queue == self.queue)
            and self.tags.items() <= job.tags.items()
        )
