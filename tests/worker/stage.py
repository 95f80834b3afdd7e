"""Where a test of the worker plays: a Redis of its own, a folder, and what was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redis import Redis

from django_redisqueue import Job, JobQueue
from django_redisqueue.connection import worker_link
from django_redisqueue.store.reads import Reads
from tests.app import tasks
from tests.servers import RedisServer, redis_url

from .processes import PATIENCE, WorkerProcess, eventually

# Short, so that what lapses does so within a test's patience.
QUICK: dict[str, Any] = {
    "LEASE": 1.5,
    "HEARTBEAT": 0.4,
    "TASK_MODULES": ["tests.worker.tasks"],
}


class Stage:
    """Starts workers on ``server``; ``change`` is pytest-django's ``settings``."""

    def __init__(self, server: RedisServer, folder: Path, change: Any, stack: ExitStack) -> None:
        self.server = server
        self.folder = folder
        self.redis: Redis = server.client(decode_responses=True)
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self._change = change
        self._stack = stack
        self.environment: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self.configure(**QUICK)

    def configure(self, **settings: Any) -> None:
        """REDISQUEUE of this process and of the workers to come, besides the connection."""
        self.settings = {**self.settings, **settings}
        self._change.REDISQUEUE = {"CONNECTION": {"URL": self.server.url}, **self.settings}

    def worker(
        self,
        *arguments: str,
        address: str = "",
        command: str = "runworker",
        prefix: Sequence[str] = (),
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker; ``address``: of a proxy in front of the server; ``prefix``: what runs
        it."""
        url = redis_url(address) if address else self.server.url
        worker = WorkerProcess(
            *arguments,
            folder=self.folder,
            environment={"REDISQUEUE_TEST_URL": url, **self.environment},
            settings={**self.settings, **settings},
            command=command,
            prefix=prefix,
        )
        self._stack.callback(worker.end)
        return worker

    def warm_up(self, jobs: int = 1500) -> int:
        """Let the children see that jobs are short, so that they claim many at once."""
        tasks.noop.enqueue_many([()] * jobs)
        self.until_done(jobs)
        return jobs

    # -- what came of it

    @property
    def book(self) -> str:
        """The folder of the ledger, as an argument for tasks."""
        return str(self.ledger)

    def pid(self, name: str, n: int = 1) -> int:
        """The process of a run in the ledger."""
        text = eventually((self.ledger / f"{name}.{n}").read_text)  # empty for an instant
        return int(text.split()[0])

    def in_order(self) -> list[str]:
        """The names of the ledger, as they ran."""
        files = sorted(self.ledger.iterdir(), key=lambda path: int(path.read_text().split()[1]))
        return [path.name.rpartition(".")[0] for path in files]

    def runs(self) -> Counter[str]:
        """How often each name of the ledger ran."""
        return Counter(path.name.rpartition(".")[0] for path in self.ledger.iterdir())

    def stats(self, queue: str = "default") -> dict[str, int]:
        return JobQueue(queue).get_stats()

    def count(self, counter: str, queue: str = "default") -> int:
        """A counter of the queue since it began: ``recovered_total``, ``released_total``, ..."""
        return int(self.redis.hget(f"job_queue:{{0}}:q:{queue}:meta", counter) or 0)

    def until_done(self, completed: int, timeout: float = PATIENCE, **others: int) -> None:
        """Wait until all have ended, so many of them completed; nothing may be left anywhere."""
        want = {"completed": completed, "failed": 0, "cancelled": 0, **others}

        def ended() -> bool:
            stats = self.stats()
            open_ = sum(n for name, n in stats.items() if name not in want)
            return not open_ and sum(want.values()) <= sum(stats[name] for name in want)

        eventually(ended, timeout, every=0.03, why=self.report)
        stats = self.stats()
        assert {name: stats[name] for name in want} == want, self.report()

    def report(self) -> str:
        """What a person needs to see why a wait was in vain."""
        logs = "\n".join(
            f"--- {path.name}\n{path.read_text()[-6000:]}" for path in self.folder.glob("*.log")
        )
        return f"{self.stats()}\n{logs}"

    def statuses(self, jobs: list[Job]) -> Counter[str]:
        """How many of these jobs have which status."""
        link = worker_link()
        try:
            return Counter(
                status or "gone"
                for at in range(0, len(jobs), 1000)
                for status in Reads(link).statuses([job.id for job in jobs[at : at + 1000]])
            )
        finally:
            link.close()

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
