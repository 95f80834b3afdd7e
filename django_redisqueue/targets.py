"""Where Redis is: the connection that the settings name, as something that can be opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from django.conf import settings as django_settings
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.retry import Retry
from redis.sentinel import Sentinel

from .conf import get_settings
from .embedded import ensure_server
from .exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class Target:
    """Where Redis is: enough to open a connection, and an address fit for people to see."""

    url: str
    address: str

    def open(self, timeout: float, connect_timeout: float) -> AbstractConnection:
        """A new connection, not yet connected. Raises what redis-py raises."""
        options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": connect_timeout,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "decode_responses": True,
            "encoding_errors": "surrogateescape",
            "health_check_interval": 0,
        }
        if self.url.startswith("redis+sentinel://"):
            return _open_by_sentinel(self.url, options)
        url = self.url
        if url.startswith("embedded://"):
            url = f"unix://{ensure_server(url.removeprefix('embedded://'))}"
        pool = ConnectionPool.from_url(url, **options)
        return cast(AbstractConnection, pool.make_connection())


def _open_by_sentinel(url: str, options: dict[str, Any]) -> AbstractConnection:
    """``redis+sentinel://[user:password@]host:port[,host:port]/service[/db]``.

    Half of the time to connect is for the sentinels, in equal parts, for the first may be down; the
    other half for the master. redis-py's own client would ask each of them for a minute.
    """
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    service, _, database = parts.path.strip("/").partition("/")
    addresses = []
    for item in hosts.split(","):
        host, _, port = item.partition(":")
        addresses.append((host, int(port or 26379)))
    half = options["socket_connect_timeout"] / 2
    each = {"socket_timeout": half / len(addresses), "retry": Retry(NoBackoff(), 0)}
    each["socket_connect_timeout"] = each["socket_timeout"]
    sentinel = Sentinel(addresses, sentinel_kwargs=each)
    try:
        host, port = sentinel.discover_master(service)
    finally:
        for client in sentinel.sentinels:
            client.close()
    options = {**options, "socket_connect_timeout": half}
    pool = ConnectionPool(
        host=host,
        port=port,
        db=int(database or 0),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        **options,
    )
    return cast(AbstractConnection, pool.make_connection())


SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "embedded://")


def get_target() -> Target:
    """The target that ``REDISQUEUE["CONNECTION"]`` names. Raises ConfigurationError."""
    connection = get_settings().connection
    url = connection["URL"] if "URL" in connection else _cache_url(connection["CACHE"])
    if url.startswith("redis+cluster://"):
        raise ConfigurationError(
            "redis+cluster:// is not supported yet; use redis:// or redis+sentinel://"
        )
    if not url.startswith(SCHEMES):
        raise ConfigurationError(
            f'REDISQUEUE["CONNECTION"]["URL"] is {masked(url)!r}; it must begin with one of '
            + ", ".join(SCHEMES)
        )
    return Target(url, masked(url))


def _cache_url(alias: str) -> str:
    caches = django_settings.CACHES
    if alias not in caches:
        raise ConfigurationError(
            f'REDISQUEUE["CONNECTION"]["CACHE"] names {alias!r}, which is not in CACHES '
            f"({', '.join(caches)})"
        )
    location = caches[alias].get("LOCATION", "")
    url = location[0] if isinstance(location, list | tuple) else location.split(",")[0]
    password = caches[alias].get("OPTIONS", {}).get("PASSWORD")
    if password and "@" not in url:
        scheme, _, rest = url.partition("://")
        url = f"{scheme}://:{password}@{rest}"
    return str(url)


def masked(url: str) -> str:
    """The URL with its password and query hidden."""
    scheme, separator, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    user = credentials.partition(":")[0]
    shown = f"{user}:***@" if ":" in credentials else f"{credentials}@"
    return f"{scheme}{separator}{shown if at else ''}{host.partition('?')[0]}"
