"""Redis is down, refuses commands or has forgotten scripts: a clear error within a second, and no
job created twice."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_redisqueue import JobQueue, get_job
from django_redisqueue.broker import connection as connections
from django_redisqueue.broker import wire
from django_redisqueue.broker.connection import (
    IDLE,
    RedisConnection,
    producer_connection,
    worker_connection,
)
from django_redisqueue.broker.nodes import socket_of
from django_redisqueue.broker.redis_url import get_redis_url
from django_redisqueue.broker.scripts import load
from django_redisqueue.exceptions import (
    JobFailed,
    RedisCannotSave,
    RedisFull,
    RedisQueueError,
    RedisRefused,
    RedisUnavailable,
)
from tests.app import tasks
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer, redis_url
from tests.worker.processes import PATIENCE, eventually

from ..support.stopwatch import Stopwatch

Point = Callable[[str], None]
MakeServer = Callable[..., RedisServer]
MakeProxy = Callable[..., Proxy]


@pytest.fixture
def point(settings: Any) -> Point:
    """Point the settings at another Redis."""

    def to(url: str) -> None:
        settings.REDISQUEUE = {"CONNECTION": {"URL": url}}

    return to


@contextmanager
def fails(kind: type[RedisQueueError], *words: str) -> Iterator[None]:
    """The block raises ``kind`` within a second, with a message that contains all the words, and no
    second message of this package."""
    watch = Stopwatch()
    with pytest.raises(kind) as caught:
        yield
    took = watch.seconds
    assert took < 1, f"it took {took:.2f} s"
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert text.count("Redis at") <= 1, text


# --- unavailable ----------------------------------------------------------------------------------


def test_nothing_listens(point: Point, tmp_path: Path) -> None:
    point(f"unix://{tmp_path}/redis.sock")
    with fails(
        RedisUnavailable, f"unix://{tmp_path}/redis.sock", "does not answer", "check that it runs"
    ):
        tasks.noop.enqueue()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    point(f"redis://:secret@127.0.0.1:{port}/0")
    for act in (
        tasks.noop.enqueue,
        lambda: tasks.noop.enqueue_many([(1,), (2,)]),
        JobQueue().get_stats,
        JobQueue().pause,
    ):
        with fails(RedisUnavailable, f"redis://:***@127.0.0.1:{port}/0 does not answer"):
            act()


def test_a_black_hole(redis_server: RedisServer, fresh_proxy: MakeProxy, point: Point) -> None:
    proxy = fresh_proxy(redis_server.address)
    point(redis_url(proxy.address))
    tasks.noop.enqueue()
    proxy.black_hole()
    for _ in range(2):  # once on a connection that worked, once on a new one
        with fails(RedisUnavailable, "does not answer"):
            tasks.noop.enqueue()
        with fails(RedisUnavailable, "does not answer"):
            tasks.noop.enqueue_many([(1,), (2,)])
    proxy.black_hole(False)
    assert tasks.noop.enqueue().status == "queued"


REQUESTS: dict[str, Callable[[RedisConnection], Any]] = {
    "call": lambda connection: connection.call("PING"),
    "pipeline": lambda connection: connection.pipeline([("PING",)]),
    "send": lambda connection: (connection.send([("PING",)]), connection.receive(1)),
    "script": lambda connection: connection.script("0" * 40, "return 1", "key"),
}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_an_idle_connection_that_was_cut_is_replaced(
    fresh_server: MakeServer, point: Point, request_name: str
) -> None:
    """By the server's ``timeout``, or a restart. A worker logs no outage for that."""
    server = fresh_server()
    point(server.url)
    connection = worker_connection()
    for _ in range(2):
        REQUESTS[request_name](connection)
        server.client().client_kill_filter(_type="normal", skipme=True)
        time.sleep(2 * IDLE)
    REQUESTS[request_name](connection)
    connection.close()


def test_an_idle_connection_that_was_cut_is_replaced_under_eventlet(
    fresh_server: MakeServer, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "select", object())  # which has no poll()
    test_an_idle_connection_that_was_cut_is_replaced(fresh_server, point, "script")


@pytest.mark.parametrize("sentinels", [1, 3])
@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_unavailable_sentinels(how: str, sentinels: int, point: Point) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts connections, and says nothing
        address = f"127.0.0.1:{server.getsockname()[1] if how == 'hangs' else 1}"
        point(f"redis+sentinel://{','.join([address] * sentinels)}/jobs/0")
        with fails(RedisUnavailable, "no sentinel has a live master 'jobs'"):
            tasks.noop.enqueue()


def test_a_server_that_hangs(fresh_server: MakeServer, point: Point) -> None:
    server = fresh_server()
    point(server.url)
    tasks.noop.enqueue()
    server.pause()
    try:
        with fails(RedisUnavailable, "does not answer"):
            tasks.noop.enqueue()
    finally:
        server.resume()
    tasks.noop.enqueue()


