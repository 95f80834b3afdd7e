"""The transport in use, and the one of production: the broker's commands and queries as the other
client modules need them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..broker.base import BATCH, MAX_CALL_BYTES
from ..broker.commands import Commands, batches
from ..broker.connection import (
    RedisConnection,
    blocking_connection,
    bulk_connection,
    producer_connection,
    retry_once,
)
from ..broker.gathers import GatherQueries
from ..broker.queries import JobFinder, Queries, not_found
from ..broker.uniques import UniqueQueries
from ..broker.workflows import WorkflowQueries
from ..conf import get_settings
from ..core.clock import Deadline
from ..core.gather_data import GatherData, GatherPlan
from ..core.job_data import JobData, JobQuery, NewJob
from ..core.ports import Transport, ports
from ..core.statuses import Status
from ..core.tags import index_entry, properties
from ..core.unique import UniqueKey
from ..core.workflow_data import Push, WorkflowData, WorkflowJob
from ..exceptions import (
    JobNotFound,
    NotIndexed,
    RedisUnavailable,
    UniqueConflict,
    WorkflowError,
    WorkflowNotFound,
)
from .large_results import decode_result

OUTAGE = 5.0  # s that Redis may be away during a wait
RECONNECT = 0.2  # s between two attempts to reconnect
RECHECK = 5.0  # s; a lost message delays the end of a wait by this much
STEPS = 10_000  # of 100 jobs each, that a caller takes itself to pause or cancel a workflow
CLEANED_UP = -2  # enqueue_workflow.lua: the workflow was cleaned up, and its jobs exist


class RedisTransport:
    """Every method uses this thread's producer connection, which fails within a second."""

    in_memory = False

    def check(self) -> None:
        producer_connection()

    # Jobs

    def enqueue(self, jobs: Sequence[NewJob]) -> None:
        commands = Commands(producer_connection())
        if len(jobs) == 1:
            retry_once(lambda: commands.enqueue(jobs))
        else:
            retry_once(lambda: commands.enqueue_all(batches(jobs)))

    def job(self, job_id: str) -> JobData:
        return Queries(producer_connection()).job(job_id)

    def has_job(self, job_id: str) -> bool:
        return False

    def find(self, query: JobQuery) -> Sequence[JobData]:
        """Redis answers from its indexes if it can, else the mirror does."""
        settings = get_settings()
        wanted = list(properties(query.task, query.workflow, query.tags))
        missing = [name for name, _ in wanted if name not in settings.indexed]
        if query.is_unfinished and wanted and not missing:
            entries = [index_entry(name, value) for name, value in wanted]
            return JobFinder(producer_connection()).find(entries, query)
        found = ports.records(query) if settings.mirror and ports.records is not None else None
        if found is None:
            raise NotIndexed(_how_to_find(query, bool(wanted), missing))
        return found

    def parent_results(self, job_id: str) -> dict[str, Any]:
        return WorkflowQueries(producer_connection()).parent_results(job_id, decode_result)

    def cancel(self, job_id: str) -> int:
        return _follow(job_id, lambda one: Commands(producer_connection()).cancel([one])[0])

    def requeue(self, job_id: str) -> int:
        return _follow(job_id, lambda one: Commands(producer_connection()).requeue([one])[0])

    def duplicate_of(self, job_id: str) -> str:
        return UniqueQueries(producer_connection()).alias(job_id)

    def unique_keys(self, start: int, count: int) -> Sequence[UniqueKey]:
        return UniqueQueries(producer_connection()).page(start, count)

    def release_unique(self, key: str) -> str:
        return Commands(producer_connection()).release_unique(key)

    def set_limit(self, key: str, number: str) -> bool:
        return Commands(producer_connection()).set_limit(key, number)

    def unique_conflict(self, job_id: str) -> tuple[str, str]:
        return UniqueQueries(producer_connection()).conflict(job_id)

    def send_event(self, event: str, payload: str) -> None:
        commands = Commands(producer_connection())
        ttl_ms = commands.settings.event_ttl_ms
        retry_once(lambda: commands.send_event(event, payload, ttl_ms))

    def forget_steps(self, job_id: str) -> int:
        return Commands(producer_connection()).forget_steps([job_id])[0]

    def wait_for_job(self, job_id: str, deadline: Deadline) -> None:
        commands = Commands(producer_connection())

        def has_ended() -> bool:
            status = commands.watch(job_id)
            if not status:
                raise not_found(job_id)
            return Status(status).is_final

        try:
            _listen_until(has_ended, commands.keys.done(job_id), deadline)
        except JobNotFound:
            if not (owner := self.duplicate_of(job_id)):
                raise
            self.wait_for_job(owner, deadline)

    def wait_until(self, has_ended: Callable[[], bool], owner_id: str, deadline: Deadline) -> None:
        keys = Queries(producer_connection()).keys
        _listen_until(has_ended, keys.done(owner_id), deadline)

    # Workflows

    def push_workflow(self, push: Push) -> None:
        deque(send_workflows(producer_connection(), [push]), maxlen=0)

    def push_workflows(self, pushes: Iterable[Push]) -> Iterator[str]:
        connection = bulk_connection()
        try:
            yield from send_workflows(connection, pushes)
        finally:
            connection.close()

    def workflow(self, workflow_id: str) -> WorkflowData | None:
        return WorkflowQueries(producer_connection()).workflow(workflow_id)

    def control_workflow(self, workflow_id: str, command: str) -> int:
        # A worker's maintenance does what these steps leave.
        return Commands(producer_connection()).control_workflow_and_advance(
            workflow_id, command, STEPS
        )

    # Gathers

    def start_gather(self, plan: GatherPlan) -> int:
        return retry_once(lambda: Commands(producer_connection()).start_gather(plan))

    def gather(self, key: str) -> GatherData | None:
        return GatherQueries(producer_connection()).gather(key)

    def gather_results(self, key: str) -> Mapping[str, str]:
        return GatherQueries(producer_connection()).results(key)

    def gather_key(self, job_id: str) -> str | None:
        return GatherQueries(producer_connection()).key_of(job_id)


