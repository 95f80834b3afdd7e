"""Queries that can be sent together with those of other shards.

A read is a generator: it yields the commands of a pipeline, receives their replies, and returns its
answer. So whoever runs it decides what else is in the pipeline (``AllShards.read``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from .connection import RedisConnection

Answer = TypeVar("Answer")
Params = ParamSpec("Params")
Command = Sequence[Any]
#: The reply for a key of a wrong type is None, unless the commands are Strict.
Read = Generator[Sequence[Command], list[Any], Answer]


class Strict(list[Command]):
    """Commands for which a key of a wrong type is an error."""


class HasConnection(Protocol):
    connection: RedisConnection


Owner = TypeVar("Owner", bound=HasConnection)


def run(connection: RedisConnection, read: Read[Answer]) -> Answer:
    """The answer of a read on one connection."""
    try:
        commands = next(read)
        while True:
            lenient = not isinstance(commands, Strict)
            replies = connection.pipeline(commands, lenient=lenient) if commands else []
            commands = read.send(replies)
    except StopIteration as end:
        answer: Answer = end.value
        return answer


class BoundRead(Generic[Params, Answer]):
    """A query of one object: calling it runs it, ``read`` begins a read for others to run."""

    __slots__ = ("_connection", "read")

    def __init__(self, connection: RedisConnection, begin: Callable[Params, Read[Answer]]) -> None:
        self._connection = connection
        self.read = begin

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> Answer:
        return run(self._connection, self.read(*args, **kwargs))


class Query(Generic[Owner, Params, Answer]):
    """A method that is a read."""

    def __init__(self, begin: Callable[Concatenate[Owner, Params], Read[Answer]]) -> None:
        self._begin = begin
        self.__doc__ = begin.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Owner]) -> Self: ...
    @overload
    def __get__(self, owner: Owner, kind: type[Owner]) -> BoundRead[Params, Answer]: ...
    def __get__(self, owner: Owner | None, kind: type[Owner]) -> Self | BoundRead[Params, Answer]:
        if owner is None:
            return self
        return BoundRead(owner.connection, partial(self._begin, owner))


def query(
    begin: Callable[Concatenate[Owner, Params], Read[Answer]],
) -> Query[Owner, Params, Answer]:
    """Decorates a method that is a read."""
    return Query(begin)
