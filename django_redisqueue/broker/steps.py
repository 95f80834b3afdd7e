"""Commands and queries for long work: what a job stores from one run to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.job_data import WaitKind, split_wait
from ..core.parsing import int_or_none, pairs
from ..core.statuses import Status
from ..core.text import printable
from .base import CommandBase, Entry, QueryBase, Read, query
from .replies import WaitReply, WaitState

BYTES = "bytes"  # the field that has the size of the others


@dataclass(frozen=True, slots=True)
class Wait:
    """What one parked job waits for."""

    job_id: str
    task: str
    queue: str
    kind: WaitKind
    name: str  # of the event or approval; '' for a sleep
    since_ms: int
    until_ms: int | None  # the end of a sleep, or the timeout; None: it waits forever


class StepCommands(CommandBase):
    def step(self, child: str, job_id: str, lease: int, field: str, value: str) -> int:
        """Store a value for a running job's later runs: 1 stored, 0 the lease is lost, -1 the total
        would exceed MAX_RESULT_BYTES."""
        limit = self.settings.max_result_bytes
        return self._run("step", child, job_id, lease, field, value, limit)

    def check_wait(
        self, child: str, job_id: str, lease: int, event: str, ms: int | None, *, sleeps: bool
    ) -> WaitReply:
        """The state of a running job's wait for an event, or of its sleep, which is recorded on
        first use. ``ms``: how long it waits, None for forever."""
        state, *value = self._run(
            "check_wait", child, job_id, lease, event, int(sleeps), "" if ms is None else ms,
            self.settings.max_result_bytes,
        )  # fmt: skip
        return WaitReply(WaitState(state), *value)

    def send_event(self, event: str, payload: str, ttl_ms: int) -> int:
        """Wake the jobs that wait for an event, and keep the event for later ones. Returns how many
        were woken. Maintenance wakes those beyond the first 100."""
        return self._accept((*self._head("send_event"), event, payload, ttl_ms))

    def forget_steps(self, ids: Sequence[str]) -> list[int]:
        """Let failed or cancelled jobs start over when they are requeued: 1 forgotten, 0 neither
        failed nor cancelled, -1 unknown."""
        return self._run("forget_steps", *ids)


class StepQueries(QueryBase):
    def names(self, job_id: str) -> list[tuple[str, str]]:
        """(kind, name) of everything that a job has stored, without the values, which may be large.
        Kinds: step, cursor, wait, sleep."""
        found = self.connection.call("HKEYS", self.keys.steps(job_id))
        parts = (field.partition(":") for field in sorted(found) if field != BYTES)
        return [(kind, name) for kind, _, name in parts]

    def steps(self, child: str, job_id: str, lease: int) -> dict[str, str] | None:
        """Everything that a job has stored, for a run that is not its first: ``<kind>:<name>`` ->
        value. None if the lease is lost. One round trip."""
        raw, held = self.connection.pipeline(
            [
                ("HGETALL", self.keys.steps(job_id)),
                ("HMGET", self.keys.job(job_id), "status", "child", "lease"),
            ]
        )
        if held != [Status.PROCESSING, child, str(lease)]:
            return None
        found = pairs(raw)
        found.pop(BYTES, None)
        return found


class WaitQueries(QueryBase):
    """The parked jobs, by what they wait for."""

    @query
    def counts(self) -> Read[Mapping[WaitKind, int]]:
        """How many jobs wait for something of each kind. One round trip."""
        found = yield [("ZCARD", self.keys.waits(kind)) for kind in WaitKind]
        return {kind: count or 0 for kind, count in zip(WaitKind, found, strict=True)}

    @query
    def described(self, page: Sequence[Entry]) -> Read[dict[Entry, Wait]]:
        """What the jobs of a page wait for, without those that no longer wait. One round trip."""
        fields = ("status", "waits_for", "task", "queue", "parked_ms", "due_ms")
        replies = yield [("HMGET", self.keys.job(job_id), *fields) for job_id, _ in page]
        return {
            entry: _wait(entry.member, reply)
            for entry, reply in zip(page, replies, strict=True)
            if reply and reply[0] == Status.SCHEDULED and reply[1] is not None
        }


def _wait(job_id: str, reply: Sequence[Any]) -> Wait:
    _, event, task, queue, since, until = reply
    kind, name = split_wait(job_id, event)
    return Wait(
        printable(job_id), printable(task or ""), printable(queue or "default"), kind,
        printable(name), int_or_none(since) or 0, int_or_none(until),
    )  # fmt: skip
