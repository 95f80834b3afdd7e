"""URLs in CONNECTION that cannot be read are refused by name, without showing any part of a
password."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from ssl import CERT_NONE
from typing import Any

import pytest
from django.core.checks import Error
from redis import utils
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from django_redisqueue.broker import redis_url
from django_redisqueue.broker.connection import bulk_connection, producer_connection
from django_redisqueue.broker.nodes import connected, unconnected
from django_redisqueue.broker.redis_url import get_redis_url, masked
from django_redisqueue.checks import check_settings
from django_redisqueue.exceptions import ConfigurationError
from tests.app import tasks
from tests.support.servers import RedisServer

UNREADABLE = [
    "redis://:s3cret/x@localhost:6379/0",
    "redis://:s3cret#x@localhost:6379/0",
    "redis://:s3cret?x@localhost:6379/0",
    "redis://:s3cret?x=y@localhost:6379/0",
    "redis://:s3cret[x@localhost:6379/0",
    "redis://s3cret/x@localhost",
    "rediss://user:s3cret/x@shop",
    "redis://:12/s3cret@shop/0",  # a parser finds port 12
    "redis://:12#s3cret@shop/0",
    "redis://:12?s3cret@shop/0",
    "redis:///s3cret@shop/0",
    "redis://:s3cret/0",
    "redis://:s3cret@x?s3cret@shop/0",
    "redis://:s3cret@shop?foo=s3cret@x",
    "redis+sentinel://:s3cret/x@host/jobs",
    "redis+sentinel://:s3cret/x@host/0",
    "redis+sentinel://:s3cret/x?y@host/jobs",
    "redis+sentinel://:s3cret/x?y=z@host/jobs",
    "redis+sentinel://:s3cret@host/jobs?foo=1",
    "redis+sentinel://:s3cret/jobs",
    "redis+sentinel://user:s3cret,other/jobs",
    "redis+cluster://user:s3cret",
    "rediss+sentinel://host/jobs?ssl_cert_reqs=s3cret",
    "unix://:s3cret/x@/run/redis.sock",
    "redis://:s3cret@localhost:abc/0",
    "redis://localhost:abc",
    "redis://localhost:99999/0",
    "redis://localhost:6379/jobs",
    "redis://localhost:6379/0?foo=1",
    "redis://[::1]:6379/0?foo=1",
    "redis://localhost?socket_timeout=x",
    "redis://localhost?protocol=9",
    "rediss://localhost?ssl_cert_reqs=s3cret",
    "unix:///x?db=abc",
    "redis://[::1/0",
]


@pytest.mark.parametrize("url", UNREADABLE)
def test_a_url_that_cannot_be_read(settings: Any, url: str) -> None:
    shown = f"{url.partition('://')[0]}://***"
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
    with pytest.raises(ConfigurationError) as refusal:
        tasks.noop.enqueue()
    words = str(refusal.value)
    assert words.startswith(f'REDISQUEUE["CONNECTION"]["URL"] is {shown!r}, which cannot be read;')
    assert "percent-encode special characters in its user and password (/ is %2F" in words
    assert "s3cret" not in words
    assert "s3cret" not in "".join(traceback.format_exception(refusal.value))
    (message,) = check_settings()
    assert (message.id, message.msg) == ("django_redisqueue.E002", f"{words}.")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:s3cret%2Fx@localhost:6379/0", "redis://:***@localhost:6379/0"),
        ("redis://user:s3@cret@[::1]:6379/0", "redis://user:***@[::1]:6379/0"),
        ("redis://s3cret@localhost:6379/0", "redis://***@localhost:6379/0"),  # redis-cli logs in
        ("redis://localhost/0?password=s3@cret", "redis://***"),
        ("redis://localhost/0?socket_keepalive=yes", "redis://localhost/0"),
        ("unix:///run/a@b/redis.sock?db=1", "unix:///run/a@b/redis.sock"),
        ("unix://:s3cret@/run/redis.sock", "unix://:***@/run/redis.sock"),
        ("rediss://shop/0?ssl_ca_certs=/nonexistent/ca.pem", "rediss://shop/0"),
        ("redis+sentinel://:s3cret@[::1]:1,[::2]:2/jobs", "redis+sentinel://:***@[::1]:1,[::2]:2/jobs"),
    ],
)  # fmt: skip
def test_a_url_that_can_be_read(settings: Any, url: str, shown: str) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
    assert get_redis_url().address == shown
    assert not [one for one in check_settings() if isinstance(one, Error)]


@pytest.mark.parametrize(
    "url", [
        "user:s3cret@host:6379", "redis:/:s3cret@host", ":s3cret@host/0",
        "localhost:6379/0?password=s3cret",
    ],
)  # fmt: skip
def test_a_url_without_a_scheme_is_not_shown(settings: Any, url: str) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
    with pytest.raises(ConfigurationError, match="is '\\*\\*\\*'; it must begin with"):
        get_redis_url()
    assert masked("localhost:6379") == "localhost:6379"


NO_DATABASE = "a Redis Cluster has only database 0; leave the number out"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+sentinel://:secret@host", "the name of the service is missing: .../<service>"),
        ("redis+sentinel://:secret@host/jobs/x", "the database is 'x', not a number"),
        ("redis+sentinel://:secret@host/jobs?db=1", "the database belongs after the service"),
        ("redis+sentinel://:secret@host,/jobs", "a sentinel is '', not host or host:port"),
        ("redis+sentinel://:secret@host:no/jobs", "'no'"),
        ("rediss+sentinel://:secret@host/jobs?ssl_check_hostname=no&db=x", "db"),
        ("redis+cluster://:secret@host/1", NO_DATABASE),
        ("redis+cluster://:secret@host/jobs", NO_DATABASE),
        ("redis+cluster://:secret@host?db=2", NO_DATABASE),
        ("redis+cluster://:secret@host,", "a node is '', not host or host:port"),
        ("redis+cluster://:secret@host:no", "'no'"),
        ("redis+cluster://:secret@host?foo=1", "which cannot be read"),
        ("rediss+cluster://:secret@host?ssl_cert_reqs=x", "which cannot be read"),
    ],
)
def test_a_wrong_url_is_refused_by_name(settings: Any, url: str, problem: str) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
    with pytest.raises(ConfigurationError) as refusal:
        get_redis_url()
    assert 'REDISQUEUE["CONNECTION"]["URL"] is ' in str(refusal.value)
    assert problem in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("folder", ["", "var/my-queue", "./queue", "localhost", "~ada/queue"])
def test_an_embedded_folder_is_absolute(settings: Any, folder: str) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": f"embedded://{folder}"}}
    with pytest.raises(ConfigurationError) as refusal:
        get_redis_url()
    assert f"is 'embedded://{folder}'; write embedded:///absolute/folder" in str(refusal.value)
    (message,) = check_settings()
    assert (message.id, message.msg) == ("django_redisqueue.E002", f"{refusal.value}.")


def test_an_embedded_folder_must_not_contain_a_password(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "embedded://:s3cret@localhost"}}
    with pytest.raises(
        ConfigurationError, match=r"'embedded://:\*\*\*@localhost'; write embedded:///"
    ):
        get_redis_url()


@pytest.mark.parametrize("folder", ["/var/tmp/a@b #c", "~/queue"])
def test_an_embedded_folder_that_is_the_same_everywhere(settings: Any, folder: str) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": f"embedded://{folder}"}}
    assert get_redis_url().address == f"embedded://{folder}"


def cache(location: Any, **options: Any) -> dict[str, Any]:
    return {"jobs": {"BACKEND": "...", "LOCATION": location, "OPTIONS": options}}


@pytest.fixture
def unopened_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is created, but not opened."""
    monkeypatch.setattr(AbstractConnection, "connect", lambda self: None)


