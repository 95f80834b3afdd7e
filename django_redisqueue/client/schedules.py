"""The schedules that the code defines (``@task(cron=..., every=...)`` and the setting SCHEDULES),
and the admin's operations on schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.conf import settings as django_settings

from ..broker.commands import Commands
from ..broker.connection import producer_connection
from ..broker.replies import DefineReply, RemoveReply
from ..broker.schedules import ScheduleQueries, UnreadableSchedule
from ..broker.shards import all_shards
from ..conf import get_settings
from ..core.codec import encode_payload
from ..core.ids import manual_job_id
from ..core.job_data import NewJob
from ..core.schedules import Schedule, ScheduleData, ScheduleDefinition, Source
from ..exceptions import InvalidArguments, InvalidOption, RedisQueueError
from .jobs import Job
from .placement import other_shards, shard_of_schedule
from .registry import get_task, is_own, task_names
from .tasks import Task
from .transport import transport


def code_schedules() -> list[ScheduleDefinition]:
    """All schedules of the code, by name. A setting replaces a task's own schedule of the same
    name. A schedule that cannot run has an error."""
    tasks: dict[str, Task] = {task.name: task for task in map(get_task, task_names())}
    found = {
        task.name: define(task.name, Source.CODE, task.name, schedule)
        for task in tasks.values()
        if (schedule := task.options.cron or task.options.every) is not None
    }
    for name, one in get_settings().schedules.items():
        found[name] = define(
            name, Source.CODE, one.task, one.schedule, one.args, one.kwargs,
            queue_name=one.queue_name, priority=one.priority,
        )  # fmt: skip
    return [found[name] for name in sorted(found)]


def define(
    name: str,
    source: Source,
    task_name: str,
    schedule: Schedule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> ScheduleDefinition:
    """A schedule of a task with these arguments and options of ``using``; it may have an error."""
    error = ""
    try:
        job = check_job(source, task_name, args, kwargs or {}, **options)
    except RedisQueueError as problem:
        job, error = NewJob("", "default", task_name, _payload(args, kwargs or {})), str(problem)
    delay_ms = schedule.delay_ms(name)
    if delay_ms:
        job = replace(job, when=f"+{delay_ms}")
    return ScheduleDefinition(
        name=name,
        source=source,
        schedule=schedule.in_zone(django_settings.TIME_ZONE),
        job=job,
        error=error,
    )


def check_job(
    source: Source, task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any
) -> NewJob:
    """The job of each run. Raises UnknownTask, InvalidArguments, InvalidOption and so on."""
    task: Task = get_task(task_name)
    if source is Source.ADMIN and is_own(task.name):
        raise InvalidOption(f"{task.name} does what other permissions are for; use your own tasks")
    if source is Source.ADMIN and task.redaction is not None and task.redaction.marks(args, kwargs):
        raise InvalidArguments(
            f"{task.name} redacts some of these arguments, and a row would show them; set them in "
            'REDISQUEUE["SCHEDULES"]'
        )
    return task.using(**options).template(args, kwargs)


def _payload(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    try:
        return encode_payload(args, kwargs, get_settings().max_payload_bytes, "")
    except RedisQueueError:
        return encode_payload((), {}, 100, "")


def put(definition: ScheduleDefinition) -> None:
    """Store a schedule of the admin in Redis. Raises InvalidOption if the code defines one of
    this name, and RedisUnavailable."""
    if transport().in_memory:
        return
    shard = shard_of_schedule(definition.name, definition.job, get_settings())
    commands = Commands(producer_connection(shard))
    next_ms = definition.schedule.after(_now_ms(shard))
    # A schedule that moved with its queue or limits is removed from the other shards.
    elsewhere = [
        Commands(producer_connection(other)).remove_schedules("", [definition.name])[0]
        for other in other_shards(shard)
    ]
    if RemoveReply.NOT_OWN in elsewhere or DefineReply.OF_CODE in commands.define_schedules(
        "", [(definition, next_ms)]
    ):
        raise InvalidOption(
            f"the code already defines a schedule {definition.name}; give this one another name"
        )


def drop(name: str) -> None:
    """Remove a schedule of the admin from Redis."""
    if not transport().in_memory:
        all_shards(lambda one: Commands(one).remove_schedules("", [name])).complete()


def pause(name: str, paused: bool) -> bool:
    """Pause a schedule, or resume it from its next due time. False if nothing changed."""
    if transport().in_memory:
        return False
    next_ms = None
    if not paused:
        found = find_schedule(name)
        if isinstance(found, ScheduleData):
            shard = shard_of_schedule(name, found.job, get_settings())
            next_ms = found.schedule.after(_now_ms(shard))
    codes = all_shards(lambda one: Commands(one).pause_schedule(name, paused, next_ms)).complete()
    return 1 in codes


def find_schedule(name: str) -> ScheduleData | UnreadableSchedule | None:
    """The schedule with that name, from any shard, or None."""
    found = all_shards(lambda one: ScheduleQueries(one).schedule(name)).complete()
    return next((one for one in found if one is not None), None)


def run_now(name: str) -> Job:
    """Enqueue a run of a schedule in addition to its due times, even if it is paused. Raises
    InvalidOption if Redis does not have it."""
    found = find_schedule(name)
    if not isinstance(found, ScheduleData):
        raise InvalidOption(
            f"the schedule {name} cannot be run: it is not in Redis yet, or cannot be read"
        )
    if found.error:
        raise InvalidOption(f"the schedule {name} cannot be run: {found.error}")
    shard = shard_of_schedule(name, found.job, get_settings())
    job = replace(found.job, id=manual_job_id(name, shard), when="")
    transport().enqueue([job])
    return Job(job.id)


def _now_ms(shard: int) -> int:
    """The clock of the shard's Redis."""
    return ScheduleQueries(producer_connection(shard)).now_ms()
