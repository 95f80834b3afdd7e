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

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from django.db import models, router

from .clock import ms_of, real_ms
from .codec import decode_payload
from .conf import get_settings
from .connection import producer_link
from .exceptions import ConfigurationError
from .flowdata import FlowJob, Push
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

    def find_workflow(self, flow_id: str) -> Push | None:
        """A workflow that has a row, and that Redis has not accepted; or None."""
        row = _waiting(flow_id)
        return to_push(row) if row else None


def waits_for_mirror(audit: str) -> bool:
    """True when the mirror will hear of a job as soon as Redis has it."""
    return get_settings().mirror and not audit


def delete(ids: Sequence[str], alias: str) -> int:
    """Delete rows by id; how many there were."""
    rows = OutboxJob._base_manager.using(alias)
    return sum(rows.filter(pk__in=some).delete()[0] for some in slices(ids))


def find(job_id: str) -> JobData | None:
    """A job that Redis has not accepted yet, as its row has it: it waits."""
    row = _waiting(row_id_of(job_id))
    if row is None:
        return None
    if row.id == job_id:
        return _as_data(to_new_job(row), row.created_at)
    jobs = [FlowJob(*fields) for fields in to_push(row).jobs]
    job = next((job for job in jobs if job.id == job_id), None)
    return _as_data(job, row.created_at) if job else None


def _waiting(row_id: str) -> OutboxJob | None:
    """A row that Redis has not accepted. One that it has is of something that was pruned since."""
    found = _rows_of(row_id)
    if not found or Durability(producer_link()).accepted([row_id], wait=False):
        return None
    return found[0][1]


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


def is_workflow(row_id: str) -> bool:
    """Whether this is the id of a workflow, and not that of a job."""
    return row_id.startswith("flow_") and "." not in row_id


def to_push(row: OutboxJob) -> Push:
    """The workflow as it goes into Redis (its row is made by workflows/graph.py)."""
    (flow_id, fields, jobs), _ = decode_payload(row.payload)
    return Push(flow_id, fields, jobs, stored=True)


def _as_data(job: NewJob | FlowJob, created_at: datetime) -> JobData:
    raw = {
        "task": job.task, "queue": job.queue, "payload": job.payload, "status": Status.WAITING,
        "priority": str(job.priority), "enqueued_ms": str(ms_of(created_at)),
    }  # fmt: skip
    if job.options:
        raw["options"] = job.options
    if job.when.isdigit():  # an instant, not a delay
        raw["due_ms"] = job.when
    return decode_job(job.id, raw)


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


def slices(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Ids in lists that fit into one query."""
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


def row_id_of(job_id: str) -> str:
    """The id of the row that has a job: its workflow's, or its own."""
    flow_id = job_id.rpartition(".")[0]
    return flow_id if is_workflow(flow_id) else job_id


def stored_among(ids: Iterable[str]) -> set[str]:
    """Those of these jobs and workflows that have a row, on any alias."""
    row_ids = {one: row_id_of(one) for one in ids}
    wanted = sorted(set(row_ids.values()))
    stored = {
        row_id
        for alias in (aliases_of(OutboxJob) if wanted else ())
        for some in slices(wanted)
        for row_id in OutboxJob._base_manager.using(alias)
        .filter(pk__in=some)
        .values_list("pk", flat=True)
    }
    return {one for one, row_id in row_ids.items() if row_id in stored}
