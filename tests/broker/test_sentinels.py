"""Sentinels: what their URLs may contain, their own passwords, and TLS."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from redis.exceptions import NoPermissionError
from redis.sentinel import MasterNotFoundError

from django_redisqueue import JobQueue
from django_redisqueue.broker import connection
from django_redisqueue.broker import sentinel as failovers
from django_redisqueue.broker.connection import blocking_connection, producer_connection
from django_redisqueue.broker.redis_url import masked
from django_redisqueue.broker.sentinel import (
    MasterFollower,
    SentinelListener,
    SentinelTarget,
    get_follower,
    parse_sentinel_url,
    stop_following,
)
from django_redisqueue.checks.network import check_network
from django_redisqueue.exceptions import RedisUnavailable
from tests.app import tasks
from tests.support.sentinels import Fleet, RedisSentinel
from tests.support.servers import RedisServer, free_port
from tests.support.stopwatch import Stopwatch
from tests.worker.processes import eventually


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentinel or a master that waits for a core does not hang."""
    monkeypatch.setattr(connection, "PRODUCER_TIMEOUT", 30.0)


def test_every_part_of_a_url_is_used(settings: Any) -> None:
    url = (
        "rediss+sentinel://shop:p%40ss@one:1,[::1]:2,three/jobs/4"
        "?sentinel_username=s&sentinel_password=s%26&ssl_ca_certs=/ca.pem"
    )
    watched = parse_sentinel_url(url)
    assert watched.sentinels == (("one", 1), ("::1", 2), ("three", 26379))
    assert (watched.service, watched.of_master["db"]) == ("jobs", 4)
    tls = {name: watched.of_sentinels[name] for name in watched.of_sentinels if "ssl" in name}
    assert tls["ssl_ca_certs"] == "/ca.pem"
    assert watched.of_master.items() >= {"username": "shop", "password": "p@ss", **tls}.items()
    assert watched.of_sentinels.items() >= {"username": "s", "password": "s&"}.items()
    assert masked(url) == "rediss+sentinel://shop:***@one:1,[::1]:2,three/jobs/4"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+sentinel://h/jobs?sentinel_password=a@b", "redis+sentinel://***"),
        ("redis://:p?ss@h/0", "redis://***"),
        ("redis://u:p@h/0?password=secret", "redis://u:***@h/0"),
    ],
)
def test_no_part_of_a_password_is_shown(url: str, shown: str) -> None:
    assert masked(url) == shown


