"""The settings, read lazily from ``settings.REDISQUEUE``.

Internally durations are milliseconds and sizes bytes. ``load`` raises ConfigurationError, which a
system check turns into a message.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NoReturn

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from .core.clock import to_ms
from .core.ids import (
    MAX_SHARDS,
    check_queue_name,
    check_schedule_name,
    check_tag_name,
    check_task_name,
)
from .core.parsing import is_int, is_number
from .core.policies import MAX_WEIGHT, NamedLimit, encode_share, make_named_limit
from .core.schedules import SCHEDULE_OPTIONS, Schedule, make_schedule
from .exceptions import (
    ConfigurationError,
    InvalidName,
    InvalidOption,
    UnknownQueue,
    did_you_mean,
    short_repr,
)

APP = "django_redisqueue"  # the label of the app, in permissions and migrations
DEFAULT_URL = "redis://localhost:6379/0"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Retention of one queue's finished jobs, when to raise an alarm, and aging. ``keep_*`` are
    counts, ``*_ms`` milliseconds; an ``alert_*`` of None raises none."""

    keep_completed: int
    keep_failed: int
    result_ttl_ms: int
    failed_ttl_ms: int
    alert_wait_ms: int | None = None
    alert_failed: float | None = None  # of the jobs that end, from 0 to 1
    spread: bool = False  # its jobs go to all shards in turn
    aging_ms: int | None = None  # of waiting that count as one step of priority


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """A schedule by its settings. Whether its task exists and takes the arguments is checked once
    all tasks are known."""

    task: str
    schedule: Schedule
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    queue_name: str | None  # None: that of the task
    priority: int | None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, validated. Sizes are bytes, durations milliseconds."""

    connection: Mapping[str, Any]
    prefix: str
    shards: int
    queues: Mapping[str, QueueSettings]
    retention: QueueSettings  # of queues without their own, or not in ``queues``
    lease_ms: int
    heartbeat_ms: int
    timeout_ms: int
    max_recoveries: int
    batch_window_ms: int
    events_cap: int
    finished_max_bytes: int
    resend_window_ms: int
    event_ttl_ms: int
    max_payload_bytes: int
    max_result_bytes: int
    max_error_bytes: int
    enqueue_on_commit: bool
    wait_replicas: int
    outbox: bool
    mirror: bool
    audit_retention_ms: int
    task_modules: tuple[str, ...]
    indexed: tuple[str, ...]
    schedules: Mapping[str, ScheduleSettings]
    limits: Mapping[str, NamedLimit]
    weights: Mapping[str, int]  # of shares, by their encoded values

    @property
    def own_queue(self) -> str:
        """The queue of this package's own jobs: "default", or else the first of QUEUES."""
        return "default" if "default" in self.queues else next(iter(self.queues))

    def check_queue(self, name: object) -> str:
        """Return ``name``; raise InvalidName or UnknownQueue unless it is a configured queue."""
        queue = check_queue_name(name)
        if queue not in self.queues:
            raise UnknownQueue(
                f"unknown queue {queue!r}{did_you_mean(queue, self.queues)}; "
                f'REDISQUEUE["QUEUES"] has: {", ".join(sorted(self.queues))}'
            )
        return queue


DEFAULTS: dict[str, Any] = {
    "CONNECTION": {"URL": DEFAULT_URL},
    "PREFIX": "job_queue",
    "SHARDS": 1,
    "QUEUES": {"default": {}},
    "LEASE": 15,
    "HEARTBEAT": 4,
    "TIMEOUT": 300,
    "MAX_RECOVERIES": 3,
    "BATCH_WINDOW_MS": 20,
    "EVENTS_CAP": 500_000,
    "KEEP_COMPLETED": 100_000,
    "KEEP_FAILED": 100_000,
    "RESULT_TTL": 86_400,
    "FAILED_TTL": 2_592_000,
    "ALERT_WAIT": None,
    "ALERT_FAILED": 0.1,
    "AGING": None,
    "FINISHED_MAX_BYTES": 268_435_456,
    "RESEND_WINDOW": 10,
    "EVENT_TTL": 86_400,
    "MAX_PAYLOAD_BYTES": 262_144,
    "MAX_RESULT_BYTES": 1_048_576,
    "MAX_ERROR_BYTES": 16_384,
    "ENQUEUE_ON_COMMIT": True,
    "WAIT_REPLICAS": 0,
    "OUTBOX": False,
    "MIRROR": True,
    "AUDIT_RETENTION": 7_776_000,
    "TASK_MODULES": [],
    "INDEXED": [],
    "SCHEDULES": {},
    "LIMITS": {},
    "WEIGHTS": {},
}
PROPERTIES = ("task", "workflow")  # that may be INDEXED, besides tags
SCHEDULE_KEYS = (
    "task", "cron", "every", "args", "kwargs", "queue_name", "priority", "timezone", "misfire",
    "overlap", "jitter",
)  # fmt: skip
QUEUE_KEYS = (
    "KEEP_COMPLETED", "KEEP_FAILED", "RESULT_TTL", "FAILED_TTL", "ALERT_WAIT", "ALERT_FAILED",
    "AGING", "SPREAD",
)  # fmt: skip


