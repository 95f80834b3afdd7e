"""What a worker test runs on: its own Redis, a folder, workers, and producers."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from redis import Redis

from django_redisqueue import Job, JobQueue
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.queries import Queries
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.exceptions import RedisQueueError
from tests.app import tasks
from tests.support.cluster import ClusterNodes
from tests.support.commands import Script
from tests.support.history import flaw
from tests.support.round_trips import calls_of
from tests.support.sentinels import Fleet
from tests.support.servers import RedisServer, redis_url
from tests.support.shards import all_keys
from tests.support.stream import Written, written

from . import tasks as worker_tasks
from .processes import PATIENCE, WorkerProcess, eventually

# Short, so that leases expire within a test.
QUICK: dict[str, Any] = {
    "LEASE": 1.5,
    "HEARTBEAT": 0.4,
    "TASK_MODULES": ["tests.worker.tasks"],
}

Servers = RedisServer | ClusterNodes | Fleet


class WorkerHarness:
    """Starts workers on ``server``, which may be a cluster, or servers behind Sentinel. ``change``
    is pytest-django's ``settings``."""

    def __init__(self, server: Servers, folder: Path, change: Any, stack: ExitStack) -> None:
        self.servers = server
        self.url = server.url
        self.folder = folder
        self.redis: Redis = server.client(decode_responses=True)
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self._change = change
        self._stack = stack
        self.environment: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self.configure(**QUICK)

    @property
    def server(self) -> RedisServer:
        """The only server, which tests may kill and pause."""
        assert isinstance(self.servers, RedisServer), "give the test the mark one_server"
        return self.servers

    def configure(self, **settings: Any) -> None:
        """Change REDISQUEUE in this process and in workers started from now on."""
        self.settings = {**self.settings, **settings}
        self._change.REDISQUEUE = {"CONNECTION": {"URL": self.url}, **self.settings}

    def alter(self, *names: str) -> None:
        """Have workers started from now on call these functions of ``alterations``."""
        self.environment["REDISQUEUE_TEST_ALTERATIONS"] = " ".join(names)
        modules = dict.fromkeys([*self.settings["TASK_MODULES"], "tests.worker.alterations"])
        self.configure(TASK_MODULES=[*modules])

    def worker(
        self,
        *arguments: str,
        address: str = "",
        command: str = "runworker",
        fresh: bool = False,
        prefix: Sequence[str] = (),
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker. ``address`` is that of a proxy in front of the server; ``fresh`` asks for
        a new interpreter; ``prefix`` is the program that runs it."""
        url = redis_url(address) if address else self.url
        worker = WorkerProcess(
            *arguments,
            folder=self.folder,
            environment={"REDISQUEUE_TEST_URL": url, **self.environment},
            settings={**self.settings, **settings},
            command=command,
            fresh=fresh,
            prefix=prefix,
        )
        self._stack.callback(worker.end)
        return worker

    def end_workers(self) -> None:
        """End the workers now, before the things that they use are closed."""
        self._stack.close()

    def script(self, code: str, *options: str, redis: str = "", **settings: Any) -> Script:
        """Run code in a process with the workers' settings; ``redis`` is the URL of another
        Redis."""
        return Script(
            code, *options,
            REDISQUEUE_TEST_URL=redis or self.url,
            REDISQUEUE_TEST_SETTINGS=json.dumps({**self.settings, **settings}),
            **self.environment,
        )  # fmt: skip

    def warm_up(self, jobs: int = 1500) -> int:
        """Run short jobs, so that the children learn to claim many at once."""
        tasks.noop.enqueue_many([()] * jobs)
        self.until_done(jobs)
        return jobs

    @property
    def book(self) -> str:
        """The folder of the ledger, as an argument for tasks."""
        return str(self.ledger)

    def gate(self) -> str:
        """A new FIFO, on which ``run_until_gate_opens`` waits."""
        path = self.folder / f"gate{len(list(self.folder.glob('gate*')))}"
        os.mkfifo(path)
        return str(path)

    @staticmethod
    def open_gate(gate: str) -> None:
        """Open the gate for the single job that waits there, or is about to."""

        def opens() -> bool:
            try:
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return False
            return True

        eventually(opens)

    def pid(self, name: str, n: int = 1) -> int:
        """The pid of a run in the ledger."""
        text = eventually((self.ledger / f"{name}.{n}").read_text)  # empty for a moment
        return int(text.split()[0])

    def in_order(self) -> list[str]:
        """The names in the ledger, in the order of their runs."""
        files = sorted(self.ledger.iterdir(), key=_instant)
        return [path.name.rpartition(".")[0] for path in files]

    def runs(self) -> Counter[str]:
        """How often each name in the ledger ran."""
        return Counter(path.name.rpartition(".")[0] for path in self.ledger.iterdir())

    def stats(self, queue: str = "default") -> dict[str, int]:
        return JobQueue(queue).get_stats()

    def count(self, counter: str, queue: str = "default") -> int:
        """A total counter of the queue: ``recovered_total``, ``released_total``, ..."""
        metas = (keys.queue(queue).meta for keys in all_keys())
        return sum(int(self.redis.hget(meta, counter) or 0) for meta in metas)

    def events(self) -> list[Written]:
        """Every event of every shard, each shard's in order."""
        return [event for keys in all_keys() for event in written(self.redis, keys.events)]

    def scripts_beside(self, heartbeats: int) -> int:
        """How many other scripts run during this many heartbeats, each of which sets one key."""
        before = {name: calls_of(self.redis, name) for name in ("set", "evalsha")}

        def calls(name: str) -> int:
            return calls_of(self.redis, name) - before[name]

        eventually(lambda: calls("set") >= heartbeats, every=0.1)
        return calls("evalsha") - calls("set")

    def until_done(self, completed: int, timeout: float = PATIENCE, **others: int) -> None:
        """Wait until this many jobs have ended with each status, and nothing is left anywhere."""
        want = {"completed": completed, "failed": 0, "cancelled": 0, **others}

        def ended() -> bool:
            stats = self.stats()
            open_ = sum(n for name, n in stats.items() if name not in want)
            return not open_ and sum(want.values()) <= sum(stats[name] for name in want)

        eventually(ended, timeout, every=0.03, why=self.report)
        stats = self.stats()
        assert {name: stats[name] for name in want} == want, self.report()

    def report(self) -> str:
        """Counts and logs, for the message of a failed wait."""
        logs = "\n".join(
            f"--- {path.name}\n{path.read_text()[-6000:]}" for path in self.folder.glob("*.log")
        )
        try:
            stats = str(self.stats())
        except RedisQueueError as error:
            stats = str(error)
        return f"{stats}\n{logs}"

    def statuses(self, jobs: list[Job]) -> Counter[str]:
        """How many of these jobs have each status."""
        by_shard: dict[int, list[str]] = {}
        for job in jobs:
            by_shard.setdefault(shard_of_id(job.id), []).append(job.id)
        connection = worker_connection()
        try:
            return Counter(
                status or "gone"
                for shard, ids in by_shard.items()
                for at in range(0, len(ids), 1000)
                for status in Queries(connection.at(shard)).statuses(ids[at : at + 1000])
            )
        finally:
            connection.close_all()

    @staticmethod
    def results(jobs: list[Job]) -> list[Any]:
        """The results that these jobs have now."""
        for job in jobs:
            job.refresh()
        return [job.result for job in jobs]

    def running(self, job: Job, timeout: float = PATIENCE) -> Job:
        """Wait until the job runs."""

        def runs() -> bool:
            job.refresh()
            return job.status == "processing"

        eventually(runs, timeout, why=self.report)
        return job

    def ended(self, job: Job, timeout: float = PATIENCE) -> Job:
        """Wait until the job has ended."""

        def has_ended() -> bool:
            job.refresh()
            return job.status.is_final

        eventually(has_ended, timeout, why=self.report)
        return job


def check_ends(harness: WorkerHarness, jobs: Sequence[Job]) -> None:
    """The events of each of these jobs lead to one end."""
    events: dict[str, list[tuple[int, str]]] = {job.id: [] for job in jobs}
    for event in harness.events():
        data = event.data
        if data.get("jobId") in events:
            events[data["jobId"]].append((data["seq"], data["status"]))
    flaws = {job_id: flaw(found) for job_id, found in events.items()}
    assert not any(flaws.values()), {job_id: events[job_id] for job_id in flaws if flaws[job_id]}


def _instant(entry: Path) -> int:
    """When a run wrote its entry, in ns. The entry is empty if its process was killed while writing
    it."""
    text = entry.read_text()
    return int(text.split()[1]) if text else entry.stat().st_mtime_ns


class Accepted(NamedTuple):
    """A job, its name in the ledger, and when (monotonic) it was accepted."""

    job: Job
    name: str
    at: float


class Producers:
    """Threads that enqueue one job after another, each job with its own name, like web
    processes."""

    def __init__(self, book: str) -> None:
        self._book = book
        self._enough = Event()
        self._accepted: list[Accepted] = []
        self.refused: list[RedisQueueError] = []
        self._threads = [Thread(target=self._run, args=[name]) for name in "abc"]

    def __enter__(self) -> Producers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    @property
    def accepted(self) -> list[Accepted]:
        return list(self._accepted)

    def _run(self, producer: str) -> None:
        for n in count():
            if self._enough.wait(0.008):
                return
            name = f"{producer}_{n}"
            try:
                job = worker_tasks.run_then_sleep.enqueue(self._book, name, 0.01)
            except RedisQueueError as error:
                self.refused.append(error)
            else:
                self._accepted.append(Accepted(job, name, time.monotonic()))
