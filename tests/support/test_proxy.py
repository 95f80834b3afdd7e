"""The proxy and the servers behave as the fault tests assume."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from django.conf import settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from tests.worker.processes import eventually

from .proxy import Proxy
from .servers import RedisServer, redis_url
from .stopwatch import Stopwatch

MakeProxy = Callable[..., Proxy]
MakeServer = Callable[..., RedisServer]


def through(proxy: Proxy, timeout: float = 10) -> closing[Redis]:
    return closing(
        Redis.from_url(
            redis_url(proxy.address), retry=Retry(NoBackoff(), 0), socket_timeout=timeout
        )
    )


@pytest.mark.parametrize("tcp", [True, False])
def test_it_forwards_large_values_both_ways(
    redis: Redis, redis_server: RedisServer, fresh_proxy: MakeProxy, tcp: bool
) -> None:
    listen = "127.0.0.1:0" if tcp else f"{redis_server.folder}/proxy.sock"
    value = bytes(range(256)) * 40_000
    with through(fresh_proxy(redis_server.address, listen=listen)) as client:
        client.set("large", value)
        assert client.get("large") == value
    assert redis.get("large") == value


def test_a_delay_is_exact_and_holds_up_no_other_connection(
    redis: Redis, redis_server: RedisServer, fresh_proxy: MakeProxy
) -> None:
    proxy = fresh_proxy(redis_server.address)
    with through(proxy) as client:
        client.ping()
        proxy.delay_ms = 100
        watch = Stopwatch()
        client.ping()
        assert watch.elapsed >= 0.2
        assert watch.seconds < 1
        with ThreadPoolExecutor(20) as pool:
            watch = Stopwatch()
            assert all(pool.map(lambda _: client.ping(), range(20)))
        # Each opens its own connection, which takes a few round trips. All are opened at the same
        # time, because one after another would take over 8 s.
        assert watch.seconds < 4


def test_a_dropped_reply_belongs_to_a_command_that_ran(
    redis: Redis, redis_server: RedisServer, fresh_proxy: MakeProxy
) -> None:
    proxy = fresh_proxy(redis_server.address)
    with through(proxy) as client:
        proxy.drop_replies(2, matching=b"INCR")
        for _ in range(2):
            with pytest.raises(RedisConnectionError):
                client.incr("count")
        assert client.incr("count") == 3
    assert proxy.dropped == 2


def test_cut_closes_all_connections_and_accepts_new_ones(
    redis: Redis, redis_server: RedisServer, fresh_proxy: MakeProxy
) -> None:
    proxy = fresh_proxy(redis_server.address)
    with through(proxy) as client, ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.blpop, ["nothing"], timeout=9)
        eventually(lambda: redis.info("clients")["blocked_clients"] == 1)
        proxy.cut()
        with pytest.raises(RedisConnectionError):
            waiting.result(timeout=5)
        assert client.ping()


def test_a_black_hole_accepts_and_never_answers(
    redis: Redis, redis_server: RedisServer, fresh_proxy: MakeProxy
) -> None:
    proxy = fresh_proxy(redis_server.address)
    with through(proxy, timeout=1) as old, through(proxy, timeout=1) as new:
        old.ping()
        proxy.black_hole()
        for client in (old, new):
            with pytest.raises(RedisTimeoutError):
                client.ping()
        proxy.black_hole(False)
        assert old.ping()
        assert new.ping()


def test_a_redis_that_is_gone_closes_the_connection(
    fresh_server: MakeServer, fresh_proxy: MakeProxy
) -> None:
    server = fresh_server()
    with through(fresh_proxy(server.address)) as client:
        client.set("key", "kept")
        server.kill()
        for _ in range(2):
            with pytest.raises(RedisConnectionError):
                client.ping()
        server.restart()
        assert client.get("key") == b"kept"


def test_it_runs_as_a_process(redis_server: RedisServer) -> None:
    command = [sys.executable, "-m", "tests.support.proxy", "--target", redis_server.address]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [*command, "--delay-ms", "5"], cwd=root, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with closing(Redis.from_url(redis_url(address))) as client:
            client.ping()
            watch = Stopwatch()
            client.ping()
            took = watch.elapsed
        process.terminate()
    assert took >= 0.01
    assert process.returncode == 0


@pytest.mark.parametrize("tcp", [True, False])
def test_a_server_has_its_options_and_keeps_its_address(
    fresh_server: MakeServer, tcp: bool
) -> None:
    server = fresh_server(tcp=tcp, maxmemory="3mb", requirepass="secret")
    url = server.url
    client = server.client()
    assert client.config_get("maxmemory")["maxmemory"] == str(3 << 20)
    client.set("key", "kept")
    server.restart()
    assert server.url == url
    assert client.get("key") == b"kept"
    stranger = Redis.from_url(redis_url(server.address))
    with closing(stranger), pytest.raises(RedisError, match=r"(?i)auth"):
        stranger.ping()


def test_a_paused_server_answers_when_it_is_resumed(fresh_server: MakeServer) -> None:
    server = fresh_server()
    client = server.client(socket_timeout=1)
    server.pause()
    with pytest.raises(RedisTimeoutError):
        client.ping()
    server.resume()
    assert client.ping()


def test_a_server_that_does_not_start_reports_why() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        RedisServer(maxmemory_policy="no such policy")


def test_queue_settings_name_the_shared_server(
    queue_settings: dict[str, object], redis_server: RedisServer
) -> None:
    assert settings.REDISQUEUE is queue_settings
    assert settings.REDISQUEUE["CONNECTION"] == {"URL": redis_server.url}