@cache
def get_settings() -> Settings:
    """The current settings, cached until ``setting_changed``."""
    return load(getattr(django_settings, "REDISQUEUE", {}))


def load(raw: object) -> Settings:
    """Validate ``raw``. Raises ConfigurationError, which names the key."""
    if not isinstance(raw, Mapping):
        raise ConfigurationError(f"REDISQUEUE must be a dict, not {type(raw).__name__}")
    _refuse_unknown(raw, DEFAULTS, "REDISQUEUE", f"; it takes {', '.join(DEFAULTS)}")
    reader = _Reader({**DEFAULTS, **raw})
    lease_ms, heartbeat_ms = reader.duration("LEASE"), reader.duration("HEARTBEAT")
    if not 0 < heartbeat_ms * 3 <= lease_ms:
        raise ConfigurationError(
            'REDISQUEUE["HEARTBEAT"] must be more than 0 and at most a third of "LEASE", '
            f"so that one lost heartbeat costs no lease ({heartbeat_ms} ms and {lease_ms} ms)"
        )
    return Settings(
        connection=reader.connection(),
        prefix=reader.prefix(),
        shards=reader.integer("SHARDS", 1, MAX_SHARDS),
        queues=reader.queues(),
        retention=reader.retention(),
        lease_ms=lease_ms,
        heartbeat_ms=heartbeat_ms,
        timeout_ms=reader.duration("TIMEOUT"),
        max_recoveries=reader.integer("MAX_RECOVERIES", 1, 1000),
        batch_window_ms=reader.integer("BATCH_WINDOW_MS", 0, 1000),
        events_cap=reader.integer("EVENTS_CAP", 10_000, 2**40),
        finished_max_bytes=reader.integer("FINISHED_MAX_BYTES", 0, 2**50),
        resend_window_ms=reader.duration("RESEND_WINDOW"),
        event_ttl_ms=reader.positive_duration("EVENT_TTL"),
        max_payload_bytes=reader.integer("MAX_PAYLOAD_BYTES", 1, 2**28),
        max_result_bytes=reader.integer("MAX_RESULT_BYTES", 1, 2**28),
        max_error_bytes=reader.integer("MAX_ERROR_BYTES", 256, 2**20),
        enqueue_on_commit=reader.flag("ENQUEUE_ON_COMMIT"),
        wait_replicas=reader.integer("WAIT_REPLICAS", 0, 100),
        outbox=reader.flag("OUTBOX"),
        mirror=reader.flag("MIRROR"),
        audit_retention_ms=reader.duration("AUDIT_RETENTION"),
        task_modules=reader.names("TASK_MODULES"),
        indexed=reader.properties("INDEXED"),
        schedules=reader.schedules(),
        limits=reader.limits(),
        weights=reader.weights(),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    values: Mapping[str, Any]
    where: str = field(default="REDISQUEUE")

    def _refuse(self, key: str, allowed: str) -> NoReturn:
        given = short_repr(self.values[key])
        raise ConfigurationError(f'{self.where}["{key}"] must be {allowed}, not {given}')

    def mapping(self, key: str, allowed: str) -> Mapping[Any, Any]:
        value = self.values[key]
        return value if isinstance(value, Mapping) else self._refuse(key, f"a dict {allowed}")

    def sequence(self, key: str, allowed: str) -> Sequence[Any]:
        value = self.values[key]
        return value if isinstance(value, list | tuple) else self._refuse(key, allowed)

    def duration(self, key: str) -> int:
        try:
            return to_ms(self.values[key], f'{self.where}["{key}"]')
        except InvalidOption as error:
            raise ConfigurationError(str(error)) from None

    def optional_duration(self, key: str) -> int | None:
        return None if self.values[key] is None else self.duration(key)

    def share(self, key: str) -> float | None:
        value = self.values[key]
        if value is None or is_number(value, 0, 1):
            return value
        self._refuse(key, "a number from 0 to 1, or None for no alarm")

    def positive_duration(self, key: str) -> int:
        return self.duration(key) or self._refuse(key, "more than 0")

    def aging(self) -> int | None:
        duration = self.optional_duration("AGING")
        if duration == 0:
            self._refuse("AGING", "more than 0, or None for no aging")
        return duration

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.values[key]
        if is_int(value, low, high):
            return value
        self._refuse(key, f"a whole number from {low} to {high}")

    def flag(self, key: str) -> bool:
        value = self.values[key]
        return value if isinstance(value, bool) else self._refuse(key, "True or False")

    def names(self, key: str) -> tuple[str, ...]:
        value = self.sequence(key, allowed := "a list of dotted paths")
        if not all(isinstance(name, str) for name in value):
            self._refuse(key, allowed)
        return tuple(value)

    def properties(self, key: str) -> tuple[str, ...]:
        value = self.sequence(key, 'a list such as ["task", "tags.tenant"]')
        for name in value:
            if not (isinstance(name, str) and (name in PROPERTIES or _is_tag(name))):
                raise ConfigurationError(
                    f'{self.where}["{key}"] has {short_repr(name)}'
                    f'{did_you_mean(name, PROPERTIES)}; it takes "task", "workflow", and '
                    '"tags.<name>" for a tag'
                )
        return tuple(dict.fromkeys(value))

    def connection(self) -> Mapping[str, Any]:
        value = self.values["CONNECTION"]
        where = f'{self.where}["CONNECTION"]'
        if not isinstance(value, Mapping) or len(value) != 1 or not {"URL", "CACHE"} & set(value):
            # Not the value, which may contain a password.
            keys = f" of {short_repr(list(value))}" if isinstance(value, Mapping) else ""
            raise ConfigurationError(
                f'{where} must be {{"URL": "redis://..."}} or {{"CACHE": alias}}, '
                f"not a {type(value).__name__}{keys}"
            )
        [(key, address)] = value.items()
        if key == "URL" and isinstance(address, list | tuple):
            self._check_urls(address, where)
        elif not isinstance(address, str) or not address:
            raise ConfigurationError(f'{where}["{key}"] must be a non-empty string')
        return dict(value)

    def _check_urls(self, urls: Sequence[object], where: str) -> None:
        """Shard ``n`` is on the server ``n`` modulo the number of servers: each needs a shard."""
        shards = self.integer("SHARDS", 1, MAX_SHARDS)
        if not urls or not all(isinstance(url, str) and url for url in urls):
            raise ConfigurationError(f'{where}["URL"] must be a URL or a list of URLs')
        if len(urls) > shards:
            raise ConfigurationError(
                f'{where}["URL"] names {len(urls)} servers, more than REDISQUEUE["SHARDS"] '
                f"({shards}), so that some would have no shard; name at most one for each shard"
            )

    def prefix(self) -> str:
        value = self.values["PREFIX"]
        try:
            return check_queue_name(value)
        except InvalidName:
            raise ConfigurationError(
                f'{self.where}["PREFIX"] is {short_repr(value)}; '
                'use 1 to 64 letters, digits, "_", "." or "-"'
            ) from None

    def queues(self) -> Mapping[str, QueueSettings]:
        allowed = 'of queue name to its settings, such as {"default": {}}'
        raw = self.mapping("QUEUES", allowed) or self._refuse("QUEUES", f"a dict {allowed}")
        self.retention()  # report a wrong default even if no queue uses it
        return {_queue_name(name): self._queue(name, raw[name]) for name in raw}

    def _queue(self, name: str, raw: object) -> QueueSettings:
        where = f'{self.where}["QUEUES"]["{name}"]'
        if not isinstance(raw, Mapping):
            raise ConfigurationError(f"{where} must be a dict, not {type(raw).__name__}")
        _refuse_unknown(raw, QUEUE_KEYS, where, f"; a queue takes {', '.join(QUEUE_KEYS)}")
        own = _Reader({"SPREAD": False, **self.values, **raw}, where)
        return replace(own.retention(), spread=own.flag("SPREAD"))

    def schedules(self) -> Mapping[str, ScheduleSettings]:
        raw = self.mapping(
            "SCHEDULES",
            'of name to schedule, such as {"nightly": {"task": "shop.tasks.report", '
            '"cron": "0 4 * * *"}}',
        )
        return {name: _schedule(name, raw[name]) for name in raw}

    def limits(self) -> Mapping[str, NamedLimit]:
        raw = self.mapping("LIMITS", 'of name to limit, such as {"stripe": {"concurrency": 5}}')
        return {_limit_name(name): _named_limit(name, raw[name]) for name in raw}

    def weights(self) -> Mapping[str, int]:
        raw = self.mapping("WEIGHTS", 'of share to weight, such as {"gold": 3}')
        for share, weight in raw.items():
            if not is_int(weight, 1, MAX_WEIGHT):
                raise ConfigurationError(
                    f'{self.where}["WEIGHTS"][{short_repr(share)}] must be a whole number from 1 '
                    f"to {MAX_WEIGHT}, not {short_repr(weight)}"
                )
        return {_share(share): weight for share, weight in raw.items()}

    def retention(self) -> QueueSettings:
        return QueueSettings(
            keep_completed=self.integer("KEEP_COMPLETED", 0, 2**32),
            keep_failed=self.integer("KEEP_FAILED", 0, 2**32),
            result_ttl_ms=self.duration("RESULT_TTL"),
            failed_ttl_ms=self.duration("FAILED_TTL"),
            alert_wait_ms=self.optional_duration("ALERT_WAIT"),
            alert_failed=self.share("ALERT_FAILED"),
            aging_ms=self.aging(),
        )


def _queue_name(name: object) -> str:
    try:
        return check_queue_name(name)
    except InvalidName as error:
        raise ConfigurationError(f'REDISQUEUE["QUEUES"]: {error}') from None


def _limit_name(name: object) -> str:
    try:
        return check_queue_name(name)
    except InvalidName:
        raise ConfigurationError(
            f'REDISQUEUE["LIMITS"] has a limit {short_repr(name)}; a name has 1 to 64 letters, '
            'digits, "_", "." or "-"'
        ) from None


def _share(value: object) -> str:
    try:
        return encode_share(value)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f'REDISQUEUE["WEIGHTS"]: a share must be a value of JSON, not {short_repr(value)}'
        ) from None


