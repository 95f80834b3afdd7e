"""All shards: the answer of each, and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from ..conf import get_settings
from ..exceptions import RedisQueueError, RedisRefused, RedisUnavailable, ShardMismatch
from .base import QueryBase, Read, Reading, Strict
from .connection import RedisConnection, producer_connection
from .redis_url import get_redis_url

Answer = TypeVar("Answer")
FIELD = "shards"  # the field of a shard's meta that has the number of shards
UNSURE = "?"  # follows that number while other shards may not have it yet
COMMAND = "`manage.py redisqueue_shards --set`"


@dataclass(frozen=True, slots=True)
class Answers(Generic[Answer]):
    """The answers of shards, and why others have not answered, by their numbers."""

    by_shard: Mapping[int, Answer]
    missing: Mapping[int, RedisQueueError]

    @property
    def problem(self) -> str:
        """Which shards are missing and why, or ''."""
        return "; ".join(f"shard {shard}: {error}" for shard, error in self.missing.items())

    def complete(self) -> list[Answer]:
        """All answers, in the order of the shards. Raises the error of a shard without an answer,
        because the whole would be wrong without it."""
        for error in self.missing.values():
            raise error
        return list(self.by_shard.values())


class AllShards:
    """All shards, or those given, as one caller sees them: a request, or one refresh of a monitor.

    A shard that Redis cannot answer for is ``missing`` from then on, along with all others on its
    server if the server is unavailable. So the caller waits only once for a server that does not
    answer, and everything that it reads comes from the same shards. A call raises the error if no
    shard is left.

    ``connect``: the connection for a shard, such as ``connection.at``.
    """

    def __init__(
        self,
        connect: Callable[[int], RedisConnection] = producer_connection,
        shards: Iterable[int] = (),
    ) -> None:
        self._connect = connect
        self.numbers = list(shards) or list(range(get_settings().shards))
        self.missing: dict[int, RedisQueueError] = {}

    def each(self, act: Callable[[RedisConnection], Answer]) -> Answers[Answer]:
        """What ``act`` returns for the connection of each shard, one after another."""
        answers: dict[int, Answer] = {}
        for shard in self.numbers:
            if shard not in self.missing:
                connection = self._connect(shard)
                with self._missing_on_error(connection):
                    answers[shard] = act(connection)
        return self._answers(answers)

    def require_all(self) -> None:
        """Raise the error of a missing shard, because what was read would be wrong without it."""
        self._answers({}).complete()

    def read(
        self, begin: Callable[[RedisConnection], Read[Answer]], shards: Iterable[int] | None = None
    ) -> Answers[Answer]:
        """The answers of the reads that ``begin`` returns for connections of all or some shards.

        Takes as many round trips as one read: each sends one pipeline per server, and all servers
        are asked before the replies of the first are read.
        """
        reads: list[_Reading[Answer]] = []
        for shard in self.numbers if shards is None else shards:
            if shard not in self.missing:
                connection = self._connect(shard)
                reads.append(_Reading(connection, begin(connection)))
        while left := [one for one in reads if not one.has_ended and one.shard not in self.missing]:
            replies = self._ask(left)
            for one in left:
                if one.shard in replies:
                    one.advance(replies[one.shard])
        return self._answers({one.shard: one.answer for one in reads if one.has_ended})

    def _ask(self, reads: Sequence[_Reading[Any]]) -> dict[int, list[Any]]:
        """The replies to each read's next commands, by shard. A shard without them is missing."""
        waiting = self._by_server(reads)
        found: dict[int, list[Any]] = {}
        try:
            for group in [group for group in waiting if self._send(group)]:
                found |= self._receive(group)
                waiting.remove(group)
        except BaseException:
            for group in waiting:  # an unread reply would be taken for a later one
                group[0].connection.close()
            raise
        return found

    def _by_server(self, reads: Sequence[_Reading[Any]]) -> list[list[_Reading[Any]]]:
        """The reads of each server that can be reached."""
        servers: dict[object, list[_Reading[Any]]] = {}
        for one in reads:
            if one.shard not in self.missing:
                with self._missing_on_error(one.connection):
                    servers.setdefault(one.connection.connect(), []).append(one)
        return list(servers.values())

    def _send(self, group: Sequence[_Reading[Any]]) -> bool:
        with self._missing_on_error(*(one.connection for one in group)):
            group[0].connection.send([command for one in group for command in one.commands])
        return group[0].shard not in self.missing

    def _receive(self, group: Sequence[_Reading[Any]]) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        with self._missing_on_error(*(one.connection for one in group)):
            replies = iter(group[0].connection.receive(sum(len(one.commands) for one in group)))
            for one in group:
                own = list(islice(replies, len(one.commands)))
                with self._missing_on_error(one.connection):
                    found[one.shard] = one.connection.check_replies(own, lenient=one.is_lenient)
        return found

    @contextmanager
    def _missing_on_error(self, *connections: RedisConnection) -> Iterator[None]:
        """If Redis cannot answer inside the block, the shards of these connections are missing."""
        try:
            yield
        except (RedisUnavailable, RedisRefused) as error:
            for connection in connections:
                self._mark_missing(connection, error)

    def _mark_missing(
        self, connection: RedisConnection, error: RedisUnavailable | RedisRefused
    ) -> None:
        """Mark the shard as missing. If its server is unavailable, the server's other shards are
        missing as well; those of a cluster are looked up one by one."""
        away, url = {connection.shard}, connection.redis_url
        if isinstance(error, RedisUnavailable) and not url.is_cluster:
            away.update(shard for shard in self.numbers if get_redis_url(shard) == url)
        for shard in sorted(away - self.missing.keys()):
            self.missing[shard] = error

    def _answers(self, answers: Mapping[int, Answer]) -> Answers[Answer]:
        """The answers of the shards that are not missing. Raises the error if none is left."""
        missing = {shard: self.missing[shard] for shard in sorted(self.missing)}
        left = {shard: answers[shard] for shard in sorted(answers) if shard not in missing}
        found = Answers(left, missing)
        if len(missing) == len(self.numbers):
            found.complete()
        return found


