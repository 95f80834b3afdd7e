"""Redis Cluster: ``redis+cluster://[user:password@]host[:port][,...]``.

``rediss+cluster://`` speaks TLS, and the query takes the options of ``rediss://`` in redis-py
(``ssl_ca_certs=...``). The URL may name any of the nodes; they name the others. Put IPv6 addresses
in brackets.

All keys of a shard are in one slot, so a shard only needs a plain connection to the node that owns
its slot. After every connection error (READONLY, CLUSTERDOWN, a lost connection) the next
connection looks up the owner again; after MOVED, it goes to the node that the reply names.

ASK is never followed. While a slot moves, its keys are on two nodes, and a script that ran on the
importing node would find some of them missing. A caller that gets an ASK or a TRYAGAIN waits until
the slot has moved. docs/internals/cluster.md explains why no script does half of its work in the
meantime.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from redis.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MovedError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as NoConnection

from ..core.interrupts import interrupt_shield
from .nodes import Address, connected, parse_nodes_url, unconnected, unconnected_query

CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")
PORT = 6379
AGAIN = 0.1  # s between two lookups of a process


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The nodes that a URL names. ``common``: the options of every connection: login and TLS."""

    seeds: tuple[Address, ...]
    common: Mapping[str, Any] = field(repr=False)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise whatever redis-py raises for options that it does not accept."""
        unconnected(("", 0), options, self.common)

    def ask(self, address: Address, seconds: float) -> list[SlotRange]:
        """Which node has which slots, as this node sees it. Raises what redis-py raises."""
        node = unconnected_query(address, seconds, self.common)
        try:
            node.connect()
            node.send_command("CLUSTER", "SLOTS")
            return sorted(_slot_ranges(node.read_response(), address))
        finally:
            node.disconnect()


def parse_cluster_url(url: str) -> ClusterTarget:
    """Parse the URL. Raises ValueError, saying what is wrong with it."""
    parts = parse_nodes_url(url, "a node", PORT)
    if parts.path not in ("", "0") or parts.options.pop("db", 0) != 0:
        raise ValueError("a Redis Cluster has only database 0; leave the number out")
    return ClusterTarget(parts.nodes, {**parts.options, **parts.login})


class SlotRange(NamedTuple):
    """Slots from ``first`` to ``last``, and the node that owns them."""

    first: int
    last: int
    owner: Address


def _slot_ranges(reply: Sequence[Any], asked: Address) -> Iterator[SlotRange]:
    """The reply to CLUSTER SLOTS. A node that does not know its own address leaves it empty."""
    for first, last, (host, port, *_), *_ in reply:
        if host != "?":
            yield SlotRange(first, last, (host or asked[0], port))


class ClusterMap:
    """Which node owns which slot, as far as this process knows; its connections share it."""

    def __init__(self, target: ClusterTarget) -> None:
        self._target = target
        self._lock = threading.Lock()  # guards all below
        self._ranges: list[SlotRange] = []
        self._moved: dict[int, Address] = {}  # slot -> its next owner by MOVED, for one connection
        self._nodes = list(target.seeds)  # in the order in which they are asked
        self._asked_at = float("-inf")
        self._is_current = False

    def open(self, owner: Address, options: Mapping[str, Any]) -> AbstractConnection:
        """A new connection to the owner of a slot. Half of the connect timeout is for finding the
        owner, the other half for connecting. Raises what redis-py raises."""
        half = options["socket_connect_timeout"] / 2
        options = {**options, "socket_connect_timeout": half}
        return connected(owner, options, self._target.common)

    def owner(self, number: int, seconds: float) -> Address:
        """The slot's owner; asks the nodes if it may have changed. Raises what redis-py raises."""
        with interrupt_shield.get()():
            return self._owner(number, seconds)

    def _owner(self, number: int, seconds: float) -> Address:
        end = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise ClusterDownError("its nodes take too long to report which of them owns the slot")
        try:
            moved_to = self._moved.pop(number, None)
            if moved_to is not None:
                return moved_to
            is_recent = time.monotonic() - self._asked_at < AGAIN
            known = self._known(number)
            if known is None or not (self._is_current or is_recent):
                known = self._look_up(number, end)
            return known
        finally:
            self._lock.release()

    def distrust(self, error: BaseException | None = None) -> None:
        """Look up the owners again before the next connection, because this one failed. If it
        failed with MOVED, the next one goes to the node that the reply names: the former owner
        knows it before nodes that have yet to hear of it."""
        if isinstance(error, MovedError) and error.host:
            self._moved[error.slot_id] = error.node_addr
        self._is_current = False

    def _known(self, number: int) -> Address | None:
        at = bisect_right(self._ranges, number, key=lambda one: one.first) - 1
        return self._ranges[at].owner if at >= 0 and number <= self._ranges[at].last else None

    def _look_up(self, number: int, end: float) -> Address:
        """Ask one node after another, each for at most half of the remaining time.

        The next lookup begins with another node, because a node that is cut off from the others
        keeps naming the previous owners.
        """
        problems: list[str] = []
        kind: type[RedisError] = NoConnection
        for node in list(self._nodes):
            left = end - time.monotonic()
            if left <= 0:
                break
            self._nodes.append(self._nodes.pop(0))
            try:
                self._ranges = self._target.ask(node, left / 2)
                self._moved = {}
            except (ResponseError, AuthenticationError):
                raise  # a wrong login, or no cluster
            except (RedisError, OSError) as error:
                problems.append(f"{node[0]}:{node[1]}: {error}")
                continue
            finally:
                self._asked_at = time.monotonic()
            found = self._known(number)
            if found is not None:
                self._is_current = True
                self._nodes = list(dict.fromkeys([*self._owners_after(node), *self._target.seeds]))
                return found
            problems.append(
                f"{node[0]}:{node[1]}: no node owns slot {number} "
                "(assign it: redis-cli --cluster fix)"
            )
            kind = ClusterDownError
        raise kind(f"no node could name the owner of the queue's slot: {'; '.join(problems)}")

    def _owners_after(self, node: Address) -> list[Address]:
        """All owners, beginning with the one after this node."""
        owners = sorted({one.owner for one in self._ranges})
        at = bisect_right(owners, node)
        return owners[at:] + owners[:at]


@cache
def get_cluster_map(url: str) -> ClusterMap:
    """This process's map for a ``redis+cluster://`` URL."""
    return ClusterMap(parse_cluster_url(url))


forget_clusters = get_cluster_map.cache_clear
os.register_at_fork(after_in_child=forget_clusters)
