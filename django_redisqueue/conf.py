"""The settings, read lazily from ``settings.REDISQUEUE``.

Internally, durations are milliseconds and sizes bytes. ``load`` raises ConfigurationError, which a
system check turns into a message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NoReturn, TypeVar

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
from .core.redaction import without_frames
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
PROPERTIES = ("task", "workflow")  # that may be INDEXED, in addition to tags
SCHEDULE_KEYS = ("task", "args", "kwargs", "queue_name", "priority", *SCHEDULE_OPTIONS)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Validates values in REDISQUEUE, or in one queue's dict. ``where``: the name of the dict in
    messages."""

    values: Mapping[str, Any] = field(repr=False)  # CONNECTION may have a password
    where: str = "REDISQUEUE"

    def read(self, kind: type) -> dict[str, Any]:
        """The values of the fields of a class that are settings (``_setting``)."""
        found = [(one.name, one.metadata) for one in fields(kind) if one.metadata]
        return {name: metadata["read"](self, metadata["key"]) for name, metadata in found}

    def _refuse(self, key: str, allowed: str) -> NoReturn:
        given = short_repr(self.values[key])
        raise ConfigurationError(f'{self.where}["{key}"] must be {allowed}, not {given}')

    def _mapping(self, key: str, allowed: str) -> Mapping[Any, Any]:
        value = self.values[key]
        return value if isinstance(value, Mapping) else self._refuse(key, f"a dict {allowed}")

    def _sequence(self, key: str, allowed: str) -> Sequence[Any]:
        value = self.values[key]
        return value if isinstance(value, list | tuple) else self._refuse(key, allowed)

    def duration(self, key: str) -> int:
        with _located():
            return to_ms(self.values[key], f'{self.where}["{key}"]')

    def optional_duration(self, key: str) -> int | None:
        return None if self.values[key] is None else self.duration(key)

    def positive_duration(self, key: str) -> int:
        return self.duration(key) or self._refuse(key, "more than 0")

    def aging(self, key: str) -> int | None:
        duration = self.optional_duration(key)
        return self._refuse(key, "more than 0, or None for no aging") if duration == 0 else duration

    def share(self, key: str) -> float | None:
        value = self.values[key]
        if value is None or is_number(value, 0, 1):
            return value
        self._refuse(key, "a number from 0 to 1, or None for no alarm")

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.values[key]
        if is_int(value, low, high):
            return value
        self._refuse(key, f"a whole number from {low} to {high}")

    def flag(self, key: str) -> bool:
        value = self.values[key]
        return value if isinstance(value, bool) else self._refuse(key, "True or False")

    def names(self, key: str) -> tuple[str, ...]:
        value = self._sequence(key, allowed := "a list of dotted paths")
        if not all(isinstance(name, str) for name in value):
            self._refuse(key, allowed)
        return tuple(value)

    def properties(self, key: str) -> tuple[str, ...]:
        value = self._sequence(key, 'a list such as ["task", "tags.tenant"]')
        for name in value:
            if not (isinstance(name, str) and (name in PROPERTIES or _is_tag(name))):
                raise ConfigurationError(
                    f'{self.where}["{key}"] has {short_repr(name)}'
                    f'{did_you_mean(name, PROPERTIES)}; it accepts "task", "workflow", and '
                    '"tags.<name>" for a tag'
                )
        return tuple(dict.fromkeys(value))

    def connection(self, key: str) -> Mapping[str, Any]:
        value = self.values[key]
        where = f'{self.where}["{key}"]'
        if not isinstance(value, Mapping) or len(value) != 1 or not {"URL", "CACHE"} & set(value):
            # Not the value, which may contain a password.
            keys = f" of {short_repr(list(value))}" if isinstance(value, Mapping) else ""
            raise ConfigurationError(
                f'{where} must be {{"URL": "redis://..."}} or {{"CACHE": alias}}, '
                f"not a {type(value).__name__}{keys}"
            )
        [(kind, address)] = value.items()
        if kind == "URL" and isinstance(address, list | tuple):
            self._check_urls(address, where)
        elif not isinstance(address, str) or not address:
            raise ConfigurationError(f'{where}["{kind}"] must be a non-empty string')
        return dict(value)

    def _check_urls(self, urls: Sequence[object], where: str) -> None:
        """Shard ``n`` is on server ``n`` modulo their number, and each server must have a shard."""
        shards = self.integer("SHARDS", 1, MAX_SHARDS)
        if not urls or not all(isinstance(url, str) and url for url in urls):
            raise ConfigurationError(f'{where}["URL"] must be a URL or a list of URLs')
        if len(urls) > shards:
            raise ConfigurationError(
                f'{where}["URL"] names {len(urls)} servers, more than REDISQUEUE["SHARDS"] '
                f"({shards}), so some would have no shard; name at most one for each shard"
            )

    def prefix(self, key: str) -> str:
        value = self.values[key]
        return _short_name(value, f'{self.where}["{key}"] is {short_repr(value)}')

    def queues(self, key: str) -> Mapping[str, QueueSettings]:
        allowed = 'of queue name to its settings, such as {"default": {}}'
        raw = self._mapping(key, allowed) or self._refuse(key, f"a dict {allowed}")
        self.retention()  # report a wrong default even if no queue uses it
        return {name: self._queue(name, raw[name]) for name in raw}

    def _queue(self, name: str, raw: object) -> QueueSettings:
        with _located('REDISQUEUE["QUEUES"]: '):
            check_queue_name(name)
        where = f'{self.where}["QUEUES"]["{name}"]'
        if not isinstance(raw, Mapping):
            raise ConfigurationError(f"{where} must be a dict, not {type(raw).__name__}")
        _refuse_unknown(raw, QUEUE_KEYS, where, f"; a queue accepts {', '.join(QUEUE_KEYS)}")
        return _Reader({**self.values, **raw}, where).retention()

    def retention(self) -> QueueSettings:
        return QueueSettings(**self.read(QueueSettings))

    def schedules(self, key: str) -> Mapping[str, ScheduleSettings]:
        raw = self._mapping(
            key,
            'of name to schedule, such as {"nightly": {"task": "shop.tasks.report", '
            '"cron": "0 4 * * *"}}',
        )
        return {name: _schedule(name, raw[name]) for name in raw}

    def limits(self, key: str) -> Mapping[str, NamedLimit]:
        raw = self._mapping(key, 'of name to limit, such as {"stripe": {"concurrency": 5}}')
        return {name: _named_limit(name, raw[name]) for name in raw}

    def weights(self, key: str) -> Mapping[str, int]:
        found = {}
        for share, weight in self._mapping(key, 'of share to weight, such as {"gold": 3}').items():
            if not is_int(weight, 1, MAX_WEIGHT):
                raise ConfigurationError(
                    f'{self.where}["{key}"][{short_repr(share)}] must be a whole number from 1 '
                    f"to {MAX_WEIGHT}, not {short_repr(weight)}"
                )
            try:
                found[encode_share(share)] = weight
            except (TypeError, ValueError):
                raise ConfigurationError(
                    f'REDISQUEUE["{key}"]: a share must be a JSON value, not {short_repr(share)}'
                ) from None
        return found