@pytest.mark.parametrize("is_tcp", [True, False])
def test_connecting_to_a_hanging_server_has_a_shorter_timeout_than_a_reply(
    fresh_server: MakeServer, point: Point, is_tcp: bool
) -> None:
    """The kernel accepts the connection."""
    server = fresh_server(tcp=is_tcp)
    point(server.url)
    connection = RedisConnection(get_redis_url(), timeout=PATIENCE, connect_timeout=0.2)
    server.pause()
    with fails(RedisUnavailable, "does not answer"):
        connection.call("PING")
    server.resume()
    assert connection.call("PING") == "PONG"
    assert socket_of(connection.open()).gettimeout() == PATIENCE
    connection.close()


def test_a_restart_goes_unnoticed(fresh_server: MakeServer, point: Point) -> None:
    server = fresh_server()
    point(server.url)
    job = tasks.noop.enqueue(1)
    server.restart()  # the connection is cut and the scripts are forgotten, but the jobs are not
    job.refresh()
    server.restart()
    tasks.noop.enqueue(2)
    server.client().script_flush()
    tasks.noop.enqueue_many([(3,), (4,)] * 150)
    assert JobQueue().get_stats()["queued"] == 302


def test_a_wait_survives_a_restart(fresh_server: MakeServer, point: Point) -> None:
    server = fresh_server(appendonly=True)
    point(server.url)
    job = tasks.noop.enqueue()
    ended: list[Exception] = []

    def wait() -> None:
        try:
            job.wait(timeout=5 * PATIENCE)
        except Exception as error:
            ended.append(error)

    def is_waited_for() -> bool:
        assert not ended, ended
        return bool(server.client().pubsub_channels())

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(is_waited_for)
    server.restart()
    eventually(is_waited_for)
    get_job(job.id).cancel()
    waiting.join()
    assert [type(error) for error in ended] == [JobFailed], ended


def test_a_wait_without_redis_is_an_error_at_once(point: Point, fresh_server: MakeServer) -> None:
    server = fresh_server()
    point(server.url)
    job = tasks.noop.enqueue()
    server.stop()
    with fails(RedisUnavailable, "does not answer"):
        job.wait(timeout=20)


# --- lost replies ---------------------------------------------------------------------------------


@pytest.fixture
def proxy(redis: Redis, redis_server: RedisServer, fresh_proxy: MakeProxy, point: Point) -> Proxy:
    """A proxy in front of the shared, emptied server, and a connection through it that is already
    open."""
    made = fresh_proxy(redis_server.address)
    point(redis_url(made.address))
    JobQueue().get_stats()
    return made


def test_a_lost_reply_creates_one_job(proxy: Proxy, redis: Redis) -> None:
    tasks.noop.enqueue("warm")
    proxy.drop_replies(1, matching=b"EVALSHA")
    job = tasks.noop.enqueue(1)
    assert proxy.dropped == 1
    assert job.status == "queued"
    assert JobQueue().get_stats()["queued"] == 2
    assert len(redis.keys("*:job:*")) == 2


def test_lost_replies_of_many_calls_create_each_job_once(proxy: Proxy) -> None:
    tasks.noop.enqueue("warm")
    proxy.drop_replies(1, matching=b"EVALSHA")
    jobs = tasks.noop.enqueue_many([(n,) for n in range(350)])
    assert proxy.dropped == 1
    assert JobQueue().get_stats()["queued"] == 351
    assert {job.status.value for job in jobs[::50]} == {"queued"}


def test_a_lost_reply_does_not_end_a_wait_that_has_begun(proxy: Proxy) -> None:
    job = tasks.noop.enqueue()
    job.cancel()
    proxy.drop_replies(1, matching=load("watch").sha.encode())
    with pytest.raises(JobFailed):
        job.wait(timeout=PATIENCE)
    assert proxy.dropped == 1


@pytest.mark.parametrize("many", [False, True])
def test_two_lost_replies_are_an_error_and_each_job_is_created_once(
    proxy: Proxy, many: bool
) -> None:
    tasks.noop.enqueue("warm")
    proxy.drop_replies(2, matching=b"EVALSHA")
    with fails(RedisUnavailable, "does not answer"):
        tasks.noop.enqueue_many([(n,) for n in range(100)]) if many else tasks.noop.enqueue(1)
    assert JobQueue().get_stats()["queued"] == (101 if many else 2)


def test_a_connection_cut_while_idle_goes_unnoticed(proxy: Proxy) -> None:
    tasks.noop.enqueue(1)
    proxy.cut()
    tasks.noop.enqueue(2)
    proxy.cut()
    tasks.noop.enqueue_many([(3,), (4,)])
    proxy.cut()
    time.sleep(0.02)
    assert JobQueue().get_stats()["queued"] == 4
    proxy.cut()
    time.sleep(0.02)
    assert JobQueue().pause() is True


