"""The outbox: jobs as rows of the transaction that enqueues them, until they are safe elsewhere.

After the commit the process that enqueued sends them; what it could not send, since it died or
Redis was away, the relay in maintenance sends (worker/relay.py). Sending one twice is harmless:
Redis remembers the id of every job that has a row (store/durability.py), whatever has become of the
job. A row goes when what Redis has accepted would survive a crash, and the job is in the mirror:
until then a Redis that loses its last seconds has lost nothing. Without the mirror, and for tasks
whose ``audit`` thins their events, the first is enough.

Were several aliases in a transaction, each gets a row, and the relay sends a job of which all rows
are there: then all have committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.db import models, router

from .clock import ms_of, real_ms
from .conf import get_settings
from .connection import producer_link
from .exceptions import ConfigurationError
from .jobdata import JobData, NewJob, decode_job
from .models import OutboxJob
from .models.presence import aliases_of, is_present
from .states import Status
from .store.durability import Durability

IDS = 500  # in one query; some databases take no more than 999


class DatabaseOutbox:
    """What submit.py and delivery.py ask for (ports.Outbox)."""

    def store(self, jobs: Sequence[NewJob], aliases: Sequence[str]) -> Sequence[str]:
        """Rows in the open transactions of ``aliases``, or one at once; the aliases that have it.

        Raises ConfigurationError when there is no table.
        """
        asked = list(aliases) or [router.db_for_write(OutboxJob)]
        places = [alias for alias in asked if is_present(OutboxJob, alias)]
        if not places:
            raise ConfigurationError(_no_table(asked))
        for alias in places:
            _insert(jobs, alias, places)
        return places

    def keep(self, jobs: Sequence[NewJob], alias: str) -> str:
        """Rows at once, on ``alias`` or else where a router writes them; where that was."""
        asked = [alias, router.db_for_write(OutboxJob)]
        place = next((alias for alias in asked if is_present(OutboxJob, alias)), None)
        if place is None:
            raise ConfigurationError(_no_table(asked))
        _insert(jobs, place, [place])
        return place

    def find(self, job_id: str) -> tuple[NewJob, Sequence[str]] | None:
        """A job that has a row, and the aliases that have it; or None."""
        found = _rows_of(job_id)
        return (to_new_job(found[0][1]), [alias for alias, _ in found]) if found else None


def waits_for_mirror(audit: str) -> bool:
    """True when the mirror will hear of a job as soon as Redis has it."""
    return get_settings().mirror and not audit


def delete(ids: Sequence[str], alias: str) -> int:
    """Delete rows by id; how many there were."""
    rows = OutboxJob._base_manager.using(alias)
    return sum(rows.filter(pk__in=some).delete()[0] for some in _slices(ids))


def find(job_id: str) -> JobData | None:
    """A job that Redis has not accepted yet, as its row has it: it waits."""
    found = _rows_of(job_id)
    if not found or Durability(producer_link()).accepted([job_id], wait=False):
        return None  # Redis had it: it has ended, and was pruned before its row went
    return _as_data(found[0][1])


def _rows_of(job_id: str) -> list[tuple[str, OutboxJob]]:
    """The alias and the row, of each that there is."""
    return [
        (alias, row)
        for alias in aliases_of(OutboxJob)
        for row in OutboxJob._base_manager.using(alias).filter(pk=job_id)
    ]


def to_new_job(row: OutboxJob) -> NewJob:
    """The job as it goes into Redis."""
    when = "" if row.due_ms is None else str(row.due_ms)
    return NewJob(
        row.id, row.queue, row.task, row.payload, row.options, row.priority, when, row.audit,
        row.after, stored=True,
    )  # fmt: skip


def _as_data(row: OutboxJob) -> JobData:
    raw = {
        "task": row.task, "queue": row.queue, "payload": row.payload, "status": Status.WAITING,
        "priority": str(row.priority), "enqueued_ms": str(ms_of(row.created_at)),
    }  # fmt: skip
    if row.options:
        raw["options"] = row.options
    if row.due_ms is not None:
        raw["due_ms"] = str(row.due_ms)
    return decode_job(row.id, raw)


def _insert(jobs: Sequence[NewJob], alias: str, places: Sequence[str]) -> None:
    together = ",".join(places) if len(places) > 1 else ""
    rows = [
        OutboxJob(
            id=job.id, queue=job.queue, task=job.task, payload=job.payload, options=job.options,
            priority=job.priority, due_ms=_due_ms(job.when), audit=job.audit, after=job.after,
            aliases=together,
        )
        for job in jobs
    ]  # fmt: skip
    OutboxJob._base_manager.using(alias).bulk_create(rows, batch_size=IDS)
    for job in jobs:
        job.stored = True


def _due_ms(when: str) -> int | None:
    """A delay becomes an instant: it counts from now, whenever the row is sent."""
    if not when:
        return None
    return real_ms() + int(when) if when.startswith("+") else int(when)


def _slices(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[at : at + IDS] for at in range(0, len(ids), IDS))


def _no_table(aliases: Sequence[str]) -> str:
    names = ", ".join(repr(alias) for alias in dict.fromkeys(aliases))
    return (
        f"there is no table {OutboxJob._meta.db_table} for the outbox on {names}: run migrate "
        "(with --database), or let a database router allow django_redisqueue there"
    )


def unsent(alias: str) -> models.QuerySet[OutboxJob]:
    """The rows that Redis is not known to have accepted, oldest first."""
    return OutboxJob._base_manager.using(alias).filter(relayed_at=None).order_by("created_at")


def stored_among(ids: Sequence[str]) -> set[str]:
    """Those of these ids that have a row, on any alias."""
    return {
        job_id
        for alias in (aliases_of(OutboxJob) if ids else ())
        for some in _slices(ids)
        for job_id in OutboxJob._base_manager.using(alias)
        .filter(pk__in=some)
        .values_list("pk", flat=True)
    }