def _named_limit(name: str, raw: object) -> NamedLimit:
    where = f'REDISQUEUE["LIMITS"]["{name}"]'
    if not isinstance(raw, Mapping):
        raise ConfigurationError(
            f'{where} must be a dict such as {{"concurrency": 5}}, not {short_repr(raw)}'
        )
    try:
        return make_named_limit(raw)
    except InvalidOption as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _schedule(name: object, raw: object) -> ScheduleSettings:
    where = f'REDISQUEUE["SCHEDULES"][{short_repr(name)}]'
    try:
        check_schedule_name(name)
        if not isinstance(raw, Mapping):
            raise ConfigurationError(f"{where} must be a dict, not {type(raw).__name__}")
        _refuse_unknown(raw, SCHEDULE_KEYS, where, f"; it takes {', '.join(SCHEDULE_KEYS)}")
        if "task" not in raw:
            raise InvalidOption('"task" is missing: the name of the task to run')
        return ScheduleSettings(
            task=check_task_name(raw["task"]),
            schedule=make_schedule(
                {key: raw[key] for key in SCHEDULE_OPTIONS if raw.get(key) is not None}
            ),
            args=_of_type(raw.get("args", ()), (list, tuple), "args must be a list"),
            kwargs=_of_type(raw.get("kwargs", {}), (Mapping,), "kwargs must be a dict"),
            queue_name=raw.get("queue_name"),
            priority=raw.get("priority"),
        )
    except (InvalidName, InvalidOption) as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _of_type(value: Any, types: tuple[type, ...], rule: str) -> Any:
    if isinstance(value, types):
        return value
    raise InvalidOption(f"{rule}, not {short_repr(value)}")


