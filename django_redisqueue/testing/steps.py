"""Steps in memory, kept as the Lua scripts keep them."""

from __future__ import annotations

from ..broker.replies import ClaimedJob
from ..conf import get_settings


class InMemorySteps:
    """What the jobs of a test remember: a ``StepStore``."""

    def __init__(self) -> None:
        self._fields: dict[str, dict[str, str]] = {}

    def load(self, job: ClaimedJob) -> dict[str, str]:
        return dict(self._fields.get(job.id, {}))

    def save(self, job: ClaimedJob, field: str, value: str) -> int:
        fields = {**self._fields.get(job.id, {}), field: value}
        size = sum(len(name) + len(text.encode()) for name, text in fields.items())
        if size > get_settings().max_result_bytes:
            return -1
        self._fields[job.id] = fields
        return 1

    def forget(self, job_id: str) -> None:
        """Forget the steps of a job."""
        self._fields.pop(job_id, None)
