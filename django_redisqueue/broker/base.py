"""The base classes of commands, which change jobs, and of queries, which only read; reads that can
be sent together; and pages of sorted sets.

A read is a generator: it yields the commands of a pipeline, receives their replies, and returns its
answer. Its caller decides what else is in the pipeline: ``together`` joins reads of one shard,
``AllShards.read`` joins those of several shards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Self, TypeVar, overload

from redis.exceptions import NoScriptError

from ..conf import Settings, get_settings
from ..core.parsing import clock_ms
from ..core.statuses import Status
from ..core.text import printable
from ..exceptions import (
    InvalidOption,
    LeaseLost,
    RedisQueueError,
    RedisUnavailable,
    short_repr,
)
from .connection import RedisConnection, ReplicaWait
from .keys import Keys
from .scripts import load
from .wire import AS_READ

Item = TypeVar("Item")
BATCH = 100  # the most jobs per script call, so that no script blocks Redis for long
MAX_CALL_BYTES = 1_000_000  # and about as many bytes

Answer = TypeVar("Answer")
Owner = TypeVar("Owner", bound="QueryBase")
Params = ParamSpec("Params")
Command = Sequence[Any]
#: The reply for a key of the wrong type is None, unless the commands are Strict.
Read = Generator[Sequence[Command], list[Any], Answer]
_AFTER = re.compile(
    r"(-?(?:inf|[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?)) (.{0,1000})", re.DOTALL
)
_ESCAPED = re.compile(r"\\u(dc[89a-f][0-9a-f])")  # a byte in ``EntryPage.following``


def slices(items: Sequence[Item], size: int = BATCH) -> Iterable[Sequence[Item]]:
    """Parts of as many items as one call may contain."""
    return (items[at : at + size] for at in range(0, len(items), size))


def keys_at(connection: RedisConnection, settings: Settings) -> Keys:
    """The keys of the connection's shard."""
    return Keys(settings.prefix, connection.shard, is_on_cluster=connection.redis_url.is_cluster)


def replica_wait(keys: Keys, settings: Settings) -> ReplicaWait | None:
    """The replicas that ``WAIT_REPLICAS`` requires, or None."""
    replicas = settings.wait_replicas
    return ReplicaWait(replicas, keys.meta) if replicas else None


