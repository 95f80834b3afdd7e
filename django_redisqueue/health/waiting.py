"""Why a job is not running, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from ..broker.connection import RedisConnection
from ..broker.entries import START
from ..broker.health import HealthQueries, ShardState
from ..broker.policies import LimitQueries, pause_name
from ..broker.queries import Queries
from ..broker.workflows import WorkflowQueries
from ..conf import get_settings
from ..core import formatting
from ..core.ids import is_workflow_id
from ..core.job_data import JobData, split_wait
from ..core.policies import decode_lane
from ..core.statuses import FINAL, Status, WorkflowStatus
from ..core.text import printable
from ..exceptions import CorruptJob, RedisQueueError
from .findings import listed
from .policies import limit_sentence
from .report import paused_ago

LATE_MS = 10_000  # after which a due job is late


def read_why(job: JobData, connection: RedisConnection) -> str | None:
    """The sentence for a job that was just read; None, at no cost, if it is running or has ended.
    At most ten round trips."""
    if job.status is Status.PROCESSING or job.status.is_final:
        return None
    try:
        if Queries(connection).statuses([job.id]) == [None]:
            return "It is not in Redis: it is still in the outbox, or Redis has lost it."
        state = HealthQueries(connection).shard_state(sorted(get_settings().queues), START)
        parents: Sequence[str] = ()
        if job.status is Status.WAITING:
            parents, _ = WorkflowQueries(connection).relatives(job.id)
        return why_not_running(job, state, connection, parents)
    except RedisQueueError as error:
        return f"The reason why it is not running cannot be read: {error}."


def why_not_running(
    job: JobData, shard: ShardState | None, connection: RedisConnection, parents: Sequence[str] = ()
) -> str:
    """The sentence; '' for a job that is running or has ended, and during an outage of Redis.
    ``parents``: the ids of the job's parents. At most six round trips to Redis."""
    if shard is None:
        return ""
    if job.status is Status.QUEUED:
        return _why_queue(job, shard) or _why_limit(job, connection) or _turn(job, shard)
    if job.status is Status.SCHEDULED:
        return _why_later(job, shard.now_ms)
    if job.status is Status.RETRYING:
        return f"Its last attempt failed; the next one {_is_due(job, shard.now_ms)}."
    if job.status is Status.WAITING:
        return _why_workflow(job.id, connection) or _why_parents(parents, connection)
    return ""


def _why_queue(job: JobData, shard: ShardState) -> str:
    queue = next((one for one in shard.queues if one.name == job.queue), None)
    if queue is None:
        return (
            f'Its queue {job.queue} is not in REDISQUEUE["QUEUES"], so no worker of this project '
            "serves it."
        )
    if queue.wrong_keys:
        return "Its queue is blocked: another program has written to its keys."
    if queue.is_paused:
        return f"Its queue is paused, {paused_ago(queue)}."
    if not shard.is_staffed:
        return "No worker is alive."
    if shard.served and job.queue not in shard.served:
        return f"No worker serves its queue, {job.queue}."
    return ""


def _why_limit(job: JobData, connection: RedisConnection) -> str:
    if not job.lane:
        return ""
    queries = LimitQueries(connection)
    try:
        lane = decode_lane(job.lane)
    except ValueError:  # another program has written it
        return ""
    key = queries.parked_at(job.queue, lane.name)
    if not key:
        return ""
    if key.startswith("k:"):
        here, left_ms = queries.waiting_chunk(job.queue, lane.name, key)
        size = lane.numbers.get(key.rpartition(":")[0], "").partition("/")[0]
        due = f"in {formatting.duration(left_ms)}" if left_ms > 0 else "now"
        return f"It waits for its chunk to be full, {here} of {printable(size)}, or starts {due}."
    if key.startswith("p:"):
        part = key.removeprefix("p:")
        by = next((one.by for one in queries.pauses(job.queue) if one.key == part), "")
        return f"Its {pause_name(part)} is paused in this queue{f' by {by}' if by else ''}."
    return f"It waits for {limit_sentence(queries.states([key])[0])}."


def _turn(job: JobData, shard: ShardState) -> str:
    queued = next(one.counts["queued"] for one in shard.queues if one.name == job.queue)
    others = max(0, queued - 1)
    if not others:
        return "It waits for a free worker."
    return f"It waits for its turn, with {formatting.jobs(others)} besides it in its queue."


def _why_later(job: JobData, now_ms: int) -> str:
    if job.waits_for is None:
        return f"It {_is_due(job, now_ms)}."
    waited = formatting.duration(max(0, now_ms - (job.parked_ms or now_ms)))
    if not job.waits_for:
        return f"It has slept for {waited}, and {_is_due(job, now_ms)}."
    timeout = f"its timeout {_is_due(job, now_ms)}" if job.due_ms else "it has no timeout"
    kind, name = split_wait(job.id, job.waits_for)
    return f"It has waited for the {kind} {name} for {waited}; {timeout}."


def _is_due(job: JobData, now_ms: int) -> str:
    left_ms = (job.due_ms or now_ms) - now_ms
    if left_ms > 0:
        return f"is due in {formatting.duration(left_ms)}"
    if left_ms > -LATE_MS:
        return "is due now"
    late = formatting.duration(-left_ms)
    return f"was due {late} ago, but no worker's maintenance has queued it"


def _why_workflow(job_id: str, connection: RedisConnection) -> str:
    workflow_id = job_id.rpartition(".")[0]
    if not is_workflow_id(workflow_id):
        return ""
    try:
        workflow = WorkflowQueries(connection).workflow(workflow_id)
    except CorruptJob:
        return ""
    if workflow is None:
        return f"Its workflow {workflow_id} is gone."
    if workflow.is_paused:
        return "Its workflow is paused."
    if workflow.status is WorkflowStatus.FAILED:
        return "Its workflow has failed; it resumes when one of its failed jobs is retried."
    return ""


def _why_parents(parents: Sequence[str], connection: RedisConnection) -> str:
    statuses = Queries(connection).statuses(parents)
    left = [
        f"{printable(parent)} ({printable(status)})"
        for parent, status in zip(parents, statuses, strict=True)
        if status is not None and status not in FINAL
    ]
    if not left:
        return "It waits for its parents."
    return f"It waits for {len(left)} of {len(parents)} parents: {listed(left)}."
