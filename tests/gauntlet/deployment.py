"""What the faults hit: servers, a proxy, workers, a bridge and producers, all of them real
processes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from django_redisqueue.broker.keys import Keys
from django_redisqueue.core.ids import slot, tag
from tests.support.cluster import ClusterNode, ClusterNodes
from tests.support.commands import environment, migrate, start
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.sentinels import Fleet
from tests.support.servers import RedisServer, redis_url
from tests.worker.processes import WorkerProcess

from . import ledger
from .clock import MovedClock, MovedClockNode, MovedClockServer

DUE = "tests.gauntlet.tasks.due"
GRACE = 3  # s that running jobs get when a worker is told to stop
WORKERS, PROCESSES = 2, 2
PRODUCERS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where the run takes place. ``on`` is ``redis``, ``sentinel`` or ``cluster``; ``database`` is
    ``postgresql`` or ``sqlite``; ``lease`` is in seconds. With several ``shards``, jobs go to each
    shard in turn. On ``redis``, ``servers`` is the number of servers over which the shards are
    distributed in turn. Where clocks jump, each server, worker and producer has its own clock."""

    on: str = "redis"
    database: str = "postgresql"
    lease: float = 6.0
    shards: int = 1
    clock_jumps: bool = False
    servers: int = 1

    @property
    def keys(self) -> list[Keys]:
        """The keys of each shard."""
        return [Keys(shard=shard) for shard in range(self.shards)]

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "TASK_MODULES": ["tests.gauntlet.tasks"],
            # Not an option of the task: tests of other things would inherit it.
            "SCHEDULES": {
                DUE: {"task": DUE, "every": ledger.EVERY, "misfire": "all"},
            },
            "MIRROR": True,
            "SHARDS": self.shards,
            "QUEUES": {"default": {"SPREAD": self.shards > 1}},
            "LEASE": self.lease,
            "HEARTBEAT": self.lease / 4,
            "MAX_RECOVERIES": 1000,  # a random kill must not count as poison
            "EVENTS_CAP": 50_000_000,  # the verdict compares everything
            "KEEP_COMPLETED": 50_000_000,
            "KEEP_FAILED": 50_000_000,
            "FINISHED_MAX_BYTES": 1 << 34,
        }
        return {**found, "WAIT_REPLICAS": 1} if self.has_replicas else found

    @property
    def has_replicas(self) -> bool:
        return self.on != "redis"


class Worker(WorkerProcess):
    """A worker or bridge that knows its name, and its clock if that can jump."""

    def __init__(
        self, name: str, *arguments: str, clock: MovedClock | None = None, **options: Any
    ) -> None:
        self.name, self.clock = name, clock
        if clock:  # only a new interpreter loads the library
            options["environment"] = {**options["environment"], **clock.environment}
        super().__init__(*arguments, fresh=clock is not None, **options)


