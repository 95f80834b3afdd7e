"""Redis behind Sentinel: ``redis+sentinel://[user:password@]host[:port][,...]/service[/database]``.

``rediss+sentinel://`` speaks TLS to the sentinels and to the master. The query takes the options of
``rediss://`` in redis-py (``ssl_ca_certs=...``), and ``sentinel_username`` and
``sentinel_password`` for sentinels with their own password. Put IPv6 addresses in brackets.

Connections follow the master. Sentinel demotes a former master about ten seconds after it has
promoted a replica, and until then the former master accepts writes that will be lost. So a process
with connections to such a master runs one thread that listens to all of its sentinels:

- ``+selected-slave``: a replica is about to be promoted. From then on nothing is sent.
- ``+switch-master``, or a new reply to ``GET-MASTER-ADDR-BY-NAME``, which is sent twice a second
  because a message can be missed: from then on this is the master.

The thread cuts connections to any other server. That wakes every caller that waits on one, and
whatever was in flight is sent again. The thread ends a few seconds after the last connection.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError, ResponseError
from redis.sentinel import MasterNotFoundError

from ..core.interrupts import interrupt_shield
from ..core.parsing import int_or_none, pairs
from .nodes import Address, connected, parse_nodes_url, socket_of, unconnected, unconnected_query

logger = logging.getLogger("django_redisqueue")

SENTINEL_SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
_OWN_LOGIN = ("sentinel_username", "sentinel_password")

ASK = 0.5  # s between two queries to a sentinel
ASK_OFTEN = 0.1  # s, during a failover
ANSWER_TIMEOUT = 0.5  # s for a sentinel to accept a connection or a query
SILENT = 2.0  # s without a reply: it hangs. New connections use a reply for as long
AGAIN = 1.0  # s before a lost sentinel is tried again
LINGER = 10.0  # s that the thread remains while no connection can be opened
SETTLED = 5.0  # s after a switch, by which time all sentinels know of it
HOLD = 5.0  # the most s without sending because a failover has begun
_CHANNELS = ("+selected-slave", "+switch-master", "-failover-abort-*")


@dataclass(frozen=True, slots=True)
class SentinelTarget:
    """A master that sentinels monitor, and the options of connections to it and to them."""

    sentinels: tuple[Address, ...]
    service: str
    of_master: Mapping[str, Any] = field(repr=False)
    of_sentinels: Mapping[str, Any] = field(repr=False)

    @property
    def query(self) -> tuple[str, str, str]:
        """The command that asks a sentinel for the master's address. (SENTINEL MASTER describes the
        former one for a second longer on the sentinel that leads a failover.)"""
        return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)

    def ask(self, seconds: float) -> MasterFound:
        """The master, according to the sentinel with the newest configuration. Raises
        MasterNotFoundError, also during a failover.

        Asks all sentinels, each for an equal part of ``seconds``: some may be down, and if messages
        were missed, only the one that leads a failover knows of it.
        """
        problems, answers = [], {}
        for place in self.sentinels:
            try:
                answers[place] = self._ask_one(place, seconds / len(self.sentinels))
            except (RedisError, OSError) as error:
                problems.append(f"{place[0]}:{place[1]}: {error}")
        if not answers:
            details = f"no sentinel has a live master {self.service!r}: {'; '.join(problems)}"
            raise MasterNotFoundError(details)
        newest = max(answers.values(), key=lambda answer: (answer.epoch, answer.is_failing_over))
        if newest.is_failing_over:
            raise MasterNotFoundError(under_way(self.service))
        return MasterFound(newest.master, {place: one.master for place, one in answers.items()})

    def _ask_one(self, place: Address, seconds: float) -> SentinelAnswer:
        """Raises RedisError or OSError."""
        sentinel = self.to_sentinel(place, seconds)
        try:
            sentinel.connect()
            sentinel.send_command(*self.query)
            found = sentinel.read_response()
            if not found:
                raise MasterNotFoundError("it monitors no master of that name; correct the URL")
            sentinel.send_command("SENTINEL", "MASTER", self.service)
            return read_answer(found, sentinel)
        finally:
            sentinel.disconnect()

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise whatever redis-py raises for options that it does not accept."""
        self.to_sentinel(("", 0), 1)
        unconnected(("", 0), options, self.of_master)

    def to_sentinel(self, address: Address, seconds: float) -> AbstractConnection:
        """A connection to a sentinel, not yet connected, with this timeout for everything."""
        return unconnected_query(address, seconds, self.of_sentinels)


def parse_sentinel_url(url: str) -> SentinelTarget:
    """Parse the URL. Raises ValueError, saying what is wrong with it."""
    parts = parse_nodes_url(url, "a sentinel", 26379)
    service, _, database = parts.path.partition("/")
    if not service:
        raise ValueError("the name of the service is missing: .../<service>")
    if database and not database.isdigit():
        raise ValueError(f"the database is {database!r}, not a number")
    if "db" in parts.options:
        raise ValueError("the database belongs after the service: .../<service>/<database>")
    own = {name.removeprefix("sentinel_"): parts.options.pop(name, "") for name in _OWN_LOGIN}
    return SentinelTarget(
        sentinels=parts.nodes,
        service=service,
        of_master={"db": int(database or 0), **parts.options, **parts.login},
        of_sentinels={**parts.options, **{name: text for name, text in own.items() if text}},
    )


