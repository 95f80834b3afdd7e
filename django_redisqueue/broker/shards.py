"""All shards: what each of them answers, and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..conf import get_settings
from ..exceptions import RedisQueueError, RedisRefused, RedisUnavailable, ShardMismatch
from .base import keys_at
from .connection import RedisConnection, producer_connection
from .keys import Keys
from .redis_url import RedisUrl, get_redis_url

Answer = TypeVar("Answer")
FIELD = "shards"  # of a shard's meta: how many there are
COMMAND = "`manage.py redisqueue_shards --set`"


@dataclass(frozen=True, slots=True)
class Answers(Generic[Answer]):
    """What shards have answered, and why others have not; by their numbers."""

    by_shard: Mapping[int, Answer]
    missing: Mapping[int, RedisQueueError]

    @property
    def problem(self) -> str:
        """Which shards are missing and why, or ''."""
        return "; ".join(f"shard {shard}: {error}" for shard, error in self.missing.items())

    def complete(self) -> list[Answer]:
        """All answers, in the order of shards. Raises the error of a shard that has none: without
        it, the whole would be false."""
        for error in self.missing.values():
            raise error
        return list(self.by_shard.values())


def all_shards(
    read: Callable[[RedisConnection], Answer],
    connect: Callable[[int], RedisConnection] = producer_connection,
    *,
    shards: Iterable[int] = (),
) -> Answers[Answer]:
    """Read from every shard (or from these) in turn. One that Redis cannot answer
    for is missing, with all others on its server. Raises its error if no shard answers.

    ``connect``: the connection for a shard, such as ``connection.at``.
    """
    answers: dict[int, Answer] = {}
    missing: dict[int, RedisQueueError] = {}
    away: dict[RedisUrl, RedisQueueError] = {}  # by servers; shards of a cluster one by one
    for shard in shards or range(get_settings().shards):
        connection = connect(shard)
        error = away.get(connection.redis_url)
        if error is None:
            try:
                answers[shard] = read(connection)
                continue
            except (RedisUnavailable, RedisRefused) as caught:
                error = caught
                if isinstance(error, RedisUnavailable):
                    away[connection.redis_url] = error
        missing[shard] = error
    found = Answers(answers, missing)
    if not answers:
        found.complete()
    return found


def agree_on_shards(connection: RedisConnection) -> None:
    """Compare SHARDS with the number that the data was written with, and record it where there is
    no data. Raises ShardMismatch."""
    if problem := number_problem(connection):
        raise ShardMismatch(problem)
    shards = get_settings().shards
    for shard, number in read_numbers(connection, range(shards)).by_shard.items():
        if number is None:
            record_number(connection.at(shard), shards)


def number_problem(connection: RedisConnection) -> str:
    """In what SHARDS and the data of the shards disagree, and the remedy; or ''."""
    shards = get_settings().shards
    numbers = read_numbers(connection, range(shards)).by_shard
    recorded = {number for number in numbers.values() if number is not None}
    if recorded - {str(shards)}:
        return _mismatch(shards, sorted(recorded))
    bare = [shard for shard, number in numbers.items() if number is None]
    if not recorded or not bare:
        return ""
    return (
        f"shard {bare[0]} at {get_redis_url(bare[0]).address} has no data of a queue with "
        f"{shards} shards, as others have: it was emptied, or that is another server. Correct "
        f'REDISQUEUE["CONNECTION"], or accept it with {COMMAND}'
    )


def read_numbers(connection: RedisConnection, shards: Iterable[int]) -> Answers[str | None]:
    """How many shards there are, as each shard has it; None in one without data."""

    def read(one: RedisConnection) -> str | None:
        number: str | None = one.call("HGET", _keys(one).meta, FIELD)
        return number

    return all_shards(read, connection.at, shards=shards)


def record_number(connection: RedisConnection, shards: int) -> None:
    """Store in this shard how many there are."""
    connection.call("HSET", _keys(connection).meta, FIELD, shards)


def _keys(connection: RedisConnection) -> Keys:
    return keys_at(connection, get_settings())


def _mismatch(shards: int, recorded: list[str]) -> str:
    return (
        f'REDISQUEUE["SHARDS"] is {shards}, and the data in Redis is of {" and ".join(recorded)} '
        f"shards. To change the number, run {COMMAND} with the new one: before the workers get it "
        "if there will be more shards, and producers last; if there will be fewer, producers "
        "first, and workers once the other shards are empty (docs/scale.md). Else correct SHARDS"
    )
