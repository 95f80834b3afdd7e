"""The policies of a task: ``Limit`` and ``Rate``, the lane of a job, the modes of
``@task(unique=...)``, and ``Backoff``, how long to wait before the next attempt.

A lane is ``<share>|<limit key>|<limit key>``, followed, separated by spaces, by the numbers of its
limits and by what a conflict means. A limit key is ``<kind>:<limit>:<value>``, with the kind ``c``
(concurrency) or ``r`` (rate). Lua reads this (broker/lua/include/lane_names.lua).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from ..exceptions import InvalidOption, did_you_mean, short_repr
from .clock import MAX_DURATION, Duration, period_text, to_ms, to_period_ms, to_seconds
from .codec import dumps
from .parsing import is_int, is_number
from .statuses import OnConflict, UniqueMode

MAX_JOBS = 1_000_000  # of a limit
MAX_WEIGHT = 100
MAX_VALUE = 60  # characters of a value in a key; a longer one is cut and hashed
MIN_WINDOW_MS, MAX_WINDOW_MS = 10, 366 * 86_400_000
_HASHED = re.compile(r"~[0-9a-f]{32}$")  # at the end of a shown value
STRIDE = 100  # a share's pass grows by this, divided by its weight (lane_names.lua)

#: A parameter's name, a tuple of names, or a callable that gets the job's arguments
Key = str | Sequence[str] | Callable[..., Any]

ALL_ARGUMENTS = "arguments"
MAX_KEY = 200  # characters of a callable's return value, percent-encoded
IDEMPOTENCY_MS = 86_400_000  # how long the API remembers an Idempotency-Key

MAX_FACTOR = 1_000_000


def _names(value: object) -> tuple[str, ...]:
    """One or more names as a tuple; () for anything else."""
    names = (value,) if isinstance(value, str) else value
    is_several = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
    return tuple(names) if is_several else ()  # type: ignore[arg-type]


def _check_key(key: object, where: str) -> None:
    if not (key is None or callable(key) or _names(key)):
        raise InvalidOption(
            f"{where} must be a parameter's name, a tuple of names or a callable, "
            f"not {short_repr(key)}"
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """At most this many jobs run at once: ``Limit(5)`` for a task, ``Limit(5, key="tenant_id")``
    for each value of an argument, ``Limit("stripe")`` for a limit of ``REDISQUEUE["LIMITS"]`` that
    several tasks share. Raises InvalidOption."""

    most: int | str
    _: KW_ONLY
    key: Key | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.most, str) and not is_int(self.most, 1, MAX_JOBS):
            raise InvalidOption(
                f"Limit takes a whole number from 1 to {MAX_JOBS} or the name of a limit, not "
                f"{short_repr(self.most)}; to stop a queue, pause it"
            )
        _check_key(self.key, "key of Limit")

    @property
    def name(self) -> str:
        return self.most if isinstance(self.most, str) else ""

    @property
    def number(self) -> str:
        return str(self.most)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``most`` jobs start in any window of this length: ``Rate(100, "1m")``, with a key or
    a name as in ``Limit``. Starts are spread evenly; up to ``burst`` of them may come at once, and
    the others are then further apart. Raises InvalidOption."""

    most: int | str
    window: str | timedelta | None = None
    _: KW_ONLY
    key: Key | None = None
    burst: int = 1

    def __post_init__(self) -> None:
        _check_key(self.key, "key of Rate")
        if isinstance(self.most, str):
            if self.window is not None or self.burst != 1:
                raise InvalidOption(
                    f'Rate({self.most!r}) takes its window and burst from REDISQUEUE["LIMITS"]'
                )
            return
        if not is_int(self.most, 1, MAX_JOBS):
            raise InvalidOption(
                f"Rate takes a whole number from 1 to {MAX_JOBS} or the name of a limit, not "
                f"{short_repr(self.most)}"
            )
        if not isinstance(self.window, str | timedelta):
            raise InvalidOption(
                f"Rate({self.most}, ...) needs a window with a unit, such as Rate({self.most}, "
                f'"1m"), not {short_repr(self.window)}'
            )
        window_ms = to_period_ms(self.window, "the window of Rate")
        if not MIN_WINDOW_MS <= window_ms <= MAX_WINDOW_MS:
            raise InvalidOption(
                f'the window of Rate must be from "10ms" to "366d", not {short_repr(self.window)}'
            )
        if not is_int(self.burst, 1, self.most):
            raise InvalidOption(
                f"burst must be a whole number from 1 to the {self.most} jobs of the window, not "
                f"{short_repr(self.burst)}"
            )

    @property
    def name(self) -> str:
        return self.most if isinstance(self.most, str) else ""

    @property
    def number(self) -> str:
        window_us = to_period_ms(self.window, "the window of Rate") * 1000
        return f"{self.most}/{window_us}/{self.burst}"