class SentinelAnswer(NamedTuple):
    """What one sentinel reports. ``epoch`` rises with each failover."""

    epoch: int
    is_failing_over: bool  # it leads a failover, and ``master`` is about to be replaced
    master: Address


class MasterFound(NamedTuple):
    """The master, and the address that each answering sentinel gave."""

    address: Address
    by_sentinel: Mapping[Address, Address]


def read_answer(found: Sequence[str], sentinel: AbstractConnection) -> SentinelAnswer:
    """Read the reply to SENTINEL MASTER, which an ACL may refuse; ``found``: the master."""
    master = str(found[0]), int(found[1])
    try:
        state = pairs(sentinel.read_response())
    except ResponseError:
        return SentinelAnswer(0, False, master)
    former = state.get("ip"), state.get("port")  # until the failover has ended
    leads = "failover_in_progress" in state.get("flags", "").split(",")
    is_failing_over = leads and former == (str(found[0]), str(found[1]))
    return SentinelAnswer(int_or_none(state.get("config-epoch")) or 0, is_failing_over, master)


def under_way(service: str) -> str:
    return f"a failover of {service!r} is under way"


class MasterFollower:
    """Opens this process's connections to one master, and cuts them when the master changes."""

    def __init__(self, target: SentinelTarget) -> None:
        self._target = target
        self._lock = threading.Lock()  # guards all below
        self._connections: WeakKeyDictionary[AbstractConnection, Address] = WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self.master: Address | None = None
        self._used_at = 0.0
        self._heard_at = self._moved_at = 0.0
        self._held_until = 0.0

    def open(self, options: Mapping[str, Any]) -> AbstractConnection:
        """A new connection to the master. Half of the connect timeout is for the sentinels, the
        other half for the master. Raises what redis-py raises."""
        self._used_at = time.monotonic()
        half = options["socket_connect_timeout"] / 2
        known = self._known()
        found = MasterFound(known, {}) if known else self._target.ask(half)
        address = found.address
        options = {**options, "socket_connect_timeout": half}
        connection = connected(address, options, self._target.of_master)
        try:
            connection.send_command("INFO", "replication")  # an ACL may well refuse ROLE
            if "role:master" not in connection.read_response():
                raise MasterNotFoundError(f"{address[0]}:{address[1]} is no longer the master")
            self._follow(connection, found)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def stop(self) -> None:
        """Stop the thread before a fork. The next connection starts it again."""
        with self._lock:
            thread, self._is_stopped = self._thread, True
        if thread is not None:
            thread.join()
        self._is_stopped = False

    def _known(self) -> Address | None:
        """The master's address, if the thread has heard it recently."""
        if time.monotonic() < self._held_until:
            raise MasterNotFoundError(under_way(self._target.service))
        return self.master if time.monotonic() - self._heard_at < SILENT else None

    def _follow(self, connection: AbstractConnection, found: MasterFound) -> None:
        with interrupt_shield.get()(), self._lock:
            if self._known() not in (None, found.address):
                raise NoConnection("the master has changed in the meantime")
            if found.by_sentinel:  # most of them may still name the former master
                self._record(found.address)
            self._connections[connection] = found.address
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(found,), name="sentinels", daemon=True
                )
                self._thread.start()

    # In the thread

    def _run(self, found: MasterFound) -> None:
        # Signals must reach the main thread, so that they end its waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        listeners = [
            SentinelListener(self._target, place, found.by_sentinel.get(place))
            for place in self._target.sentinels
        ]
        while self._is_wanted():
            try:
                self._listen(listeners)
            except Exception:  # whatever a sentinel sent: without this thread jobs would be lost
                #: A sentinel answered with something that is not the address of a master. If this
                #: repeats, look at the sentinels and their version.
                logger.exception("sentinels: not understood; asking again")
                time.sleep(AGAIN)
        for listener in listeners:
            listener.close()

    def _is_wanted(self) -> bool:
        with self._lock:
            is_used = time.monotonic() - self._used_at < LINGER or any(
                map(is_open, self._connections)
            )
            if is_used and not self._is_stopped:
                return True
            self._thread, self._heard_at = None, 0.0  # the next one begins with the result of `ask`
            return False

    def _listen(self, listeners: list[SentinelListener]) -> None:
        """Send queries that are due, and handle what arrives until the next is due."""
        interval = ASK_OFTEN if time.monotonic() < self._held_until else ASK
        poll = select.poll()
        owners = {}
        for listener in listeners:
            for number in listener.tend(interval):
                owners[number] = listener
                poll.register(number, select.POLLIN)
        heard = {owners[number] for number, _ in poll.poll(interval * 1000)}
        for listener in heard:
            for channel, words in listener.read():
                self.handle(listeners, listener, channel, words)

    def handle(
        self,
        listeners: list[SentinelListener],
        listener: SentinelListener,
        channel: str,
        words: list[str],
    ) -> None:
        """Handle what a sentinel sent: a message on a channel, or a reply (channel "")."""
        service = self._target.service
        if channel == "+switch-master" and words[0] == service:
            self.move((words[3], int(words[4])))
        elif channel == "+selected-slave" and words[words.index("@") + 1] == service:
            self._hold()
        elif channel.startswith("-failover-abort-") and words[1] == service:
            self._held_until = 0.0
        elif channel == "":
            address = (words[0], int(words[1]))
            is_news = listener.master not in (None, address)
            listener.master = address
            # The leader of a failover knows the new master first. Most sentinels name the former
            # one for a moment longer, and one that is cut off may do so for a long time.
            most = [other.master for other in listeners].count(address) > len(listeners) // 2
            is_settled = time.monotonic() - self._moved_at > SETTLED
            if is_news or address == self.master or (most and is_settled):
                self.move(address)

    def move(self, address: Address) -> None:
        """Record the master's address, and cut the connections to other servers."""
        with self._lock:
            self._record(address)

    def _record(self, address: Address) -> None:
        self._heard_at = time.monotonic()
        if self.master != address:
            if self.master is not None:
                #: There was a failover: from now on, this process writes to the new master. No
                #: action is needed.
                logger.info("sentinels: the master of %r is %s:%d", self._target.service, *address)
            self.master, self._moved_at, self._held_until = address, self._heard_at, 0.0
        for connection, server in self._connections.items():
            if server != address:
                cut(connection)

    def _hold(self) -> None:
        with self._lock:
            self._held_until = time.monotonic() + HOLD
            for connection in self._connections:
                cut(connection)


