"""Jobs in lists that fit into one call of a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .jobdata import NewJob
from .store.verbs import BATCH

MAX_CALL_BYTES = 1_000_000  # a script call, with BATCH (law 11)


def batches(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """Jobs in lists that fit into one call of a script, which looks at their parents, too. Those
    that have rows in an outbox go by themselves."""
    batch: list[NewJob] = []
    size = weight = 0
    for job in jobs:
        weight += job.weight if job.after else 1
        is_full = weight > BATCH or size + len(job.payload) > MAX_CALL_BYTES
        if batch and (is_full or job.stored != batch[0].stored):
            yield batch
            batch, size, weight = [], 0, job.weight
        batch.append(job)
        size += len(job.payload)
    if batch:
        yield batch
