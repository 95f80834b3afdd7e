"""Where Redis is: the connection that the settings name, as something that can be opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from django.conf import settings as django_settings
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.retry import Retry

from .conf import get_settings
from .embedded import ensure_server
from .exceptions import ConfigurationError
from .sentinels import SENTINEL_SCHEMES, parse_sentinel_url


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
        if self.url.startswith(SENTINEL_SCHEMES):
            return parse_sentinel_url(self.url).open(options)
        url = self.url
        if url.startswith("embedded://"):
            url = f"unix://{ensure_server(url.removeprefix('embedded://'))}"
        pool = ConnectionPool.from_url(url, **options)
        return cast(AbstractConnection, pool.make_connection())


SCHEMES = ("redis://", "rediss://", "unix://", *SENTINEL_SCHEMES, "embedded://")


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
    if url.startswith(SENTINEL_SCHEMES):
        try:
            parse_sentinel_url(url)
        except ValueError as error:
            raise ConfigurationError(
                f'REDISQUEUE["CONNECTION"]["URL"] is {masked(url)!r}: {error}'
            ) from None
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
    place, _, query = rest.partition("?")
    credentials, at, host = place.rpartition("@")
    if "@" in query and not at:  # a password with a "?" in it, by mistake
        return f"{scheme}{separator}***"
    user = credentials.partition(":")[0]
    shown = f"{user}:***@" if ":" in credentials else f"{credentials}@"
    return f"{scheme}{separator}{shown if at else ''}{host}"
