"""The socket of one caller to one server, and its state."""

from __future__ import annotations

import os
import time
from weakref import WeakSet

from redis import exceptions as redis_errors
from redis.connection import AbstractConnection

from .nodes import Address
from .redis_url import RedisUrl
from .wire import Wire

HANGS = 1.0  # s during which no other connection to a node that hangs is tried


class HungNode(redis_errors.TimeoutError):
    """A node of a cluster failed to accept a connection a moment ago."""


_all: WeakSet[Link] = WeakSet()


class Link:
    """The socket of one caller to one server."""

    __slots__ = ("__weakref__", "connection", "hangs_until", "used", "waiting_until", "wire")

    def __init__(self) -> None:
        _all.add(self)
        self.connection: AbstractConnection | None = None
        self.wire: Wire | None = None  # of that connection
        self.waiting_until = 0.0  # for the reply to a blocking pop (monotonic); 0.0: none
        self.used = 0.0  # when it was opened, or its last request was sent (monotonic)
        self.hangs_until = 0.0  # of a cluster node that failed to accept a connection (monotonic)

    def open(
        self,
        redis_url: RedisUrl,
        timeout: float,
        connect_timeout: float,
        owner: Address | None = None,
    ) -> None:
        """Connect, as ``redis_url.open`` does. For a node that hangs, only the first of its shards
        waits; the others fail at once."""
        began = time.monotonic()
        if began < self.hangs_until:
            raise HungNode("another shard has just waited for this node in vain")
        try:
            self.connection = redis_url.open(timeout, connect_timeout, owner)
        except (redis_errors.RedisError, OSError):
            now = time.monotonic()
            if redis_url.is_cluster and now - began > connect_timeout / 4:
                self.hangs_until = now + HANGS
            raise
        self.wire = Wire(self.connection)
        self.used = began


def _forget_sockets() -> None:
    """Called in a forked process, such as a task's, which must not read its parent's replies."""
    for link in _all:
        link.connection, link.wire, link.waiting_until = None, None, 0.0


os.register_at_fork(after_in_child=_forget_sockets)
