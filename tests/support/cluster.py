"""A real Redis Cluster on loopback for tests: three masters, each with a replica."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Self, cast

from redis import Redis, RedisCluster
from redis.crc import key_slot

from django_redisqueue.broker.embedded import version_of

from .servers import RedisServer, program, reserve, wait_for

if TYPE_CHECKING:  # benchmarks run where pytest is not installed
    import pytest

SLOTS = 16384
MASTERS = 3
FIRST_SLOTS = tuple(n * SLOTS // MASTERS for n in range(MASTERS))  # of each master at first
BUS = 10_000  # added to the port of a node: its port for the other nodes
# Long, so that no node takes another for dead on a busy machine. Tests in which the nodes must
# notice a death on their own shorten it (``noticing``).
NODE_TIMEOUT_MS = 30_000
NOTICED_MS = 1_500
VOTING_MS = 1_000


def has_cluster(request: pytest.FixtureRequest) -> bool:
    """Whether the test runs on the cluster: ``REDISQUEUE_TEST_CLUSTER`` makes all tests do so,
    except those with the mark ``one_server``."""
    return is_on_cluster() and not request.node.get_closest_marker("one_server")


def can_be_cut_off() -> bool:
    """Whether one node can be made to forget all others. From Redis 7.2 on it tells them, too, so
    they forget each other."""
    return version_of(program()) < (7, 2)


def is_on_cluster() -> bool:
    return bool(os.environ.get("REDISQUEUE_TEST_CLUSTER"))


class ClusterNode(RedisServer):
    """One node. ``config`` is what it knows of the others when it first starts."""

    def __init__(self, name: str, port: int, config: str, **options: Any) -> None:
        self.name = name
        self._config = config
        super().__init__(
            port=port, cluster_enabled=True, cluster_node_timeout=NODE_TIMEOUT_MS,
            cluster_require_full_coverage=False, repl_diskless_sync_delay=0, **options,
        )  # fmt: skip
        self.asked = self.client(decode_responses=True)

    def start(self) -> None:
        path = self.folder / "nodes.conf"
        if not path.exists():
            path.write_text(self._config)
        super().start()

    def cluster(self, *words: object) -> Any:
        """The reply to CLUSTER ..., exactly as the server sent it."""
        return self.asked.execute_command("CLUSTER", *words)

    def ranges(self) -> list[tuple[int, int, str]]:
        """The first and last slot of each range, and its owner's name, according to this node."""
        found = self.cluster("SLOTS")
        return [(first, last, owner[2]) for first, last, owner, *_ in found]