def _enqueue_at(url: str, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
    tasks.noop.enqueue()


def test_sentinel_and_master_each_have_a_password(settings: Any) -> None:
    with (
        RedisServer(tcp=True, requirepass="master") as master,
        RedisSentinel(master.address, requirepass="own", auth_pass="master") as sentinel,
    ):
        place = f"redis+sentinel://:master@{sentinel.address}/jobs"
        _enqueue_at(f"{place}?sentinel_password=own", settings)
        assert JobQueue().get_stats()["queued"] == 1
        named = f"no sentinel has a live master 'jobs': {sentinel.address}: "
        for wrong, problem in (("", "[Aa]uth"), ("?sentinel_password=no", "invalid.*password")):
            with pytest.raises(RedisUnavailable, match=f"{named}.*{problem}"):
                _enqueue_at(place + wrong, settings)
        with pytest.raises(RedisUnavailable, match="monitors no master of that name"):
            _enqueue_at(
                f"redis+sentinel://{sentinel.address}/other?sentinel_password=own", settings
            )
        with pytest.raises(RedisUnavailable, match=f"127.0.0.1:1: .*refused.*; {sentinel.address}"):
            _enqueue_at(place.replace("@", "@127.0.0.1:1,"), settings)


def test_the_sentinel_with_news_is_believed_not_the_majority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sentinel that leads a failover is the first to name the new master; the others follow a
    moment later."""
    watched = parse_sentinel_url("redis+sentinel://a,b,c/jobs")
    follower, listeners = (
        MasterFollower(watched),
        [SentinelListener(watched, place) for place in watched.sentinels],
    )

    def master_when(*answers: tuple[int, str]) -> str:
        for number, host in answers:
            follower.handle(listeners, listeners[number], "", [host, "6379"])
        assert follower.master is not None
        return follower.master[0]

    assert master_when((0, "one"), (1, "one"), (2, "one")) == "one"
    assert master_when((0, "two")) == "two"
    assert master_when((1, "one"), (2, "one"), (0, "two")) == "two"
    assert master_when((1, "two"), (2, "one")) == "two"
    # A sentinel that was cut off still names the former master. The clients do not go back to that
    # one, even if the failover was long ago.
    monkeypatch.setattr(failovers, "SETTLED", -1)
    assert master_when((2, "one")) == "two"
    assert master_when((2, "two"), (2, "one"), (1, "two"), (0, "two")) == "two"


@pytest.mark.slow
def test_a_client_that_connects_during_a_failover_is_not_sent_to_the_former_master() -> None:
    """It has missed the messages, and two of three sentinels still name the former master."""
    with Fleet() as fleet:
        watched, former = parse_sentinel_url(fleet.url), fleet.master.address
        others = [sentinel.address for sentinel in fleet.sentinels[:2]]
        told: list[str] = []  # from sentinels that do not lead the failover
        problems: list[str] = []
        fleet.fail_over()

        def new_master() -> str:
            for one in others:
                told.append(_named(parse_sentinel_url(f"redis+sentinel://{one}/jobs")))
            try:
                found = _named(watched)
            except MasterNotFoundError as error:
                problems.append(str(error))
                return ""
            assert found != former
            return found

        found = eventually(new_master, every=0.01)
        assert former in told
        assert set(problems) <= {"a failover of 'jobs' is under way"}
        eventually(fleet.is_whole, 60, every=0.1)
        assert fleet.master.address == found
        assert _named(watched) == found


def test_a_client_that_has_just_connected_stays_with_the_new_master(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three sentinels do not know of the failover yet, and the former master accepts
    writes."""
    heard: set[SentinelListener] = set()
    handle = MasterFollower.handle

    def note(follower: MasterFollower, *args: Any) -> None:
        handle(follower, *args)
        heard.add(args[1])

    monkeypatch.setattr(MasterFollower, "handle", note)
    with (
        RedisServer(tcp=True) as former,
        RedisServer(tcp=True) as new,
        RedisSentinel(new.address, epoch=1) as leader,
        RedisSentinel(former.address) as one,
        RedisSentinel(former.address) as two,
    ):
        places = ",".join(sentinel.address for sentinel in (one, two, leader))
        url = f"redis+sentinel://{places}/jobs"
        _enqueue_at(url, settings)
        eventually(lambda: len(heard) == 3)
        tasks.noop.enqueue()
        assert (former.client().dbsize(), JobQueue().get_stats()["queued"]) == (0, 2)


def _named(watched: SentinelTarget) -> str:
    host, port = watched.ask(60).address
    return f"{host}:{port}"


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        ("ip a port 1 flags master config-epoch 7", (7, False)),
        ("ip a port 1 flags master,failover_in_progress config-epoch 7", (7, True)),
        ("ip b port 1 flags master,failover_in_progress config-epoch 8", (8, False)),
        ("", (0, False)),
    ],
)
def test_what_sentinels_report_about_a_failover(state: str, answer: tuple[int, bool]) -> None:
    """The leading sentinel names the new master once it is promoted, and describes the former
    one."""
    sentinel = Mock()
    sentinel.read_response.return_value = state.split()
    assert failovers.read_answer(["a", "1"], sentinel) == (*answer, ("a", 1))


def test_a_sentinel_that_may_not_describe_the_master_names_it() -> None:
    sentinel = Mock()
    sentinel.read_response.side_effect = NoPermissionError(
        "no permissions to run 'sentinel|master'"
    )
    assert failovers.read_answer(["a", "1"], sentinel) == (0, False, ("a", 1))


