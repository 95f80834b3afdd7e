"""Rates at growing queue lengths: nothing may cost more because the queue is long.

At each length, jobs are enqueued one at a time, and turned over: 64 are finished, 64 claimed and 64
enqueued, by the calls of a child's loop, so that the length stays the same. ``--full`` goes up to
1,000,000 jobs. Redis and this process share one core, because the choice of cores changes the rate
of single calls by a factor of two (see ``placement``), which would hide the effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.replies import Outcome, OutcomeKind

from ..environment import Environment, Options
from ..measure import rate, timed
from ..project import tasks
from ..report import Row, of_rounds
from .drain import fill, worker
from .placement import pinned

DEPTHS = (1_000, 10_000, 100_000, 1_000_000)
BATCH = 64


def run(environment: Environment, options: Options) -> Iterator[Row]:
    depths = DEPTHS if options.full else DEPTHS[:-1]
    core = min(os.sched_getaffinity(0))
    with pinned(environment.server.pid, core, core):
        yield from by_depth(environment, depths, options.rounds_or(5))
    if options.full:
        last = depths[-1]
        yield Row(f"a worker's drain of {last:,}", worker(environment, last, 1), "jobs/s")


def by_depth(environment: Environment, depths: Sequence[int], rounds: int) -> Iterator[Row]:
    enqueues: dict[int, float] = {}
    turnovers: dict[int, float] = {}
    environment.empty()
    depth = 0
    for wanted in depths:
        fill(wanted - depth)
        depth = wanted
        one = [rate(tasks.noop.enqueue, 1000) for _ in range(rounds)]
        turn = [turn_over(20_000) for _ in range(rounds)]
        yield of_rounds(f"enqueue, {wanted:,} queued", one, "jobs/s")
        yield of_rounds(f"turn over, {wanted:,} queued", turn, "jobs/s")
        enqueues[wanted], turnovers[wanted] = max(one), max(turn)
        depth = int(environment.redis.llen("job_queue:{0}:q:default"))
    first, last = depths[0], depths[-1]
    for name, rates in (("enqueue", enqueues), ("turn over", turnovers)):
        what = f"{name}: best with {last:,} / best with {first:,}"
        yield Row(what, rates[last] / rates[first], at_least=0.9)


def turn_over(jobs: int) -> float:
    """How many jobs per second are enqueued, claimed and finished."""
    commands = Commands(worker_connection())
    claim_request = ClaimRequest("turner", ("default",))
    claim = commands.claim(claim_request, 1, BATCH)

    def loop() -> None:
        nonlocal claim
        for call in range(2, 2 + jobs // BATCH):
            tasks.noop.enqueue_many([(n,) for n in range(BATCH)])
            outcomes = [
                Outcome(job.id, job.lease, job.call, OutcomeKind.COMPLETED, "null")
                for job in claim.jobs
            ]
            _, claim = commands.finish(claim_request, call, outcomes, BATCH)

    seconds = timed(loop)
    commands.release(claim_request.child, [(job.id, job.lease) for job in claim.jobs])
    commands.connection.close()
    return jobs / seconds