def _is_tag(name: str) -> bool:
    prefix, _, tag = name.partition(".")
    try:
        return prefix == "tags" and bool(check_tag_name(tag))
    except InvalidName:
        return False


def _refuse_unknown(raw: Mapping[Any, Any], known: Any, where: str, takes: str = "") -> None:
    for key in raw:
        if key not in known:
            close = did_you_mean(key, known)
            if known is DEFAULTS and key in ("URL", "CACHE"):
                close = f'; write "CONNECTION": {{"{key}": ...}}'
            raise ConfigurationError(f"{where} has no key {short_repr(key)}{close}{takes}")


_overrides: list[object] = []  # of REDISQUEUE, active now by override_settings


def _forget(*, setting: str, value: object, enter: bool, **_: object) -> None:
    if setting != "REDISQUEUE":
        return
    get_settings.cache_clear()
    if enter:
        _overrides.append(value)
    elif _overrides:
        _overrides.pop()


setting_changed.connect(_forget, dispatch_uid="django_redisqueue.conf")


def is_in_test_run() -> bool:
    """Whether Django's test environment is set up, in which DEBUG is off."""
    state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    return hasattr(state, "saved_data")


def check_redis_is_meant(*, in_memory: bool) -> None:
    """Raise ConfigurationError in a test that did not ask for Redis: it may be a developer's Redis,
    whose worker would run the test's jobs. ``in_memory``: the test keeps its jobs in memory."""
    if not _overrides and is_in_test_run():
        remedy = (
            "run_inline() and capture_jobs() keep jobs, gathers and workflows in memory, but this "
            "(a queue as a whole) is in Redis alone. Name"
            if in_memory
            else "Keep its jobs in memory with run_inline() or capture_jobs() of "
            "django_redisqueue.testing; or name"
        )
        raise ConfigurationError(
            f"this is a test, and it has not asked for Redis. {remedy} a Redis of the tests' own "
            "with override_settings(REDISQUEUE=...); or, to use the one in the settings, wrap the "
            "test in testing.use_redis()"
        )