Limits = tuple[Limit, ...]
Rates = tuple[Rate, ...]


def check_limits(value: object, kind: type[Limit] | type[Rate], name: str) -> tuple[Any, ...]:
    """Limits of one kind as a tuple, from one or a list of up to 4. Raises InvalidOption."""
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    for one in given:
        if not isinstance(one, kind):
            example = "Limit(5)" if kind is Limit else 'Rate(100, "1m")'
            raise InvalidOption(f"{name} must be a limit such as {example}, not {short_repr(one)}")
    if not 1 <= len(given) <= 4:
        raise InvalidOption(f"{name} takes 1 to 4 limits, not {len(given)}")
    return given


def check_fair_by(value: object) -> Key:
    """Check a key, which has the same form as that of ``Limit``. Raises InvalidOption."""
    _check_key(value, "fair_by")
    if value is None:
        raise InvalidOption("fair_by must be a parameter's name, a tuple of names or a callable")
    return value  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class NamedLimit:
    """A limit of ``REDISQUEUE["LIMITS"]``; a missing number is ''."""

    concurrency: str = ""
    rate: str = ""


def make_named_limit(raw: Mapping[str, Any]) -> NamedLimit:
    """``{"concurrency": 5}``, ``{"rate": (100, "1m"), "burst": 10}`` or both. Raises
    InvalidOption."""
    known = ("concurrency", "rate", "burst")
    for name in raw:
        if name not in known:
            raise InvalidOption(
                f"a limit has no {short_repr(name)}{did_you_mean(name, known)}; "
                f"it takes {', '.join(known)}"
            )
    concurrency, rate = raw.get("concurrency"), raw.get("rate")
    if concurrency is None and rate is None:
        raise InvalidOption('a limit needs "concurrency", "rate" or both')
    if isinstance(concurrency, str):
        raise InvalidOption(f"concurrency must be a whole number, not {short_repr(concurrency)}")
    if rate is not None and not (
        isinstance(rate, tuple | list) and len(rate) == 2 and not isinstance(rate[0], str)
    ):
        raise InvalidOption(
            f'rate must be (jobs, window), such as (100, "1m"), not {short_repr(rate)}'
        )
    if rate is None and "burst" in raw:
        raise InvalidOption("burst belongs to a rate, which this limit does not have")
    return NamedLimit(
        "" if concurrency is None else Limit(concurrency).number,
        "" if rate is None else Rate(rate[0], rate[1], burst=raw.get("burst", 1)).number,
    )


def encode_value(value: object) -> str:
    """A value as part of a key: without a space, bar or colon, and cut and hashed if it is long.
    Raises TypeError or ValueError unless it is a JSON value."""
    return bounded(quote(text_of(value), safe="").replace("~", "%7E") or "~")


def text_of(value: object) -> str:
    """The same text for 42 and "42". Raises TypeError or ValueError unless it is a JSON value."""
    return value if isinstance(value, str) else dumps(value)


def bounded(encoded: str) -> str:
    """An encoded value short enough for a key: a longer one is cut and hashed."""
    if len(encoded) <= MAX_VALUE:
        return encoded
    return f"{encoded[:20].rstrip('%')}~{_digest(encoded)}"


