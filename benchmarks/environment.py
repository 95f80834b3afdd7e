"""What a benchmark runs in: its own Redis, a Django configured for it, and other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import django
from redis import Redis

from django_redisqueue import Job
from tests.support.servers import RedisServer

from .measure import until
from .processes import ROOT, Process, line_of, running


@dataclass(frozen=True, slots=True)
class Options:
    """Command-line options of all benchmarks. None stands for the benchmark's own default."""

    jobs: int | None = None
    rounds: int | None = None
    full: bool = False
    peers: tuple[str, ...] = ()
    write: bool = False

    def jobs_or(self, number: int) -> int:
        return self.jobs or number

    def rounds_or(self, number: int) -> int:
        return self.rounds or number


@dataclass(frozen=True, slots=True)
class Span:
    """When the first job was claimed and when the last one finished, in seconds, by Redis's clock,
    to the millisecond."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


class Environment:
    """A Redis on a unix socket, without persistence. Create one before importing a benchmark."""

    def __init__(self) -> None:
        self.server = RedisServer()
        self.redis: Redis = self.server.client(decode_responses=True)
        self.folder = self.server.folder
        os.environ["BENCHMARK_URL"] = self.server.url
        os.environ["BENCHMARK_FOLDER"] = str(self.folder)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.project.settings"
        django.setup()

    def close(self) -> None:
        self.server.close()

    def empty(self) -> None:
        """Delete all jobs and statistics. Scripts stay loaded, as on a server in use."""
        self.redis.flushall()
        self.redis.config_resetstat()

    def completed(self) -> int:
        """How many jobs of the queue ``default`` have completed since it was emptied."""
        return int(self.redis.hget("job_queue:{0}:q:default:meta", "completed_total") or 0)

    def span(self, jobs: Sequence[Job]) -> Span:
        """The span of jobs that have all finished."""
        pipeline = self.redis.pipeline(transaction=False)
        for job in jobs:
            pipeline.hmget(f"job_queue:{{0}}:job:{job.id}", "started_ms", "finished_ms")
        begun, ended = zip(*pipeline.execute(), strict=True)
        return Span(min(map(int, begun)) / 1000, max(map(int, ended)) / 1000)

    def span_when_done(self, jobs: Sequence[Job], total: int) -> Span:
        """The span, once ``total`` jobs have completed since the queue was emptied."""
        until(lambda: self.completed() >= total, "all jobs completed", 120)
        return self.span(jobs)

    def memory(self, what: str = "used_memory") -> int:
        """A figure of Redis's memory, in bytes."""
        found: int = self.redis.info("memory")[what]
        return found

    def blocked(self) -> int:
        """How many clients wait in a blocking pop."""
        found: int = self.redis.info("clients")["blocked_clients"]
        return found

    @contextmanager
    def worker(
        self,
        processes: int = 1,
        *options: str,
        url: str = "",
        ready: bool = False,
        mirror: bool = False,
        schedules: int = 0,
        shards: int = 1,
    ) -> Iterator[Process]:
        """``runworker`` with this many children. ``ready``: wait until all of them are idle."""
        command = [*python("-m", "django", "runworker", "--processes", str(processes)), *options]
        environ = {
            "BENCHMARK_URL": url or self.server.url,
            "BENCHMARK_MIRROR": str(int(mirror)),
            "BENCHMARK_SCHEDULES": str(schedules),
            "BENCHMARK_SHARDS": str(shards),
        }
        with running(command, self.folder / "worker.log", environ) as process:
            if ready:  # the maintenance child also waits
                process.until(lambda: self.blocked() > processes, "an idle worker")
            yield process

    @contextmanager
    def huey(self, *, ready: bool = False) -> Iterator[Process]:
        """Huey's consumer with one thread, without a log line per task."""
        program = str(Path(sys.executable).with_name("huey_consumer"))
        command = [*python(program, "benchmarks.project.huey_app.huey"), "-w1", "-kthread", "-q"]
        with running(command, self.folder / "huey.log") as process:
            if ready:
                process.until(lambda: self.blocked() > 0, "an idle consumer")
            yield process

    @contextmanager
    def popping(self, key: str, stop: str) -> Iterator[Process]:
        """A bare redis-py loop of BRPOPs, one call at a time."""
        command = python("-m", "benchmarks.clients", "pop", self.server.address, key, stop)
        with running(command, self.folder / "bare.log") as process:
            yield process

    @contextmanager
    def delay(self, milliseconds: float) -> Iterator[str]:
        """The URL of a proxy, in its own process, that delays every byte in each direction."""
        socket = f"{self.folder}/proxy.sock"
        command = python(
            "-m", "tests.support.proxy", "--listen", socket, "--target", self.server.address,
            "--delay-ms", str(milliseconds),
        )  # fmt: skip
        log = self.folder / "proxy.log"
        with running(command, log) as process:
            process.until(lambda: socket in log.read_text(), "the proxy")
            yield f"unix://{socket}"

    @contextmanager
    def pinging(self) -> Iterator[dict[str, float]]:
        """Let another client send PINGs; at the end, set their count, p50, p99 and max in ms."""
        found: dict[str, float] = {}
        log = self.folder / "pinger.log"
        log.unlink(missing_ok=True)
        command = python("-m", "benchmarks.clients", "ping", self.server.address)
        with running(command, log) as process:
            process.until(lambda: "ready" in log.read_text(), "the pinger")
            yield found
        found.update(line_of(log))

    def new_database(self) -> None:
        """Create the database, replacing an existing one."""
        for path in self.folder.glob("db.sqlite3*"):
            path.unlink()
        self.migrate()

    def migrate(self, **environ: str) -> None:
        """Create the database unless it exists."""
        command = python("-m", "django", "migrate", "--verbosity", "0")
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **environ})


def python(*arguments: str) -> Sequence[str]:
    return [sys.executable, *arguments]
