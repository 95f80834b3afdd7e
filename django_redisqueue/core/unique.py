"""What makes a job unique: ``For``, ``Replace`` and the other modes, as the scripts read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from urllib.parse import quote

from ..exceptions import InvalidOption, short_repr
from .clock import MAX_DURATION, Duration, to_period_ms
from .statuses import UniqueMode

ALL_ARGUMENTS = "arguments"
MAX_KEY = 200  # characters of what a callable returns, percent-encoded
IDEMPOTENCY_MS = 86_400_000  # how long the API remembers an Idempotency-Key


@dataclass(frozen=True)
class For:
    """``unique=For("1h")``: no second job within this time, however the first ends, unless it is
    cancelled. ``duration``: seconds, a timedelta, or a text such as "90s" or "1h30m"."""

    duration: Duration | str

    def __post_init__(self) -> None:
        to_period_ms(self.duration, "For: its duration")

    @property
    def words(self) -> str:
        return f"for {to_period_ms(self.duration, 'For')} -"


@dataclass(frozen=True)
class Replace:
    """``unique=Replace(wait=10, max_wait=60)``: the job runs with the newest arguments, once
    nothing new has come for ``wait``, and ``max_wait`` after the first at the latest. Both are
    seconds, timedeltas, or texts such as "90s"."""

    wait: Duration | str
    max_wait: Duration | str = timedelta(seconds=MAX_DURATION)

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
    names = (value,) if isinstance(value, str) else value
    if isinstance(names, tuple | list) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise InvalidOption(
        'unique_by must be "arguments", the name of a parameter, a tuple of names, or a callable, '
        f"not {short_repr(value)}"
    )


def encode_unique(key: str, unique: Unique) -> str:
    """A key and its mode as unique.lua reads them."""
    words = unique.words if isinstance(unique, For | Replace) else f"{unique.value} - -"
    return f"{key} {words}"


def encode_idempotency(key: str, fingerprint: str) -> str:
    """The key of an HTTP request, with which only the same body may come again."""
    return f"{key} once {IDEMPOTENCY_MS} {fingerprint}"


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A key that a job has. ``status``: of that job, or '' when it is gone; ``until_ms``: the end
    of a key that lasts for a time of its own. Instants are ms since the epoch, by Redis's clock."""

    key: str
    job_id: str
    status: str = ""
    task: str = ""
    taken_ms: int = 0
    until_ms: int | None = None


def quoted_key(task: str, text: str) -> str:
    """A key from a text, without blanks. Raises ValueError if it is empty or too long."""
    quoted = quote(text, safe="-_.~:/@+,=")
    if not 0 < len(quoted) <= MAX_KEY:
        raise ValueError(f"it has {len(quoted)} characters, percent-encoded")
    return f"{task}:{quoted}"
