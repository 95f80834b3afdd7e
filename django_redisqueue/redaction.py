"""Arguments that are shown to nobody: ``@task(redact=("card",))``.

Which of a job's arguments those are is worked out once, when it is enqueued, and travels with it in
its options: positions and names. So every reader of a job can honour it, also one that does not
know the task. Redis itself, and the outbox, hold the real payload, for the worker needs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .codec import decode_payload, dumps, loads
from .conf import did_you_mean
from .exceptions import InvalidOption

REDACTED = "[redacted]"
OPTION = "redact"  # in a job's options; enqueue.lua looks for it
SHORTEST = 3  # characters of what is taken out of an error's text
ALL_REDACTED = dumps([[REDACTED], {}])

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Hidden(str):
    """A text that shows nothing of itself by ``repr``, which is how the variables of a traceback
    are shown: by Django's page for errors under DEBUG, and by error trackers."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(REDACTED)


def without_frames(error: BaseException) -> None:
    """Forget where an error and those behind it were raised: those frames hold what is redacted."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


def secrets_in(
    args: Sequence[Any], kwargs: Mapping[str, Any], marks: Sequence[int | str]
) -> list[str]:
    """The texts of the arguments that are marked, as an error's message may quote them; the longest
    first. None shorter than SHORTEST: it would stand everywhere."""
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
            found |= {text, repr(text)[1:-1], dumps(text)[1:-1]}
    long = [text for text in found if len(text) >= SHORTEST]
    return sorted(long, key=lambda text: (-len(text), text))


@dataclass(frozen=True, slots=True)
class Redaction:
    """Which arguments of a task are hidden. What does not fit its signature is hidden too: it may
    be the very argument, under a mistyped name."""

    positions: tuple[bool, ...]  # of each positional parameter: is it hidden
    more_positions: bool  # those behind are hidden
    shown_names: frozenset[str]
    hidden_names: frozenset[str]
    other_names: bool  # keywords without a parameter of their own are hidden

    def marks(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], before: int = 0
    ) -> list[int | str]:
        """The positions and names to hide in one call. ``before``: how many arguments will come
        before these when the job runs (a parent's result)."""
        known = self.positions[before:]
        hidden: list[int | str] = [
            at for at in range(len(args)) if (known[at] if at < len(known) else self.more_positions)
        ]
        hidden += [name for name in kwargs if self._hides(name)]
        return hidden

    def _hides(self, name: str) -> bool:
        return name in self.hidden_names or (self.other_names and name not in self.shown_names)


def redaction_of(func: Callable[..., Any], names: Sequence[str], skip: int = 0) -> Redaction:
    """The Redaction of a function's parameters ``names``; its first ``skip`` are not arguments of
    the job. Raises InvalidOption for a name that is none of them."""
    parameters = list(inspect.signature(func).parameters.values())[skip:]
    known = [parameter.name for parameter in parameters]
    for name in names:
        if name not in known:
            raise InvalidOption(
                f"redact names {name!r}, which is no parameter of {func.__module__}."
                f"{func.__qualname__}{did_you_mean(name, known)}; "
                f"it has {', '.join(known) or 'none'}"
            )
    hidden = frozenset(names)
    rest = {parameter.kind: parameter.name for parameter in parameters}
    var_args = rest.get(inspect.Parameter.VAR_POSITIONAL)
    var_kwargs = rest.get(inspect.Parameter.VAR_KEYWORD)
    named = frozenset(parameter.name for parameter in parameters if parameter.kind in _NAMED)
    return Redaction(
        positions=tuple(p.name in hidden for p in parameters if p.kind in _POSITIONAL),
        more_positions=var_args is None or var_args in hidden,
        shown_names=named - hidden,
        hidden_names=named & hidden,
        other_names=var_kwargs is None or var_kwargs in hidden,
    )


def display_payload(payload: str, options: str) -> str:
    """A payload as it may be shown: ``options`` are those stored with the job, as JSON or ''."""
    if not options:
        return payload
    try:
        marks = loads(options).get(OPTION)
        if not marks:
            return payload
        args, kwargs = decode_payload(payload)
        return dumps(list(redact(args, kwargs, marks)))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ALL_REDACTED  # nobody can tell what may be shown of it


def redact(
    args: Sequence[Any], kwargs: Mapping[str, Any], marks: Sequence[int | str]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with what ``marks`` names replaced. Raises ValueError or TypeError for marks that
    are none."""
    if not isinstance(marks, list):
        raise ValueError("what it redacts is not a list of places and names")
    hidden = set(marks)
    return (
        [REDACTED if at in hidden else value for at, value in enumerate(args)],
        {name: REDACTED if name in hidden else value for name, value in kwargs.items()},
    )
