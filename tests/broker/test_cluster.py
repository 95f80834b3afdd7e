"""Redis Cluster: finding the owner of a slot, following it, and waiting while the slot moves."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations
from typing import Any

import pytest
from django.core.management.base import CommandError
from redis.exceptions import MovedError

from django_redisqueue import JobQueue
from django_redisqueue.broker import cluster as cluster_maps
from django_redisqueue.broker import scripts
from django_redisqueue.broker.base import Read, Strict, keys_at
from django_redisqueue.broker.cluster import (
    forget_clusters,
    get_cluster_map,
    parse_cluster_url,
)
from django_redisqueue.broker.connection import (
    RedisConnection,
    blocking_connection,
    worker_connection,
)
from django_redisqueue.broker.redis_url import RedisUrl, get_redis_url, masked
from django_redisqueue.broker.scan import SCAN_START, Scanner
from django_redisqueue.broker.shards import AllShards
from django_redisqueue.checks import check_settings
from django_redisqueue.checks.network import check_network
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import slot, tag
from django_redisqueue.exceptions import (
    ConfigurationError,
    RedisRefused,
    RedisUnavailable,
)
from tests.app import tasks
from tests.support.cluster import ClusterNodes, free_ports
from tests.support.commands import output_of
from tests.support.manual_worker import ManualWorker
from tests.support.servers import RedisServer
from tests.support.stopwatch import Stopwatch
from tests.worker.processes import eventually

from .harness import BrokerHarness, invariants
from .schedules import FIRST, MINUTE, define, definition, fire_one, read
from .test_check_wait import park
from .test_scripts import exercise, exercise_the_rest, verb_of

SLOT = slot("0")  # of shard 0


# -- URLs


def test_every_part_of_a_url_is_used() -> None:
    url = "rediss+cluster://shop:p%40ss@one:1,[::1]:2,three/?ssl_ca_certs=/ca.pem"
    target = parse_cluster_url(url)
    assert target.seeds == (("one", 1), ("::1", 2), ("three", 6379))
    assert (target.common["username"], target.common["password"]) == ("shop", "p@ss")
    assert target.common["ssl_ca_certs"] == "/ca.pem"
    assert masked(url) == "rediss+cluster://shop:***@one:1,[::1]:2,three/"


def test_a_cache_on_a_cluster_cannot_be_shared(settings: Any) -> None:
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis+cluster://host"}
    settings.CACHES = {"jobs": cache}
    settings.REDISQUEUE = {"CONNECTION": {"CACHE": "jobs"}}
    with pytest.raises(ConfigurationError, match=r"names 'jobs', which is a Redis Cluster: the q"):
        get_redis_url()


# -- finding the owner


@pytest.fixture
def broker(cluster: ClusterNodes) -> Iterator[BrokerHarness]:
    """Shard 0, on the cluster."""
    made = BrokerHarness(cluster.owner(SLOT), cluster.url)
    yield made
    made.close()


def test_every_verb_runs_on_a_cluster(broker: BrokerHarness, cluster: ClusterNodes) -> None:
    exercise(broker)
    invariants(broker)
    assert [node.asked.dbsize() for node in cluster.others(SLOT)] == [0, 0]


def test_any_node_can_be_asked_even_a_replica(cluster: ClusterNodes, settings: Any) -> None:
    seed = cluster.replica((SLOT + 8000) % 16384)
    settings.REDISQUEUE = {"CONNECTION": {"URL": f"redis+cluster://127.0.0.1:1,{seed.address}"}}
    tasks.noop.enqueue()
    assert JobQueue().get_stats()["queued"] == 1


def test_all_connections_of_a_process_share_one_lookup(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    ask = cluster_maps.ClusterTarget.ask
    monkeypatch.setattr(
        cluster_maps.ClusterTarget, "ask", lambda *args: (asked.append(args[1]), ask(*args))[1]
    )
    monkeypatch.setattr(cluster_maps, "AGAIN", 60)
    url = f"{cluster.url}/?client_name=lookups"  # with its own map
    opened = [RedisUrl(url, url).open(5, 5) for _ in range(5)]
    assert len(asked) == 1
    for _ in range(5):  # of failures, too
        RedisUrl(url, url).distrust()
        opened.append(RedisUrl(url, url).open(5, 5))
    assert len(asked) == 1
    monkeypatch.setattr(cluster_maps, "AGAIN", 0)
    RedisUrl(url, url).distrust()
    opened.append(RedisUrl(url, url).open(5, 5))
    assert len(set(asked)) == len(asked) == 2, "the next lookup asks another node"
    for connection in opened:
        connection.disconnect()


def test_a_moved_reply_decides_about_one_connection(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = get_cluster_map(cluster.url)
    here = known.owner(SLOT, 5)
    known._asked_at = float("-inf")
    asked = []
    ask = cluster_maps.ClusterTarget.ask
    monkeypatch.setattr(
        cluster_maps.ClusterTarget, "ask", lambda *args: (asked.append(args[1]), ask(*args))[1]
    )
    known.distrust(MovedError(f"{SLOT} 127.0.0.1:1"))
    assert known.owner(SLOT, 5) == ("127.0.0.1", 1)
    assert not asked
    assert known.owner(SLOT, 5) == here  # the reply counts once
    assert len(asked) == 1


def test_a_connection_is_opened_to_the_owner_that_it_has_found(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    owner = cluster_maps.ClusterMap.owner
    monkeypatch.setattr(
        cluster_maps.ClusterMap, "owner", lambda *args: (found.append(args[1]), owner(*args))[1]
    )
    connection = worker_connection()
    connection.call("PING")
    assert found == [SLOT]
    connection.close()


def test_a_forked_process_has_its_own_map(cluster: ClusterNodes) -> None:
    tasks.noop.enqueue()
    parents = get_cluster_map(cluster.url)
    pid = os.fork()
    if pid == 0:
        os._exit(get_cluster_map(cluster.url) is parents)
    assert os.waitpid(pid, 0)[1] == 0


# -- several shards


@pytest.fixture
def four(cluster: ClusterNodes, settings: Any) -> Iterator[RedisConnection]:
    """A caller's connection to four shards, two of which are on one node."""
    url = f"{cluster.url}/?client_name=four"
    settings.REDISQUEUE = {**settings.REDISQUEUE, "CONNECTION": {"URL": url}, "SHARDS": 4}
    connection = worker_connection()
    yield connection
    connection.close_all()