def test_a_connection_that_a_firewall_has_forgotten_is_replaced(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seems to be open, but nothing is answered on it any more."""
    tasks.noop.enqueue(1)
    before = proxy.accepted
    tasks.noop.enqueue(2)
    assert proxy.accepted == before
    proxy.forget()
    monkeypatch.setattr(connections, "STALE", 0.0)
    tasks.noop.enqueue(3)
    assert proxy.accepted > before
    monkeypatch.undo()
    after = proxy.accepted
    tasks.noop.enqueue(4)
    assert proxy.accepted == after
    assert JobQueue().get_stats()["queued"] == 4


# --- refusing -------------------------------------------------------------------------------------


def test_a_password_is_required(fresh_server: MakeServer, point: Point) -> None:
    server = fresh_server(requirepass="secret")
    point(redis_url(server.address))
    for act in (tasks.noop.enqueue, JobQueue().resume):
        with fails(RedisRefused, server.address, "requires a password", "put it into the URL"):
            act()
    point(redis_url(server.address, "wrong-word"))
    with fails(RedisRefused, "check the URL's user and password"):
        tasks.noop.enqueue()
    point(server.url)
    tasks.noop.enqueue()


def test_no_message_contains_a_password(fresh_server: MakeServer, point: Point) -> None:
    server = fresh_server(requirepass="secret")
    point(redis_url(server.address, "wrong-word"))
    with pytest.raises(RedisRefused) as caught:
        tasks.noop.enqueue()
    assert "wrong-word" not in str(caught.value)
    assert ":***@" in str(caught.value)


def test_a_user_without_permission(fresh_server: MakeServer, point: Point) -> None:
    server = fresh_server(tcp=True)
    server.client().execute_command("ACL", "SETUSER", "weak", "on", ">word", "~*", "+@read")
    point(f"redis://weak:word@{server.address}/0")
    with fails(RedisRefused, "does not allow this user to run the command", "evalsha", "weak:***@"):
        tasks.noop.enqueue()
    # It may run scripts, but not all the commands in them.
    server.client().execute_command("ACL", "SETUSER", "weak", "+@all", "-lpush", "-publish")
    with fails(RedisRefused, "does not allow this user to run the command; see docs/operations.md"):
        tasks.noop.enqueue()


def test_a_read_only_replica(fresh_server: MakeServer, point: Point) -> None:
    server = fresh_server()
    point(server.url)
    tasks.noop.enqueue()
    server.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    with fails(RedisUnavailable, "is a read-only replica", "connect to the master", "sentinel:"):
        tasks.noop.enqueue()
    with fails(RedisUnavailable, "is a read-only replica"):
        tasks.noop.enqueue_many([(1,), (2,)])
    server.client().execute_command("REPLICAOF", "NO", "ONE")
    tasks.noop.enqueue()
    assert JobQueue().get_stats()["queued"] == 2


def test_a_full_redis(fresh_server: MakeServer, point: Point) -> None:
    server = fresh_server(maxmemory_policy="noeviction")
    point(server.url)
    job = tasks.noop.enqueue("before")
    client = server.client()
    client.config_set("maxmemory", "1")
    keys = sorted(client.keys())
    with fails(RedisFull, "has reached maxmemory; raise it, or let workers drain the queue"):
        tasks.noop.enqueue()
    with fails(RedisFull, "has reached maxmemory"):
        tasks.noop.enqueue_many([(1,), (2,)])
    assert sorted(client.keys()) == keys
    assert JobQueue().get_stats()["queued"] == 1
    assert JobQueue().pause()  # control commands still work
    assert job.cancel()
    client.config_set("maxmemory", "0")
    tasks.noop.enqueue()


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """A server that gives the same answer to every command; yields its URL."""

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(reply * (b"\r\n" + data).count(b"\r\n*"))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (
            b"LOADING Redis is loading the dataset in memory",
            RedisUnavailable,
            "is loading its data",
        ),
        (
            b"MASTERDOWN Link with MASTER is down",
            RedisUnavailable,
            "is a replica without its master",
        ),
        (b"BUSY Redis is busy running a script", RedisUnavailable, "another program's script"),
        (b"MISCONF Redis is configured to save RDB", RedisCannotSave, "cannot save to disk"),
        (b"ERR something new", RedisRefused, "answers: something new"),
    ],
)
def test_other_refusals(
    point: Point, reply: bytes, kind: type[RedisQueueError], words: str
) -> None:
    with answering(b"-" + reply + b"\r\n") as url:
        point(url)
        with fails(kind, words, url):
            tasks.noop.enqueue()
        with fails(kind, words):
            JobQueue().get_stats()


# --- ended threads --------------------------------------------------------------------------------


def test_the_connections_of_a_thread_are_closed_at_its_end(
    redis_server: RedisServer, point: Point
) -> None:
    """Under ASGI, each request has its own thread for its sync code."""
    point(redis_server.url)
    sockets: list[socket.socket] = []
    gc.disable()
    try:
        thread = threading.Thread(
            target=lambda: sockets.append(socket_of(producer_connection().open()))
        )
        thread.start()
        thread.join()
        assert [one.fileno() for one in sockets] == [-1]
    finally:
        gc.enable()