class ClusterNodes:
    """Nodes 0 to 2 start as masters, and nodes 3 to 5 as their replicas. ``node`` is their
    class."""

    def __init__(self, *, node: type[ClusterNode] = ClusterNode, **options: Any) -> None:
        self._stack = ExitStack()
        self._voted_at = -inf
        self._moved: set[int] = set()
        ports = free_ports()
        names = [f"{n + 1:040x}" for n in range(len(ports))]
        self.nodes = [
            self._stack.enter_context(node(name, port, _config(n, names, ports), **options))
            for n, (name, port) in enumerate(zip(names, ports, strict=True))
        ]
        self.url = f"redis+cluster://{','.join(node.address for node in self.nodes[:MASTERS])}"
        self.heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def client(self, **options: Any) -> Redis:
        """A client of the whole cluster. It sends each command to the node that has the key,
        commands about all keys to all masters, and commands about users to all nodes. It is closed
        with the cluster."""
        host, _, port = self.nodes[0].address.rpartition(":")
        client = RedisCluster(host=host, port=int(port), socket_timeout=10, **options)
        client.command_flags |= dict.fromkeys(("KEYS", "DBSIZE"), client.PRIMARIES)
        client.command_flags["ACL SETUSER"] = client.ALL_NODES
        self._stack.callback(client.close)
        return cast(Redis, client)

    @property
    def has_sharded_channels(self) -> bool:
        """Redis 6.2 has no sharded channels."""
        return not str(self.nodes[0].asked.info("server")["redis_version"]).startswith("6.")

    def listeners(self, channel: str) -> int:
        """How many clients listen to a channel of a shard."""
        owner, kind = self.owner(key_slot(channel.encode())), "SHARD" * self.has_sharded_channels
        return int(owner.asked.execute_command("PUBSUB", f"{kind}NUMSUB", channel)[1])

    @property
    def living(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.is_running]

    def owner(self, slot: int) -> ClusterNode:
        """The master that all living nodes name as the owner of the slot."""
        return wait_for(lambda: self._agreed_owner(slot), "the nodes do not agree")

    def replica(self, slot: int) -> ClusterNode:
        """A replica of the slot's owner, in sync with it."""
        owner = self.owner(slot)

        def find() -> ClusterNode | None:
            for node in self.living:
                info = node.asked.info("replication")
                port = int(owner.address.rpartition(":")[2])
                if info.get("master_link_status") == "up" and info["master_port"] == port:
                    return node
            return None

        return wait_for(find, "the owner has no replica")

    def others(self, slot: int) -> list[ClusterNode]:
        """The masters that do not own the slot."""
        owner = self.owner(slot)
        return [node for node in self.living if _is_master(node) and node is not owner]

    def promote(self, slot: int) -> ClusterNode:
        """Have a replica of the slot's owner take over, as an operator would, without losing
        anything."""
        owner, replica = self.owner(slot), self.replica(slot)
        self._set_node_timeout(VOTING_MS)
        # Until they have heard whose replica a node is, its master ignores its request, and the
        # other masters its request for votes. That takes half of this time.
        wait_for(
            lambda: all(f" slave {owner.name} " in _line(one, replica) for one in self.living),
            "the nodes do not know the replica",
        )
        # Masters vote only once per twice this time for replicas of the same master.
        time.sleep(max(0.0, self._voted_at + 2 * VOTING_MS / 1000 - time.monotonic()))
        replica.cluster("FAILOVER")
        wait_for(lambda: self._agreed_owner(slot) is replica, "no failover")
        self._voted_at = time.monotonic()
        self._set_node_timeout(NODE_TIMEOUT_MS)
        return replica

    def kill_owner(self, slot: int) -> ClusterNode:
        """SIGKILL the owner of the slot and have its replica take over; returns the new owner."""
        owner, replica = self.owner(slot), self.replica(slot)
        owner.kill()
        replica.cluster("FAILOVER", "TAKEOVER")  # without votes, which take a while
        wait_for(lambda: self._agreed_owner(slot) is replica, "no failover")
        return replica

    @contextmanager
    def cut_off(self, slot: int) -> Iterator[ClusterNode]:
        """Cut the slot's owner off from the other nodes, and have its replica take over. Until the
        end of the block, clients can still reach the former owner, which accepts writes. Only on
        servers of which ``can_be_cut_off`` says that it works."""
        owner, replica = self.owner(slot), self.replica(slot)
        others = [node for node in self.living if node is not owner]
        for node in others:
            owner.cluster("FORGET", node.name)  # for 60 s it hears them only if it meets them
        replica.cluster("FAILOVER", "TAKEOVER")
        wait_for(lambda: self._agreed_owner(slot, others) is replica, "no failover")
        try:
            yield owner
        finally:
            for node in others:
                owner.cluster("MEET", *node.address.split(":"))
            wait_for(self._is_whole, "the former owner does not come back")

    @contextmanager
    def moving(self, slot: int, to: ClusterNode | None = None) -> Iterator[ClusterNode]:
        """The slot is being migrated to another node, and arrives there at the end of the block."""
        source, target = self.owner(slot), to or self.others(slot)[0]
        self._moved.add(slot)
        target.cluster("SETSLOT", slot, "IMPORTING", source.name)
        source.cluster("SETSLOT", slot, "MIGRATING", target.name)
        yield target
        while keys := source.cluster("GETKEYSINSLOT", slot, 100):
            self.migrate(source, target, keys)
        for node in (target, source, *self.living):
            if node in (target, source) or _is_master(node):
                node.cluster("SETSLOT", slot, "NODE", target.name)
        wait_for(lambda: self._agreed_owner(slot) is target, "the slot does not arrive")

    def migrate(self, source: ClusterNode, target: ClusterNode, keys: Sequence[str]) -> None:
        """Move these keys of a slot that is being migrated."""
        host, port = target.address.split(":")
        if keys:
            source.asked.execute_command("MIGRATE", host, port, "", 0, 10_000, "KEYS", *keys)

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """The nodes notice a death on their own, within a second or two."""
        self._set_node_timeout(NOTICED_MS)
        try:
            yield
        finally:
            self._voted_at = time.monotonic()
            self._set_node_timeout(NODE_TIMEOUT_MS)

    def heal(self) -> None:
        """Start whatever was killed, wait until each master has its replica, and delete all
        keys."""
        for node in self.nodes:
            if not node.is_running:
                node.start()
        self._set_node_timeout(NODE_TIMEOUT_MS)
        self.wait_until_whole()
        self.empty()

    def empty(self) -> None:
        """Delete all keys, and move slots back to their first owners."""
        for node in filter(_is_master, self.nodes):
            node.asked.flushall()
        for slot in sorted(self._moved):
            home = self.owner(next(first for first in reversed(FIRST_SLOTS) if first <= slot))
            if self.owner(slot) is not home:
                with self.moving(slot, home):
                    pass
        self._moved.clear()

    def wait_until_whole(self) -> None:
        """Wait until each master has its replica and all nodes agree."""
        wait_for(self._is_whole, "the cluster does not come up")

    def _set_node_timeout(self, ms: int) -> None:
        for node in self.living:
            node.asked.config_set("cluster-node-timeout", ms)

    def _agreed_owner(self, slot: int, asked: Sequence[ClusterNode] = ()) -> ClusterNode | None:
        """The owner according to all living nodes, or to these."""
        owners = {
            next((name for first, last, name in node.ranges() if first <= slot <= last), None)
            for node in asked or self.living
        }
        name = owners.pop()
        return next((node for node in self.living if node.name == name and not owners), None)

    def _is_whole(self) -> bool:
        """Whether all nodes are up and name the same owners of all slots, and each master has its
        replica."""
        views = {tuple(sorted(node.ranges())) for node in self.nodes}
        sizes = {sum(last - first + 1 for first, last, _ in view) for view in views}
        is_up = all("cluster_state:ok" in node.cluster("INFO") for node in self.nodes)
        linked = [node.asked.info("replication").get("master_link_status") for node in self.nodes]
        return (
            is_up and len(views) == 1 and sizes == {SLOTS}
            and linked.count("up") == len(self.nodes) - MASTERS
        )  # fmt: skip


