"""The outbox: jobs as rows of the transaction that enqueues them, until they are safe elsewhere.

After the commit the process that enqueued sends them; what it could not send, since it died or
Redis was away, the relay in maintenance sends (worker/relay.py). To send one twice is harmless, for
Redis knows its id. A row goes when its job is in the mirror: until then a Redis that loses its last
second has lost nothing. Without the mirror, and for tasks whose ``audit`` thins their events, it
goes when Redis has taken the job.

Were several aliases in a transaction, each gets a row, and the relay sends a job of which all rows
are there: then all have committed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from django.db import Error as DatabaseError
from django.db import connections, models, router

from .clock import ms_of, real_ms
from .conf import get_settings
from .exceptions import ConfigurationError
from .jobdata import JobData, NewJob, decode_job
from .models import OutboxJob
from .models.presence import aliases_of, is_present
from .states import Status

logger = logging.getLogger("django_redisqueue")

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

    def accepted(self, jobs: Sequence[NewJob], aliases: Sequence[str]) -> None:
        """Delete the rows of jobs that no mirror will tell of; the others wait for ``settled``."""
        ids = [job.id for job in jobs if not waits_for_mirror(job.audit)]
        for alias in aliases if ids else ():
            try:
                delete(ids, alias)
            except DatabaseError as error:  # the relay will do it
                logger.warning("outbox of database %r: %s", alias, error)

    def find(self, job_id: str) -> tuple[NewJob, Sequence[str]] | None:
        """A job that has a row, and the aliases that have it; or None."""
        found = _rows_of(job_id)
        return (to_new_job(found[0][1]), [alias for alias, _ in found]) if found else None


def waits_for_mirror(audit: str) -> bool:
    """True when the mirror will hear of a job as soon as Redis has it."""
    return get_settings().mirror and not audit


def settled(ids: Sequence[str]) -> int:
    """These jobs are mirrored: let their rows go, on every alias; how many went.

    Call it outside of a transaction. Costs one look at each outbox when they are empty.
    """
    gone = 0
    for alias in connections if ids else ():
        try:
            if is_present(OutboxJob, alias) and OutboxJob._base_manager.using(alias).exists():
                gone += delete(ids, alias)
        except DatabaseError as error:  # the relay looks at what is mirrored as well
            logger.warning("outbox of database %r: %s", alias, error)
            connections[alias].close_if_unusable_or_obsolete()
    return gone


def delete(ids: Sequence[str], alias: str) -> int:
    """Delete rows by id; how many there were."""
    rows = OutboxJob._base_manager.using(alias)
    return sum(rows.filter(pk__in=some).delete()[0] for some in _slices(ids))


def find(job_id: str) -> JobData | None:
    """A job that Redis has not yet, as its row has it: it waits."""
    found = _rows_of(job_id)
    return _as_data(found[0][1]) if found else None


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
        row.after,
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
    """The rows that Redis is not known to have, oldest first."""
    return OutboxJob._base_manager.using(alias).filter(relayed_at=None).order_by("created_at")


def unsent_among(ids: Sequence[str]) -> set[str]:
    """Those of these jobs that some outbox has, and Redis is not known to have."""
    return {
        job_id
        for alias in (aliases_of(OutboxJob) if ids else ())
        for some in _slices(ids)
        for job_id in unsent(alias).filter(pk__in=some).values_list("pk", flat=True)
    }
