"""The options of a worker, which its supervisor and its children share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of ``runworker``. ``grace`` is in seconds; ``max_memory``, for one child, is in
    bytes. There and in ``max_jobs``, 0 means no limit.

    With one thread, sync jobs run one after another in the main thread of a child; otherwise each
    runs in one of ``threads`` threads, alongside the main thread.
    """

    queues: tuple[str, ...]
    processes: int = 1
    name: str | None = None
    heartbeat_file: str | None = None
    grace: float = 25.0
    burst: bool = False
    max_jobs: int = 0
    max_memory: int = 0
    min_priority: int = -100
    threads: int = 1
    async_concurrency: int = 100
    async_db_connections: int = 10

    @property
    def slots(self) -> int:
        """How many jobs a child may run: in its main thread, on its event loop, in threads."""
        return 1 + self.async_concurrency + (self.threads if self.threads > 1 else 0)
