"""What Redis recorded about finished jobs, by its own clock, to the millisecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django_redisqueue import Job

from .environment import Environment
from .measure import until

CHUNK = 1000


@dataclass(frozen=True, slots=True)
class Span:
    """When the first job was claimed and when the last had finished, in seconds."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


def span(environment: Environment, jobs: Sequence[Job]) -> Span:
    """The span of jobs that have all finished."""
    begun: list[int] = []
    ended: list[int] = []
    for at in range(0, len(jobs), CHUNK):
        pipeline = environment.redis.pipeline(transaction=False)
        for job in jobs[at : at + CHUNK]:
            pipeline.hmget(f"job_queue:{{0}}:job:{job.id}", "started_ms", "finished_ms")
        for started, finished in pipeline.execute():
            begun.append(int(started))
            ended.append(int(finished))
    return Span(min(begun) / 1000, max(ended) / 1000)


def span_when_done(environment: Environment, jobs: Sequence[Job], total: int) -> Span:
    """Wait until ``total`` jobs have completed since the queue was emptied; return their span."""
    until(lambda: environment.completed() >= total, "all jobs completed", 120)
    return span(environment, jobs)