def _setting(key: str, default: object, read: Callable[[_Reader, str], T]) -> T:
    """A field that is the setting ``key``."""
    metadata = {"key": key, "default": default, "read": read}
    made: Any = field(metadata=metadata, repr=key != "CONNECTION")  # it may have a password
    return made  # type: ignore[no-any-return]


def _integer(low: int, high: int) -> Callable[[_Reader, str], int]:
    return lambda reader, key: reader.integer(key, low, high)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """One queue's retention of finished jobs, its alarms and aging. ``keep_*`` are
    counts, ``*_ms`` milliseconds; an ``alert_*`` of None raises no alarm."""

    keep_completed: int = _setting("KEEP_COMPLETED", 100_000, _integer(0, 2**32))
    keep_failed: int = _setting("KEEP_FAILED", 100_000, _integer(0, 2**32))
    result_ttl_ms: int = _setting("RESULT_TTL", 86_400, _Reader.duration)
    failed_ttl_ms: int = _setting("FAILED_TTL", 2_592_000, _Reader.duration)
    alert_wait_ms: int | None = _setting("ALERT_WAIT", None, _Reader.optional_duration)
    #: The share of ended jobs, from 0 to 1.
    alert_failed: float | None = _setting("ALERT_FAILED", 0.1, _Reader.share)
    #: The waiting time that counts as one step of priority.
    aging_ms: int | None = _setting("AGING", None, _Reader.aging)
    #: Whether its jobs go to all shards in turn.
    spread: bool = _setting("SPREAD", False, _Reader.flag)


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """A schedule from the settings. Whether its task exists and accepts the arguments is checked
    once all tasks are known."""

    task: str
    schedule: Schedule
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    queue_name: str | None  # None: the task's queue
    priority: int | None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, validated. Sizes are bytes, durations milliseconds."""

    connection: Mapping[str, Any] = _setting(
        "CONNECTION", {"URL": "redis://localhost:6379/0"}, _Reader.connection
    )
    prefix: str = _setting("PREFIX", "job_queue", _Reader.prefix)
    shards: int = _setting("SHARDS", 1, _integer(1, MAX_SHARDS))
    queues: Mapping[str, QueueSettings] = _setting("QUEUES", {"default": {}}, _Reader.queues)
    lease_ms: int = _setting("LEASE", 15, _Reader.duration)
    heartbeat_ms: int = _setting("HEARTBEAT", 4, _Reader.duration)
    timeout_ms: int = _setting("TIMEOUT", 300, _Reader.duration)
    max_recoveries: int = _setting("MAX_RECOVERIES", 3, _integer(1, 1000))
    batch_window_ms: int = _setting("BATCH_WINDOW_MS", 20, _integer(0, 1000))
    events_cap: int = _setting("EVENTS_CAP", 500_000, _integer(10_000, 2**40))
    finished_max_bytes: int = _setting("FINISHED_MAX_BYTES", 268_435_456, _integer(0, 2**50))
    resend_window_ms: int = _setting("RESEND_WINDOW", 10, _Reader.duration)
    event_ttl_ms: int = _setting("EVENT_TTL", 86_400, _Reader.positive_duration)
    max_payload_bytes: int = _setting("MAX_PAYLOAD_BYTES", 262_144, _integer(1, 2**28))
    max_result_bytes: int = _setting("MAX_RESULT_BYTES", 1_048_576, _integer(1, 2**28))
    max_error_bytes: int = _setting("MAX_ERROR_BYTES", 16_384, _integer(256, 2**20))
    enqueue_on_commit: bool = _setting("ENQUEUE_ON_COMMIT", True, _Reader.flag)
    wait_replicas: int = _setting("WAIT_REPLICAS", 0, _integer(0, 100))
    outbox: bool = _setting("OUTBOX", False, _Reader.flag)
    mirror: bool = _setting("MIRROR", True, _Reader.flag)
    audit_retention_ms: int = _setting("AUDIT_RETENTION", 7_776_000, _Reader.duration)
    task_modules: tuple[str, ...] = _setting("TASK_MODULES", [], _Reader.names)
    indexed: tuple[str, ...] = _setting("INDEXED", [], _Reader.properties)
    schedules: Mapping[str, ScheduleSettings] = _setting("SCHEDULES", {}, _Reader.schedules)
    limits: Mapping[str, NamedLimit] = _setting("LIMITS", {}, _Reader.limits)
    #: Weights of shares, by the encoded values.
    weights: Mapping[str, int] = _setting("WEIGHTS", {}, _Reader.weights)
    #: For queues that have no retention of their own or are not in ``queues``.
    retention: QueueSettings = field(kw_only=True)

    @property
    def own_queue(self) -> str:
        """The queue for this package's own jobs: "default", or else the first in QUEUES."""
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


