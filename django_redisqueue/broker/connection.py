"""Connections to Redis: each has one caller at a time, and timeouts for its purpose.

They use redis-py's ``Connection`` directly. Its client class takes 18 us of the 79 us of a command,
and its type checks of arguments take 2 us of every job (both measured). Its clients also retry by
default (`Redis()` ten times), which for a queue means running a script twice.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast
from weakref import finalize

from django.core.signals import setting_changed
from redis import exceptions as redis_errors
from redis.connection import AbstractConnection

from ..conf import check_redis_is_meant
from ..core.ports import ports
from ..core.redaction import without_frames
from ..exceptions import NotReplicated, RedisRefused, RedisUnavailable, WrongKeyType
from .failures import translate
from .nodes import Address
from .redis_url import RedisUrl, get_redis_url, has_one_server
from .wire import Link, Wire, packed

BLOCK_SECONDS = 5  # how long Redis blocks a pop; never 0, so that a dead peer is noticed
IDLE_SECONDS = 15  # the same for an idle child that waits in several shards
WAIT_SECONDS = 60  # the same for ``wait``, whose caller does not wait for the end of the pop
OVERDUE = 3.0  # s that such a pop may be overdue before the peer counts as dead
PRODUCER_TIMEOUT = 0.45  # s, for connecting and again for the reply: under 1 s in all
WORKER_TIMEOUT = 5.0  # s; a worker waits, and sends the same call again
CHILD_TIMEOUT = 2.0  # s; for a child that can run another server's jobs meanwhile
CONNECT_TIMEOUT = 2.0  # s, of a worker
HANGS = 1.0  # s during which no other connection to a node that hangs is tried
HUNG = 0.5  # s; a failed call that took longer means that the server hangs
ACCEPTED = "it may run, or be lost in a failover; sending it again creates no second job"
IDLE = 0.01  # s; after this a restart or the server's idle timeout may have cut a connection
STALE = 80.0  # s; after this a firewall may have forgotten it, without telling either side
Answer = TypeVar("Answer")
Tag = TypeVar("Tag")


class ReplicaWait(NamedTuple):
    """How many replicas must have a write. ``key``: a hash that gets one more write, because WAIT
    waits for the connection's last write, and a repeated call may write nothing."""

    replicas: int
    key: str


class HungNode(redis_errors.TimeoutError):
    """A node of a cluster failed to accept a connection a moment ago."""


class _Guard:
    """Lends out redis-py's connection. An error inside the block closes it and is translated."""

    __slots__ = ("_owner",)

    def __init__(self, owner: RedisConnection) -> None:
        self._owner = owner

    def __enter__(self) -> AbstractConnection:
        try:
            return self._owner.open()
        except BaseException as error:
            self._fail(error, unsent=True)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException, *, unsent: bool = False) -> None:
        self._owner.close()
        if isinstance(error, redis_errors.RedisError | OSError):
            if not isinstance(error, HungNode):
                self._owner.redis_url.distrust(error)
            translated = translate(error, self._owner.redis_url.address)
            if isinstance(translated, RedisUnavailable):
                translated.unsent = unsent
            without_frames(error)  # error pages show locals: the password, and jobs' arguments
            raise translated from error