class _Reading(Reading[Answer]):
    def __init__(self, connection: RedisConnection, read: Read[Answer]) -> None:
        self.connection = connection
        self.shard = connection.shard
        super().__init__(read)


def all_shards(
    act: Callable[[RedisConnection], Answer],
    connect: Callable[[int], RedisConnection] = producer_connection,
    *,
    shards: Iterable[int] = (),
) -> Answers[Answer]:
    """``AllShards.each`` for a single call."""
    return AllShards(connect, shards).each(act)


def agree_on_shards(every: AllShards) -> None:
    """Compare SHARDS with the number that the data was written with. If there is no data, record
    SHARDS in all shards, because a shard without it would later look as if it had been emptied.
    Raises ShardMismatch, and, if there is no data, the error of a shard that does not answer.

    Several workers may start at once, and any may die between two writes. So all shards first get
    the number as UNSURE: as long as none has it for sure, one without it is merely late.
    """
    numbers, number = read_numbers(every), str(get_settings().shards)
    if problem := _problem(numbers.by_shard):
        raise ShardMismatch(problem)
    found = set(numbers.by_shard.values())
    if None in found:
        numbers.complete()
        record_number(every, number + UNSURE)
    if found != {number} and not numbers.missing:
        record_number(every, number)


def number_problem(every: AllShards) -> str:
    """How SHARDS and the shards' data disagree, with the remedy; or ''."""
    return _problem(read_numbers(every).by_shard)


def _problem(numbers: Mapping[int, str | None]) -> str:
    shards = get_settings().shards
    recorded = {number.rstrip(UNSURE) for number in numbers.values() if number is not None}
    if recorded - {str(shards)}:
        return _mismatch(shards, sorted(recorded))
    bare = [shard for shard, number in numbers.items() if number is None]
    if not bare or str(shards) not in numbers.values():
        return ""
    return (
        f"shard {bare[0]} at {get_redis_url(bare[0]).address} has no data of a queue with "
        f"{shards} shards, unlike others: it was emptied, or that is another server. Correct "
        f'REDISQUEUE["CONNECTION"], or accept it with {COMMAND}'
    )


def read_numbers(shards: AllShards) -> Answers[str | None]:
    """How many shards there are, according to each of these, perhaps UNSURE; None for a shard
    without data."""

    def read(one: RedisConnection) -> Read[str | None]:
        return (yield Strict(("HGET", QueryBase(one).keys.meta, FIELD)))[0]

    return shards.read(read)


def record_number(shards: AllShards, number: str) -> None:

    def write(one: RedisConnection) -> Read[None]:
        yield Strict(("HSET", QueryBase(one).keys.meta, FIELD, number))

    shards.read(write).complete()


def _mismatch(shards: int, recorded: list[str]) -> str:
    return (
        f'REDISQUEUE["SHARDS"] is {shards}, but the data in Redis has {" and ".join(recorded)}. '
        f"To change the number, run {COMMAND} with the new one. For more shards, run it before "
        "the workers get the new number, and give that to producers last; for fewer, give it to "
        "producers first, and to workers once the other shards are empty (docs/scale.md). "
        "Otherwise correct SHARDS"
    )