class CommandBase:
    """Calls scripts in the connection's shard."""

    def __init__(self, connection: RedisConnection, settings: Settings | None = None) -> None:
        self.connection = connection
        self.settings = settings or get_settings()
        self.keys = keys_at(connection, self.settings)
        self.now_ms: int | None = None
        self._meta = self.keys.meta
        self._channel = self.keys.status_channel
        self.wait = replica_wait(self.keys, self.settings)

    def _head(self, verb: str) -> tuple[Any, ...]:
        """The script, the shard's key, and the arguments that all scripts share (context.lua)."""
        script, now = load(verb), "" if self.now_ms is None else self.now_ms
        return (
            script.sha, script.source, self._meta, *script.selector,
            now, self._channel, self.settings.events_cap,
        )  # fmt: skip

    def _run(self, verb: str, *args: Any) -> Any:
        return self.connection.script(*self._head(verb), *args)

    def _run_each(self, verb: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """``_run`` for several calls in one round trip, with errors in place of the replies of
        failed ones. Raises RedisUnavailable, and then any of them may have run."""
        sha, source, *head = self._head(verb)
        commands = [("EVALSHA", sha, 1, *head, *args) for args in calls]
        replies = self.connection.replies(commands)
        for at, reply in enumerate(replies):
            try:
                if isinstance(reply, NoScriptError):
                    replies[at] = self.connection.script(sha, source, *head, *calls[at])
                else:
                    self.connection.check_replies([reply])
            except RedisUnavailable:
                raise
            except RedisQueueError as error:
                replies[at] = error
        return replies

    def _accept(self, call: tuple[Any, ...]) -> Any:
        """Run a script that accepts new work, and wait until ``WAIT_REPLICAS`` replicas have it.
        Raises NotReplicated."""
        if self.wait is None:
            return self.connection.script(*call)
        return self.connection.script_on_replicas(self.wait, *call)


class QueryBase:
    """Reads the connection's shard."""

    def __init__(self, connection: RedisConnection, settings: Settings | None = None) -> None:
        self.connection = connection
        self.settings = settings or get_settings()
        self.keys = keys_at(connection, self.settings)

    def _wait_for_replicas(self, meanwhile: str) -> None:
        """Wait until ``WAIT_REPLICAS`` replicas have everything that was read or written; see
        ``RedisConnection.wait_for_replicas``. Raises NotReplicated."""
        if wait := replica_wait(self.keys, self.settings):
            self.connection.wait_for_replicas(wait, meanwhile)

    def _check_runs(self, job_id: str, status: str | None) -> None:
        """Raise LeaseLost if a job with this status cannot be running."""
        if status in (None, Status.WAITING, Status.COMPLETED):
            self.connection.look_again()  # perhaps this was the former master, cut off
            raise LeaseLost(
                f"Redis has no record that job {job_id} is running: a failover lost the claim, or "
                "the job was deleted"
            )

    def now_ms(self) -> int:
        """Redis's clock."""
        return clock_ms(self.connection.call("TIME"))

    def _each(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """A pipeline in which a key of the wrong type replies None and affects no other reply."""
        return self.connection.pipeline(commands, lenient=True) if commands else []


class Strict(list[Command]):
    """Commands for which a key of the wrong type is an error."""

    def __init__(self, *commands: Command) -> None:
        super().__init__(commands)


class Reading(Generic[Answer]):
    """A read in progress: the commands that it sends next, until it has its answer."""

    answer: Answer

    def __init__(self, read: Read[Answer]) -> None:
        self.commands: Sequence[Command] = ()
        self.has_ended = False
        self._read: Any = read
        self.advance(None)

    @property
    def is_lenient(self) -> bool:
        return not isinstance(self.commands, Strict)

    def advance(self, replies: list[Any] | None) -> None:
        """Continue with the replies to its commands; None starts the read."""
        try:
            self.commands = self._read.send(replies)
            while not self.commands:
                self.commands = self._read.send([])
        except StopIteration as end:
            self.answer, self.has_ended = end.value, True


def run(connection: RedisConnection, read: Read[Answer]) -> Answer:
    """The answer of a read on one connection."""
    reading = Reading(read)
    while not reading.has_ended:
        reading.advance(connection.pipeline(reading.commands, lenient=reading.is_lenient))
    return reading.answer


def together(reads: Iterable[Read[Answer]]) -> Read[list[Answer]]:
    """The answers of several reads, in as many round trips as the longest of them needs. A round
    trip is Strict if all of their commands are."""
    readings = [Reading(read) for read in reads]
    while left := [one for one in readings if not one.has_ended]:
        commands = list(chain.from_iterable(one.commands for one in left))
        is_lenient = any(one.is_lenient for one in left)
        replies = iter((yield commands if is_lenient else Strict(*commands)))
        for one in left:
            one.advance(list(islice(replies, len(one.commands))))
    return [one.answer for one in readings]


@dataclass(slots=True)
class BoundRead(Generic[Params, Answer]):
    """A query of one object: calling it runs it, ``read`` returns a read for others to run."""

    connection: RedisConnection
    read: Callable[Params, Read[Answer]]

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> Answer:
        return run(self.connection, self.read(*args, **kwargs))


class Query(Generic[Owner, Params, Answer]):
    """Decorator for a method that returns a read."""

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


query = Query


# Pages of sorted sets


class Entry(NamedTuple):
    """A member of a sorted set and its score, as Redis has it."""

    member: str
    score: str

    @property
    def place(self) -> tuple[float, bytes]:
        """The sort key that Redis uses."""
        return float(self.score), self.member.encode(*AS_READ)


class EntryPage(NamedTuple):
    """Entries in their order, and whether more follow."""

    entries: Sequence[Entry]
    has_more: bool

    @property
    def following(self) -> str:
        """The ``after`` of the next page; '' at the end."""
        if not self.has_more:
            return ""
        return printable(f"{self.entries[-1].score} {self.entries[-1].member}")


def merged(pages: Iterable[EntryPage], count: int) -> EntryPage:
    """The first ``count`` entries of the pages of several sets, which all start after the same
    place."""
    pages = list(pages)
    if len(pages) == 1:
        return pages[0]
    entries = sorted((one for page in pages for one in page.entries), key=lambda one: one.place)
    has_more = len(entries) > count or any(page.has_more for page in pages)
    return EntryPage(entries[:count], has_more)


def page_after(key: str, after: str, count: int) -> Read[EntryPage]:
    """Up to ``count`` entries of a sorted set after the place ``after``, in two round trips of
    logarithmic time. Raises InvalidOption.

    If the member in ``after`` is gone, has moved or is in another shard, a binary search among the
    members with its score finds where the page starts, with one round trip per step.
    """
    start = (yield from _start(key, after)) if after else 0
    [raw] = yield Strict(("ZRANGE", key, start, start + count, "WITHSCORES"))
    found = [Entry(*pair) for pair in zip(raw[::2], raw[1::2], strict=True)]
    return EntryPage(found[:count], len(found) > count)


def _start(key: str, after: str) -> Read[int]:
    match = _AFTER.fullmatch(after)
    if match is None:
        raise InvalidOption(
            "after must be the value that the previous page returned for the next one, "
            f"not {short_repr(after)}"
        )
    score, member = match.groups()
    member = _ESCAPED.sub(lambda one: chr(int(one[1], 16)), member)
    rank, found, low, high = yield Strict(
        ("ZRANK", key, member),
        ("ZSCORE", key, member),
        ("ZCOUNT", key, "-inf", f"({score}"),
        ("ZCOUNT", key, "-inf", score),
    )
    if found is not None and float(found) == float(score):
        return int(rank) + 1
    wanted = member.encode(*AS_READ)
    while low < high:
        middle = (low + high) // 2
        [there] = yield Strict(("ZRANGE", key, middle, middle))
        if there and there[0].encode(*AS_READ) <= wanted:
            low = middle + 1
        else:
            high = middle
    return int(low)
