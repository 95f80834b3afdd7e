"""The transport in use, and ``RedisTransport``, the one for production."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import Any, TypeVar

from ..broker import sums
from ..broker.base import BATCH, MAX_CALL_BYTES
from ..broker.commands import Commands
from ..broker.connection import (
    RedisConnection,
    blocking_connection,
    bulk_connection,
    producer_connection,
    retry_once,
)
from ..broker.policies import UniqueQueries
from ..broker.queries import Queries, UnreadableJob, newest, not_found
from ..broker.redis_url import RedisUrl
from ..broker.shards import AllShards, all_shards
from ..broker.workflows import GatherQueries, WorkflowQueries
from ..conf import get_settings
from ..core.clock import Deadline
from ..core.ids import ids_by_shard, shard_of_id, shard_of_key
from ..core.job_data import JobData, JobQuery, NewJob
from ..core.policies import UniqueKey
from ..core.ports import Transport, ports
from ..core.records import GatherData, GatherPlan, Push, WorkflowData, WorkflowJob, WorkflowPart
from ..core.statuses import Status
from ..core.tags import index_entry, properties
from ..exceptions import (
    JobNotFound,
    NotIndexed,
    RedisUnavailable,
    UniqueConflict,
    WorkflowError,
    WorkflowNotFound,
)
from .large_results import decode_result
from .placement import enqueue_movable, other_shards

OUTAGE = 5.0  # s that Redis may be unavailable during a wait
RECONNECT = 0.2  # s between two attempts to reconnect
RECHECK = 5.0  # s; a lost message delays the end of a wait by this much
LINK_BYTES = MAX_CALL_BYTES // 1000  # what a name costs that a call adds to a wide parent's list
STEPS = 10_000  # of 100 jobs each, that a caller does itself to pause or cancel a workflow
Answer = TypeVar("Answer")
CLEANED_UP = -2  # enqueue_workflow.lua: the workflow was cleaned up, and its jobs exist


def connection_of(some_id: str) -> RedisConnection:
    """This thread's producer connection to the shard of a job, workflow or gather."""
    return producer_connection(shard_of_id(some_id))


