"""Several shards: a drain and what it costs each process, and what idle workers cost Redis.

Two children drain the same jobs from one shard, from four on the same server, and from four on the
three masters of a Redis Cluster (whose replicas are stopped). CPU time is as /proc reports it,
between the first look that saw a completion and the first that saw all.

What an idle fleet costs the cluster is measured with few children and shards. Each figure is
``a + b * children + c * shards + d * children * shards``, except that a child has one connection to
each node that has shards. Four workers determine the four units; a fifth, with more children and
shards, shows how well they predict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from django.conf import settings
from django.test import override_settings
from redis import Redis

from django_redisqueue import JobQueue
from django_redisqueue.broker.cluster import forget_clusters
from tests.support.cluster import MASTERS, ClusterNodes

from ..environment import Environment, Options
from ..measure import interleaved, ratios, watched_rate
from ..processes import Process, cpu_seconds
from ..report import Row, of_rounds
from .drain import fill
from .idle import SETTLE, count_commands

SHARDS = 4
CHILDREN = 2
IDLE_SECONDS = 60
FEW, MANY = 2, 6  # children of idle workers
FEW_SHARDS = 2  # of idle workers, and SHARDS; with a single shard, children wait in another way
CHECKED = (10, 16)  # children and shards of the worker that the units are checked with
FLEET = (125, 8)  # workers, and the children of each
FLEET_SHARDS = (4, 16, 64)


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain: jobs per second, and µs of CPU per job for each kind of process."""

    rate: float
    redis: float
    worker: float


@dataclass(frozen=True, slots=True)
class Idle:
    """What an idle worker costs its servers."""

    commands: float  # per second, without those that scripts call
    connections: float
    to_nodes: float  # of the connections: those of children to each node, not to each shard
    memory: float  # in bytes, of its keys and connections


def run(environment: Environment, options: Options) -> Iterator[Row]:
    with ClusterNodes() as cluster:
        for replica in cluster.nodes[MASTERS:]:
            replica.kill()
        servers = [node.asked for node in cluster.nodes[:MASTERS]]
        yield from drains(environment, options, cluster.url, servers)
        yield from fleets(environment, cluster.url, servers)


def drains(
    environment: Environment, options: Options, url: str, masters: Sequence[Redis]
) -> Iterator[Row]:
    jobs = options.jobs_or(60_000)
    own = (environment.server.url, [environment.redis])
    measure = partial(drain, environment, jobs)
    cases = {
        "one shard": partial(measure, 1, *own),
        "four shards": partial(measure, SHARDS, *own),
        "three masters": partial(measure, SHARDS, url, masters),
    }
    found = interleaved(options.rounds_or(3), **cases)
    rates = {name: [one.rate for one in rounds] for name, rounds in found.items()}
    for name, rounds in found.items():
        yield of_rounds(f"{name}: drain", rates[name], "jobs/s")
        yield of_rounds("  CPU of Redis", [one.redis for one in rounds], "us a job")
        yield of_rounds("  CPU of the worker", [one.worker for one in rounds], "us a job")
    one = rates["one shard"]
    yield of_rounds("four shards / one", ratios(rates["four shards"], one))
    yield of_rounds("three masters / one shard", ratios(rates["three masters"], one))


def drain(
    environment: Environment, jobs: int, shards: int, url: str, servers: Sequence[Redis]
) -> Drain:
    for server in servers:
        server.flushall()
    pids = [int(server.info("server")["process_id"]) for server in servers]
    with configured(url, shards):
        fill(jobs)
        with environment.worker(CHILDREN, url=url, shards=shards) as worker:
            watch = Watch(pids, worker)
            rate = watched_rate(watch.completed, jobs)
    done, redis, ours = watch.spent()
    return Drain(rate, redis / done * 1e6, ours / done * 1e6)


class Watch:
    """How many jobs have completed, and the CPU spent between the first look that saw any and the
    last one."""

    def __init__(self, servers: Sequence[int], worker: Process) -> None:
        self._servers, self._worker = servers, worker
        self._looks: list[tuple[int, float, float]] = []

    def completed(self) -> int:
        done = JobQueue("default").get_stats()["completed"]
        if done:
            spent = sum(map(cpu_seconds, self._servers))
            self._looks = [*self._looks[:1], (done, spent, self._spent_by_worker())]
        return done

    def _spent_by_worker(self) -> float:
        return sum(map(cpu_seconds, self._worker.tree()))

    def spent(self) -> tuple[int, float, float]:
        """Jobs, and seconds of CPU of Redis and of the worker."""
        (before, redis, worker), (after, redis_end, worker_end) = self._looks
        return after - before, redis_end - redis, worker_end - worker


