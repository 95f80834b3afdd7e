"""Where Redis is: the connection that the settings name, as something that can be opened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from django.conf import settings as django_settings
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.exceptions import RedisError
from redis.retry import Retry

from .caches import primary_url
from .conf import get_settings
from .embedded import ensure_server
from .exceptions import ConfigurationError
from .failovers import follower_of
from .sentinels import SENTINEL_SCHEMES, parse_sentinel_url


@dataclass(frozen=True, slots=True)
class Target:
    """Where Redis is: enough to open a connection, and an address fit for people to see."""

    url: str
    address: str

    def open(self, timeout: float, connect_timeout: float) -> AbstractConnection:
        """A new connection. Raises what redis-py raises."""
        options = _options(timeout, connect_timeout)
        if self.url.startswith(SENTINEL_SCHEMES):
            return follower_of(self.url).open(options)
        url = self.url
        if url.startswith("embedded://"):
            url = f"unix://{ensure_server(url.removeprefix('embedded://'))}"
        connection = _unconnected(url, options)
        connection.connect()
        return connection


def _options(timeout: float, connect_timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": True,
        "encoding_errors": "surrogateescape",
        "health_check_interval": 0,
    }


def _unconnected(url: str, options: dict[str, Any]) -> AbstractConnection:
    return cast(AbstractConnection, ConnectionPool.from_url(url, **options).make_connection())


SCHEMES = ("redis://", "rediss://", "unix://", *SENTINEL_SCHEMES, "embedded://")
REMEDY = (
    "percent-encode what is special in its user and password (/ is %2F, # is %23, ? is %3F, @ is "
    "%40, [ is %5B, ] is %5D, % is %25), give a port from 1 to 65535, and after a ? only what "
    "redis-py takes there, such as ?db=1"
)


def get_target() -> Target:
    """The target that ``REDISQUEUE["CONNECTION"]`` names. Raises ConfigurationError."""
    setting, url = _named()
    if url.startswith("redis+cluster://"):
        raise ConfigurationError(
            "redis+cluster:// is not supported yet; use redis:// or redis+sentinel://"
        )
    if not url.startswith(SCHEMES):
        raise ConfigurationError(
            f"{setting} is {masked(url)!r}; it must begin with one of {', '.join(SCHEMES)}"
        )
    if url.startswith("embedded://"):
        _check_folder(setting, url)
    else:
        _check_readable(setting, url)
    return Target(url, masked(url))


def _named() -> tuple[str, str]:
    """The setting that has the URL, and the URL."""
    connection = get_settings().connection
    if "URL" in connection:
        return 'REDISQUEUE["CONNECTION"]["URL"]', connection["URL"]
    alias = connection["CACHE"]
    return f'CACHES["{alias}"]["LOCATION"]', _cache_url(alias)


def _cache_url(alias: str) -> str:
    caches = django_settings.CACHES
    if alias not in caches:
        raise ConfigurationError(
            f'REDISQUEUE["CONNECTION"]["CACHE"] names {alias!r}, which is not in CACHES '
            f"({', '.join(caches)})"
        )
    return primary_url(caches[alias])


def _check_folder(setting: str, url: str) -> None:
    """A relative folder would be another Redis in every working directory."""
    if not url.removeprefix("embedded://").startswith(("/", "~/")):
        raise ConfigurationError(
            f"{setting} is {url!r}; write embedded:///absolute/folder (with three slashes), such "
            """as f"embedded://{BASE_DIR / '.redis'}\""""
        )


def _check_readable(setting: str, url: str) -> None:
    """Raise ConfigurationError unless a connection can be made of the URL; none is opened.

    redis-py's own words are not repeated: they quote what it took for the port, which is the
    beginning of a password with a "/" in it.
    """
    unreadable = f"{setting} is {hidden(url)!r}, which cannot be read; {REMEDY}"
    if _is_cut_short(url):
        raise ConfigurationError(unreadable)
    try:
        if url.startswith(SENTINEL_SCHEMES):
            _check_sentinel(setting, url)
        else:
            _unconnected(url, _options(1, 1))
    except (ValueError, TypeError, RedisError):
        raise ConfigurationError(unreadable) from None


def _check_sentinel(setting: str, url: str) -> None:
    try:
        watched = parse_sentinel_url(url)
    except ValueError as error:
        if "@" in url.partition("?")[2]:  # what it quotes may be part of a password
            raise
        raise ConfigurationError(f"{setting} is {masked(url)!r}: {error}") from None
    watched.check(_options(1, 1))


def _is_cut_short(url: str) -> bool:
    """Whether user and password hold a bare "/", "#" or "?": a parser ends the host there, and may
    even find one (``redis://:12/x@shop`` would be port 12 of this machine)."""
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    if scheme == "unix" and place.startswith("/"):  # a path, which may have an "@"
        return False
    credentials = place.rpartition("@")[0]
    beyond = any("@" in item and "=" not in item for item in query.split("&"))
    return beyond or "/" in credentials or "#" in credentials


# host:port/database or a path
_PLAIN = re.compile(r"([^:]*|\[[0-9a-fA-F:.]*\])(:[0-9]{0,5})?(/[^:]*)?")


def hidden(url: str) -> str:
    """A URL that cannot be read, without whatever could be part of a password in it."""
    scheme, separator, rest = url.partition("://")
    place, question, query = rest.partition("?")
    if "@" in query:
        return f"{scheme}{separator}***"
    _, at, host = place.rpartition("@")
    if not at and not _PLAIN.fullmatch(host):  # a password with no host behind it
        host = f"{host.partition(':')[0]}:***"
    return f"{scheme}{separator}{'***@' if at else ''}{host}{'?***' if question else ''}"


def masked(url: str) -> str:
    """The URL with its password and query hidden."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***" if "@" in url else url
    place, _, query = rest.partition("?")
    if "@" in query:  # a password there, or by mistake one with a "?" in it
        return f"{scheme}{separator}***"
    credentials, at, host = place.rpartition("@")
    user = credentials.partition(":")[0]
    shown = f"{user}:***@" if ":" in credentials else f"{credentials}@"
    return f"{scheme}{separator}{shown if at else ''}{host}"
