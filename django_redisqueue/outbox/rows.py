"""The outbox: jobs as rows of the transaction that enqueues them, until they are safe elsewhere.

After the commit the enqueuing process sends the jobs. The relay sends those that it could not send
because it died or Redis was unavailable. Sending a job twice is harmless: Redis remembers the id of
every job that has a row (``broker.durability``), whatever became of the job.

A row is deleted once Redis would not lose the job in a crash, and the mirror has it. Until then, a
Redis that loses its last seconds has lost no job. Without the mirror, and for tasks whose ``audit``
thins their events, the first condition is enough.

If several aliases are in transactions, each gets a row. The relay sends a job once all its rows
exist, because then all transactions have committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import wraps
from typing import ParamSpec, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, models, router

from ..broker.base import MAX_CALL_BYTES, slices
from ..broker.durability import Durability
from ..client.transport import connection_of
from ..conf import get_settings
from ..core.clock import ms_of, real_ms
from ..core.codec import decode_payload
from ..core.ids import is_workflow_id
from ..core.job_data import JobData, NewJob, decode_job, fix_expiry, instant_ms
from ..core.records import Push, WorkflowJob
from ..core.statuses import Status
from ..exceptions import ConfigurationError
from ..models import OutboxJob, StepReceipt
from ..models.tables import aliases_with_table, has_table

CHUNK = 500  # whole rows in memory, or ids in a query when there may be any number
IN_ASYNC_CODE = (
    "In async code, await aget_job, afind_jobs, task.aenqueue, job.arefresh, job.acancel or "
    "job.await_result, and call other functions of django_redisqueue with sync_to_async."
)


Args = ParamSpec("Args")
Found = TypeVar("Found")


def sync_only(func: Callable[Args, Found]) -> Callable[Args, Found]:
    """Make Django's error about database access on an event loop name the function to call."""

    @wraps(func)
    def call(*args: Args.args, **kwargs: Args.kwargs) -> Found:
        try:
            return func(*args, **kwargs)
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(f"{error} {IN_ASYNC_CODE}") from error

    return call


class DatabaseOutbox:
    """Implements the port ``core.ports.Outbox``."""

    @sync_only
    def store(self, jobs: Sequence[NewJob], aliases: Sequence[str]) -> Sequence[str]:
        wanted = list(aliases) or [router.db_for_write(OutboxJob)]
        found = [alias for alias in wanted if has_table(OutboxJob, alias)]
        if not found:
            raise ConfigurationError(_no_table(wanted))
        if len(found) > 1:
            _check_apart(found)
        for alias in found:
            _insert(jobs, alias, found)
        return found

    @sync_only
    def store_undelivered(self, jobs: Sequence[NewJob], alias: str) -> str:
        wanted = [alias, router.db_for_write(OutboxJob)]
        found = next((alias for alias in wanted if has_table(OutboxJob, alias)), None)
        if found is None:
            raise ConfigurationError(_no_table(wanted))
        _insert(jobs, found, [found])
        return found

    @sync_only
    def find(self, job_id: str) -> NewJob | None:
        row = _row_of(job_id)
        return to_new_job(row) if row else None

    @sync_only
    def find_workflow(self, workflow_id: str) -> Push | None:
        row = _unaccepted(workflow_id)
        return to_push(row) if row else None

    @sync_only
    def forget_steps(self, job_id: str) -> None:
        for alias in aliases_with_table(StepReceipt):
            StepReceipt._base_manager.using(alias).filter(job_id=job_id).delete()


def waits_for_mirror(audit: str) -> bool:
    """Whether the mirror will have the job soon after Redis has it."""
    return get_settings().mirror and not audit


def rows_on(alias: str) -> models.QuerySet[OutboxJob]:
    return OutboxJob._base_manager.using(alias)


def find(job_id: str) -> JobData | None:
    """A job that Redis has not accepted yet, from its row."""
    row = _unaccepted(row_id_of(job_id))
    if row is None:
        return None
    if row.id == job_id:
        return _as_data(to_new_job(row), row.created_at)
    job = next((job for job in to_push(row).jobs if job.id == job_id), None)
    return _as_data(job, row.created_at) if job else None


def _unaccepted(row_id: str) -> OutboxJob | None:
    """The row of a job or workflow that Redis has not accepted. (If Redis accepted it and no longer
    has it, it was pruned.)"""
    row = _row_of(row_id)
    if row is None or Durability(connection_of(row_id)).accepted([row_id], wait=False):
        return None
    return row


def _row_of(row_id: str) -> OutboxJob | None:
    aliases = aliases_with_table(OutboxJob)
    rows = (rows_on(alias).filter(pk=row_id).first() for alias in aliases)
    return next(filter(None, rows), None)