def _check_sockets(cluster: ClusterNodes) -> None:
    """For each node that has shards, ``four`` has one connection."""
    owners = {cluster.owner(slot(tag(shard))) for shard in range(4)}
    lists = [node.asked.client_list() for node in owners]
    assert [sum(one["name"] == "four" for one in clients) for clients in lists] == [1] * len(owners)


def _neighbours(cluster: ClusterNodes) -> tuple[int, int]:
    """Two shards on one node: one of three masters has two of four."""
    owners = [cluster.owner(slot(tag(shard))) for shard in range(4)]
    return next((a, b) for a, b in combinations(range(4), 2) if owners[a] is owners[b])


def _meta(one: RedisConnection) -> Read[Any]:
    found = yield Strict(("HGET", keys_at(one, get_settings()).meta, "shards"))
    return found


def test_shards_of_one_node_share_a_connection(
    four: RedisConnection, cluster: ClusterNodes
) -> None:
    assert AllShards(four.at).read(_meta).missing == {}
    _check_sockets(cluster)
    for shard in range(4):
        four.at(shard).call("HGET", keys_at(four.at(shard), get_settings()).meta, "shards")
    _check_sockets(cluster)


def test_a_shard_that_leaves_a_node_does_not_affect_the_others(
    four: RedisConnection, cluster: ClusterNodes
) -> None:
    assert AllShards(four.at).read(_meta).missing == {}
    _, leaves = _neighbours(cluster)
    with cluster.moving(slot(tag(leaves))):
        pass
    answers = AllShards(four.at).read(_meta)
    assert list(answers.missing) == [leaves]
    assert len(answers.by_shard) == 3
    eventually(lambda: AllShards(four.at).read(_meta).missing == {})
    _check_sockets(cluster)


