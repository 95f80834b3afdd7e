"""The records of a schedule, and how they are stored in its hash in Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..exceptions import CorruptJob, InvalidOption
from .job_data import NewJob
from .parsing import parse_instant_ms, parse_int
from .schedules import Cron, Every, Schedule
from .text import printable

_JOB_FIELDS = ("task", "payload", "queue", "options", "priority", "audit", "when", "unique", "lane")
_INSTANTS = ("next_ms", "last_due_ms", "last_ms")
_COUNTS = ("fired", "missed", "skipped")


class Source(StrEnum):
    """Who defines a schedule."""

    CODE = "code"  # @task(cron=..., every=...) or the setting SCHEDULES
    ADMIN = "admin"  # a row of PeriodicJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition:
    """A schedule as the code or the admin defines it. ``job``: the template of each run; ``error``:
    why it must not run."""

    name: str
    source: Source
    schedule: Schedule
    job: NewJob
    error: str = ""

    def fields(self) -> dict[str, str]:
        """What its hash has of it, with a digest of all that."""
        schedule = self.schedule
        found = {
            "source": self.source.value,
            "kind": schedule.kind,
            "timing": schedule.timing,
            "misfire": str(schedule.misfire),
            "overlap": str(schedule.overlap),
            "error": self.error,
        }
        found |= {f"job_{name}": str(getattr(self.job, name)) for name in _JOB_FIELDS}
        return {**found, "digest": _digest(f"{name}={text}" for name, text in found.items())}

    @property
    def digest(self) -> str:
        return self.fields()["digest"]


def set_digest(definitions: Iterable[ScheduleDefinition]) -> str:
    """Identifies all schedules that some code has."""
    return _digest(f"{one.name}={one.digest}" for one in sorted(definitions, key=lambda d: d.name))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleData:
    """Everything Redis knows of a schedule. Instants are ms since the epoch."""

    name: str
    source: Source
    schedule: Schedule
    job: NewJob  # what each run is made from
    digest: str
    paused_ms: int | None = None  # since when it is paused
    error: str = ""  # why it does not run
    next_ms: int | None = None
    last_due_ms: int | None = None  # the due time of the last run
    last_ms: int | None = None  # when that was created
    last_job: str = ""
    fired: int = 0
    missed: int = 0  # due times without a run, because no worker was there
    skipped: int = 0  # due times without a run, because the previous one had not finished

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def queue(self) -> str:
        return self.job.queue

    @property
    def due(self) -> str:
        """When it is due: ``every 5m``, or a cron expression with its time zone."""
        timing = self.schedule.timing
        return f"every {timing}" if isinstance(self.schedule, Every) else timing

    @property
    def is_stopped(self) -> bool:
        """Whether it is paused, or has an error."""
        return self.paused_ms is not None or bool(self.error)


def decode_schedule(name: str, raw: Mapping[str, str]) -> ScheduleData:
    """A schedule's hash. Raises CorruptJob, which says what is wrong with it."""
    try:
        instants = {key: parse_instant_ms(raw[key]) for key in _INSTANTS if raw.get(key)}
        counts = {key: parse_int(raw[key]) for key in _COUNTS if key in raw}
        return ScheduleData(
            name=name,
            source=Source(raw["source"]),
            schedule=_decode_timing(raw),
            job=_decode_job(raw),
            digest=printable(raw["digest"]),
            paused_ms=parse_instant_ms(raw["paused"]) if "paused" in raw else None,
            error=printable(raw.get("error", "")),
            last_job=printable(raw.get("last_job", "")),
            **instants,
            **counts,
        )
    except KeyError as error:
        raise CorruptJob(f"the hash of schedule {name} has no field {error}") from None
    except (ValueError, InvalidOption) as error:
        raise CorruptJob(f"the hash of schedule {name} cannot be read: {error}") from None


def _decode_job(raw: Mapping[str, str]) -> NewJob:
    return NewJob(
        "", printable(raw.get("job_queue", "default")), printable(raw["job_task"]),
        raw["job_payload"], raw.get("job_options", ""), parse_int(raw.get("job_priority", "0")),
        raw.get("job_when", ""), raw.get("job_audit", ""),
        unique=raw.get("job_unique", ""), lane=raw.get("job_lane", ""),
    )  # fmt: skip


def _decode_timing(raw: Mapping[str, str]) -> Schedule:
    misfire, overlap = raw["misfire"], raw["overlap"]
    if raw["kind"] == Every.kind:
        return Every(raw["timing"], misfire=misfire, overlap=overlap)
    expression, _, timezone = raw["timing"].rpartition(" ")
    return Cron(expression, timezone=timezone, misfire=misfire, overlap=overlap)