class Producer:
    """A process that calls the verbs. After a kill it is restarted with the same clock, if that can
    jump."""

    def __init__(
        self, number: int, seed: int, variables: dict[str, str], log: Path,
        clock: MovedClock | None = None,
    ) -> None:  # fmt: skip
        self._start = ("-m", "tests.gauntlet.producer", str(number), str(seed))
        self._variables = {**variables, **clock.environment} if clock else variables
        self._log = log
        self.clock = clock
        self.process = self._launch()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def _launch(self) -> Any:
        with self._log.open("ab") as log:
            return start(
                *self._start,
                env={**environment(), **self._variables},
                stdout=log.fileno(),
                fresh=self.clock is not None,  # only a new interpreter loads the library
            )

    def kill(self) -> int:
        """Kill it and start another. Returns the pid of the killed process."""
        pid = self.pid
        self.end()
        self.process = self._launch()
        return pid

    def stop(self) -> None:
        """SIGTERM: it ends after its current call. Raises RuntimeError if it had failed before."""
        self.process.terminate()
        if self.process.wait(60) not in (0, -signal.SIGTERM):  # it may have only just started
            raise RuntimeError(f"a producer failed\n{self._log.read_text()}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Deployment:
    """Everything in one folder, removed by ``close``."""

    def __init__(self, folder: Path, place: Place, seed: int) -> None:
        self.folder, self.place, self.seed = folder, place, seed
        self.ledger = folder / "ledger.jsonl"
        self.ledger.touch()
        self._stack = ExitStack()
        self._named = self._clocks = 0
        self._since_ns = time.time_ns() - time.monotonic_ns()
        self.postgres: PostgresServer | None = None
        self.fleet: Fleet | None = None
        self.cluster: ClusterNodes | None = None
        self.proxies: list[Proxy] = []
        self.database: dict[str, Any] = {}  # an entry of DATABASES, of PostgreSQL
        self.workers: list[Worker] = []
        self.producers: list[Producer] = []
        try:
            self._start_servers()
        except BaseException:
            self.close()
            raise

    def _start_servers(self) -> None:
        server = MovedClockServer if self.place.clock_jumps else RedisServer
        if self.place.on == "sentinel":
            self.fleet = self._stack.enter_context(
                Fleet(server=server, appendonly=True, appendfsync="everysec")
            )
            self.urls = [self.fleet.url]
        elif self.place.on == "cluster":
            node = MovedClockNode if self.place.clock_jumps else ClusterNode
            self.cluster = self._stack.enter_context(
                ClusterNodes(node=node, appendonly=True, appendfsync="everysec")
            )
            self.urls = [self.cluster.url]
        else:
            # What a reply confirms is on disk, so no kill can lose it.
            self._servers = [
                self._stack.enter_context(server(appendonly=True, appendfsync="always"))
                for _ in range(self.place.servers)
            ]
            self.proxies = [self._stack.enter_context(Proxy(one.address)) for one in self._servers]
            self.urls = [redis_url(proxy.address) for proxy in self.proxies]
        if self.place.database == "postgresql":
            # A confirmed commit has reached the kernel; killing a process cannot undo it.
            self.postgres = self._stack.enter_context(PostgresServer(synchronous_commit="on"))
            self.database = self.postgres.new_database()
            self._where = {"REDISQUEUE_TEST_DATABASES": json.dumps({"default": self.database})}
        else:
            self._where = {"REDISQUEUE_TEST_FOLDER": str(self.folder)}
            migrate(**self._where)

    def server(self, shard: int = 0) -> RedisServer:
        """The server that currently holds the jobs of a shard."""
        if self.fleet is not None:
            return self.fleet.master
        if self.cluster is not None:
            return self.cluster.owner(slot(tag(shard)))
        return self._servers[shard % len(self._servers)]

    def proxy(self, shard: int) -> Proxy:
        """The proxy in front of a shard's server."""
        return self.proxies[shard % len(self.proxies)]

    def url(self, shard: int) -> str:
        """Where clients find a shard."""
        return self.urls[shard % len(self.urls)]

    @property
    def servers(self) -> list[RedisServer]:
        """The servers that currently hold jobs."""
        return list(dict.fromkeys(map(self.server, range(self.place.shards))))

    @property
    def clocked_servers(self) -> list[MovedClockServer]:
        """All servers whose clocks can jump."""
        servers: Sequence[RedisServer] = self._servers if self.place.on == "redis" else []
        if self.fleet is not None:
            servers = self.fleet.servers
        elif self.cluster is not None:
            servers = self.cluster.nodes
        return [server for server in servers if isinstance(server, MovedClockServer)]

    @property
    def settings(self) -> dict[str, Any]:
        """``REDISQUEUE`` of the processes."""
        return {**self.place.settings, "CONNECTION": {"URL": self.urls}}

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the processes, and of this program while it reads from Redis and the
        database."""
        return {
            "REDISQUEUE_TEST_SETTINGS": json.dumps(self.settings),
            **self._where,
            ledger.VARIABLE: str(self.ledger),
            ledger.CLOCK: str(self._since_ns),
        }

    def start(self) -> None:
        """Start workers, a bridge and producers."""
        self.workers = [self.start_worker() for _ in range(WORKERS)]
        self.bridge = self.start_bridge()
        self.producers = [
            Producer(
                n, self.seed, self.variables, self.folder / f"producer{n}.log", self._new_clock()
            )
            for n in range(PRODUCERS)
        ]

    def start_worker(self, name: str = "") -> Worker:
        """A new name stands for a new machine: it cannot tell whether the previous worker is
        dead."""
        self._named += 1
        name = name or f"w{self._named}"
        return self._process(
            name, "--processes", str(PROCESSES), "--grace", str(GRACE), "--name", name
        )

    def start_bridge(self) -> Worker:
        return self._process("", command="bridgeevents")

    def _process(self, name: str, *arguments: str, command: str = "runworker") -> Worker:
        worker = Worker(
            name,
            *arguments,
            folder=self.folder,
            environment=self.variables,
            settings=self.settings,
            command=command,
            clock=self._new_clock(),
        )
        self._stack.callback(worker.end)
        return worker

    def _new_clock(self) -> MovedClock | None:
        if not self.place.clock_jumps:
            return None
        self._clocks += 1
        folder = self.folder / f"clock{self._clocks}"
        folder.mkdir()
        return MovedClock(folder)

    def all_workers(self) -> Iterator[Worker]:
        yield from self.workers
        yield self.bridge

    def stop_producers(self) -> None:
        for producer in self.producers:
            producer.stop()

    def stop_workers(self) -> None:
        """Stop all workers in order. Raises AssertionError if one does not end cleanly."""
        for process in self.all_workers():
            process.term()
        for process in self.all_workers():
            process.wait(60)

    def close(self) -> None:
        for producer in self.producers:
            producer.end()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