class SentinelListener:
    """One sentinel's two connections in the thread: a subscription, and one for queries."""

    def __init__(
        self, target: SentinelTarget, place: Address, master: Address | None = None
    ) -> None:
        self.master = master  # by its last reply
        self._target = target
        self._place = place
        self._subscription: AbstractConnection | None = None
        self._queries: AbstractConnection | None = None
        self._asked_at = self._again_at = 0.0
        self._is_asked = False

    def tend(self, interval: float) -> list[int]:
        """Connect or query if it is time; return the file descriptors to wait for."""
        now = time.monotonic()
        try:
            if self._queries is None:
                if now >= self._again_at:
                    self._open()
            elif self._is_asked and now - self._asked_at > SILENT:
                raise NoConnection("a sentinel hangs")
            is_due = not self._is_asked and now - self._asked_at >= interval * 0.9
            if self._queries is not None and is_due:
                self._queries.send_command(*self._target.query)
                self._asked_at, self._is_asked = now, True
            return [socket_of(one).fileno() for one in self._open_ones()]
        except (RedisError, OSError):
            self.close()
            return []

    def read(self) -> Iterator[tuple[str, list[str]]]:
        """What arrived: the channel, or "" for a reply, and the words."""
        try:
            for connection in self._open_ones():
                while connection.can_read(0):
                    reply = connection.read_response()
                    if connection is self._queries:
                        self._is_asked = False
                        if reply:
                            yield "", reply
                    elif reply[0] == "pmessage":
                        yield reply[2], reply[3].split(" ")
        except (RedisError, OSError):
            self.close()

    def close(self) -> None:
        """Close both connections, and try again later."""
        for connection in self._open_ones():
            connection.disconnect()
        self._subscription = self._queries = None
        self._is_asked = False
        self._again_at = time.monotonic() + AGAIN

    def _open(self) -> None:
        self._subscription = self._target.to_sentinel(self._place, ANSWER_TIMEOUT)
        self._subscription.connect()
        self._subscription.send_command("PSUBSCRIBE", *_CHANNELS)
        self._queries = self._target.to_sentinel(self._place, ANSWER_TIMEOUT)
        self._queries.connect()

    def _open_ones(self) -> list[AbstractConnection]:
        return [one for one in (self._subscription, self._queries) if one is not None]


def is_open(connection: AbstractConnection) -> bool:
    return connection._sock is not None


def cut(connection: AbstractConnection) -> None:
    """Shut down a connection that another thread may be using; that thread gets an error."""
    with suppress(RedisError, OSError):
        socket.socket.shutdown(socket_of(connection), socket.SHUT_RDWR)


_followers: dict[str, MasterFollower] = {}
os.register_at_fork(after_in_child=_followers.clear)


def get_follower(url: str) -> MasterFollower:
    """This process's follower for a ``redis+sentinel://`` URL."""
    found = _followers.get(url)
    return found or _followers.setdefault(url, MasterFollower(parse_sentinel_url(url)))


def stop_following() -> None:
    """Stop the threads before a fork. They start again when needed."""
    for follower in list(_followers.values()):
        follower.stop()
