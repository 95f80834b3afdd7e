"""The jobs of one demo, watched until each has finished. Jobs of earlier demos do not count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from django_redisqueue import Job

FINISHED = frozenset({"completed", "failed", "cancelled"})


class Run:
    """Knows which of its jobs had finished at the last ``look``."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.pending = list(jobs)
        self.completed = 0
        self._started = self._ended = time.monotonic()

    @property
    def finished(self) -> int:
        return len(self.jobs) - len(self.pending)

    @property
    def seconds(self) -> float:
        """From the last look that saw no job completed to the first that saw the last of them."""
        return self._ended - self._started

    def look(self, patience: int) -> None:
        """Refresh pending jobs until ``patience`` of them turn out unfinished.

        Jobs finish roughly in the order of the queue, so a look costs what has finished since the
        last one, not what still waits.
        """
        unfinished: list[Job] = []
        completed = 0
        rest = iter(self.pending)
        for job in rest:
            job.refresh()
            completed += job.status == "completed"
            if job.status not in FINISHED:
                unfinished.append(job)
                if len(unfinished) == patience:
                    break
        self.pending = [*unfinished, *rest]
        self._count(completed)

    def with_status(self, status: str) -> list[Job]:
        return [job for job in self.jobs if job.status == status]

    def retries(self) -> int:
        """How many attempts were repeated: every spent one except the last of a failed job."""
        return sum(max(job.attempts - (job.status == "failed"), 0) for job in self.jobs)

    def stuck(self) -> str:
        """What had not finished at the last look, for people to read."""
        counts = Counter(str(job.status) for job in self.pending)
        listed = ", ".join(f"{number:,} {status}" for status, number in counts.most_common())
        first = ", ".join(job.id for job in self.pending[:3])
        return (
            f"{len(self.pending):,} of {len(self.jobs):,} jobs have not finished: {listed} "
            f"(the first of them: {first})"
        )

    def _count(self, completed: int) -> None:
        now = time.monotonic()
        self.completed += completed
        if completed:
            self._ended = now
        elif not self.completed:
            self._started = self._ended = now
