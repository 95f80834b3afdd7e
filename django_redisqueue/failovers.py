"""Follows a master that sentinels watch: connections leave it when another takes its place.

Sentinel demotes a former master some ten seconds after it has promoted a replica, and until then it
takes writes that are lost. So a process that has connections to such a master has one thread, which
listens to all of its sentinels:

- ``+selected-slave``: a replica is about to be promoted. From now on nothing is sent to anybody;
- ``+switch-master``, or another answer than before to ``GET-MASTER-ADDR-BY-NAME``, which is asked
  twice a second because a message can be missed: from now on this is the master.

Connections are cut so that who waits in one wakes up; what was under way is sent again (law 5). The
thread ends some seconds after the last connection.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError

from .sentinels import Address, Watched, parse_sentinel_url

logger = logging.getLogger("django_redisqueue")

ASK = 0.5  # s between two questions to a sentinel
ASK_OFTEN = 0.1  # s, while a failover is under way
PATIENCE = 0.5  # s for a sentinel to take a connection, or a question
SILENT = 2.0  # s without an answer: it hangs; and as long an answer is good for new connections
AGAIN = 1.0  # s until a sentinel that was away is tried again
LINGER = 10.0  # s that the thread stays while no connection can be opened
SETTLED = 5.0  # s after a switch in which all sentinels have learned of it
HOLD = 5.0  # s at most that nothing is sent because a failover has begun
_CHANNELS = ("+selected-slave", "+switch-master", "-failover-abort-*")


class Follower:
    """Opens the connections of this process to one master, and cuts them when it is one no more."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._lock = threading.Lock()  # of all below
        self._connections: WeakKeyDictionary[AbstractConnection, Address] = WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self.master: Address | None = None
        self._used_at = 0.0
        self._heard_at = self._moved_at = 0.0
        self._held_until = 0.0

    def open(self, options: Mapping[str, Any]) -> AbstractConnection:
        """A new connection to the master. Raises what redis-py raises.

        Half of the time to connect is for the sentinels, and the other half for the master.
        """
        self._used_at = time.monotonic()
        half = options["socket_connect_timeout"] / 2
        address = self._known() or self._watched.ask(half)
        connection = self._watched.to_master(address, {**options, "socket_connect_timeout": half})
        try:
            connection.connect()
            connection.send_command("INFO", "replication")  # an ACL may well refuse ROLE
            if "role:master" not in connection.read_response():
                raise MasterNotFoundError(f"{address[0]}:{address[1]} is not the master any more")
            self._follow(connection, address)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def stop(self) -> None:
        """End the thread, which comes back with the next connection: a fork is to come."""
        with self._lock:
            thread, self._is_stopped = self._thread, True
        if thread is not None:
            thread.join()
        self._is_stopped = False

    def _known(self) -> Address | None:
        """The master's address, as the thread has heard it just now."""
        self._check_held()
        return self.master if time.monotonic() - self._heard_at < SILENT else None

    def _check_held(self) -> None:
        if time.monotonic() < self._held_until:
            raise MasterNotFoundError(f"a failover of {self._watched.service!r} is under way")

    def _follow(self, connection: AbstractConnection, address: Address) -> None:
        with self._lock:
            if self._known() not in (None, address):
                raise NoConnection("the master has changed meanwhile")
            self._connections[connection] = address
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sentinels", daemon=True)
                self._thread.start()

    # -- the thread

    def _run(self) -> None:
        # Signals are for the main thread, whose waits they are to end.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ears = [Ear(self._watched, place) for place in self._watched.sentinels]
        while self._is_wanted():
            try:
                self._listen(ears)
            except Exception:  # whatever a sentinel says: without this thread jobs are lost
                logger.exception("sentinels: not understood; asking again")
                time.sleep(AGAIN)
        for ear in ears:
            ear.close()

    def _is_wanted(self) -> bool:
        with self._lock:
            is_used = time.monotonic() - self._used_at < LINGER or any(
                map(is_open, self._connections)
            )
            if is_used and not self._is_stopped:
                return True
            self._thread = None
            return False

    def _listen(self, ears: list[Ear]) -> None:
        """Ask what is to be asked, and hear what comes until it is time to ask again."""
        interval = ASK_OFTEN if time.monotonic() < self._held_until else ASK
        poll = select.poll()
        owners = {}
        for ear in ears:
            for number in ear.tend(interval):
                owners[number] = ear
                poll.register(number, select.POLLIN)
        heard = {owners[number] for number, _ in poll.poll(interval * 1000)}
        for ear in heard:
            for channel, words in ear.read():
                self.hear(ears, ear, channel, words)

    def hear(self, ears: list[Ear], ear: Ear, channel: str, words: list[str]) -> None:
        """What one of the sentinels says: on a channel, or as an answer ("")."""
        service = self._watched.service
        if channel == "+switch-master" and words[0] == service:
            self.move((words[3], int(words[4])))
        elif channel == "+selected-slave" and words[words.index("@") + 1] == service:
            self._hold()
        elif channel.startswith("-failover-abort-") and words[1] == service:
            self._held_until = 0.0
        elif channel == "":
            address = (words[0], int(words[1]))
            is_news = ear.master not in (None, address)
            ear.master = address
            # Who leads a failover has the news first; most go on naming the former master for a
            # moment, and one that is cut off may do so for long.
            most = [other.master for other in ears].count(address) > len(ears) // 2
            is_settled = time.monotonic() - self._moved_at > SETTLED
            if is_news or address == self.master or (most and is_settled):
                self.move(address)

    def move(self, address: Address) -> None:
        """This is the master, from now on or still."""
        with self._lock:
            self._heard_at = time.monotonic()
            if self.master != address:
                if self.master is not None:
                    logger.info(
                        "sentinels: the master of %r is %s:%d", self._watched.service, *address
                    )
                self.master, self._moved_at, self._held_until = address, self._heard_at, 0.0
            for connection, server in self._connections.items():
                if server != address:
                    cut(connection)

    def _hold(self) -> None:
        with self._lock:
            self._held_until = time.monotonic() + HOLD
            for connection in self._connections:
                cut(connection)


