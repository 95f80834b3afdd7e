"""Chooses the shard of a new job, and sends the job there.

Jobs that share a limit or a unique key are in one shard, and so are a job and its parents. Other
jobs go to the shard of their queue, or to all shards in turn if the queue has ``SPREAD``. In the
latter case they go to another shard while the server of theirs cannot be reached.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace

from ..broker.base import BATCH
from ..broker.commands import Commands, batches
from ..broker.connection import HANGS, PRODUCER_TIMEOUT, producer_connection, retry_once
from ..broker.redis_url import RedisUrl
from ..conf import Settings, get_settings
from ..core.ids import new_job_id, shard_of_id, shard_of_key
from ..core.job_data import NewJob
from ..core.policies import Limit, Rate, decode_lane
from ..exceptions import InvalidOption, RedisUnavailable, short_repr
from .policies import LaneRule, Uniqueness, names_in

WORDS = 4  # of each unique key in NewJob.unique: the key, its mode and two more
ONCE = "once"  # the mode of an Idempotency-Key

_turn = SimpleNamespace(shard=random.randrange(2**16))  # for SPREAD; threads may skip a shard


def place(job: NewJob, settings: Settings, at: int = 0) -> int:
    """The shard of a new job. Sets ``job.is_spread`` if any other shard would do as well.

    ``at``: its number among the jobs of one call, which move to another shard after every 100 jobs.
    Raises InvalidOption if its limits, its unique key and its parents are in several shards.
    """
    shards = settings.shards
    key = shard_key(job)
    if job.after:
        return _shard_of_parents(job, key, shards)
    if key:
        return shard_of_key(key, shards)
    if not settings.queues[job.queue].spread:
        return shard_of_key(job.queue, shards)
    if key := _spread_key(job):
        return shard_of_key(key, shards)
    job.is_spread = True
    if at % BATCH == 0:
        _turn.shard += 1
    return int(_turn.shard % shards)


def shard_key(job: NewJob) -> str:
    """What determines the shard of a job: the value of a limit's key, the name of a limit without a
    key, or the unique key; '' for other jobs."""
    if job.lane:
        for limit_key in decode_lane(job.lane).limits:
            kind, name, value = limit_key.split(":", 2)
            if kind != "k":
                return value or name
    words = job.unique.split()[-WORDS:]
    return words[0] if words and words[1] != ONCE else ""


def shard_of_schedule(name: str, job: NewJob, settings: Settings) -> int:
    """The shard of a schedule: that of its jobs, which it creates there itself."""
    spread = job.queue in settings.queues and settings.queues[job.queue].spread
    key = shard_key(job) or (name if spread else job.queue)
    return shard_of_key(key, settings.shards)


def check_same_shard(job: NewJob, what: str) -> None:
    """Raise InvalidOption if a job of a workflow or gather shares a limit or a unique key with jobs
    in another shard. ``what``: its role there."""
    shards = get_settings().shards
    key = shard_key(job) if shards > 1 else ""
    if key and shard_of_key(key, shards) != shard_of_id(job.id):
        raise InvalidOption(
            f"{job.task} cannot be {what} in shard {shard_of_id(job.id)}: the jobs that share its "
            f"limit or unique key ({key}) are in shard {shard_of_key(key, shards)}; use a task "
            "without a limit or unique key there, which may enqueue this one"
        )


def _spread_key(job: NewJob) -> str:
    """What determines the shard of a chunk or a repeated request in a queue with SPREAD."""
    if job.unique:
        return job.unique.split()[0]
    limits = decode_lane(job.lane).limits if job.lane else ()
    return limits[0] if limits else ""


def _shard_of_parents(job: NewJob, key: str, shards: int) -> int:
    parents = job.after.split()[1:]
    shard = shard_of_id(parents[0])
    for other in parents:
        if shard_of_id(other) != shard:
            raise InvalidOption(
                f"a job of {job.task} cannot wait for both {parents[0]} (in shard {shard}) and "
                f"{other} (in shard {shard_of_id(other)}): its parents must be in one shard; make "
                "them jobs of one Workflow"
            )
    if key and shard_of_key(key, shards) != shard:
        raise InvalidOption(
            f"a job of {job.task} cannot wait for {parents[0]}, which is in shard {shard}: the "
            f"jobs that share its limit or unique key ({key}) are in shard "
            f"{shard_of_key(key, shards)}; let the parent enqueue it when it ends instead"
        )
    return shard


def check_placement(rule: LaneRule | None, uniqueness: Uniqueness | None) -> None:
    """Raise InvalidOption if the limits and the unique key of a task could be in several shards."""
    if rule is None or not rule.all_limits:
        return
    first, *others = rule.all_limits
    for other in others:
        if _key(first, rule.task) != _key(other, rule.task):
            raise InvalidOption(
                f"{rule.task} has limits that may be in different shards: {_shown(first)} and "
                f'{_shown(other)}. With REDISQUEUE["SHARDS"] above 1, all limits of a task must '
                "have the same key (or the same name, without a key)"
            )
    if uniqueness is not None and uniqueness.unique and not _decides(uniqueness, first):
        raise InvalidOption(
            f"{rule.task} has a unique key and a limit that may be in different shards: jobs "
            f"with the same unique key may differ in {_shown(first)}. With REDISQUEUE"
            '["SHARDS"] above 1, unique_by must include the parameters of the limit\'s key'
        )


def _key(one: Limit | Rate, task: str) -> object:
    if one.key is None:
        return f"name {one.name or task}"
    return one.key if callable(one.key) else names_in(one.key)


def _shown(one: Limit | Rate) -> str:
    kind = type(one).__name__
    if one.key is None:
        return f"{kind} {one.name!r} without a key" if one.name else f"{kind} without a key"
    shown = short_repr(one.key) if callable(one.key) else ", ".join(names_in(one.key))
    return f"{kind} by {shown}"


def _decides(uniqueness: Uniqueness, limit: Limit | Rate) -> bool:
    """Whether jobs with the same unique key have the same value of the limit's key."""
    if limit.key is None or uniqueness.by == ():
        return True
    if callable(limit.key) or callable(uniqueness.by):
        return uniqueness.by is limit.key
    return set(names_in(limit.key)) <= set(uniqueness.by)