class RedisTransport:
    """Every method uses this thread's producer connections, which fail within a second. An id says
    which shard to ask; queries without an id go to all shards."""

    in_memory = False

    def check(self) -> None:
        producer_connection()

    # Jobs

    def enqueue(self, jobs: Sequence[NewJob]) -> None:
        if len(jobs) == 1:
            enqueue_movable(shard_of_id(jobs[0].id), jobs)
            return
        by_shard: dict[int, list[NewJob]] = {}
        for job in jobs:
            by_shard.setdefault(shard_of_id(job.id), []).append(job)
        for shard, some in by_shard.items():
            enqueue_movable(shard, some)

    def job(self, job_id: str) -> JobData:
        return Queries(connection_of(job_id)).job(job_id)

    def has_job(self, job_id: str) -> bool:
        return False

    def has_followers(self, job_id: str) -> bool:
        return False

    def find(self, query: JobQuery) -> Sequence[JobData]:
        """Redis answers from its indexes if it can, else the mirror does."""
        settings = get_settings()
        wanted = list(properties(query.task, query.workflow, query.tags))
        missing = [name for name, _ in wanted if name not in settings.indexed]
        if query.is_unfinished and wanted and not missing:
            entries = [index_entry(name, value) for name, value in wanted]
            found = all_shards(lambda one: Queries(one).find(entries, query)).complete()
            return newest(chain.from_iterable(found))[: query.limit]
        records = ports.records(query) if settings.mirror and ports.records is not None else None
        if records is None:
            raise NotIndexed(_how_to_find(query, bool(wanted), missing))
        return records

    def parent_results(self, job_id: str) -> dict[str, Any]:
        return WorkflowQueries(connection_of(job_id)).parent_results(job_id, decode_result)

    def cancel(self, job_id: str) -> int:
        return _follow(job_id, lambda one: Commands(connection_of(one)).cancel([one])[0])

    def requeue(self, job_id: str) -> int:
        return _follow(job_id, lambda one: Commands(connection_of(one)).requeue([one])[0])

    def duplicate_of(self, job_id: str) -> str:
        return UniqueQueries(connection_of(job_id)).aliases([job_id]).get(job_id, "")

    def unique_keys(self, start: int, count: int) -> Sequence[UniqueKey]:
        if get_settings().shards == 1:
            return UniqueQueries(producer_connection()).page(start, count)
        pages = all_shards(lambda one: UniqueQueries(one).first(start + count)).complete()
        merged = sorted(chain.from_iterable(pages), key=attrgetter("taken_ms", "key"))
        return merged[start : start + count]

    def release_unique(self, key: str) -> str:
        # A job with a limit has its unique key in the limit's shard, which the key does not tell.
        owners = all_shards(lambda one: Commands(one).release_unique(key)).complete()
        return next(filter(None, owners), "")

    def set_limit(self, key: str, number: str) -> bool:
        return any(all_shards(lambda one: Commands(one).set_limit(key, number)).complete())

    def pause(self, queue: str, key: str, paused: bool, by: str) -> bool:
        def change(connection: RedisConnection) -> bool:
            commands = Commands(connection)
            if not key:
                return commands.pause(queue, paused, by)
            return commands.pause_lanes(queue, key, paused, by)

        return any(all_shards(change).complete())

    def is_paused(self, queue: str) -> bool:
        found = AllShards().read(lambda one: Queries(one).meta.read(queue))
        is_paused = any("paused" in meta for meta in found.by_shard.values())
        if not is_paused:
            found.complete()
        return is_paused

    def pauses(self, queue: str) -> Mapping[str, str]:
        shards = AllShards()
        found = sums.pauses(shards, [queue])
        shards.require_all()
        return {one.key: one.by for one in found}

    def unique_conflict(self, job_id: str) -> tuple[str, str]:
        return UniqueQueries(connection_of(job_id)).conflict(job_id)

    def send_event(self, event: str, payload: str) -> None:
        ttl_ms = get_settings().event_ttl_ms

        def send(connection: RedisConnection) -> None:
            retry_once(lambda: Commands(connection).send_event(event, payload, ttl_ms))

        all_shards(send).complete()

    def forget_steps(self, job_id: str) -> int:
        return Commands(connection_of(job_id)).forget_steps([job_id])[0]

    def wait_for_job(self, job_id: str, deadline: Deadline) -> None:
        commands = Commands(connection_of(job_id))

        def has_ended() -> bool:
            status = commands.watch(job_id)
            if not status:
                raise not_found(job_id)
            return Status(status).is_final

        try:
            self.wait_until(has_ended, job_id, deadline)
        except JobNotFound:
            if not (owner := self.duplicate_of(job_id)):
                raise
            self.wait_for_job(owner, deadline)

    def wait_until(self, has_ended: Callable[[], bool], owner_id: str, deadline: Deadline) -> None:
        """Call ``has_ended`` first and after each message that something has ended, until it is
        true. Raises also RedisUnavailable, if Redis is unavailable at the beginning, or for longer
        than a failover or a restart takes."""
        connection, answered = blocking_connection(shard_of_id(owner_id)), 0.0
        channel = Queries(connection).keys.done(owner_id)
        try:
            while True:
                try:
                    connection.subscribe(channel)
                    answered = answered or time.monotonic()
                    while not has_ended():
                        answered = time.monotonic()
                        connection.message(deadline.left(RECHECK))
                    return
                except RedisUnavailable:
                    if not answered or time.monotonic() - answered > RECHECK + OUTAGE:
                        raise
                    connection.close()
                    time.sleep(deadline.left(RECONNECT))
        finally:
            connection.close()

    # Workflows

    def push_workflow(self, push: Push) -> None:
        deque(send_workflows(connection_of(push.workflow_id), [push]), maxlen=0)

    def push_workflows(self, pushes: Iterable[Push]) -> Iterator[str]:
        connection = bulk_connection()
        try:
            yield from send_workflows(connection, pushes)
        finally:
            connection.close_all()

    def workflow(self, workflow_id: str) -> WorkflowData | None:
        return WorkflowQueries(connection_of(workflow_id)).workflow(workflow_id)

    def control_workflow(self, workflow_id: str, command: str) -> int:
        # A worker's maintenance continues where these steps end.
        return Commands(connection_of(workflow_id)).control_workflow_and_advance(
            workflow_id, command, STEPS
        )

    # Gathers

    def start_gather(self, plan: GatherPlan) -> int:
        return retry_once(lambda: Commands(connection_of(plan.id)).start_gather(plan))

    def gather(self, key: str) -> GatherData | None:
        return _of_gather(key, lambda queries: queries.gather(key))

    def gather_results(self, key: str) -> Mapping[str, str]:
        return _of_gather(key, lambda queries: queries.results(key))

    def gather_key(self, job_id: str) -> str | None:
        return GatherQueries(connection_of(job_id)).key_of_run(job_id)