class Ear:
    """One sentinel, heard in the thread: a subscription, and a connection for questions."""

    def __init__(self, watched: Watched, place: Address) -> None:
        self.master: Address | None = None  # as it said last
        self._watched = watched
        self._place = place
        self._subscription: AbstractConnection | None = None
        self._questions: AbstractConnection | None = None
        self._asked_at = self._again_at = 0.0
        self._is_asked = False

    def tend(self, interval: float) -> list[int]:
        """Connect, or ask, if it is time to; the files to wait for."""
        now = time.monotonic()
        try:
            if self._questions is None:
                if now >= self._again_at:
                    self._open()
            elif self._is_asked and now - self._asked_at > SILENT:
                raise NoConnection("a sentinel hangs")
            is_due = not self._is_asked and now - self._asked_at >= interval * 0.9
            if self._questions is not None and is_due:
                self._questions.send_command(*self._watched.question)
                self._asked_at, self._is_asked = now, True
            return [socket_of(one).fileno() for one in self._open_ones()]
        except (RedisError, OSError):
            self.close()
            return []

    def read(self) -> Iterator[tuple[str, list[str]]]:
        """What it says: the channel, or "" for an answer, and the words."""
        try:
            for connection in self._open_ones():
                while connection.can_read(0):
                    reply = connection.read_response()
                    if connection is self._questions:
                        self._is_asked = False
                        if reply:
                            yield "", reply
                    elif reply[0] == "pmessage":
                        yield reply[2], reply[3].split(" ")
        except (RedisError, OSError):
            self.close()

    def close(self) -> None:
        """Try again later."""
        for connection in self._open_ones():
            connection.disconnect()
        self._subscription = self._questions = None
        self._is_asked = False
        self._again_at = time.monotonic() + AGAIN

    def _open(self) -> None:
        self._subscription = self._watched.to_sentinel(self._place, PATIENCE)
        self._subscription.connect()
        self._subscription.send_command("PSUBSCRIBE", *_CHANNELS)
        self._questions = self._watched.to_sentinel(self._place, PATIENCE)
        self._questions.connect()

    def _open_ones(self) -> list[AbstractConnection]:
        return [one for one in (self._subscription, self._questions) if one is not None]


def is_open(connection: AbstractConnection) -> bool:
    """Whether it has a socket."""
    return connection._sock is not None


def socket_of(connection: AbstractConnection) -> socket.socket:
    """redis-py does not give it away. Raises its ConnectionError when there is none."""
    found: socket.socket | None = connection._sock
    if found is None:
        raise NoConnection("the connection is closed")
    return found


def cut(connection: AbstractConnection) -> None:
    """End a connection that another thread may be using, which hears that its peer has closed."""
    with suppress(RedisError, OSError):
        socket.socket.shutdown(socket_of(connection), socket.SHUT_RDWR)


_followers: dict[str, Follower] = {}
os.register_at_fork(after_in_child=_followers.clear)


def follower_of(url: str) -> Follower:
    """The follower of this process for a ``redis+sentinel://`` URL."""
    found = _followers.get(url)
    return found or _followers.setdefault(url, Follower(parse_sentinel_url(url)))


def stop_following() -> None:
    """End the threads, before a fork; they come back when they are needed."""
    for follower in list(_followers.values()):
        follower.stop()
