"""The findings: what may be wrong, how bad it is, and what to do about it.

This module needs no models, so that system checks can use its sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial

from django.db import Error as DatabaseError
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from ..core import formatting
from ..exceptions import RedisQueueError, first_line


class Level(StrEnum):
    """How bad a finding is. The colour of a page's badge is that of its worst finding."""

    ERROR = "error"  # jobs do not run, or may be lost
    WARNING = "warning"
    INFO = "info"  # worth knowing, but no problem

    @property
    def rank(self) -> int:
        return (Level.ERROR, Level.WARNING, Level.INFO).index(self)


class FindingId(StrEnum):
    """The stable names of findings, in metrics, JSON and docs/health.md."""

    REDIS_AWAY = "redis_away"
    SHARD_AWAY = "shard_away"
    REDIS_EVICTS = "redis_evicts"
    NO_WORKER = "no_worker"
    NOT_SERVED = "queue_not_served"
    BROKEN = "queue_broken"
    LATE = "queue_late"
    FAILURES = "queue_failures"
    PAUSED = "queue_paused"
    UNKNOWN_QUEUE = "queue_unknown"
    LAPSED = "workers_lapsed"
    LIMIT_LATE = "limit_late"
    LIMIT_STUCK = "limit_stuck"
    SCHEDULE_ERROR = "schedule_error"
    SCHEDULE_LATE = "schedule_late"
    DATABASE = "database_unreadable"
    MIRROR_OFF = "mirror_off"
    MIRROR_STOPPED = "mirror_stopped"
    MIRROR_LATE = "mirror_late"
    MIRROR_GAPS = "mirror_gaps"
    MIRROR_FAULTS = "mirror_faults"
    OUTBOX_STUCK = "outbox_stuck"
    OUTBOX_REFUSED = "outbox_refused"


OVERVIEW = ("overview",)
DATABASE_AWAY = (OperationalError, InterfaceError)  # it does not answer, or lacks a table
NAMED = 3  # jobs, workers, limits or schedules that a sentence names at most


def listed(names: Sequence[str]) -> str:
    """The first NAMED names, and "…" for the others."""
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def local_time(instant: datetime | None) -> str:
    """To the second, in the current time zone."""
    return formatting.instant(instant and timezone.localtime(instant))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: a sentence, what to do about it, and the page to look at. ``target``
    is the name of a page of the dashboard, and its arguments."""

    level: Level
    id: FindingId
    text: str
    remedy: str = ""
    target: tuple[str, ...] = OVERVIEW
    queue: str = ""


make_error = partial(Finding, Level.ERROR)
make_warning = partial(Finding, Level.WARNING)


def redis_away(error: RedisQueueError) -> Finding:
    return make_error(
        FindingId.REDIS_AWAY,
        f"{error}.",
        'Start it, or correct REDISQUEUE["CONNECTION"]. Workers reconnect automatically.',
        ("jobrecord_changelist",),  # this page needs no Redis
    )


def evicts(policy: str) -> Finding:
    return make_error(
        FindingId.REDIS_EVICTS,
        f"Redis has the maxmemory-policy {policy}: when its memory is full, it deletes jobs.",
        "Set maxmemory-policy noeviction. A full Redis then refuses new jobs with a clear error, "
        "and workers still finish those it has.",
    )


def unknown_queue(name: str, jobs: int) -> Finding:
    return make_warning(
        FindingId.UNKNOWN_QUEUE,
        f"Queue {name} has unfinished jobs in Redis ({formatting.number(jobs)}), but is not in "
        'REDISQUEUE["QUEUES"], so no worker of this project runs them.',
        "Add it to QUEUES again until they have ended or are cleared. Meanwhile, due jobs are "
        "still queued, and finished ones pruned.",
        queue=name,
    )


def unreadable(what: str, error: DatabaseError) -> Finding:
    """The finding for something whose query failed."""
    return make_error(
        FindingId.DATABASE,
        f"The {what} cannot be read ({first_line(error)}).",
        "Start the database, or run manage.py migrate if a table is missing. Running workers "
        "continue with their jobs.",
    )
