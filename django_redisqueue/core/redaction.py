"""Redacted arguments, which no page, log or API response shows: ``@task(redact=("card",))``.

Enqueueing a job decides which of its arguments are redacted, and stores their positions and names
in the job's options, so every reader can honour that, even one that does not have the task. Redis
and the outbox have the real payload, because the worker needs it.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any

from ..exceptions import InvalidOption, did_you_mean
from .codec import decode_payload, dumps, loads
from .signatures import signature_of

REDACTED = "[redacted]"
OPTION = "redact"  # in a job's options; enqueue.lua looks for it
SHORTEST = 3  # characters of a value that is removed from the texts of errors
ALL_REDACTED = dumps([[REDACTED], {}])

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Hidden(str):
    """Text with a ``repr`` that reveals nothing. Django's debug page and error trackers show the
    variables of a traceback by their ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(REDACTED)


def without_frames(error: BaseException) -> None:
    """Remove the tracebacks of an error and of those that led to it: error pages and error trackers
    show the variables of their frames. An exception that a caller is handling keeps its own."""
    callers = [frame for frame, _ in walk_stack(sys._getframe(2))]
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if found is not error and _has_passed(found, callers):
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


def _has_passed(error: BaseException, frames: Sequence[FrameType]) -> bool:
    return any(frame in frames for frame, _ in walk_tb(error.__traceback__))


def secrets_in(
    args: Sequence[Any], kwargs: Mapping[str, Any], marks: Sequence[int | str]
) -> list[str]:
    """The texts of the marked arguments as an error message may quote them, longest first. Texts
    shorter than SHORTEST are left out, because they would match everywhere."""
    named: dict[int | str, Any] = dict(enumerate(args))
    named.update(kwargs)
    left = [named[mark] for mark in marks if mark in named]
    found: set[str] = set()
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            text = str(value)
            # In the traceback of an exception group, a prefix separates the lines of a text.
            for part in (text, *text.splitlines()):
                if len(part) >= SHORTEST:
                    found |= {part, repr(part)[1:-1], dumps(part)[1:-1], json.dumps(part)[1:-1]}
    return sorted(found, key=lambda text: (-len(text), text))


@dataclass(frozen=True, slots=True)
class Redaction:
    """Which arguments of a task are hidden. An argument that does not fit the signature is hidden
    as well, because it may be a redacted one under a mistyped name."""

    positions: tuple[bool, ...]  # for each positional parameter: is it hidden
    more_positions: bool  # further positional arguments are hidden
    names: Mapping[str, bool]  # for each parameter that a keyword may name: is it hidden
    other_names: bool  # keywords without a parameter of their own are hidden

    def marks(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], before: int = 0
    ) -> list[int | str]:
        """The positions and names to hide in one call. ``before``: how many arguments (a parent's
        result) precede these when the job runs."""
        known = self.positions[before:]
        hidden: list[int | str] = [
            at for at in range(len(args)) if (known[at] if at < len(known) else self.more_positions)
        ]
        hidden += (name for name in kwargs if self.names.get(name, self.other_names))
        return hidden


def redaction_of(func: Callable[..., Any], names: Sequence[str], skip: int = 0) -> Redaction:
    """The Redaction of a function's parameters ``names``, without its first ``skip`` parameters,
    which are not arguments of the job. Raises InvalidOption for an unknown name."""
    parameters = list(signature_of(func).parameters.values())[skip:]
    known = [parameter.name for parameter in parameters]
    for name in names:
        if name not in known:
            raise InvalidOption(
                f"redact names {name!r}, which is not a parameter of {func.__module__}."
                f"{func.__qualname__}{did_you_mean(name, known)}; "
                f"it has {', '.join(known) or 'none'}"
            )
    hidden = frozenset(names)
    rest = {parameter.kind: parameter.name for parameter in parameters}
    var_args = rest.get(inspect.Parameter.VAR_POSITIONAL)
    var_kwargs = rest.get(inspect.Parameter.VAR_KEYWORD)
    return Redaction(
        positions=tuple(p.name in hidden for p in parameters if p.kind in _POSITIONAL),
        more_positions=var_args is None or var_args in hidden,
        names={p.name: p.name in hidden for p in parameters if p.kind in _NAMED},
        other_names=var_kwargs is None or var_kwargs in hidden,
    )


def display_payload(payload: str, options: str) -> str:
    """A payload for display. ``options``: the job's stored options, as JSON or ''."""
    if not options:
        return payload
    try:
        marks = loads(options).get(OPTION)
        if not marks:
            return payload
        args, kwargs = decode_payload(payload)
        return dumps(list(redact(args, kwargs, marks)))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ALL_REDACTED  # unreadable, so nothing may be shown


def redact(
    args: Sequence[Any], kwargs: Mapping[str, Any], marks: Sequence[int | str]
) -> tuple[list[Any], dict[str, Any]]:
    """Replace the arguments that ``marks`` names. Invalid marks raise ValueError or TypeError."""
    if not isinstance(marks, list):
        raise ValueError("the redacted arguments are not a list of positions and names")
    hidden = set(marks)
    return (
        [REDACTED if at in hidden else value for at, value in enumerate(args)],
        {name: REDACTED if name in hidden else value for name, value in kwargs.items()},
    )
