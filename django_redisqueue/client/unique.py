"""Unique keys: computed from a job's arguments when it is enqueued; listed and released later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.utils.crypto import salted_hmac

from ..core.codec import check
from ..core.unique import MAX_KEY, Replace, Unique, UniqueBy, UniqueKey, encode_unique, quoted_key
from ..exceptions import InvalidArguments, InvalidOption, did_you_mean, short_repr
from .functions import Parameters
from .transport import transport

PAGE = 100  # keys a page at the most
DIGEST_BYTES = 16
_UNKNOWN = object()  # stands for the result of a parent, which is prepended when the job runs


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """The options ``unique`` and ``unique_by`` of a task. ``once``: the encoded key of an HTTP
    request, which comes first."""

    task: str
    parameters: Parameters
    unique: Unique | None
    by: UniqueBy = ()
    once: str = ""

    @property
    def delay(self) -> str:
        """The delay of ``Replace`` as '+<ms>'; '' for other modes."""
        return f"+{self.unique.wait_ms}" if isinstance(self.unique, Replace) else ""

    def encode(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], before: int, *, is_secret: bool
    ) -> str:
        """The key of a call and its mode, for NewJob. ``before``: how many arguments are not known
        yet; ``is_secret``: some arguments are redacted, so the key must not reveal them.

        Raises InvalidOption or InvalidArguments.
        """
        if self.unique is None:
            return self.once
        if callable(self.by):
            key = _called(self.by, self.task, args, kwargs, is_secret)
        else:
            values = self._values(self.by, args, kwargs, before)
            key = f"{self.task}:{_digest(values, self.task, is_secret)}"
        return f"{self.once} {encode_unique(key, self.unique)}".lstrip()

    def _values(
        self, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any], before: int
    ) -> dict[str, Any]:
        bound = self.parameters.signature.bind(*(_UNKNOWN,) * before, *args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        if not names:
            return {name: value for name, value in values.items() if value is not _UNKNOWN}
        self._check_places(names, values)
        chosen = {name: _find(name, values) for name in names}
        for name, value in chosen.items():
            if value is _UNKNOWN:
                raise InvalidOption(
                    f"unique_by of {self.task} names {name!r}, whose value is not known yet: it is "
                    "the result of a parent; name other parameters"
                )
        return chosen

    def _check_places(self, names: Sequence[str], values: Mapping[str, Any]) -> None:
        """Raise InvalidArguments if a name may be that of an argument in ``*args``, which have no
        names: calls with different values would share a key."""
        parameters = self.parameters.signature.parameters
        more = [values[one.name] for one in parameters.values() if one.kind is one.VAR_POSITIONAL]
        known = set(parameters).union(*(box for box in values.values() if isinstance(box, Mapping)))
        for name in names:
            if any(more) and name not in known:
                raise InvalidArguments(
                    f"unique_by of {self.task} names {name!r}, which has to be a keyword argument: "
                    "the function, or a decorator of it, takes *args, which have no names"
                )


def _find(name: str, values: Mapping[str, Any]) -> Any:
    """The value of a parameter, or of a keyword that ``**kwargs`` takes (None if it is missing)."""
    if name in values:
        return values[name]
    boxes = [box for box in values.values() if isinstance(box, Mapping) and name in box]
    return boxes[-1][name] if boxes else None


def _digest(values: Mapping[str, Any], task: str, is_secret: bool) -> str:
    for name, value in values.items():
        found = list(value) if isinstance(value, tuple) else value
        check(found, f"the unique key of {task}: {name!r}")
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    if is_secret:
        return _secret_digest(text)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _secret_digest(text: str) -> str:
    mac = salted_hmac("django_redisqueue.unique", text, algorithm="sha256")
    return mac.hexdigest()[: 2 * DIGEST_BYTES]


def _called(
    by: Callable[..., str],
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_secret: bool,
) -> str:
    """The key that a callable makes. If arguments are redacted, neither it nor an error shows what
    the callable has returned or raised."""
    try:
        text = by(*args, **kwargs)
    except Exception as error:
        why = type(error).__name__ if is_secret else f"{type(error).__name__}: {error}"
        raise InvalidOption(
            f"unique_by of {task} raised {why}; it gets the arguments of the job and returns a text"
        ) from (None if is_secret else error)
    try:
        if not isinstance(text, str):
            raise ValueError(f"it is {short_repr(text)}")
        key = quoted_key(task, text)
    except ValueError as error:  # also for lone surrogates
        why = "" if is_secret else f": {error}"
        raise InvalidOption(
            f"unique_by of {task} must return a text of 1 to {MAX_KEY} characters{why}"
        ) from None
    return f"{task}:{_secret_digest(text)}" if is_secret else key


def uniqueness_of(
    task: str, parameters: Parameters, unique: Unique | Literal[False] | None, by: UniqueBy | None
) -> Uniqueness | None:
    """The two options together. Raises InvalidOption unless the task has the named parameters."""
    if not unique:
        if unique is None and by is not None:
            raise InvalidOption(f"{task} has unique_by, but not unique, which says for how long")
        return None
    found = parameters.signature.parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in found.values())
    for name in () if by is None or callable(by) else by:
        if name not in found and not takes_any:
            raise InvalidOption(
                f"unique_by of {task} names {name!r}, which is no parameter"
                f"{did_you_mean(name, found)}; it takes {parameters.signature}"
            )
    return Uniqueness(task, parameters, unique, by or ())


def unique_keys(start: int = 0, count: int = PAGE) -> Sequence[UniqueKey]:
    """A page of at most 100 keys, oldest first. It may be shorter than ``count``, because keys that
    are free again are left out."""
    return transport().unique_keys(start, min(count, PAGE))


def release_unique_key(key: str) -> str:
    """Free a key so that a new job may take it. Returns the id of the job that had it (which goes
    on), or ''."""
    return transport().release_unique(key)
