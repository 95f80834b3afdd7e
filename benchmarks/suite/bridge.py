"""Events mirrored into the database per second, and what the mirror costs a drain.

Each job has three events (queued, processing, completed), as the worker's scripts write them, and
all are in the stream before the bridge starts. One process does everything that the bridge does:
the stream, records, history, rollups, the cursor, trimming. PostgreSQL is started here with its own
defaults (it syncs), and left out if its programs are missing. The drain is that of ``drain``, on
one child.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.replies import Outcome
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from tests.support import postgres

from ..environment import Environment, Options, python
from ..measure import interleaved, ratios, watched_rate
from ..processes import line_of, running
from ..report import Row, of_rounds
from .drain import fill

BATCH = 100
TARGET = 20_000  # events a second
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(50_000)
    waits: list[float] = []
    with server() as postgresql:
        cases: dict[str, Callable[[], float]] = {
            "sqlite": lambda: into_sqlite(environment, jobs),
            "beside": lambda: into_sqlite(environment, jobs, waits),
        }
        if postgresql:
            cases["postgresql"] = lambda: into_postgresql(environment, jobs, postgresql)
        cases["off"] = lambda: drain(environment, 2 * jobs, mirror=False)
        cases["on"] = lambda: drain(environment, 2 * jobs, mirror=True)
        rates = interleaved(options.rounds_or(3), **cases)
    yield of_rounds("into SQLite", rates["sqlite"], "events/s", at_least=TARGET)
    if postgresql:
        yield of_rounds("into PostgreSQL", rates["postgresql"], "events/s", at_least=TARGET)
    yield of_rounds("into SQLite, others write", rates["beside"], "events/s")
    yield of_rounds("  their commits, p99", waits, "ms")
    yield of_rounds("drain, mirror off", rates["off"], "jobs/s")
    yield of_rounds("drain, mirror on", rates["on"], "jobs/s")
    yield of_rounds("mirror on / off", ratios(rates["on"], rates["off"]))


@contextmanager
def server() -> Iterator[postgres.PostgresServer | None]:
    """A PostgreSQL whose commits are durable, unlike that of the tests."""
    if postgres.missing():
        yield None
        return
    postgres.OPTIONS.update(DURABLE)
    with postgres.PostgresServer() as started:
        yield started


def into_sqlite(environment: Environment, jobs: int, waits: list[float] | None = None) -> float:
    """Mirror into a new file; with ``waits``, while another process writes a row every 5 ms."""
    environment.new_database()
    begin(environment, jobs, {})
    with nullcontext() if waits is None else writing(environment, waits):
        return mirror(environment, {})


def into_postgresql(environment: Environment, jobs: int, server: postgres.PostgresServer) -> float:
    databases = {"default": server.new_database()}
    begin(environment, jobs, databases)
    return mirror(environment, databases)


def begin(environment: Environment, jobs: int, databases: dict[str, Any]) -> None:
    """Run a mirror on an empty Redis, so that it knows this Redis; then create the events."""
    environment.empty()
    mirror(environment, databases)
    live(jobs)


def live(jobs: int) -> None:
    """Run this many jobs, so that their events are in the stream."""
    commands = Commands(worker_connection())
    task = "benchmarks.project.tasks.noop"
    commands.enqueue_all(
        [NewJob(new_job_id(), "default", task, f"[[{n + at}],{{}}]") for n in range(BATCH)]
        for at in range(0, jobs, BATCH)
    )
    claim_request, call = ClaimRequest("child.1", ("default",)), 1
    claim = commands.claim(claim_request, call, BATCH // 2)
    while claim.jobs:
        call += 1
        done = [Outcome(job.id, job.lease, job.call, "completed", "null", "") for job in claim.jobs]
        _, claim = commands.finish(claim_request, call, done, BATCH // 2)
    commands.connection.close()


def mirror(environment: Environment, databases: dict[str, Any]) -> float:
    """Events per second of a bridge in its own process."""
    log = environment.folder / "mirror.log"
    environ = {"BENCHMARK_DATABASES": json.dumps(databases)}
    with running(python("-m", "benchmarks.clients", "mirror"), log, environ) as process:
        process.wait()
    return line_of(log)["rate"]


@contextmanager
def writing(environment: Environment, waits: list[float]) -> Iterator[None]:
    """Let another process write to the file meanwhile, and append the p99 of its commits to
    ``waits``.
    """
    log = environment.folder / "writer.log"
    log.unlink(missing_ok=True)
    with running(python("-m", "benchmarks.clients", "write"), log) as process:
        process.until(lambda: "ready" in log.read_text(), "the other writer")
        yield
    waits.append(line_of(log)["p99"])


def drain(environment: Environment, jobs: int, *, mirror: bool) -> float:
    """Jobs per second, as in ``drain``. The bridge may still be working when the last job has
    ended.
    """
    environment.empty()
    environment.new_database()
    fill(jobs)
    with environment.worker(1, mirror=mirror):
        return watched_rate(environment.completed, jobs)