@pytest.mark.usefixtures("unopened_address")
def test_a_connection_does_not_read_the_version_of_redis_py_from_disk(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    monkeypatch.setattr(utils, "get_lib_version", lambda: reads.append("read"))
    settings.REDISQUEUE = {"CONNECTION": {"URL": "redis://shop"}}
    get_redis_url().open(1, 1)
    node_or_sentinel = ("shop", 6379)
    unconnected(node_or_sentinel, {"socket_connect_timeout": 1}, {})
    assert reads == []


@pytest.mark.usefixtures("unopened_address")
def test_a_caches_address_and_password(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"CACHE": "jobs"}}
    settings.CACHES = cache("redis://shop:6379/1", PASSWORD="s3cret/x#?@")
    connection = get_redis_url().open(1, 1)
    assert connection.password == "s3cret/x#?@"  # type: ignore[attr-defined]
    assert get_redis_url().address == "redis://:***@shop:6379/1"
    settings.CACHES = cache("redis://:s3cret/x@shop")
    with pytest.raises(ConfigurationError) as refusal:
        get_redis_url()
    assert str(refusal.value).startswith(
        """CACHES["jobs"]["LOCATION"] is 'redis://***', which cannot be read"""
    )
    settings.CACHES = cache("shop:6379", PASSWORD="s3cret")
    with pytest.raises(ConfigurationError, match="is 'shop:6379'; it must begin with one of"):
        get_redis_url()