def jobs_of(ids: Sequence[str]) -> list[JobData | UnreadableJob]:
    """Several jobs, in one round trip a shard."""
    found: dict[str, JobData | UnreadableJob] = {}
    for shard, part in ids_by_shard(ids).items():
        jobs = Queries(producer_connection(shard)).jobs(part)
        found |= zip(part, jobs, strict=True)
    return [found[job_id] for job_id in ids]


def _of_gather(key: str, read: Callable[[GatherQueries], Answer]) -> Answer:
    """Read a gather in the shard of its key; in the others if it is not there, because it was
    started when there were more or fewer shards."""
    first = shard_of_key(key, get_settings().shards)
    for shard in (first, *other_shards(first)):
        found = read(GatherQueries(producer_connection(shard)))
        if found:
            break
    return found


def _follow(job_id: str, act: Callable[[str], int]) -> int:
    """The code of a command about a job, or about the job that a duplicate's id leads to."""
    code = act(job_id)
    return act(owner) if code == -1 and (owner := _redis.duplicate_of(job_id)) else code


_redis = RedisTransport()


def transport() -> Transport:
    """Redis, or what a test uses instead (``django_redisqueue.testing``)."""
    return ports.replacement or _redis


def transport_of(job_id: str) -> Transport:
    """The transport to ask about a job: that of a test's block even after its end. The current one
    comes first, because runs of a schedule have the same ids in each block."""
    found = (transport(), *ports.ended)
    return next((one for one in found if one.has_job(job_id)), found[0])


def transport_of_jobs(owner_id: str) -> Transport:
    """The transport to ask about a workflow or a gather: that of its jobs."""
    return transport_of(f"{owner_id}.0")


def _how_to_find(query: JobQuery, has_properties: bool, missing: Sequence[str]) -> str:
    mirror = 'turn on the mirror (REDISQUEUE["MIRROR"], this app in INSTALLED_APPS, migrate)'
    if not has_properties:
        return (
            "without the mirror, jobs are found by task, workflow or tags; to list the jobs of a "
            f"queue use JobQueue.get_jobs, or {mirror}"
        )
    parts = []
    if missing:
        names = ", ".join(f'"{name}"' for name in missing)
        parts.append(f'add {names} to REDISQUEUE["INDEXED"]')
    if not query.is_unfinished:
        parts.append('ask for unfinished jobs only (status="unfinished")')
    return f"without the mirror, {' and '.join(parts)}; or {mirror}"


def send_workflows(
    connection: RedisConnection, pushes: Iterable[Push], *, starts: bool = True
) -> Iterator[str]:
    """Push workflows in pipelined calls of up to 100 jobs; yields the id of each once Redis has all
    of it, in any order. Nothing else may use this connection or those to other shards meanwhile.

    Without ``starts`` a workflow stays ``building``, to be cancelled, or started by another push;
    then its id is not yielded.
    """
    for server, some in _by_server(connection, pushes):
        calls = _push_calls(server, some, starts)
        for parts, codes in server.stream_scripts(calls, Commands(server).wait):
            for part, code in zip(parts, codes, strict=True):
                check_pushed(code, part.workflow_id)
                if part.is_last:
                    yield part.workflow_id


