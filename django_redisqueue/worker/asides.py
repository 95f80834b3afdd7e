"""What jobs ask of Redis while they run, on links apart from the loop's own."""

from __future__ import annotations

from typing import Any

from ..conf import Settings
from ..connection import worker_link
from ..store.replies import Claimed
from ..store.transitions import Transitions
from ..store.workflows import WorkflowReads
from .reconnect import until_answered


class Asides:
    """A link opens when it is first used, and most jobs ask for nothing."""

    def __init__(self, child: str, settings: Settings) -> None:
        self._child = child
        self._settings = settings
        self._store = Transitions(worker_link(), settings)

    def delays(self, job_id: str) -> int:
        """How often a job was put off because nobody knew its task."""
        key = self._store.keys.job(job_id)
        delays = until_answered(
            lambda _: self._store.link.call("HGET", key, "delays"), who=self._child
        )
        return int(delays or 0)

    def parent_result(self, job_id: str) -> Any:
        """What the only parent of a job of a chain returned."""
        reads = WorkflowReads(self._store.link, self._settings)
        found = until_answered(lambda _: reads.parent_results(job_id), who=self._child)
        return next(iter(found.values()), None)

    def report(self, job: Claimed, progress: str) -> bool:
        """Store the progress of the main thread's job; False when its lease is lost."""
        return self._store.progress(self._child, job.id, job.lease, progress)

    def report_anywhere(self, job: Claimed, progress: str) -> bool:
        """The same from any thread."""
        store = Transitions(worker_link(), self._settings)
        try:
            return store.progress(self._child, job.id, job.lease, progress)
        finally:
            store.link.close()