@pytest.mark.usefixtures("unopened_address")
@pytest.mark.parametrize(
    ("location", "options", "expected"),
    [
        ("redis://shop", {"db": "3"}, (3, None, None)),
        ("redis://shop/1", {"db": "3"}, (1, None, None)),
        ("unix:///run/redis.sock", {"db": 3}, (3, None, None)),
        ("unix:///run/redis.sock?db=1", {"db": 3}, (1, None, None)),
        ("redis://shop", {"username": "me", "password": "s3cret@"}, (0, "me", "s3cret@")),
        ("redis://you:own@shop", {"password": "s3cret"}, (0, "you", "own")),
        ("redis://shop/1;redis://replica/2", {}, (1, None, None)),
        (["redis://shop/1", "redis://replica/2"], {}, (1, None, None)),
        ("redis://shop", {"CONNECTION_POOL_KWARGS": {"db": 3}}, (3, None, None)),
    ],
)
def test_the_options_of_a_cache_are_used(
    settings: Any, location: Any, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    """Django's own RedisCache and django-redis accept them in this form."""
    settings.REDISQUEUE = {"CONNECTION": {"CACHE": "jobs"}}
    settings.CACHES = cache(location, **options)
    connection: Any = get_redis_url().open(1, 1)
    assert (int(connection.db), connection.username, connection.password) == expected
    place = getattr(connection, "host", None) or connection.path  # redis-py 6.0 has no host here
    assert place in ("shop", "/run/redis.sock")


@pytest.mark.usefixtures("unopened_address")
@pytest.mark.parametrize(
    ("location", "options", "expected"),
    [
        ("rediss://shop", {"ssl_cert_reqs": None}, {"cert_reqs": CERT_NONE}),
        ("rediss://shop/1", {"SSL_CERT_REQS": CERT_NONE}, {"cert_reqs": CERT_NONE}),
        ("rediss://shop", {"ssl_ca_certs": "/c a.pem"}, {"ca_certs": "/c a.pem"}),
        ("rediss://shop?ssl_ca_certs=/b", {"ssl_ca_certs": "/a"}, {"ca_certs": "/b"}),
        ("rediss://shop", {"ssl_check_hostname": False}, {"check_hostname": False}),
    ],
)
def test_the_tls_options_of_a_cache_are_used(
    settings: Any, location: str, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Hosts with certificates of their own tell their users to set them there."""
    settings.REDISQUEUE = {"CONNECTION": {"CACHE": "jobs"}}
    settings.CACHES = cache(location, CONNECTION_POOL_KWARGS=options)
    connection = get_redis_url().open(1, 1)
    assert {name: getattr(connection, name) for name in expected} == expected


def test_a_cache_behind_sentinel_is_refused_with_the_remedy(settings: Any) -> None:
    """Its host is the name of a service, which would be looked up forever."""
    settings.REDISQUEUE = {"CONNECTION": {"CACHE": "jobs"}}
    settings.CACHES = cache("redis://shop/0", SENTINELS=[("sentinel", 26379)])
    with pytest.raises(ConfigurationError, match=r"behind Sentinel: use .*redis\+sentinel://host"):
        get_redis_url()


OURS = "protocol=3&socket_timeout=60&socket_connect_timeout=60&decode_responses=False"


def test_the_query_does_not_override_what_a_queue_needs(
    settings: Any, queue_settings: dict[str, Any], fresh_server: Callable[..., RedisServer]
) -> None:
    """It may be meant for a cache."""
    url = f"redis://{fresh_server(tcp=True).address}/0?{OURS}&client_name=shop"
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": {"URL": url}}
    connection: Any = get_redis_url().open(1, 2)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (1, 2)
    assert connection.client_name == "shop"
    connection.disconnect()
    job = tasks.noop.enqueue()
    job.refresh()
    assert job.status == "queued"


def test_the_unreadable_address_of_another_cache_is_ignored(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "redis://localhost/0"}}
    settings.CACHES = cache("redis://[::1/0")
    assert not [one for one in check_settings() if isinstance(one, Error)]


def test_no_enqueue_reads_the_url_again(
    queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.noop.enqueue()
    monkeypatch.setattr(redis_url, "_check_readable", None)
    tasks.noop.enqueue()
    producer_connection()
    with pytest.raises(TypeError):
        bulk_connection()  # its own connection has its own target


def test_an_announced_address_that_does_not_answer_is_named() -> None:
    """Such as a container's internal address."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        address = full.getsockname()
        for _ in range(2):  # the kernel drops what does not fit into the backlog
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        with pytest.raises(NoAnswer, match=f"127.0.0.1:{address[1]}: Timeout connecting"):
            connected(address, {"socket_connect_timeout": 0.05, "retry": Retry(NoBackoff(), 0)}, {})