class RedisConnection:
    """One connection, opened on first use and again after every failure.

    It is bound to a shard: commands, queries and whatever else uses it work in that shard. ``at``
    is the same connection for another shard.

    Raises the errors of ``failures.translate``. Every error closes the connection. Redis does the
    same after a protocol error; and after an interrupt inside a call (a job's timeout), the late
    reply would be taken for the reply to the next call.
    """

    def __init__(
        self, redis_url: RedisUrl, timeout: float, connect_timeout: float, shard: int = 0
    ) -> None:
        self.redis_url = redis_url
        self.shard = shard
        self._timeouts = (timeout, connect_timeout)
        #: Its server; for a cluster, the node that had the shard when it was last connected.
        self.server: RedisUrl | Address = redis_url
        self._link = Link()
        self._links: dict[RedisUrl | Address, Link] = {redis_url: self._link}  # by server
        self._siblings = {shard: self}  # the same caller's connections, by shard
        self._wait_ms = int(timeout * 1000 * 2 / 3)  # for replicas; leaves time for the reply
        self._guard = _Guard(self)

    def at(self, shard: int) -> RedisConnection:
        """The same caller's connection for another shard, on the same socket if that shard is on
        the same server. Raises ConfigurationError."""
        found = self._siblings.get(shard)
        if found is None:
            found = RedisConnection(get_redis_url(shard), *self._timeouts, shard)
            found._link = self._links.setdefault(found.redis_url, found._link)
            found._links, found._siblings = self._links, self._siblings
            self._siblings[shard] = found
        return found

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        connection, self._link.connection, self._link.wire = self._link.connection, None, None
        self._link.waiting_until = 0.0
        if connection is not None:
            connection.disconnect()
        if self.redis_url.is_cluster:
            self._link = Link()  # this shard may have left the node, while others stay

    def close_all(self) -> None:
        """Close the connection, and the ones that ``at`` created for other shards."""
        for sibling in self._siblings.values():
            sibling.close()

    def drop_if_cut(self) -> None:
        """Close the connection if its peer has closed it. Takes no round trip."""
        connection, wire = self._link.connection, self._link.wire
        if connection is None or wire is None or not wire.has_input():
            return
        try:
            cut = connection.can_read(0)  # TLS sends messages of its own
        except (redis_errors.RedisError, OSError):
            cut = True
        if cut:
            self.look_again()

    def look_again(self) -> None:
        """Close the connection, and ask which server is the master before opening the next one."""
        self.close()
        self.redis_url.distrust()

    def call(self, *command: Any) -> Any:
        """Send one command and return its reply (text, int, None or lists of them)."""
        with self._fresh() as connection:
            connection.send_packed_command([packed(command)])
            return connection.read_response()

    def script(self, sha: str, source: str, key: str, *args: Any) -> Any:
        """Run a script by its digest, or by its source if Redis does not have it."""
        return self.script_packed(packed(("EVALSHA", sha, 1, key, *args)), source, key, *args)

    def script_packed(self, command: bytes, source: str, key: str, *args: Any) -> Any:
        """``script`` whose first try, by its digest, is encoded already."""
        with self._fresh():
            wire = self._link.wire
            assert wire is not None
            try:
                return wire.ask(command)
            except redis_errors.NoScriptError:
                return wire.ask(packed(("EVAL", source, 1, key, *args)))

    def script_on_replicas(
        self, wait: ReplicaWait, sha: str, source: str, key: str, *args: Any
    ) -> Any:
        """``script``, which also waits in the same round trip until replicas have what it wrote.
        Raises NotReplicated."""
        with self._fresh() as connection:
            for script in (("EVALSHA", sha), ("EVAL", source)):
                self._send_and_wait(connection, wait, (*script, 1, key, *args))
                reply, reached = self._read(connection), self._read_wait(connection)
                if not isinstance(reply, redis_errors.NoScriptError):
                    break
            for answer in (reply, reached):
                if isinstance(answer, Exception):
                    raise answer
        self._check_reached(wait, reached)
        return reply

    def _send_and_wait(
        self, connection: AbstractConnection, wait: ReplicaWait, *commands: tuple[Any, ...]
    ) -> None:
        """Send the commands, then a write and a WAIT for it."""
        fence = ("HSET", wait.key, "fence", 1)
        waiting = (fence, ("WAIT", wait.replicas, self._wait_ms))
        connection.send_packed_command([packed(one) for one in (*commands, *waiting)])

    def _read_wait(self, connection: AbstractConnection) -> Any:
        fenced, reached = self._read(connection), self._read(connection)
        return fenced if isinstance(fenced, Exception) else reached

    def wait_for_replicas(self, wait: ReplicaWait, meanwhile: str = ACCEPTED) -> None:
        """Wait until replicas have everything that the open connection has read or written.
        ``meanwhile``: what the error says about it. Raises NotReplicated."""
        self._check_open("the connection was lost before replicas had what was read")
        with self._guard as connection:
            self._send_and_wait(connection, wait)
            reached = self._read_wait(connection)
            if isinstance(reached, Exception):
                raise reached
        self._check_reached(wait, reached, meanwhile)

    def _check_reached(self, wait: ReplicaWait, reached: int, meanwhile: str = ACCEPTED) -> None:
        """A master without its replicas may have been replaced: the next call looks it up."""
        if reached < wait.replicas:
            self.look_again()
            raise NotReplicated(
                f"Redis at {self.redis_url.address} has it, but only {reached} of the "
                f'{wait.replicas} replicas of REDISQUEUE["WAIT_REPLICAS"] had it within '
                f"{self._wait_ms} ms: {meanwhile}"
            )

    def pipeline(self, commands: Sequence[Sequence[Any]], *, lenient: bool = False) -> list[Any]:
        """Send several commands at once. Raises the first error, after reading all replies. With
        ``lenient``, the reply for a key of the wrong type is None."""
        return self.check_replies(self.replies(commands), lenient=lenient)

    def replies(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send several commands at once; returns their replies, with errors in place of failed
        ones."""
        with self._fresh() as connection:  # an interrupt between the two must also close it
            connection.send_packed_command([b"".join(map(packed, map(tuple, commands)))])
            return [self._read(connection) for _ in commands]

    def send(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send several commands at once. Call ``receive`` or ``close`` next."""
        with self._fresh() as connection:
            connection.send_packed_command([b"".join(map(packed, map(tuple, commands)))])

    def receive(self, count: int) -> list[Any]:
        """The replies to what was sent, with errors in place of failed ones."""
        self._check_open("the connection was lost before the reply")
        with self._guard as connection:
            return [self._read(connection) for _ in range(count)]

    def _check_open(self, problem: str) -> None:
        if self._link.connection is None:
            error = redis_errors.ConnectionError(problem)
            raise translate(error, self.redis_url.address) from error

    def check_replies(self, replies: list[Any], *, lenient: bool = False) -> list[Any]:
        """The replies; raises the first error among them, as ``pipeline`` does."""
        for at, reply in enumerate(replies):
            if isinstance(reply, Exception):
                error = translate(reply, self.redis_url.address)
                if isinstance(error, RedisUnavailable):
                    self.look_again()
                if not (lenient and isinstance(error, WrongKeyType)):
                    raise error from reply
                replies[at] = None
        return replies

    @staticmethod
    def _read(connection: AbstractConnection) -> Any:
        try:
            return connection.read_response()
        except redis_errors.ResponseError as error:
            return error

    def stream_scripts(
        self, calls: Iterable[tuple[Tag, tuple[Any, ...]]], wait: ReplicaWait | None = None
    ) -> Iterator[tuple[Tag, Any]]:
        """``script`` for many calls (tag, arguments). Each call is sent before the reply to the
        previous one is read, unless it is the first of its script, which Redis may not have. Waits
        for replicas at the end; raises NotReplicated."""
        under_way: deque[Tag] = deque()
        known: set[str] = set()
        with self._guard as connection:
            for tag, (sha, source, key, *args) in calls:
                if sha in known:
                    connection.send_packed_command([packed(("EVALSHA", sha, 1, key, *args))])
                    under_way.append(tag)
                    if len(under_way) > 1:
                        yield under_way.popleft(), connection.read_response()
                else:
                    if under_way:
                        yield under_way.popleft(), connection.read_response()
                    yield tag, self._first_call(connection, sha, source, key, *args)
                    known.add(sha)
            if under_way:
                yield under_way.popleft(), connection.read_response()
        if wait is not None:
            self.wait_for_replicas(wait)

    @staticmethod
    def _first_call(
        connection: AbstractConnection, sha: str, source: str, key: str, *args: Any
    ) -> Any:
        try:
            connection.send_packed_command([packed(("EVALSHA", sha, 1, key, *args))])
            return connection.read_response()
        except redis_errors.NoScriptError:
            connection.send_packed_command([packed(("EVAL", source, 1, key, *args))])
            return connection.read_response()

    def script_after_pop(
        self, keys: Sequence[str], timeout: float, sha: str, key: str, *args: Any
    ) -> Any:
        """Block until one of the lists has a token, or for ``timeout`` seconds; then run a script
        that Redis has, in the same round trip. Returns its reply."""
        pop = ("BLPOP", *keys, f"{timeout:.3f}")
        with self._fresh():
            wire = self._link.wire
            assert wire is not None
            wire.ask(packed(pop) + packed(("EVALSHA", sha, 1, key, *args)))
            return wire.read()

    def wait(self, keys: Sequence[str], timeout: float) -> str | None:
        """Block until one of the lists has a token; return its key, or None after ``timeout`` s.

        The timeout is exact, although Redis ends a blocking pop only on its 100 ms tick. A pop that
        is still pending after ``timeout`` stays pending, and the next ``wait`` (on the same keys)
        continues it. Raises RedisUnavailable if the end of a pop is overdue: the peer may be gone.
        """
        end = time.monotonic() + timeout
        with self._guard as connection:
            while True:
                now = time.monotonic()
                if not self._link.waiting_until:
                    connection.send_command("BLPOP", *keys, WAIT_SECONDS)
                    self._link.waiting_until = now + WAIT_SECONDS + OVERDUE
                left = end - now
                if not connection.can_read(max(left, 0)):
                    if now > self._link.waiting_until:
                        raise redis_errors.TimeoutError("a blocking pop has not ended in time")
                    return None
                reply = connection.read_response()
                self._link.waiting_until = 0.0
                if reply or left <= 0:
                    return reply[0] if reply else None

    def subscribe(self, *channels: str) -> None:
        """Subscribe to channels. From then on only ``message`` may be called.

        On a cluster the channels are sharded, because PUBLISH counts only its own node's listeners.
        Redis 6.2 has no sharded channels; there, one listens to the slot's owner.
        """
        if self.redis_url.is_cluster:
            try:
                self.call("SSUBSCRIBE", *channels)
                return
            except RedisRefused as error:
                if "unknown command" not in str(error):
                    raise
        self.call("SUBSCRIBE", *channels)

    def probe(self) -> None:
        """Ask the server of a subscription to send something for ``message`` to return."""
        with self._guard as connection:
            connection.send_command("PING")

    def message(self, timeout: float) -> str | None:
        """The next message of a channel; '' for anything else that the server sends, such as the
        confirmation of a subscription; None after ``timeout`` seconds."""
        self._check_open("the subscription's connection was lost")
        with self._guard as connection:
            if not connection.can_read(timeout):
                return None
            kind, _, *rest = cast(list[str], connection.read_response())
            if kind == "sunsubscribe":  # sent by the server: the slot has another owner
                raise redis_errors.ConnectionError("the channel has moved to another node")
            return rest[0] if kind in ("message", "smessage") else ""

    def open(self) -> AbstractConnection:
        """redis-py's connection, opened if necessary."""
        return self._link.connection or self._connect()

    def _connect(self) -> AbstractConnection:
        owner = None
        if self.redis_url.is_cluster:  # another shard may have connected to the same node
            self.server = owner = self.redis_url.owner(self._timeouts[1])
            self._link = self._links.setdefault(self.server, Link())
        return self._link.connection or self._open(owner)

    def _open(self, owner: Address | None) -> AbstractConnection:
        """For a node that hangs, only the first of its shards waits; the others fail at once."""
        link, began = self._link, time.monotonic()
        if began < link.hangs_until:
            raise HungNode("another shard has just waited for this node in vain")
        try:
            connection = self.redis_url.open(*self._timeouts, owner)
        except (redis_errors.RedisError, OSError):
            if self.redis_url.is_cluster and time.monotonic() - began > self._timeouts[1] / 4:
                link.hangs_until = time.monotonic() + HANGS
            raise
        link.connection, link.wire, link.used = connection, Wire(connection), began
        return connection

    def connect(self) -> object:
        """Open the connection if necessary. Returns one object for all that share a socket."""
        with self._guard as connection:
            return connection

    def _fresh(self) -> _Guard:
        """The guard, for a new request. If the previous one was a while ago, a connection that has
        been cut since then is replaced: that is no outage."""
        now = time.monotonic()
        idle = now - self._link.used
        if idle > STALE:
            self.close()
        elif idle > IDLE:
            self.drop_if_cut()
        self._link.used = now
        return self._guard


_local = threading.local()


class _Lifetime:
    """Dies with its thread. The thread's connections refer to each other, so they would otherwise
    wait for the garbage collector."""


def producer_connection(shard: int = 0) -> RedisConnection:
    """This thread's connection to a shard for web requests, which fails within a second. Raises
    ConfigurationError if REDISQUEUE is wrong, or in a test that did not ask for Redis."""
    if getattr(_local, "made", None) != (os.getpid(), _generation()):
        _check_redis_is_meant()
        own = RedisConnection(get_redis_url(), PRODUCER_TIMEOUT, PRODUCER_TIMEOUT)
        _local.connection, _local.lifetime = own, _Lifetime()
        finalize(_local.lifetime, own.close_all)
        _local.made = (os.getpid(), _generation())
    connection: RedisConnection = _local.connection.at(shard)
    return connection


def bulk_connection() -> RedisConnection:
    """A producer's connection for a stream of calls, separate from ``producer_connection`` so that
    the thread can use that one meanwhile. Close it at the end. Raises ConfigurationError."""
    _check_redis_is_meant()
    return RedisConnection(get_redis_url(), PRODUCER_TIMEOUT, PRODUCER_TIMEOUT)


def _check_redis_is_meant() -> None:
    check_redis_is_meant(in_memory=ports.replacement is not None)


def retry_once(act: Callable[..., Answer], *args: Any) -> Answer:
    """Call ``act``, and once more if Redis was unavailable and a web request can still wait: an
    idle timeout or a restart may have cut the connection. ``act`` must be idempotent."""
    began = time.monotonic()
    try:
        return act(*args)
    except RedisUnavailable as error:
        if time.monotonic() - began > PRODUCER_TIMEOUT / 2:
            raise
        first = error
    try:
        return act(*args)
    except RedisUnavailable as error:
        error.unsent = error.unsent and first.unsent
        raise


def worker_connection(shard: int = 0) -> RedisConnection:
    """A new connection for a worker, which waits longer and retries."""
    return RedisConnection(get_redis_url(shard), WORKER_TIMEOUT, CONNECT_TIMEOUT, shard)


def child_connection() -> RedisConnection:
    """A new connection for a child's main loop. With several servers it waits less: while one of
    them hangs, the child keeps working with the others."""
    timeout = WORKER_TIMEOUT if has_one_server() else CHILD_TIMEOUT
    return RedisConnection(get_redis_url(), timeout, CONNECT_TIMEOUT)


def blocking_connection(shard: int = 0) -> RedisConnection:
    """A new connection for ``wait``, ``script_after_pop`` and ``message``, which block."""
    return RedisConnection(get_redis_url(shard), BLOCK_SECONDS + 3.0, CONNECT_TIMEOUT, shard)


@cache
def _generation() -> object:
    """A token that changes with the settings, so that every thread then opens a new connection."""
    return object()


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("REDISQUEUE", "CACHES"):
        _generation.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_redisqueue.broker.connection")