def encode_share(value: object) -> str:
    """The share for a value of ``fair_by``, or for a tuple with those of several parameters."""
    if isinstance(value, tuple):
        return bounded(",".join(map(encode_value, value)))
    return encode_value(value)


def encode_shown(text: str) -> str | None:
    """Encode the text that ``shown_value`` returned for a hashed value; None for any other text.
    Raises InvalidOption if the place where the value was cut is unknown."""
    if not _HASHED.search(text):
        return None
    parts = []
    for part in text.split(","):
        found = _HASHED.search(part)
        plain = part[: found.start()] if found else part
        if found and ("%" in plain or "\ufffd" in plain):
            raise InvalidOption(
                f"{short_repr(text)} was cut at an unknown place; pass the value itself"
            )
        parts.append(quote(plain, safe="") + (found[0] if found else ""))
    return ",".join(parts)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def shown_value(encoded: str) -> str:
    """An encoded value in readable form."""
    return unquote(encoded) if encoded != "~" else ""


class RateNumbers(NamedTuple):
    """A rate as Redis stores it. ``interval_us``: the time between two starts outside a burst."""

    jobs: int
    window_us: int
    burst: int

    @property
    def interval_us(self) -> int:
        return -(-(self.window_us + 1000) // (self.jobs - self.burst + 1))

    def __str__(self) -> str:
        return f"{self.jobs} in {period_text(self.window_us // 1000)}"


def decode_rate(number: str) -> RateNumbers | None:
    """Decode the number of a rate; None for any other text."""
    parts = number.split("/")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return None
    found = RateNumbers(*map(int, parts))
    return found if 1 <= found.burst <= found.jobs else None


class Lane(NamedTuple):
    """A decoded lane. ``limits``: its limit keys; ``numbers``: their numbers in the job."""

    name: str
    share: str
    limits: tuple[str, ...]
    numbers: Mapping[str, str]
    on_conflict: OnConflict


def decode_lane(text: str) -> Lane:
    """Decode the lane of a job; '' has no share and no limits. Raises ValueError."""
    name, *words = text.split(" ")
    share, *limits = name.split("|")
    numbers = dict(word.split("=", 1) for word in words if "=" in word)
    choice = next((word[1:] for word in words if word.startswith("!")), OnConflict.WAIT)
    return Lane(name, share, tuple(limits), numbers, OnConflict(choice))


@dataclass(frozen=True)
class For:
    """``unique=For("1h")``: no second job within this time, however the first one ends, unless it
    is cancelled. ``duration``: seconds, a timedelta, or text such as "90s" or "1h30m"."""

    duration: Duration

    def __post_init__(self) -> None:
        to_period_ms(self.duration, "For: its duration")

    @property
    def words(self) -> str:
        return f"for {to_period_ms(self.duration, 'For')} -"


@dataclass(frozen=True)
class Replace:
    """``unique=Replace(wait=10, max_wait=60)``: the job runs with the newest arguments, as soon as
    no new ones have come for ``wait``, and ``max_wait`` after the first call at the latest. Both
    are seconds, timedeltas, or text such as "90s"."""

    wait: Duration
    max_wait: Duration = timedelta(seconds=MAX_DURATION)

    def __post_init__(self) -> None:
        if to_period_ms(self.wait, "Replace: wait") > self._max_ms:
            raise InvalidOption(
                f"Replace: wait ({short_repr(self.wait)}) must not be longer than max_wait "
                f"({short_repr(self.max_wait)})"
            )

    @property
    def _max_ms(self) -> int:
        return to_period_ms(self.max_wait, "Replace: max_wait")

    @property
    def wait_ms(self) -> int:
        return to_period_ms(self.wait, "Replace")

    @property
    def words(self) -> str:
        return f"replace {self.wait_ms} {self._max_ms}"


Unique = UniqueMode | For | Replace
UniqueBy = tuple[str, ...] | Callable[..., str]


def to_unique(value: object) -> Unique | Literal[False]:
    """The mode that ``unique`` names; False turns it off. Raises InvalidOption."""
    if value is False:
        return False
    if isinstance(value, For | Replace):
        return value
    if isinstance(value, str) and value in set(UniqueMode):
        return UniqueMode(value)
    raise InvalidOption(
        f"unique must be one of {', '.join(UniqueMode)}, For(...), Replace(...), or False, "
        f"not {short_repr(value)}"
    )


def check_unique_by(value: object) -> UniqueBy | None:
    """The names of ``unique_by`` as a tuple, or a callable; None for all arguments."""
    if value == ALL_ARGUMENTS:
        return None
    if callable(value):
        return value
    if names := _names(value):
        return names
    raise InvalidOption(
        'unique_by must be "arguments", the name of a parameter, a tuple of names, or a callable, '
        f"not {short_repr(value)}"
    )


def encode_unique(key: str, unique: Unique) -> str:
    """A key and its mode, in the form that unique.lua reads."""
    words = unique.words if isinstance(unique, For | Replace) else f"{unique.value} - -"
    return f"{key} {words}"


def encode_idempotency(key: str, fingerprint: str) -> str:
    """The key of an HTTP request, which may be repeated only with the same body."""
    return f"{key} once {IDEMPOTENCY_MS} {fingerprint}"


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A key that a job has. ``status``: of that job, or '' when it is gone; ``until_ms``: when a
    key with a lifetime of its own expires. Times are ms since the epoch, by Redis's clock."""

    key: str
    job_id: str
    status: str = ""
    task: str = ""
    taken_ms: int = 0
    until_ms: int | None = None


def quoted_key(task: str, text: str) -> str:
    """A key made from text, without spaces. Raises ValueError if it is empty or too long."""
    quoted = quote(text, safe="-_.~:/@+,=")
    if not 0 < len(quoted) <= MAX_KEY:
        raise ValueError(f"it has {len(quoted)} characters, percent-encoded")
    return f"{task}:{quoted}"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with jitter: ``base * factor ** (attempt - 1)``, at most ``maximum``.

    ``base`` and ``maximum`` are durations; ``jitter`` is the fraction by which a delay may vary
    either way, so that jobs that failed together are not retried together (AWS Architecture Blog,
    "Exponential Backoff And Jitter", 2015).
    """

    base: Duration = 2.0
    factor: float = 2.0
    maximum: Duration = 600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        to_seconds(self.base, "Backoff(base=...)")
        to_seconds(self.maximum, "Backoff(maximum=...)")
        _check_number(self.factor, "factor", 1, MAX_FACTOR)
        _check_number(self.jitter, "jitter", 0, 1)

    def delay_ms(self, attempt: int) -> int:
        """Milliseconds to wait after attempt number ``attempt`` (1 is the first) failed."""
        base, maximum = to_seconds(self.base, "base"), to_seconds(self.maximum, "maximum")
        try:
            seconds = min(maximum, base * float(self.factor) ** (attempt - 1))
        except OverflowError:  # far above maximum
            seconds = maximum if base else 0.0
        return round(1000 * seconds * (1 + self.jitter * random.uniform(-1, 1)))


def _check_number(value: object, name: str, low: int, high: int) -> None:
    if not is_number(value, low, high):
        raise InvalidOption(
            f"Backoff({name}=...) must be a number from {low} to {high}, not {short_repr(value)}"
        )


@dataclass(frozen=True, slots=True)
class FixedDelays:
    """A list of delays in milliseconds, one for each attempt; the last repeats."""

    delays_ms: tuple[int, ...]

    def delay_ms(self, attempt: int) -> int:
        """Milliseconds to wait after attempt number ``attempt`` failed."""
        return self.delays_ms[min(attempt, len(self.delays_ms)) - 1]


def to_backoff(value: object) -> Backoff | FixedDelays:
    """Convert a Backoff, a delay or a list of delays. Raises InvalidOption."""
    if isinstance(value, Backoff | FixedDelays):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        delays = enumerate(value, 1)
        return FixedDelays(tuple(to_ms(delay, f"delay {n} of backoff") for n, delay in delays))
    return FixedDelays((to_ms(value, "backoff, unless a Backoff or a list of delays,"),))