def _defaults(kind: type) -> dict[str, Any]:
    return {one.metadata["key"]: one.metadata["default"] for one in fields(kind) if one.metadata}


QUEUE_KEYS = tuple(_defaults(QueueSettings))
DEFAULTS = {**_defaults(Settings), **_defaults(QueueSettings)}
del DEFAULTS["SPREAD"]  # only queues have it


@cache
def get_settings() -> Settings:
    """The current settings, cached until ``setting_changed``."""
    try:
        return load(getattr(django_settings, "REDISQUEUE", {}))
    except ConfigurationError as error:
        without_frames(error)  # error pages show locals, and CONNECTION may have a password
        raise


def load(raw: object) -> Settings:
    """Validate ``raw``. Raises ConfigurationError, which names the key."""
    if not isinstance(raw, Mapping):
        raise ConfigurationError(f"REDISQUEUE must be a dict, not {type(raw).__name__}")
    _refuse_unknown(raw, DEFAULTS, "REDISQUEUE", f"; it accepts {', '.join(DEFAULTS)}")
    reader = _Reader({"SPREAD": False, **DEFAULTS, **raw})
    settings = Settings(**reader.read(Settings), retention=reader.retention())
    if not 0 < settings.heartbeat_ms * 3 <= settings.lease_ms:
        raise ConfigurationError(
            'REDISQUEUE["HEARTBEAT"] must be more than 0 and at most a third of "LEASE", so that '
            f"no lease expires because of one lost heartbeat ({settings.heartbeat_ms} ms and "
            f"{settings.lease_ms} ms)"
        )
    return settings