def _follow(job_id: str, act: Callable[[str], int]) -> int:
    """The code of a command about a job, or if there is none, about the job that its id leads to:
    it was a duplicate."""
    code = act(job_id)
    return act(owner) if code == -1 and (owner := _redis.duplicate_of(job_id)) else code


_redis = RedisTransport()


def transport() -> Transport:
    """Redis, or what a test uses instead (``django_redisqueue.testing``)."""
    return ports.replacement or _redis


def transport_of(job_id: str) -> Transport:
    """The transport to ask about a job: that of a test's block also after its end."""
    if ports.ended:
        for ended in ports.ended:
            if ended.has_job(job_id):
                return ended
    return transport()


def _how_to_find(query: JobQuery, has_properties: bool, missing: Sequence[str]) -> str:
    mirror = 'turn on the mirror (REDISQUEUE["MIRROR"], and this app in INSTALLED_APPS)'
    if not has_properties:
        return (
            "without the mirror, jobs are found by a task, a workflow or tags; for the lists of a "
            f"queue use JobQueue.get_jobs, or {mirror}"
        )
    parts = []
    if missing:
        names = ", ".join(f'"{name}"' for name in missing)
        parts.append(f'add {names} to REDISQUEUE["INDEXED"]')
    if not query.is_unfinished:
        parts.append('ask for unfinished jobs only (status="unfinished")')
    return f"without the mirror, {' and '.join(parts)}; or {mirror}"


def _listen_until(has_ended: Callable[[], bool], channel: str, deadline: Deadline) -> None:
    """Call ``has_ended`` first and after each message on the channel, until it is true.

    Raises WaitTimeout, what ``has_ended`` raises, and RedisUnavailable when Redis is away at the
    beginning, or for longer than a failover or a restart takes.
    """
    connection, answered = blocking_connection(), -math.inf
    try:
        while True:
            try:
                connection.subscribe(channel)
                while not has_ended():
                    answered = time.monotonic()
                    connection.message(deadline.left(RECHECK))
                return
            except RedisUnavailable:
                if time.monotonic() - answered > RECHECK + OUTAGE:
                    raise
                connection.close()
                time.sleep(deadline.left(RECONNECT))
    finally:
        connection.close()


def send_workflows(
    connection: RedisConnection, pushes: Iterable[Push], *, starts: bool = True
) -> Iterator[str]:
    """Push workflows in pipelined calls of up to 100 jobs; yields the id of each once Redis has all
    of it. Nothing else may use the connection meanwhile.

    Without ``starts`` a workflow stays ``building``, to be cancelled, or started by another push.
    """
    commands = Commands(connection)
    calls = _push_calls(commands, pushes, starts)
    for (workflow_id, at, is_last), code in connection.stream_scripts(calls, commands.wait):
        check_pushed(code, workflow_id, at)
        if is_last:
            yield workflow_id


def check_pushed(code: int | str, workflow_id: str, at: int = 0) -> None:
    """Raise the error for a code of enqueue_workflow.lua; ``at`` is the number of the call."""
    if isinstance(code, str):
        job_id, owner, key = code.split(" ")
        raise UniqueConflict(
            f"workflow {workflow_id} was not pushed: job {owner} has the unique key {key}, which "
            f"its job {job_id} needs; push it again once that job has ended, or cancel that job"
        )
    if code == CLEANED_UP:
        raise WorkflowError(
            f"workflow {workflow_id} was cleaned up (half-pushed for a day, or ended), and jobs of "
            "it are still in Redis; it was not made again: push it as a new one"
        )
    if code < 0:
        raise WorkflowNotFound(f"workflow {workflow_id} vanished as it was pushed (batch {at + 1})")


def _push_calls(
    commands: Commands, pushes: Iterable[Push], starts: bool
) -> Iterator[tuple[tuple[str, int, bool], tuple[Any, ...]]]:
    for workflow_id, fields, jobs, stored in pushes:
        parts = list(_job_batches(sorted(jobs, key=_has_no_unique_key)))
        for at, part in enumerate(parts):
            last = at == len(parts) - 1
            call = commands.enqueue_workflow_call(
                workflow_id, () if at else fields, part,
                first=at == 0, last=last and starts, stored=stored,
            )  # fmt: skip
            yield (workflow_id, at, last), call


def _has_no_unique_key(job: Sequence[Any]) -> bool:
    """Jobs with unique keys go first: they must be in the first call, which creates all or none."""
    return not WorkflowJob(*job).unique


def _job_batches(jobs: Sequence[Sequence[Any]]) -> Iterator[list[WorkflowJob]]:
    batch: list[WorkflowJob] = []
    size = 0
    for job in (WorkflowJob(*fields) for fields in jobs):
        weight = len(job.payload) + len(job.then) + len(job.after)
        if len(batch) == BATCH or (batch and size + weight > MAX_CALL_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += weight
    if batch:
        yield batch