@contextmanager
def configured(url: str, shards: int) -> Iterator[None]:
    """Let this process enqueue there meanwhile."""
    changed = {
        **settings.REDISQUEUE,
        "CONNECTION": {"URL": url},
        "SHARDS": shards,
        "QUEUES": {"default": {"SPREAD": shards > 1}},
    }
    with override_settings(REDISQUEUE=changed):
        forget_clusters()
        yield


def fleets(environment: Environment, url: str, servers: Sequence[Redis]) -> Iterator[Row]:
    measured = {
        (children, shards): idle(environment, children, shards, url, servers)
        for children in (FEW, MANY)
        for shards in (FEW_SHARDS, SHARDS)
    }
    checked = idle(environment, *CHECKED, url, servers)
    figures: dict[str, Callable[[Idle], float]] = {
        "commands a second": lambda one: one.commands,
        "connections, without a child's to each node": lambda one: one.connections - one.to_nodes,
        "memory (KiB)": lambda one: one.memory / 1024,
    }
    for name, of in figures.items():
        cells = {place: of(one) for place, one in measured.items()}
        for (children, shards), value in cells.items():
            yield Row(f"{name}: {children} children, {shards} shards", value)
        units = Units.solve(cells)
        yield Row("  ... a child", units.child)
        yield Row("  ... a shard", units.shard)
        yield Row("  ... a child in a shard", units.both)
        yield Row("  ... {} children, {} shards".format(*CHECKED), of(checked))
        yield Row("  ... predicted", units.predict(*CHECKED))
        workers, children = FLEET
        for shards in FLEET_SHARDS:
            what = f"  ... {workers} workers of {children}, {shards} shards: predicted"
            yield Row(what, workers * units.predict(children, shards))


@dataclass(frozen=True, slots=True)
class Units:
    base: float
    child: float
    shard: float
    both: float

    @classmethod
    def solve(cls, cells: dict[tuple[int, int], float]) -> Units:
        """The units that explain four measurements: few or many children, few or many shards."""
        children, shards = MANY - FEW, SHARDS - FEW_SHARDS
        least = cells[FEW, FEW_SHARDS]
        few, many = cells[FEW, SHARDS] - least, cells[MANY, SHARDS] - cells[MANY, FEW_SHARDS]
        both = (many - few) / children / shards
        shard = few / shards - both * FEW
        child = (cells[MANY, FEW_SHARDS] - least) / children - both * FEW_SHARDS
        base = least - child * FEW - (shard + both * FEW) * FEW_SHARDS
        return cls(base, child, shard, both)

    def predict(self, children: int, shards: int) -> float:
        return (
            self.base + self.child * children + self.shard * shards + self.both * children * shards
        )


def idle(
    environment: Environment, children: int, shards: int, url: str, servers: Sequence[Redis]
) -> Idle:
    """Measure a worker that has nothing to do."""
    for server in servers:
        server.flushall()
    with environment.worker(children, url=url, shards=shards), ThreadPoolExecutor() as threads:
        time.sleep(SETTLE)
        found = list(threads.map(lambda server: count_commands(server, IDLE_SECONDS), servers))
        clients = [client for server in servers for client in of_worker(server)]
        memory = sum(map(bytes_of_keys, servers)) + sum(int(one["tot-mem"]) for one in clients)
    commands = sum(sum(one.values()) for one in found)
    to_nodes = children * min(shards, len(servers))
    return Idle(commands / IDLE_SECONDS, len(clients), to_nodes, memory)


def of_worker(redis: Redis) -> list[dict[str, str]]:
    """The clients of a server, except other nodes and this process."""
    own = int(redis.client_id())
    clients: list[dict[str, str]] = redis.client_list(_type="normal")
    clients += redis.client_list(_type="pubsub")
    return [one for one in clients if int(one["id"]) != own]


def bytes_of_keys(redis: Redis) -> int:
    return sum(int(redis.memory_usage(key, samples=0) or 0) for key in redis.scan_iter())