@contextmanager
def _located(where: str = "") -> Iterator[None]:
    """Turn errors about a value into a ConfigurationError that says where the value is."""
    try:
        yield
    except (InvalidName, InvalidOption) as error:
        raise ConfigurationError(f"{where}{error}") from None


def _short_name(value: object, fault: str) -> str:
    try:
        return check_queue_name(value)
    except InvalidName:
        raise ConfigurationError(f'{fault}; use 1 to 64 letters, digits, "_", "." or "-"') from None


def _named_limit(name: str, raw: object) -> NamedLimit:
    _short_name(name, f'REDISQUEUE["LIMITS"] has a limit {short_repr(name)}')
    where = f'REDISQUEUE["LIMITS"]["{name}"]'
    if not isinstance(raw, Mapping):
        raise ConfigurationError(
            f'{where} must be a dict such as {{"concurrency": 5}}, not {short_repr(raw)}'
        )
    with _located(f"{where}: "):
        return make_named_limit(raw)


def _schedule(name: object, raw: object) -> ScheduleSettings:
    where = f'REDISQUEUE["SCHEDULES"][{short_repr(name)}]'
    with _located(f"{where}: "):
        check_schedule_name(name)
        if not isinstance(raw, Mapping):
            raise ConfigurationError(f"{where} must be a dict, not {type(raw).__name__}")
        _refuse_unknown(raw, SCHEDULE_KEYS, where, f"; it accepts {', '.join(SCHEDULE_KEYS)}")
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


_overrides: list[object] = []  # values of REDISQUEUE that override_settings has set now


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
    """Whether Django's test environment is set up (there DEBUG is off)."""
    state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    return hasattr(state, "saved_data")


def check_redis_is_meant(*, in_memory: bool) -> None:
    """Raise ConfigurationError in a test that did not request Redis: it may be a developer's Redis,
    whose worker would run the test's jobs. ``in_memory``: the test keeps its jobs in memory."""
    if not _overrides and is_in_test_run():
        remedy = (
            "run_inline() and capture_jobs() keep jobs, gathers and workflows in memory, but this "
            "(a queue as a whole) is only in Redis. Name"
            if in_memory
            else "Keep its jobs in memory with run_inline() or capture_jobs() of "
            "django_redisqueue.testing; or name"
        )
        raise ConfigurationError(
            f"this test has not requested Redis. {remedy} a Redis for tests with "
            "override_settings(REDISQUEUE=...); or, to use the one in the settings, wrap the test "
            "in testing.use_redis()"
        )