def to_new_job(row: OutboxJob) -> NewJob:
    """The job as it is sent to Redis."""
    when = "" if row.due_ms is None else str(row.due_ms)
    return NewJob(
        row.id, row.queue, row.task, row.payload, row.options, row.priority, when, row.audit,
        row.after, row.unique, row.lane, stored=True,
    )  # fmt: skip


def to_push(row: OutboxJob) -> Push:
    """The workflow as it is sent to Redis; ``to_outbox_row`` makes its row."""
    (workflow_id, fields, jobs), _ = decode_payload(row.payload)
    return Push(workflow_id, fields, [WorkflowJob(*job) for job in jobs], stored=True)


def _as_data(job: NewJob | WorkflowJob, created_at: datetime) -> JobData:
    raw = {
        "task": job.task, "queue": job.queue, "payload": job.payload, "status": Status.WAITING,
        "priority": str(job.priority), "enqueued_ms": str(ms_of(created_at)),
    }  # fmt: skip
    if job.options:
        raw["options"] = job.options
    if job.when.isdigit():  # a time, not a delay
        raw["due_ms"] = job.when
    return decode_job(job.id, raw)


def _insert(jobs: Sequence[NewJob], alias: str, all_aliases: Sequence[str]) -> None:
    siblings = ",".join(all_aliases) if len(all_aliases) > 1 else ""
    now_ms = real_ms()  # a delay starts now, not when the row is sent
    rows = [
        OutboxJob(
            id=job.id, queue=job.queue, task=job.task, payload=job.payload,
            options=fix_expiry(job.options, job.after, now_ms), priority=job.priority,
            due_ms=instant_ms(job.when, now_ms) if job.when else None, audit=job.audit,
            after=job.after, unique=job.unique, lane=job.lane, aliases=siblings,
        )
        for job in jobs
    ]  # fmt: skip
    # MySQL and MariaDB accept statements of up to ``max_allowed_packet``: 16 MB, or less.
    largest = max((len(job.payload) for job in jobs), default=0) + 1
    fits = max(1, min(CHUNK, MAX_CALL_BYTES // largest))
    rows_on(alias).bulk_create(rows, batch_size=fits)
    for job in jobs:
        job.stored = True


def _check_apart(aliases: Sequence[str]) -> None:
    """Raise ConfigurationError if two aliases are one database: its two transactions would insert
    the same row, and the second would wait for the first forever.

    PostgreSQL's options may name another service or another schema (``search_path``).
    """
    places: dict[tuple[object, ...], str] = {}
    for alias in aliases:
        entry = connections[alias].settings_dict
        apart = [entry["OPTIONS"].get(name) for name in ("service", "options")]
        place = (*(entry[name] for name in ("ENGINE", "HOST", "PORT", "NAME")), *apart)
        if (other := places.setdefault(place, alias)) != alias:
            raise ConfigurationError(
                f"{other!r} and {alias!r} are one database, so a job of transactions on both "
                "would be in its outbox twice: have allow_migrate of a database router return "
                f"False for django_redisqueue on {alias!r}"
            )


def _no_table(aliases: Sequence[str]) -> str:
    names = ", ".join(repr(alias) for alias in dict.fromkeys(aliases))
    return (
        f"there is no table {OutboxJob._meta.db_table} for the outbox on {names}: run migrate "
        "(with --database), or let a database router allow django_redisqueue there"
    )


def unrelayed(alias: str) -> models.QuerySet[OutboxJob]:
    """The rows that Redis is not known to have accepted, oldest first. For PostgreSQL, the order
    must name all columns of the index, and for MySQL only the one that differs between these rows;
    otherwise it sorts the whole backlog for each page."""
    is_mysql = connections[alias].vendor == "mysql"
    order = ["created_at"] if is_mysql else ["relayed_at", "created_at"]
    return rows_on(alias).filter(relayed_at=None).order_by(*order)


def row_id_of(job_id: str) -> str:
    """The id of a job's row: the workflow's, or its own."""
    workflow_id = job_id.rpartition(".")[0]
    return workflow_id if is_workflow_id(workflow_id) else job_id


def ids_on(alias: str, row_ids: Sequence[str]) -> set[str]:
    """The ids among these that have a row on this alias."""
    found = (rows_on(alias).filter(pk__in=some) for some in slices(row_ids, CHUNK))
    return {row_id for rows in found for row_id in rows.values_list("pk", flat=True)}


def ids_with_rows(ids: Iterable[str]) -> set[str]:
    """The ids among these jobs and workflows that have a row on any alias."""
    row_ids = {one: row_id_of(one) for one in ids}
    wanted = sorted(set(row_ids.values()))
    aliases = aliases_with_table(OutboxJob) if wanted else ()
    stored = {row_id for alias in aliases for row_id in ids_on(alias, wanted)}
    return {one for one, row_id in row_ids.items() if row_id in stored}
