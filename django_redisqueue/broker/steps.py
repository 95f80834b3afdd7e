"""Commands and queries of long work: what a job remembers from run to run."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.parsing import pairs
from .base import CommandBase, QueryBase
from .replies import WaitReply, WaitState

BYTES = "bytes"  # the field that has the size of the others


class StepCommands(CommandBase):
    """Commands of a running job's steps."""

    def step(self, child: str, job_id: str, lease: int, field: str, value: str) -> int:
        """Store what a running job is to remember: 1 stored, 0 the lease is lost, -1 the job would
        remember more than MAX_RESULT_BYTES."""
        limit = self.settings.max_result_bytes
        code: int = self._run("step", child, job_id, lease, field, value, limit)
        return code

    def check_wait(
        self, child: str, job_id: str, lease: int, event: str, ms: int | None, *, sleeps: bool
    ) -> WaitReply:
        """How a running job's wait for an event stands, or its sleep; noted on first use. ``ms``:
        for how long it waits, None for ever."""
        state, *value = self._run(
            "check_wait", child, job_id, lease, event, int(sleeps), "" if ms is None else ms,
            self.settings.max_result_bytes,
        )  # fmt: skip
        return WaitReply(WaitState(state), *value)

    def send_event(self, event: str, payload: str, ttl_ms: int) -> int:
        """Wake the jobs that wait for an event, and keep it for those who will; returns how many
        were woken. Maintenance wakes those that are left after 100."""
        woken: int = self._accept((*self._head("send_event"), event, payload, ttl_ms))
        return woken

    def forget_steps(self, ids: Sequence[str]) -> list[int]:
        """Let failed or cancelled jobs start over when they are requeued: 1 forgotten, 0 neither
        failed nor cancelled, -1 unknown."""
        codes: list[int] = self._run("forget_steps", *ids)
        return codes


class StepQueries(QueryBase):
    """Queries, on one connection."""

    def names(self, job_id: str) -> list[tuple[str, str]]:
        """(kind, name) of all that a job remembers, without the values, which may be large. Kinds:
        step, cursor, wait, sleep."""
        found = self.connection.call("HKEYS", self.keys.steps(job_id))
        parts = (field.partition(":") for field in sorted(found) if field != BYTES)
        return [(kind, name) for kind, _, name in parts]

    def steps(self, job_id: str) -> dict[str, str]:
        """All that a job remembers: ``<kind>:<name>`` -> its value."""
        found = pairs(self.connection.call("HGETALL", self.keys.steps(job_id)))
        found.pop(BYTES, None)
        return found
