"""Commands and queries of long work: what a job remembers from run to run."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.parsing import pairs
from .base import CommandBase, QueryBase

BYTES = "bytes"  # the field that has the size of the others


class StepCommands(CommandBase):
    """Commands of a running job's steps."""

    def step(self, child: str, job_id: str, lease: int, field: str, value: str) -> int:
        """Store what a running job is to remember: 1 stored, 0 the lease is lost, -1 the job would
        remember more than MAX_RESULT_BYTES."""
        limit = self.settings.max_result_bytes
        code: int = self._run("step", child, job_id, lease, field, value, limit)
        return code

    def forget_steps(self, ids: Sequence[str]) -> list[int]:
        """Let failed or cancelled jobs start over when they are requeued: 1 forgotten, 0 neither
        failed nor cancelled, -1 unknown."""
        codes: list[int] = self._run("forget_steps", *ids)
        return codes


class StepQueries(QueryBase):
    """Queries, on one connection."""

    def steps(self, job_id: str) -> dict[str, str]:
        """All that a job remembers: ``<kind>:<name>`` -> its value."""
        found = pairs(self.connection.call("HGETALL", self.keys.steps(job_id)))
        found.pop(BYTES, None)
        return found