def test_a_client_blocked_at_a_former_master_wakes_up(settings: Any) -> None:
    with RedisServer(tcp=True) as master, RedisSentinel(master.address) as sentinel:
        url = f"redis+sentinel://{sentinel.address}/jobs"
        settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
        connections, woken = [blocking_connection(), blocking_connection()], []
        watch = Stopwatch()

        def wait(act: Callable[[], object]) -> None:
            try:
                act()
            except RedisUnavailable:
                woken.append(watch.seconds)

        connections[1].subscribe("news")
        acts = (lambda: connections[0].call("BLPOP", "list", 5), lambda: connections[1].message(5))
        threads = [threading.Thread(target=wait, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        client = master.client()
        eventually(lambda: client.info("clients")["blocked_clients"] == 1)
        begun = watch.seconds
        get_follower(url).move(("127.0.0.1", 1))
        for thread in threads:
            thread.join()
        assert [moment - begun < 2 for moment in woken] == [True, True]


def test_the_thread_ends_before_a_fork_and_restarts(settings: Any) -> None:
    def following() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "sentinels"]

    stop_following()  # of other tests
    with RedisServer(tcp=True) as master, RedisSentinel(master.address) as sentinel:
        url = f"redis+sentinel://{sentinel.address}/jobs"
        _enqueue_at(url, settings)
        assert following() == ["sentinels"]
        stop_following()
        assert following() == []
        producer_connection().close()
        _enqueue_at(url, settings)
        assert following() == ["sentinels"]


def test_an_unknown_message_does_not_end_the_thread(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failovers, "AGAIN", 0.01)
    monkeypatch.setattr(failovers, "ASK", 0.01)
    with RedisServer(tcp=True) as master, RedisSentinel(master.address) as sentinel:
        url = f"redis+sentinel://{sentinel.address}/jobs"
        follower = get_follower(url)
        monkeypatch.setattr(MasterFollower, "handle", lambda *_: int("no number"))
        _enqueue_at(url, settings)
        eventually(lambda: "sentinels: not understood" in caplog.text)
        monkeypatch.undo()
        eventually(lambda: follower.master is not None)


def test_a_check_warns_of_a_master_that_needs_no_replicas(settings: Any) -> None:
    def warnings() -> list[str]:
        found = [message for message in check_network() if message.id]
        return [message.msg for message in found if str(message.id).endswith("W018")]

    with RedisServer(tcp=True) as master, RedisSentinel(master.address) as sentinel:
        settings.REDISQUEUE = {"CONNECTION": {"URL": f"redis+sentinel://{sentinel.address}/jobs"}}
        (warning,) = warnings()
        assert "has min-replicas-to-write 0: when it is cut off from its replicas" in warning
        master.client().config_set("min-replicas-to-write", 1)
        assert warnings() == []
        master.client().config_set("min-replicas-to-write", 0)
        settings.REDISQUEUE = {"CONNECTION": {"URL": master.url}}
        assert warnings() == []


def _speaks_tls(server: str) -> bool:
    """It ends at once: either it lacks a certificate, or it does not know the option."""
    command = [server, "--port", "0", "--tls-port", str(free_port())]
    asked = subprocess.run(command, check=False, capture_output=True, text=True)
    return "tls-cert-file" in asked.stdout + asked.stderr


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a Redis server needs to speak TLS, with its own certificate for 127.0.0.1."""
    server = shutil.which("redis-server")
    openssl = shutil.which("openssl")
    if not server or not openssl or not _speaks_tls(server):
        pytest.skip("needs openssl and a redis-server on PATH that was built with TLS")
    monkeypatch.setenv("DRQ_REDIS_SERVER", server)
    name = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [openssl, "req", "-x509", *name, *key, "-keyout", "key.pem", "-out", "ca.pem"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    return {
        "tls_cert_file": str(tmp_path / "ca.pem"),
        "tls_ca_cert_file": str(tmp_path / "ca.pem"),
        "tls_key_file": str(tmp_path / "key.pem"),
        "tls_auth_clients": "no",
    }


@pytest.fixture
def tls_master(tls: dict[str, str]) -> Iterator[str]:
    """The address of a server that speaks TLS."""
    port = free_port()
    with RedisServer(tls_port=port, bind="127.0.0.1", **tls):
        yield f"127.0.0.1:{port}"


def test_tls(tls: dict[str, str], tls_master: str, settings: Any) -> None:
    _enqueue_at(f"rediss://{tls_master}/0?ssl_ca_certs={tls['tls_ca_cert_file']}", settings)
    assert JobQueue().get_stats()["queued"] == 1
    with pytest.raises(RedisUnavailable, match="certificate verify failed"):
        _enqueue_at(f"rediss://{tls_master}/0", settings)


def test_tls_to_the_sentinel_and_to_the_master(
    tls: dict[str, str], tls_master: str, settings: Any
) -> None:
    own: dict[str, Any] = {**tls, "tls_replication": "yes", "tls_port": free_port()}
    with RedisSentinel(tls_master, **own) as sentinel:
        place = f"rediss+sentinel://{sentinel.address}/jobs"
        _enqueue_at(f"{place}?ssl_ca_certs={tls['tls_ca_cert_file']}", settings)
        assert JobQueue().get_stats()["queued"] == 1
        with pytest.raises(RedisUnavailable, match="certificate verify failed"):
            _enqueue_at(place, settings)