def test_the_shards_of_a_hanging_node_wait_for_it_once(
    four: RedisConnection, cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it had a connection to none of them."""
    pair = list(_neighbours(cluster))
    assert AllShards(four.at, [n for n in range(4) if n not in pair]).read(_meta).missing == {}
    opened, open_ = list[str](), RedisUrl.open
    monkeypatch.setattr(RedisUrl, "open", lambda *a: (opened.append(a[0].tag), open_(*a))[1])
    node = cluster.owner(slot(tag(pair[0])))
    node.pause()
    try:
        answers = AllShards(four.at).read(_meta)
    finally:
        node.resume()
    assert list(answers.missing) == pair
    assert opened == [tag(pair[0])]
    eventually(lambda: AllShards(four.at).read(_meta).missing == {})


def test_no_one_waits_for_a_reply_lost_with_the_connection(
    four: RedisConnection, cluster: ClusterNodes
) -> None:
    one, other = map(four.at, _neighbours(cluster))
    one.send([("PING",)])
    other.send([("PING",)])
    one.close()
    with pytest.raises(RedisUnavailable, match="the connection was lost before the reply"):
        other.receive(1)


# -- following it


def _enqueue() -> bool:
    """Whether a job was accepted. The only obstacle may be an outage of less than a second."""
    watch = Stopwatch()
    try:
        tasks.noop.enqueue()
    except RedisUnavailable:
        assert watch.seconds < 1
        return False
    return True


def test_a_producer_follows_a_slot_at_once(cluster: ClusterNodes) -> None:
    tasks.noop.enqueue()
    with cluster.moving(SLOT):
        pass
    eventually(lambda: time.monotonic() - get_cluster_map(cluster.url)._asked_at > 0.1)
    tasks.noop.enqueue()  # gets MOVED, and asks again on its own
    assert JobQueue().get_stats()["queued"] == 2


def test_a_producer_goes_where_the_former_owner_sends_it(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other nodes may not know yet that the slot has moved."""
    tasks.noop.enqueue()
    known = get_cluster_map(cluster.url)._ranges
    with cluster.moving(SLOT):
        pass
    monkeypatch.setattr(cluster_maps.ClusterTarget, "ask", lambda *_: known)
    eventually(lambda: time.monotonic() - get_cluster_map(cluster.url)._asked_at > 0.1)
    tasks.noop.enqueue()
    monkeypatch.undo()
    assert eventually(lambda: _stats(JobQueue()))["queued"] == 2


def test_a_planned_failover_is_followed(cluster: ClusterNodes) -> None:
    tasks.noop.enqueue()
    cluster.promote(SLOT)
    eventually(_enqueue)
    assert JobQueue().get_stats()["queued"] == 2


def test_a_dead_owner_is_an_outage_and_its_replica_is_found(cluster: ClusterNodes) -> None:
    tasks.noop.enqueue()
    owner, replica = cluster.owner(SLOT), cluster.replica(SLOT)
    assert owner.asked.wait(1, 5000) == 1
    owner.kill()
    assert not _enqueue()
    replica.cluster("FAILOVER", "TAKEOVER")
    eventually(_enqueue)
    assert JobQueue().get_stats()["queued"] == 2


@pytest.mark.parametrize("which", ["the owner", "all"])
def test_hanging_nodes_do_not_block_a_producer(cluster: ClusterNodes, which: str) -> None:
    tasks.noop.enqueue()
    hung = [cluster.owner(SLOT)] if which == "the owner" else cluster.nodes
    for node in hung:
        node.pause()
    for _ in range(2):  # on its existing connection, and on a new one
        assert not _enqueue()
    for node in hung:
        node.resume()
    eventually(_enqueue)


def test_reads_follow_the_slot_too(cluster: ClusterNodes) -> None:
    """A pipeline reads all replies, including errors, before it raises one."""
    tasks.noop.enqueue()
    queue = JobQueue()
    assert queue.get_stats()["queued"] == 1
    with cluster.moving(SLOT):
        pass
    assert eventually(lambda: _stats(queue))["queued"] == 1


def _stats(queue: JobQueue) -> dict[str, Any] | None:
    try:
        return dict(queue.get_stats())
    except RedisUnavailable:
        return None


def test_blocked_clients_wake_up_when_the_slot_moves_or_fails_over(cluster: ClusterNodes) -> None:
    tasks.noop.enqueue()

    def move() -> None:
        with cluster.moving(SLOT):
            pass

    for change in (move, lambda: cluster.promote(SLOT)):
        forget_clusters()
        connection, ended = blocking_connection(), threading.Event()

        def wait(connection: RedisConnection = connection, ended: Any = ended) -> None:
            with pytest.raises(RedisUnavailable):
                connection.call("BLPOP", "job_queue:{0}:q:none:wake", 5)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        owner = cluster.owner(SLOT).asked
        eventually(lambda owner=owner: owner.info("clients")["blocked_clients"] == 1)
        change()
        assert ended.wait(20)
        thread.join()
        connection.close()


# -- while the slot moves


class MovingSlot(RedisConnection):
    """Runs each script three times: when the slot has begun to move but no key has; when all keys
    have moved except the one that scripts declare; and when it is not moving."""

    broker: BrokerHarness
    cluster: ClusterNodes

    def script(self, sha: str, source: str, key: str, *args: Any) -> Any:
        verb = verb_of(sha, args[0])
        self.broker.redis.persist(self.broker.keys.event("other"))  # otherwise it could expire
        replies: list[Any] = []
        with filled(self.broker):
            before = self.broker.dump()
            for gone in ([], [name for name in before if name != key]):
                with half_moved(self.cluster, gone), suppress(RedisUnavailable):
                    replies.append(super().script(sha, source, key, *args))
                assert self.broker.dump() == before, f"{verb} did half of its work"
        replies.append(super().script(sha, source, key, *args))
        assert all(reply == replies[-1] for reply in replies), f"{verb} took moved keys for gone"
        return replies[-1]

    def replies(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The scripts of a pipeline, one by one."""
        if commands[0][0] != "EVALSHA":
            return super().replies(commands)
        sources = {one.sha: one.source for one in map(scripts.load, scripts.names())}
        return [self.script(sha, sources[sha], *rest) for _, sha, _, *rest in commands]


@contextmanager
def half_moved(cluster: ClusterNodes, gone: Sequence[str]) -> Iterator[None]:
    """The slot is being migrated, and these keys are on the other node. Afterwards the slot is
    back."""
    owner, target = cluster.owner(SLOT), cluster.others(SLOT)[0]
    target.cluster("SETSLOT", SLOT, "IMPORTING", owner.name)
    owner.cluster("SETSLOT", SLOT, "MIGRATING", target.name)
    cluster.migrate(owner, target, gone)
    try:
        yield
    finally:
        owner.cluster("SETSLOT", SLOT, "STABLE")
        cluster.migrate(target, owner, gone)
        target.cluster("SETSLOT", SLOT, "STABLE")


@contextmanager
def filled(broker: BrokerHarness) -> Iterator[None]:
    """Adds keys that are often absent: otherwise, the checks of their types would already be
    refused, whatever else a script does. (From Redis 7.0 on, every key is refused.)"""
    keys, redis = broker.keys, broker.redis
    absent = [
        key
        for key in (keys.trim_index, keys.pending_writes, keys.timer, keys.workflows)
        if not redis.exists(key)
    ]
    for key in absent:
        if key == keys.workflows:
            redis.zadd(key, {"unknown": 9e15})
        else:
            redis.rpush(key, "0-1 0" if key == keys.trim_index else "free:unknown")
    yield
    for key in absent:
        redis.delete(key)


@contextmanager
def refused_while_moving(broker: BrokerHarness, cluster: ClusterNodes) -> Iterator[None]:
    unchanged, moving = broker.unchanged(), half_moved(cluster, ())
    with filled(broker), unchanged, moving, pytest.raises(RedisUnavailable):
        yield


def test_no_script_does_half_of_its_work_while_the_slot_moves(
    broker: BrokerHarness, cluster: ClusterNodes
) -> None:
    connection = MovingSlot(broker.connection.redis_url, 5.0, 2.0)
    connection.broker, connection.cluster = broker, cluster
    broker.store.connection = connection
    exercise(broker)
    exercise_the_rest(broker)
    connection.close()


def test_a_schedule_of_a_queue_with_all_its_keys_does_not_advance_while_the_slot_moves(
    broker: BrokerHarness, cluster: ClusterNodes
) -> None:
    """No check of types meets an absent key: the first one would be that of the new job."""
    broker.end("first")
    define(broker, definition())
    schedule, queue = read(broker), broker.keys.queue("default")
    for name in ("queued", "wake"):
        broker.redis.lpush(getattr(queue, name), "x")
    for name in ("meta", "parked"):
        broker.redis.hset(getattr(queue, name), "x", "1")
    for name in (
        "completed", "processing", "failed", "cancelled", "scheduled", "retrying", "priority",
        "waiting", "keyed", "shares", "passes",
    ):  # fmt: skip
        broker.redis.zadd(getattr(queue, name), {"x": 0})
    with refused_while_moving(broker, cluster):
        fire_one(broker.store, schedule, FIRST, FIRST + MINUTE, FIRST)


def test_an_event_for_which_jobs_still_wait_is_not_replaced_while_the_slot_moves(
    broker: BrokerHarness, cluster: ClusterNodes
) -> None:
    broker.add(*"abc")
    for job in broker.claim(jobs=3).jobs:
        park(broker, job)
    assert broker.store.send_event("e", '"' + "x" * 400_000 + '"', 3_600_000) == 2
    with refused_while_moving(broker, cluster):
        broker.store.send_event("e", "1", 3_600_000)


IS_MOVING = r"is (moving|handing) the queue's slot"


def test_ask_redirects_cause_a_wait_and_are_not_followed(cluster: ClusterNodes) -> None:
    """The importing node only receives what MIGRATE transfers."""
    tasks.noop.enqueue()
    with cluster.moving(SLOT) as target:
        for act in (tasks.noop.enqueue, JobQueue().get_stats):
            with pytest.raises(RedisUnavailable, match=IS_MOVING):
                act()
        assert target.asked.dbsize() == 0
    assert eventually(_enqueue)
    assert JobQueue().get_stats()["queued"] == 2


def test_a_scan_of_a_slot_that_moves_or_has_moved_is_refused(
    broker: BrokerHarness, cluster: ClusterNodes
) -> None:
    """SCAN has no key, so any node would run it, and find whatever it has."""
    broker.add(*"abc")
    scanner = Scanner(broker.connection)
    with cluster.moving(SLOT):
        with pytest.raises(RedisUnavailable, match=IS_MOVING):
            scanner.page(SCAN_START)
        broker.connection.connect()
    with pytest.raises(RedisUnavailable, match="has handed the queue's slot"):
        scanner.page(SCAN_START)
    forget_clusters()
    assert {job.id for job in scanner.page(SCAN_START).found} == {*"abc"}


# -- channels


def test_a_listener_hears_every_message_of_the_scripts_once(
    broker: BrokerHarness, cluster: ClusterNodes
) -> None:
    listener = blocking_connection()
    listener.subscribe(broker.keys.status_channel, broker.keys.workflow_channel)
    assert broker.keys.status_channel == "job_queue:{0}:job_status"
    broker.add(*"abcde")
    heard: list[str] = []
    while len(heard) < 5:
        heard += filter(None, [listener.message(5)])
    assert [json.loads(message)["jobId"] for message in heard] == [*"abcde"]
    listener.close()


def test_a_listener_notices_that_the_slot_has_moved(
    broker: BrokerHarness, cluster: ClusterNodes
) -> None:
    listener = blocking_connection()
    listener.subscribe(broker.keys.status_channel)
    with cluster.moving(SLOT):
        pass
    if cluster.has_sharded_channels:
        with pytest.raises(RedisUnavailable, match="the channel has moved to another node"):
            listener.message(5)
    listener.close()
    forget_clusters()
    listener.subscribe(broker.keys.status_channel)
    broker.connection.close()
    broker.add("a")
    assert listener.message(5)
    listener.close()


def test_waits_are_woken_by_the_end_of_a_job(cluster: ClusterNodes) -> None:
    manual_worker = ManualWorker()
    job = tasks.add.enqueue(1, 2)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(job.wait(timeout=20)))
    waiting.start()
    eventually(lambda: cluster.listeners(f"job_queue:{{0}}:done:{job.id}") == 1)
    assert manual_worker.complete_one("3") == job.id
    waiting.join()
    manual_worker.close()
    assert found == [3]


# -- wrong servers


def test_a_plain_server_is_not_a_cluster(redis_server: RedisServer, settings: Any) -> None:
    with RedisServer(tcp=True) as server:
        settings.REDISQUEUE = {"CONNECTION": {"URL": f"redis+cluster://{server.address}"}}
        with pytest.raises(RedisRefused, match="is not a cluster node; use redis://"):
            tasks.noop.enqueue()
        (message,) = check_network()
        assert message.id == "django_redisqueue.E010"
        assert "is not a cluster node; use redis://" in message.msg
        with pytest.raises(CommandError, match="is not a cluster node; use redis://"):
            output_of("runworker", "--burst")


def test_no_node_answers(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "redis+cluster://127.0.0.1:1,127.0.0.1:2"}}
    watch = Stopwatch()
    with pytest.raises(RedisUnavailable, match=r"does not answer .*127\.0\.0\.1:1: .*1:2: "):
        tasks.noop.enqueue()
    assert watch.seconds < 1


def test_a_slot_without_an_owner(settings: Any) -> None:
    with RedisServer(port=free_ports()[0], cluster_enabled=True) as server:
        settings.REDISQUEUE = {"CONNECTION": {"URL": f"redis+cluster://{server.address}"}}
        with pytest.raises(RedisUnavailable, match=f"no node owns slot {SLOT} .assign it"):
            tasks.noop.enqueue()


def test_a_node_as_a_plain_server(cluster: ClusterNodes, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": cluster.others(SLOT)[0].url}}
    with pytest.raises(
        RedisUnavailable, match=r"another node of its cluster, which redis\+cluster"
    ):
        tasks.noop.enqueue()


# -- checks


def _messages(number: str) -> list[str]:
    return [one.msg for one in check_network() if str(one.id).endswith(number)]


def test_settings_that_stop_healthy_shards_or_lose_jobs_are_reported(cluster: ClusterNodes) -> None:
    assert _messages("W025") == []
    (warning,) = _messages("W018")
    assert "has min-replicas-to-write 0: when it is cut off from its replicas, it keeps" in warning
    client = cluster.owner(SLOT).asked
    client.config_set("min-replicas-to-write", 1)
    client.config_set("cluster-require-full-coverage", "yes")
    (warning,) = _messages("W025")
    assert "has cluster-require-full-coverage yes: if one master and its replicas are" in warning
    assert _messages("W018") == []
    client.config_set("min-replicas-to-write", 0)
    client.config_set("cluster-require-full-coverage", "no")


def test_the_nodes_of_all_shards_are_checked_and_each_finding_is_reported_once(
    cluster: ClusterNodes, settings: Any
) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 4}
    assert len(_messages("W018")) == 1
    owners = [cluster.owner(slot(tag(shard))) for shard in range(4)]
    other = next(one for one in owners if one is not owners[0])
    other.asked.config_set("maxmemory-policy", "allkeys-lru")
    assert len(_messages("E012")) == 1
    other.asked.config_set("maxmemory-policy", "noeviction")


def test_a_server_without_the_config_command_is_still_checked(
    cluster: ClusterNodes, settings: Any
) -> None:
    for node in cluster.nodes:
        node.asked.execute_command("ACL SETUSER", "few", "on", ">p", "~*", "+@all", "-config")
    settings.REDISQUEUE = {"CONNECTION": {"URL": cluster.url.replace("//", "//few:p@")}}
    assert {str(one.id)[-3:] for one in check_network()} <= {"014", "016", "018"}
    for node in cluster.nodes:
        node.asked.acl_deluser("few")


def test_a_node_without_its_cluster_is_reported(cluster: ClusterNodes, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": cluster.owner(SLOT).url}}
    (error,) = _messages("E024")
    assert "is a single node of a Redis Cluster" in error
    for node in (cluster.owner(SLOT), cluster.others(SLOT)[0]):
        settings.REDISQUEUE = {"CONNECTION": {"URL": node.url}}
        with pytest.raises(CommandError, match=r"Name the cluster: redis\+cluster://"):
            output_of("runworker", "--burst")


def test_a_cache_on_one_of_its_nodes_is_reported(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "redis+cluster://one,127.0.0.1:7000"}}
    settings.CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": "redis://localhost:7000/0",
        }
    }
    assert "django_redisqueue.E003" in [one.id for one in check_settings()]
