"""Chunk tasks: one call of the function gets many jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from ..core.clock import to_ms
from ..core.codec import dumps
from ..core.parsing import is_int
from ..exceptions import InvalidArguments, InvalidOption, did_you_mean, short_repr

MAX_CHUNK = 100  # jobs that a child may claim at once
By = str | tuple[str, ...] | Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The option ``chunk`` of ``@task``: up to ``size`` jobs are one call of the function.

    ``wait``: how long the first job waits for others while the chunk is not full, in seconds or as
    a timedelta. ``by``: only jobs with equal values share a chunk; the name of an argument, a tuple
    of names, or a callable that gets the job's arguments. ``parameters``: the names of the jobs'
    arguments, in order, for calls with positional ones. Raises InvalidOption.
    """

    size: int
    wait: Any = 0
    by: By = None
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_int(self.size, 1, MAX_CHUNK):
            raise InvalidOption(
                f"the size of a Chunk must be a whole number from 1 to {MAX_CHUNK}, not "
                f"{short_repr(self.size)}"
            )
        to_ms(self.wait, "wait of a Chunk")
        if self.parameters != () and not _are_names(self.parameters):
            raise InvalidOption(
                "parameters of a Chunk must be a tuple of different names, not "
                f"{short_repr(self.parameters)}"
            )
        names = (self.by,) if isinstance(self.by, str) else self.by
        if names is None or callable(names):
            return
        if not _are_names(names):
            raise InvalidOption(
                "by of a Chunk must be the name of an argument, a tuple of names, or a callable, "
                f"not {short_repr(self.by)}"
            )
        unknown = [name for name in names if self.parameters and name not in self.parameters]
        if unknown:
            raise InvalidOption(
                f"by of a Chunk has {unknown[0]!r}, which is not among its parameters"
                f"{did_you_mean(unknown[0], self.parameters)}"
            )

    @property
    def wait_ms(self) -> int:
        return to_ms(self.wait, "wait of a Chunk")

    def key(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """What the jobs of one chunk have in common, as JSON. Raises InvalidArguments, and what a
        callable raises."""
        if self.by is None:
            return ""
        if callable(self.by):
            value = self.by(*args, **kwargs)
        else:
            names = (self.by,) if isinstance(self.by, str) else self.by
            given = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
            for name in names:
                if name not in given:
                    raise InvalidArguments(
                        f"{task} forms chunks by {name!r}, so every call needs it as a keyword "
                        f"argument, such as enqueue(..., {name}=...); or name the arguments in "
                        "parameters= of the Chunk, so that positional ones are known, too"
                    )
            value = [given[name] for name in names]
        try:
            return dumps(value)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(
                f"{task} forms chunks by a value that JSON cannot hold ({error}); use a number, a "
                "string, or a list of these"
            ) from None


def _are_names(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(isinstance(name, str) for name in value)
        and all(name.isidentifier() and not iskeyword(name) for name in value)
        and len(set(value)) == len(value)
    )


@dataclass(frozen=True, slots=True)
class ChunkItem:
    """One job of a chunk: its id, its arguments, and the number of this attempt, from 1."""

    id: str
    args: Sequence[Any] = field(repr=False)
    kwargs: Mapping[str, Any] = field(repr=False)
    attempt: int = 1


def check_chunk_option(value: object) -> Chunk:
    """Return ``value``; raise InvalidOption unless it is a Chunk."""
    if isinstance(value, Chunk):
        return value
    raise InvalidOption(
        f"chunk must be a Chunk, such as Chunk(100, wait=5), not {short_repr(value)}"
    )