class _ThreadCommands(threading.local):
    """The commands with which one thread enqueues, by shard."""

    def __init__(self) -> None:
        self.by_shard: dict[int, Commands] = {}


_thread = _ThreadCommands()


def _commands_to_enqueue(shard: int) -> Commands:
    """Commands on this thread's producer connection, made once for each connection."""
    connection = producer_connection(shard)
    commands = _thread.by_shard.get(shard)
    if commands is None or commands.connection is not connection:
        commands = _thread.by_shard[shard] = Commands(connection)
    return commands


def _enqueue(shard: int, jobs: Sequence[NewJob]) -> None:
    commands = _commands_to_enqueue(shard)
    if len(jobs) > 1:
        retry_once(lambda: commands.enqueue_all(batches(jobs)))
    elif jobs[0].is_plain and commands.wait is None:
        retry_once(commands.enqueue_plain, jobs[0])
    else:
        retry_once(commands.enqueue, jobs)


_hang_until: dict[RedisUrl, float] = {}  # servers that did not accept a connection (monotonic)


def enqueue_movable(shard: int, jobs: Sequence[NewJob]) -> None:
    """Enqueue jobs in their shard. If its server cannot be reached, or hung a moment ago, jobs of a
    queue with SPREAD get new ids in another shard, unless the caller already has their ids. A job
    that may have been sent is never sent again under another id."""
    began = time.monotonic()
    if _hang_until and _is_hanging(shard) and _are_movable(jobs):
        shard = next((other for other in other_shards(shard) if not _is_hanging(other)), shard)
        _give_ids(jobs, shard)
    try:
        _enqueue(shard, jobs)
        return
    except RedisUnavailable as error:
        if not (error.unsent and _are_movable(jobs)):
            raise
        home, problem = producer_connection(shard).redis_url, error
    if time.monotonic() - began > PRODUCER_TIMEOUT / 2:
        _hang_until[home] = time.monotonic() + HANGS
    away = {home}
    for other in other_shards(shard):
        redis_url = producer_connection(other).redis_url
        if redis_url in away:
            continue
        _give_ids(jobs, other)
        try:
            _enqueue(other, jobs)
            return
        except RedisUnavailable as again:
            if not again.unsent or time.monotonic() - began > PRODUCER_TIMEOUT:
                raise
            away.add(redis_url)
    raise problem


def _are_movable(jobs: Sequence[NewJob]) -> bool:
    return all(job.is_spread and not job.is_known and not job.stored for job in jobs)


def _give_ids(jobs: Sequence[NewJob], shard: int) -> None:
    for job in jobs:
        job.id = new_job_id(shard)


def _is_hanging(shard: int) -> bool:
    return time.monotonic() < _hang_until.get(producer_connection(shard).redis_url, 0.0)


def other_shards(shard: int) -> list[int]:
    """The other shards, the next one first."""
    shards = get_settings().shards
    return [(shard + n) % shards for n in range(1, shards)]
