"""What can be done to jobs in a list: labels, permissions, and in which statuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..broker.base import BATCH
from ..broker.commands import Commands
from ..core.statuses import FINAL, UNFINISHED, Status


@dataclass(frozen=True, slots=True)
class Verb:
    """``call`` takes at most BATCH ids and returns a code for each, above 0 where it acted."""

    name: str
    label: str
    done: str  # "3 jobs <done>"
    permission: str
    statuses: frozenset[Status]
    call: Callable[[Commands, Sequence[str]], list[int]]
    needs_confirmation: bool = True

    def act(self, store: Commands, ids: Sequence[str]) -> list[str]:
        """Act on any number of jobs; return those that were in the right status."""
        acted: list[str] = []
        for at in range(0, len(ids), BATCH):
            batch = ids[at : at + BATCH]
            codes = self.call(store, batch)
            acted += [job_id for job_id, code in zip(batch, codes, strict=True) if code > 0]
        return acted


RETRY = Verb(
    "retry", "Retry", "sent back to the queue", "retry_job",
    frozenset({Status.FAILED, Status.CANCELLED}), Commands.requeue, needs_confirmation=False,
)  # fmt: skip
CANCEL = Verb(
    "cancel", "Cancel", "cancelled, or asked to stop", "cancel_job", UNFINISHED, Commands.cancel
)
DELETE = Verb("delete", "Delete", "deleted from Redis", "clear_queue", FINAL, Commands.delete)
VERBS = {verb.name: verb for verb in (RETRY, CANCEL, DELETE)}


def verbs_for(status: Status) -> list[Verb]:
    return [verb for verb in VERBS.values() if status in verb.statuses]