def _by_server(
    connection: RedisConnection, pushes: Iterable[Push]
) -> Iterator[tuple[RedisConnection, Iterable[Push]]]:
    """The workflows for each server: all in one stream if there is one server, else 100 at a time,
    so that the caller may still be building them."""
    every = [connection.at(shard).redis_url for shard in range(get_settings().shards)]
    if all(redis_url == connection.redis_url for redis_url in every):
        yield connection, pushes
        return
    rest = iter(pushes)
    while some := list(islice(rest, BATCH)):
        found: dict[RedisUrl, list[Push]] = {}
        for push in some:
            server = connection.at(shard_of_id(push.workflow_id))
            found.setdefault(server.redis_url, []).append(push)
        for part in found.values():
            yield connection.at(shard_of_id(part[0].workflow_id)), part


def check_pushed(code: int | str, workflow_id: str) -> None:
    """Raise the error for a code of enqueue_workflow.lua."""
    if isinstance(code, str):
        job_id, owner, key = code.split(" ")
        raise UniqueConflict(
            f"workflow {workflow_id} was not pushed: job {owner} has the unique key {key}, which "
            f"its job {job_id} needs; cancel job {owner}, or push the workflow again once it has "
            "ended"
        )
    if code == CLEANED_UP:
        raise WorkflowError(
            f"workflow {workflow_id} was cleaned up (half-pushed for a day, or ended), and some of "
            "its jobs are still in Redis, so it was not created again; unless they have run, push "
            "it as a new one"
        )
    if code < 0:
        raise WorkflowNotFound(f"workflow {workflow_id} vanished while it was being pushed")


@dataclass(slots=True)
class _PushCall:
    """A call of enqueue_workflow.lua, as it fills."""

    parts: list[WorkflowPart] = field(default_factory=list)
    jobs: int = 0
    size: int = 0


def _push_calls(
    connection: RedisConnection, pushes: Iterable[Push], starts: bool
) -> Iterator[tuple[list[WorkflowPart], tuple[Any, ...]]]:
    """Script calls of up to 100 jobs. Small workflows of a shard share a call."""
    calls: dict[int, _PushCall] = defaultdict(_PushCall)

    def encoded(shard: int) -> tuple[list[WorkflowPart], tuple[Any, ...]]:
        parts = calls.pop(shard).parts
        return parts, Commands(connection.at(shard)).enqueue_workflow(parts)

    for push in pushes:
        shard = shard_of_id(push.workflow_id)
        # Jobs with unique keys must be in the first call, which creates all of them or none.
        batches = list(_job_batches(sorted(push.jobs, key=lambda job: not job.unique)))
        for at, (jobs, size) in enumerate(batches):
            call = calls[shard]
            is_full = call.jobs + len(jobs) > BATCH or call.size + size > MAX_CALL_BYTES
            if call.parts and is_full:
                yield encoded(shard)
                call = calls[shard]
            fields, is_last = () if at else push.fields, starts and at == len(batches) - 1
            part = WorkflowPart(push.workflow_id, fields, jobs, at == 0, is_last, push.stored)
            call.parts.append(part)
            call.jobs += len(jobs)
            call.size += size
    yield from map(encoded, list(calls))


def _job_batches(jobs: Iterable[WorkflowJob]) -> Iterator[tuple[list[WorkflowJob], int]]:
    """The jobs of each call, and their size. Those with unique keys, the first, share a call."""
    batch: list[WorkflowJob] = []
    size = 0
    for job in jobs:
        weight = len(job.payload) + len(job.then) + len(job.after)
        weight += LINK_BYTES * job.joins.count(".")
        is_full = len(batch) == BATCH or size + weight > MAX_CALL_BYTES
        if batch and is_full and not job.unique:
            yield batch, size
            batch, size = [], 0
        batch.append(job)
        size += weight
    if batch:
        yield batch, size
