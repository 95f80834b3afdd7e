"""Chunks in memory: one call gets the jobs that may share it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial

from ..broker.replies import ClaimedJob
from ..client.registry import lookup
from ..conf import get_settings
from ..exceptions import Interrupt
from ..worker.child.chunks import perform_chunk, shares_chunk
from ..worker.child.executor import Execution, Pipeline
from ..worker.child.retry_policy import UNKNOWN_TASK_LIMIT, Resolution
from ..worker.child.steps import Steps, StepStore
from .hashes import queued_since_ms

_NUMBERS = re.compile(r" k:\S+=(\d+)/(\d+)")  # in a job's lane: size and wait in ms


def in_waiting_chunks(
    jobs: Mapping[str, Mapping[str, str]], ready: Iterable[str], now_ms: int
) -> list[str]:
    """Those of the ready jobs whose chunks are not full and wait for others."""
    lanes: dict[tuple[str, str], list[str]] = {}
    for job_id in ready:
        found = jobs[job_id]
        if " k:" in found.get("lane", ""):
            lanes.setdefault((found["queue"], found["lane"]), []).append(job_id)
    waiting: list[str] = []
    for (_, lane), ids in lanes.items():
        numbers = _NUMBERS.search(lane)
        size, wait_ms = map(int, numbers.groups()) if numbers else (1, 0)
        since_ms = min(queued_since_ms(jobs[job_id]) for job_id in ids)
        if len(ids) < size and now_ms < since_ms + wait_ms:
            waiting += ids
    return waiting


def is_chunk_task(name: str) -> bool:
    task = lookup(name)
    return task is not None and task.options.chunk is not None


class ChunkRun:
    """One call of a chunk task, of ``most`` jobs or fewer; ``error`` is what it raised."""

    def __init__(self, first: ClaimedJob, store: StepStore, most: float = math.inf) -> None:
        self._pipeline = Pipeline(get_settings(), lambda _: UNKNOWN_TASK_LIMIT, lambda _: None)
        self._steps_of = partial(Steps, store=store)
        self._most = most
        self._chunk: list[Execution] = []
        self._prepared: list[Execution | Resolution] = []
        self.jobs: list[ClaimedJob] = []
        self.error: BaseException | None = None
        self.add(first)

    def mark_cancelled(self) -> None:
        """As in a worker, a chunk ignores that one of its jobs is cancelled."""

    def add(self, job: ClaimedJob) -> None:
        """Add a job that the chunk ``takes``."""
        prepared = self._pipeline.prepare(job)
        self.jobs.append(job)
        self._prepared.append(prepared)
        if isinstance(prepared, Execution):
            self._chunk.append(prepared)

    def takes(self, job: ClaimedJob) -> bool:
        """Whether this job may share the call."""
        prepared = self._pipeline.prepare(job)
        if not self._chunk or not isinstance(prepared, Execution):
            return False
        first = self._chunk[0]
        chunk = first.task.options.chunk
        if chunk is None or len(self._chunk) >= min(chunk.size, self._most):
            return False
        return job.queue == first.job.queue and shares_chunk(first, prepared)

    def run(self) -> Sequence[Resolution]:
        """Call the task; returns what becomes of each job."""
        resolved = iter(self._perform(self._chunk) if self._chunk else ())
        if self.error and not isinstance(self.error, Exception | Interrupt | SystemExit):
            raise self.error  # Ctrl-C and pytest.fail are meant for the test
        return [one if isinstance(one, Resolution) else next(resolved) for one in self._prepared]

    def _perform(self, chunk: Sequence[Execution]) -> Sequence[Resolution]:
        return perform_chunk(self._pipeline, chunk, self._steps_of, self._call)

    def _call(self, args: list[object]) -> object:
        try:
            return copy_context().run(self._chunk[0].task.func, *args)
        except BaseException as error:
            self.error = error
            raise
