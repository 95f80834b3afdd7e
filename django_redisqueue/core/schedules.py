"""Schedules: when a periodic task is due (``Cron`` and ``Every``), what to do about missed due
times, and the records of a schedule, as its hash in Redis stores them.

Due times are in ms since the epoch. ``Every`` counts from the epoch, so it never drifts. When
clocks change, ``Cron`` follows Debian's rules (cronsim): a time of day that is skipped runs once
just after the gap, and one that occurs twice runs once.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any, ClassVar, NamedTuple, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ..exceptions import CorruptJob, InvalidOption, short_repr
from .clock import UNITS_MS, Duration, period_text, to_ms, to_period_ms
from .ids import periodic_prefix
from .job_data import SIGNATURE_FIELDS, NewJob
from .parsing import parse_instant_ms, parse_int
from .statuses import Misfire, Overlap, check_choice
from .text import printable

SECOND_MS = 1000
MAX_JITTER_MS = UNITS_MS["d"]
LATE_MS = 60_000  # a run that starts within a minute of its due time is on time
CATCH_UP = 100  # the most runs that ``misfire="all"`` makes, which are the latest ones
MAX_OUTAGE_MS = 366 * UNITS_MS["d"]  # older due times are neither run nor counted
MAX_COUNTED = 1000  # due times of a cron expression that are computed: each takes 50 µs
_INSTANTS = ("next_ms", "last_due_ms", "last_ms")
_COUNTS = ("fired", "missed", "skipped")


class DueRuns(NamedTuple):
    """What to do about a schedule that is due."""

    run_ms: Sequence[int]  # due times that get a run, oldest first
    next_ms: int | None  # the first due time to come, if any
    missed: int  # due times that get no run


@dataclass(frozen=True, slots=True)
class Schedule(ABC):
    """The options that both kinds share.

    ``misfire``: what happens to due times that passed while no worker was running: ``once``,
    ``skip`` or ``all``. ``overlap``: what happens when the previous run has not finished:
    ``queue``, ``skip`` or ``cancel``. ``jitter``: the longest delay of the schedule's runs. Each
    schedule has a fixed part of it, so that many schedules do not start in the same second.
    """

    kind: ClassVar[str]
    _: KW_ONLY
    misfire: Misfire | str = Misfire.ONCE
    overlap: Overlap | str = Overlap.QUEUE
    jitter: Duration = 0

    def _check_options(self) -> None:
        where = type(self).__name__
        _set(self, "misfire", check_choice(self.misfire, Misfire, f"{where}(misfire=...)"))
        _set(self, "overlap", check_choice(self.overlap, Overlap, f"{where}(overlap=...)"))
        jitter_ms = _jitter_ms(self.jitter, f"{where}(jitter=...)")
        _set(self, "jitter", jitter_ms / 1000)

    def in_zone(self, timezone: str) -> Self:
        """The same schedule with this time zone, unless it has one of its own."""
        return self

    def delay_ms(self, name: str) -> int:
        """How long after their due times the runs of a schedule with this name start."""
        jitter_ms = _jitter_ms(self.jitter, "jitter")
        return int(periodic_prefix(name)[9:-1], 36) % jitter_ms if jitter_ms else 0

    @property
    @abstractmethod
    def timing(self) -> str:
        """Everything that the due times depend on, as text."""

    @abstractmethod
    def after(self, instant_ms: int) -> int | None:
        """The first due time after ``instant_ms``, or None."""

    @abstractmethod
    def between(self, first_ms: int, last_ms: int) -> Sequence[int]:
        """The due times from ``first_ms``, itself a due time, to ``last_ms``, both included; if
        there are very many, the latest of them."""

    def upcoming(self, instant_ms: int, count: int) -> list[int]:
        """The first ``count`` due times after ``instant_ms``."""
        found: list[int] = []
        due_ms: int | None = instant_ms
        while len(found) < count and (due_ms := self.after(due_ms or 0)) is not None:
            found.append(due_ms)
        return found

    def due_runs(self, cursor_ms: int, now_ms: int) -> DueRuns:
        """What to do at ``now_ms`` about a schedule whose next due time was ``cursor_ms``."""
        first_ms = cursor_ms
        if now_ms - cursor_ms > MAX_OUTAGE_MS:
            first_ms = self.after(now_ms - MAX_OUTAGE_MS) or cursor_ms
        due = self.between(first_ms, now_ms)
        run = due
        if due and now_ms - due[0] > LATE_MS:
            if self.misfire == Misfire.ONCE:
                run = due[-1:]
            elif self.misfire == Misfire.SKIP:
                run = [
                    due_ms for due_ms in due[-LATE_MS // SECOND_MS :] if now_ms - due_ms <= LATE_MS
                ]
            else:
                run = due[-CATCH_UP:]
        return DueRuns(run, self.after(now_ms), len(due) - len(run))


@dataclass(frozen=True, slots=True)
class Cron(Schedule):
    """The due times of a cron expression with five fields, in a time zone (by default Django's
    TIME_ZONE). Raises InvalidOption if it cannot be read or never fires."""

    kind: ClassVar[str] = "cron"
    expression: str
    _: KW_ONLY
    timezone: str = ""

    def __post_init__(self) -> None:
        self._check_options()
        if not isinstance(self.expression, str):
            raise _not_five_fields(self.expression)
        _check_expression(self.expression)
        if self.timezone != "":
            _set(self, "timezone", _zone(str(self.timezone)).key)  # it may be a ZoneInfo

    def in_zone(self, timezone: str) -> Self:
        return self if self.timezone else replace(self, timezone=timezone)

    @property
    def timing(self) -> str:
        return f"{' '.join(self.expression.split())} {self.timezone or 'UTC'}"

    def after(self, instant_ms: int) -> int | None:
        return next(self._due_times(instant_ms), None)

    def between(self, first_ms: int, last_ms: int) -> Sequence[int]:
        due = list(islice(self._between(first_ms, last_ms), MAX_COUNTED))
        if len(due) < MAX_COUNTED:
            return due
        return list(self._between(self._latest_start(last_ms), last_ms))

    def _between(self, first_ms: int, last_ms: int) -> Iterator[int]:
        return takewhile(lambda due_ms: due_ms <= last_ms, self._due_times(first_ms - 1))

    def _latest_start(self, last_ms: int) -> int:
        """A due time about MAX_COUNTED due times before ``last_ms``, searched for backwards."""
        begin = datetime.fromtimestamp(last_ms // 1000 + 1, _zone(self.timezone or "UTC"))
        before = CronSim(self.expression, begin, reverse=True)
        return _instant_ms(next(islice(before, MAX_COUNTED - 1, None)))

    def _due_times(self, instant_ms: int) -> Iterator[int]:
        """The due times after ``instant_ms``. While clocks are set back, cronsim may begin with
        earlier ones, because it starts from the time of day."""
        zone = _zone(self.timezone or "UTC")
        begin = datetime.fromtimestamp(instant_ms // 1000, zone)
        last_ms = instant_ms
        for moment in CronSim(self.expression, begin):
            due_ms = _instant_ms(moment)
            if due_ms > last_ms:
                yield due_ms
                last_ms = due_ms


@dataclass(frozen=True, slots=True)
class Every(Schedule):
    """A due time in each interval, counted from the epoch (1970-01-01 00:00 UTC): ``Every("5m")``
    is due at :00, :05 and so on. The interval is a whole number of seconds, given as seconds, a
    timedelta, or text such as "90s" or "1h30m"."""

    kind: ClassVar[str] = "every"
    interval: Duration
    interval_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_options()
        interval_ms = to_period_ms(self.interval, "every")
        if interval_ms % SECOND_MS:
            raise InvalidOption(
                "every must be a whole number of seconds, at least one, "
                f"not {short_repr(self.interval)}"
            )
        _set(self, "interval", period_text(interval_ms))
        _set(self, "interval_ms", interval_ms)

    @property
    def timing(self) -> str:
        return str(self.interval)

    def after(self, instant_ms: int) -> int | None:
        return (instant_ms // self.interval_ms + 1) * self.interval_ms

    def between(self, first_ms: int, last_ms: int) -> Sequence[int]:
        return range(first_ms, last_ms + 1, self.interval_ms)


def to_cron(value: object) -> Cron:
    """The Cron itself, or one for an expression. Raises InvalidOption."""
    if isinstance(value, Cron):
        return value
    if not isinstance(value, str):
        raise InvalidOption(
            f'cron must be text such as "*/5 * * * *", or a Cron, not {short_repr(value)}'
        )
    return Cron(value)


def to_every(value: object) -> Every:
    """The Every itself, or one for an interval. Raises InvalidOption."""
    return value if isinstance(value, Every) else Every(value)  # type: ignore[arg-type]


SCHEDULE_OPTIONS = ("cron", "every", "timezone", "misfire", "overlap", "jitter")


def make_schedule(options: Mapping[str, object]) -> Schedule:
    """The schedule that these SCHEDULE_OPTIONS describe. Raises InvalidOption."""
    cron, every = options.get("cron"), options.get("every")
    if (cron is None) == (every is None):
        raise InvalidOption("a schedule needs either cron or every")
    others: dict[str, Any] = {
        name: value for name, value in options.items() if name not in ("cron", "every")
    }
    if cron is None:
        if "timezone" in others:
            raise InvalidOption("timezone belongs to cron; every counts from the epoch, in UTC")
        return replace(to_every(every), **others)
    return replace(to_cron(cron), **others)


def _not_five_fields(expression: object) -> InvalidOption:
    return InvalidOption(
        "cron must be five fields (minute, hour, day of month, month, day of week), such as "
        f'"*/5 * * * *", not {short_repr(expression)}; for seconds use every'
    )


@lru_cache(maxsize=1024)
def _check_expression(expression: str) -> None:
    if len(expression.split()) != 5:
        raise _not_five_fields(expression)
    try:
        found = list(islice(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)), 1))
    except CronSimError as error:
        if _is_readable(expression):
            found = []
        else:
            problem = str(error).removeprefix("Bad ")
            raise InvalidOption(f"the {problem} of cron {expression!r} cannot be read") from None
    if not found:
        raise InvalidOption(
            f"cron {expression!r} never fires: none of its months has that day; check the day of "
            "month and the month"
        )


def _is_readable(expression: str) -> bool:
    """Whether each of its fields is valid, as it would be if all months were allowed."""
    fields = expression.split()
    try:
        CronSim(" ".join((*fields[:3], "*", fields[4])), datetime(2000, 1, 1, tzinfo=UTC))
        CronSim(f"0 0 * {fields[3]} *", datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    return True


def _instant_ms(moment: datetime) -> int:
    return round(moment.timestamp()) * 1000


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidOption(
            f'timezone must be a name in the IANA database, such as "Europe/Berlin", not '
            f"{short_repr(name)}; if the name is right, the system lacks it: install tzdata"
        ) from None


def _jitter_ms(value: object, name: str) -> int:
    jitter_ms = to_ms(value, name)
    if jitter_ms > MAX_JITTER_MS:
        raise InvalidOption(f"{name} must be at most a day, not {short_repr(value)}")
    return jitter_ms


def _set(schedule: Schedule, name: str, value: object) -> None:
    object.__setattr__(schedule, name, value)


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
        """The fields of its hash that define it, with a digest of them."""
        schedule = self.schedule
        found = {
            "source": self.source.value,
            "kind": schedule.kind,
            "timing": schedule.timing,
            "misfire": str(schedule.misfire),
            "overlap": str(schedule.overlap),
            "error": self.error,
        }
        found |= {f"job_{name}": str(getattr(self.job, name)) for name in SIGNATURE_FIELDS}
        return {**found, "digest": _digest(f"{name}={text}" for name, text in found.items())}

    @property
    def digest(self) -> str:
        return self.fields()["digest"]


def set_digest(definitions: Iterable[ScheduleDefinition]) -> str:
    """Identifies the set of all schedules in one version of the code."""
    return _digest(f"{one.name}={one.digest}" for one in sorted(definitions, key=lambda d: d.name))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleData:
    """Everything Redis has about a schedule. Times are ms since the epoch."""

    name: str
    source: Source
    schedule: Schedule
    job: NewJob  # what each run is made from
    digest: str
    paused_ms: int | None = None  # since when it is paused
    error: str = ""  # why it does not run
    next_ms: int | None = None
    last_due_ms: int | None = None  # the due time of the last run
    last_ms: int | None = None  # when that run was created
    last_job: str = ""
    fired: int = 0
    missed: int = 0  # due times without a run, because no worker was running
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
