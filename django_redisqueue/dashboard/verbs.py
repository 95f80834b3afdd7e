"""What can be done to jobs in a list: labels, permissions, and in which statuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from ..broker.base import BATCH
from ..broker.commands import Commands
from ..broker.connection import RedisConnection
from ..broker.shards import all_shards
from ..core.statuses import FINAL, UNFINISHED, Status
from .shards import ids_by_shard


@dataclass(frozen=True, slots=True)
class Acted:
    """The jobs that an action was applied to, and which shards did not answer, or ''."""

    ids: Sequence[str]
    problem: str = ""


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
    why_left: str = "had changed or gone meanwhile"

    def act(self, ids: Sequence[str]) -> Acted:
        """Act on any number of jobs, each in its shard; return those that were in the right status.
        Raises the error of a shard if none answers."""
        parts = ids_by_shard(ids)

        def act(connection: RedisConnection) -> list[str]:
            return self.act_here(Commands(connection), parts[connection.shard])

        found = all_shards(act, shards=parts)
        return Acted([*chain.from_iterable(found.by_shard.values())], found.problem)

    def act_here(self, store: Commands, ids: Sequence[str]) -> list[str]:
        """``act`` on jobs of one shard."""
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
RUN_NOW = Verb(
    "run_now", "Run now", "put into the queue", "retry_job",
    frozenset({Status.SCHEDULED, Status.RETRYING}), Commands.run_now, needs_confirmation=False,
    why_left="had changed or gone meanwhile, or cannot run before what it waits for",
)  # fmt: skip
CANCEL = Verb(
    "cancel", "Cancel", "cancelled, or asked to stop", "cancel_job", UNFINISHED, Commands.cancel
)
DELETE = Verb("delete", "Delete", "deleted from Redis", "clear_queue", FINAL, Commands.delete)
VERBS = {verb.name: verb for verb in (RETRY, RUN_NOW, CANCEL, DELETE)}


def verbs_for(status: Status) -> list[Verb]:
    return [verb for verb in VERBS.values() if status in verb.statuses]
