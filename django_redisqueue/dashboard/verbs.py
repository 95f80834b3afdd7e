"""What can be done to jobs of a list: names, permissions, and where each makes sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..states import FINAL, UNFINISHED, Status
from ..store.transitions import Transitions
from ..store.verbs import BATCH


@dataclass(frozen=True, slots=True)
class Verb:
    """``call`` takes at most BATCH ids and answers a code for each: above 0 where it acted."""

    name: str
    label: str
    done: str  # "3 jobs <done>"
    permission: str
    statuses: frozenset[Status]
    call: Callable[[Transitions, Sequence[str]], list[int]]
    warns: bool = True  # asks before it acts

    def act(self, store: Transitions, ids: Sequence[str]) -> list[str]:
        """Act on any number of jobs; on which it did. The others are in another status by now, or
        gone."""
        acted: list[str] = []
        for at in range(0, len(ids), BATCH):
            batch = ids[at : at + BATCH]
            codes = self.call(store, batch)
            acted += [job_id for job_id, code in zip(batch, codes, strict=True) if code > 0]
        return acted


RETRY = Verb(
    "retry", "Retry", "sent back to the queue", "retry_job",
    frozenset({Status.FAILED, Status.CANCELLED}), Transitions.requeue, warns=False,
)  # fmt: skip
CANCEL = Verb(
    "cancel", "Cancel", "cancelled, or asked to stop", "cancel_job", UNFINISHED, Transitions.cancel
)
DELETE = Verb("delete", "Delete", "deleted from Redis", "clear_queue", FINAL, Transitions.delete)
VERBS = {verb.name: verb for verb in (RETRY, CANCEL, DELETE)}


def verbs_for(status: Status) -> list[Verb]:
    return [verb for verb in VERBS.values() if status in verb.statuses]
