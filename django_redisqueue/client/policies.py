"""The policies of a task for each of its jobs: the limits and the share, which determine its lane,
and its unique keys.

Keys are resolved when a job is enqueued, so a missing argument raises an error there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import BoundArguments, Parameter
from typing import Any, Literal

from django.utils.crypto import salted_hmac

from ..conf import get_settings
from ..core.codec import check
from ..core.policies import (
    MAX_KEY,
    Key,
    Limit,
    Rate,
    Replace,
    Unique,
    UniqueBy,
    bounded,
    encode_idempotency,
    encode_unique,
    encode_value,
    quoted_key,
    text_of,
)
from ..core.statuses import OnConflict
from ..exceptions import InvalidArguments, InvalidOption, did_you_mean, short_repr
from .options import TaskOptions
from .registry import Parameters

_UNKNOWN = object()  # stands for the result of a parent, which is prepended when the job runs
_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class LaneRule:
    """The options of a task that determine the lanes of its jobs."""

    task: str
    parameters: Parameters
    options: TaskOptions

    def __post_init__(self) -> None:
        for one in self.all_limits:
            self._check_names(f"key of {type(one).__name__}", one.key)
        self._check_names("fair_by", self.options.fair_by)
        choice = self.options.on_conflict
        if choice is not OnConflict.WAIT and not self.options.concurrency:
            raise InvalidOption(
                f"{self.task} has on_conflict={choice.value!r}, but no concurrency= over which "
                "jobs could be in conflict"
            )
        names = [(type(one), one.name) for one in self.all_limits]
        if len(set(names)) < len(names):
            raise InvalidOption(
                f"{self.task} has the same limit twice; all limits but one must have names from "
                'REDISQUEUE["LIMITS"]'
            )

    @property
    def all_limits(self) -> tuple[Limit | Rate, ...]:
        return (*self.options.concurrency, *self.options.rate)

    def field_of(self, one: Limit | Rate) -> str:
        """The first two parts of a limit's keys: its kind and its name."""
        return f"{'c' if isinstance(one, Limit) else 'r'}:{one.name or self.task}"

    def check_named_limits(self) -> None:
        """Raise InvalidOption if a named limit is not in the settings."""
        for one in self.all_limits:
            if one.name:
                _named_number(one)

    def _check_names(self, what: str, key: Key | None) -> None:
        known = self.parameters.signature.parameters
        for name in () if key is None or callable(key) else names_in(key):
            if name not in known or known[name].kind not in _NAMED:
                raise InvalidOption(
                    f"{what} of {self.task} is {name!r}, which is not a parameter of the task"
                    f"{did_you_mean(name, known)}; it takes {self.parameters.signature}"
                )

    def lane(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        before: int = 0,
        on_conflict: OnConflict | None = None,
    ) -> str:
        """The lane of a job with these arguments. Raises InvalidOption or InvalidArguments."""
        bound = self.parameters.signature.bind(*(_UNKNOWN,) * before, *args, **kwargs)
        bound.apply_defaults()
        share = self._value("fair_by", self.options.fair_by, bound)
        keys, words = [], []
        for one in self.all_limits:
            field = self.field_of(one)
            keys.append(f"{field}:{self._value(f'key of {type(one).__name__}', one.key, bound)}")
            words.append(f"{field}={_named_number(one) if one.name else one.number}")
        if self.options.chunk is not None:
            field, value = f"k:{self.task}", self.options.chunk.key(self.task, args, kwargs)
            keys.append(f"{field}:{encode_value(value)}")
            words.append(f"{field}={self.options.chunk.size}/{self.options.chunk.wait_ms}")
        weights = get_settings().weights
        if share and weights:
            words.append(f"s:{share}={weights.get(share, 1)}")
        choice = on_conflict or self.options.on_conflict
        if choice is not OnConflict.WAIT:
            words.append(f"!{choice}")
        return " ".join(("|".join((share, *keys)), *words))

    def encode_key_value(self, one: Limit | Rate, given: object) -> str:
        """A value of a limit's key, encoded as in ``lane``; a tuple of values if the key names
        several parameters. Raises InvalidOption or InvalidArguments."""
        what = f"key of {type(one).__name__}"
        assert one.key is not None
        if callable(one.key):
            return self._encoded(what, given)
        names = names_in(one.key)
        values = given if len(names) > 1 else (given,)
        if not isinstance(values, tuple | list) or len(values) != len(names):
            raise InvalidOption(
                f"{what} of {self.task} is ({', '.join(names)}); pass key= a tuple of "
                f"{len(names)} values, not {short_repr(given)}"
            )
        return self._joined(what, names, values)

    def encode_given_share(self, given: object) -> str | None:
        """The share of jobs with this value of ``fair_by``; for several parameters a tuple of
        values, or the text that is shown. None if it does not fit. Raises InvalidArguments."""
        key, what = self.options.fair_by, "fair_by"
        if key is None or callable(key):
            is_value = key is not None and not isinstance(given, tuple)
            return self._encoded(what, given) if is_value else None
        names = names_in(key)
        values = given if isinstance(given, tuple) else (given,)
        if isinstance(given, str) and len(names) > 1:
            values = tuple(given.split(","))
        return self._joined(what, names, values) if len(values) == len(names) else None

    def _joined(self, what: str, names: Sequence[str], values: Sequence[object]) -> str:
        pairs = zip(names, values, strict=True)
        return bounded(",".join(self._encoded(what, value, name) for name, value in pairs))

    def _value(self, what: str, key: Key | None, bound: BoundArguments) -> str:
        if key is None:
            return ""
        if callable(key):
            if _UNKNOWN in bound.args:
                raise InvalidOption(self._unknown(what))
            try:
                value = key(*bound.args, **bound.kwargs)
            except Exception as error:
                # Neither the message nor, if arguments are redacted, its cause: it may quote one.
                raise InvalidArguments(
                    f"{what} of {self.task} raised {type(error).__name__}"
                ) from (None if self.options.redact else error)
            return self._encoded(what, value)
        names = names_in(key)
        return self._joined(what, names, [bound.arguments[name] for name in names])

    def _encoded(self, what: str, value: object, parameter: str = "") -> str:
        """``parameter``: whose value it is; that of a callable may reveal any of them."""
        if value is _UNKNOWN:
            raise InvalidOption(self._unknown(what))
        redact = self.options.redact
        is_secret = parameter in redact if parameter else bool(redact)
        try:
            return encode_secret(value) if is_secret else encode_value(value)
        except (TypeError, ValueError):
            raise InvalidArguments(
                f"{what} of {self.task} must be a JSON value, not of type {type(value).__name__}"
            ) from None

    def _unknown(self, what: str) -> str:
        return (
            f"{what} of {self.task} is the result of its parent, which is not known until the job "
            "runs; use another parameter"
        )