def _line(asked: ClusterNode, other: ClusterNode) -> str:
    """What a node says about another."""
    lines = asked.cluster("NODES").splitlines()
    return next(line for line in lines if line.startswith(other.name)).replace("myself,", "")


def _is_master(node: ClusterNode) -> bool:
    return bool(node.asked.info("replication")["role"] == "master")


def _config(own: int, names: Sequence[str], ports: Sequence[int]) -> str:
    """The nodes.conf of a node that has already met the others, so that they find each other at
    once."""
    lines = []
    for n, (name, port) in enumerate(zip(names, ports, strict=True)):
        master = names[n - MASTERS] if n >= MASTERS else "-"
        first, end = (*FIRST_SLOTS, SLOTS)[n % MASTERS :][:2]
        flags = f"{'myself,' if n == own else ''}{'slave' if n >= MASTERS else 'master'}"
        slots = f" {first}-{end - 1}" if n < MASTERS else ""
        epoch = n + 1 if n < MASTERS else 0  # with its master's, a replica's takeover might not win
        lines.append(
            f"{name} 127.0.0.1:{port}@{port + BUS} {flags} {master} 0 0 {epoch} connected{slots}"
        )
    return "\n".join([*lines, f"vars currentEpoch {MASTERS} lastVoteEpoch 0", ""])


def free_ports() -> list[int]:
    """Loopback ports for the nodes that this process has until it ends, with their bus ports. They
    are outside the kernel's ephemeral range."""
    for turn in count(os.getpid() * 37):
        first = 10_000 + turn % 1000 * 2 * MASTERS
        ports = list(range(first, first + 2 * MASTERS))
        if all(reserve(port) and reserve(port + BUS) for port in ports):
            return ports
    raise AssertionError("unreachable")