def lane_rule_of(name: str, parameters: Parameters, options: TaskOptions) -> LaneRule | None:
    """The rule of a task; None if it has no limits, shares or chunks. Raises InvalidOption."""
    has_lanes = options.concurrency or options.rate or options.chunk or options.fair_by is not None
    if not has_lanes and options.on_conflict is OnConflict.WAIT:
        return None
    return LaneRule(name, parameters, options)


def encode_secret(value: object) -> str:
    """A redacted value as a part of a key. Its hash is keyed, because pages show it, and anyone
    could try all possible values. Raises what ``encode_value`` raises."""
    mac = salted_hmac("django_redisqueue.limit", text_of(value), algorithm="sha256")
    return f"~{mac.hexdigest()[:32]}"


def names_in(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _named_number(one: Limit | Rate) -> str:
    limits = get_settings().limits
    kind = "concurrency" if isinstance(one, Limit) else "rate"
    if one.name not in limits:
        raise InvalidOption(
            f'REDISQUEUE["LIMITS"] has no limit {one.name!r}{did_you_mean(one.name, limits)}'
        )
    number: str = getattr(limits[one.name], kind)
    if not number:
        raise InvalidOption(f'the limit {one.name!r} of REDISQUEUE["LIMITS"] has no {kind!r}')
    return number


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

    def once_per_request(self, key: str, fingerprint: str) -> Uniqueness:
        """A copy whose calls with this Idempotency-Key create one job, if their bodies are
        equal."""
        digest = hashlib.blake2b(key.encode(), digest_size=DIGEST_BYTES).hexdigest()
        return replace(self, once=encode_idempotency(f"idempotency:{digest}", fingerprint))

    def encode(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], before: int, *, is_secret: bool
    ) -> str:
        """The key of a call and its mode, for NewJob. ``before``: how many arguments are still
        unknown; ``is_secret``: some arguments are redacted, so the key must not reveal them.

        Raises InvalidOption or InvalidArguments.
        """
        if self.unique is None:
            return self.once
        if callable(self.by):
            key = _unique_called(self.by, self.task, args, kwargs, is_secret)
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
        by_kind = {
            one.kind: values[one.name] for one in self.parameters.signature.parameters.values()
        }
        values = {**by_kind.get(Parameter.VAR_KEYWORD, {}), **values}
        for name in names:
            if name not in values and by_kind.get(Parameter.VAR_POSITIONAL):
                raise InvalidArguments(  # otherwise calls with different values would share a key
                    f"unique_by of {self.task} names {name!r}, which must be a keyword argument: "
                    "the function, or a decorator of it, takes *args, which have no names"
                )
            if values.get(name) is _UNKNOWN:
                raise InvalidOption(
                    f"unique_by of {self.task} names {name!r}, whose value is not yet known: it is "
                    "the result of a parent; name other parameters"
                )
        return {name: values.get(name) for name in names}


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


def _unique_called(
    by: Callable[..., str],
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_secret: bool,
) -> str:
    """The key that a callable makes. With ``is_secret`` nothing shows what it returns or raises."""
    try:
        text = by(*args, **kwargs)
    except Exception as error:
        why = type(error).__name__ if is_secret else f"{type(error).__name__}: {error}"
        raise InvalidOption(
            f"unique_by of {task} raised {why}; it gets the job's arguments and returns a string"
        ) from (None if is_secret else error)
    try:
        if not isinstance(text, str):
            raise ValueError(f"it is {short_repr(text)}")
        key = quoted_key(task, text)
    except ValueError as error:  # also raised for lone surrogates
        why = "" if is_secret else f": {error}"
        raise InvalidOption(
            f"unique_by of {task} must return a string of 1 to {MAX_KEY} characters{why}"
        ) from None
    return f"{task}:{_secret_digest(text)}" if is_secret else key


def uniqueness_of(
    task: str, parameters: Parameters, unique: Unique | Literal[False] | None, by: UniqueBy | None
) -> Uniqueness | None:
    """Both options combined. Raises InvalidOption unless the task has the named parameters."""
    if not unique:
        if unique is None and by is not None:
            raise InvalidOption(f"{task} has unique_by without unique, which says for how long")
        return None
    found = parameters.signature.parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in found.values())
    for name in () if by is None or callable(by) else by:
        if name not in found and not takes_any:
            raise InvalidOption(
                f"unique_by of {task} names {name!r}, which is not a parameter of the task"
                f"{did_you_mean(name, found)}; it takes {parameters.signature}"
            )
    return Uniqueness(task, parameters, unique, by or ())
