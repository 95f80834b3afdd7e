"""Where Redis is: the URL that the settings name, directly or through an entry of ``CACHES``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ssl import VerifyMode
from typing import Any, cast
from urllib.parse import parse_qs, quote, urlsplit

from django.conf import settings as django_settings
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry

from ..conf import get_settings
from ..core.ids import slot, tag
from ..core.redaction import without_frames
from ..exceptions import ConfigurationError
from .cluster import CLUSTER_SCHEMES, get_cluster_map, parse_cluster_url
from .embedded import ensure_server
from .nodes import DRIVER, Address, socket_of
from .sentinel import SENTINEL_SCHEMES, get_follower, parse_sentinel_url
from .wire import Packer


@dataclass(frozen=True, slots=True)
class RedisUrl:
    text: str = field(repr=False)
    address: str  # the same without the password, for display
    tag: str = ""  # the shard's tag, which determines the node of a cluster

    @property
    def is_cluster(self) -> bool:
        return self.text.startswith(CLUSTER_SCHEMES)

    @property
    def is_fixed(self) -> bool:
        """Whether it names one server, rather than a group whose master must be looked up."""
        return not self.text.startswith((*SENTINEL_SCHEMES, *CLUSTER_SCHEMES))

    def open(
        self, timeout: float, connect_timeout: float, owner: Address | None = None
    ) -> AbstractConnection:
        """A new connection; for a cluster, to the ``owner`` of the shard if it is known. Raises
        whatever redis-py raises."""
        options = _options(timeout, connect_timeout)
        if self.is_cluster:
            owner = owner or self.owner(connect_timeout)
            return get_cluster_map(self.text).open(owner, options)
        if self.text.startswith(SENTINEL_SCHEMES):
            return get_follower(self.text).open(options)
        url = self.text
        if url.startswith("embedded://"):
            url = f"unix://{ensure_server(url.removeprefix('embedded://'))}"
        # These options take precedence over those of the URL's query.
        pool = ConnectionPool(**{**parse_url(url), **options})
        connection = cast(AbstractConnection, pool.make_connection())
        connection.connect()
        return connection

    def owner(self, timeout: float) -> Address:
        """The node of the cluster that has the shard. Raises whatever redis-py raises."""
        return get_cluster_map(self.text).owner(slot(self.tag), timeout / 2)

    def distrust(self, error: BaseException | None = None) -> None:
        """Note a failed connection, with its error if known: the slot may have another owner."""
        if self.is_cluster:
            get_cluster_map(self.text).distrust(error)


def _options(timeout: float, connect_timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": True,
        "encoding_errors": "surrogateescape",
        "health_check_interval": 0,
        "redis_connect_func": _log_in,
        "command_packer": Packer(),
        **DRIVER,
    }


def _log_in(connection: AbstractConnection) -> None:
    """Log in within the timeout for connecting: a server that hangs still accepts connections."""
    found = socket_of(connection)
    found.settimeout(connection.socket_connect_timeout)
    connection.on_connect()
    found.settimeout(connection.socket_timeout)


SCHEMES = ("redis://", "rediss://", "unix://", *SENTINEL_SCHEMES, *CLUSTER_SCHEMES, "embedded://")
REMEDY = (
    "percent-encode special characters in its user and password (/ is %2F, # is %23, ? is %3F, "
    "@ is %40, [ is %5B, ] is %5D, % is %25), give a port from 1 to 65535 and a number as the "
    "database, and after a ? use only the options that redis-py accepts there, such as ?db=1"
)


TLS_OPTIONS = (
    "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile",
    "ssl_check_hostname", "ssl_keyfile", "ssl_password",
)  # fmt: skip
_NO_PORT = re.compile(r"//[^/\[]*:(?![0-9]+(?:[,/]|$))")  # it may be a password without a host


def has_one_server() -> bool:
    """Whether all shards are on one server. Raises ConfigurationError."""
    urls = redis_urls()
    return len(urls) == 1 and not urls[0].is_cluster


def get_redis_url(shard: int = 0) -> RedisUrl:
    """The URL of a shard, by ``REDISQUEUE["CONNECTION"]``. Raises ConfigurationError."""
    try:
        return _read_url(shard)
    except ConfigurationError as error:
        without_frames(error)  # error pages show locals, and the URL may have a password
        raise


def _read_url(shard: int) -> RedisUrl:
    setting, url = _named(shard)
    if not url.startswith(SCHEMES):
        raise ConfigurationError(
            f"{setting} is {masked(url)!r}; it must begin with one of {', '.join(SCHEMES)}"
        )
    if url.startswith("embedded://"):
        _check_folder(setting, url)
    else:
        _check_readable(setting, url)
    return RedisUrl(url, masked(url), tag(shard) if url.startswith(CLUSTER_SCHEMES) else "")


def redis_urls() -> list[RedisUrl]:
    """The servers of all shards, each once. Raises ConfigurationError."""
    found = (get_redis_url(shard) for shard in range(get_settings().shards))
    return list({url.text: url for url in found}.values())


def shards_by_server() -> list[list[int]]:
    """The shards that one connection can serve together. Raises ConfigurationError."""
    found: dict[RedisUrl, list[int]] = {}
    for shard in range(get_settings().shards):
        found.setdefault(get_redis_url(shard), []).append(shard)
    return list(found.values())


def redis_address() -> str:
    """The addresses of all servers, for display. Raises ConfigurationError."""
    return ", ".join(url.address for url in redis_urls())


def _named(shard: int) -> tuple[str, str]:
    connection = get_settings().connection
    if "URL" in connection:
        setting, urls = 'REDISQUEUE["CONNECTION"]["URL"]', connection["URL"]
        if isinstance(urls, str):
            return setting, urls
        place = shard % len(urls)
        return f"{setting}[{place}]", urls[place]
    alias = connection["CACHE"]
    return f'CACHES["{alias}"]["LOCATION"]', _cache_url(alias)


def _cache_url(alias: str) -> str:
    caches = django_settings.CACHES
    if alias not in caches:
        raise ConfigurationError(
            f'REDISQUEUE["CONNECTION"]["CACHE"] names {alias!r}, which is not in CACHES '
            f"({', '.join(caches)})"
        )
    url = primary_url(caches[alias])
    if url.startswith(CLUSTER_SCHEMES):
        raise ConfigurationError(
            f'REDISQUEUE["CONNECTION"]["CACHE"] names {alias!r}, which is a Redis Cluster: the '
            "queue cannot share its only database with a cache. Use a cluster of its own, with "
            '{"URL": "redis+cluster://host:port,host:port"}'
        )
    if options_of(caches[alias]).get("sentinels"):
        raise ConfigurationError(
            f'REDISQUEUE["CONNECTION"]["CACHE"] names {alias!r}, whose server is behind Sentinel: '
            'use {"URL": "redis+sentinel://host:port,host:port/service/database"}'
        )
    return url


def _check_folder(setting: str, url: str) -> None:
    """Refuse a relative folder, which would mean another Redis in every working directory."""
    if not url.removeprefix("embedded://").startswith(("/", "~/")):
        raise ConfigurationError(
            f"{setting} is {masked(url)!r}; write embedded:///absolute/folder (with three "
            """slashes), such as f"embedded://{BASE_DIR / '.redis'}\""""
        )


def _check_readable(setting: str, url: str) -> None:
    """Raise ConfigurationError for a URL that redis-py cannot parse. Opens no connection.

    The message does not repeat redis-py's, which quotes what it took for the port. If the password
    contains a "/", that is the beginning of the password.
    """
    # Any part of it could be part of a password.
    hidden = f"{url.partition('://')[0]}://***"
    unreadable = f"{setting} is {hidden!r}, which cannot be read; {REMEDY}"
    if _is_cut_short(url):
        raise ConfigurationError(unreadable)
    try:
        if url.startswith((*SENTINEL_SCHEMES, *CLUSTER_SCHEMES)):
            _check_nodes(setting, url)
        else:
            _check_database(url)
            ConnectionPool.from_url(url, **DRIVER).make_connection()
    except (ValueError, TypeError, RedisError):
        raise ConfigurationError(unreadable) from None


def _check_database(url: str) -> None:
    """Raise ValueError for a database that is not a number: redis-py would use 0 instead."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise ValueError


def _check_nodes(setting: str, url: str) -> None:
    parse = parse_cluster_url if url.startswith(CLUSTER_SCHEMES) else parse_sentinel_url
    try:
        target = parse(url)
    except ValueError as error:
        place, _, query = url.partition("?")
        if "@" in query or ("@" not in place and _NO_PORT.search(place)):
            raise  # the error may quote part of a password
        raise ConfigurationError(f"{setting} is {masked(url)!r}: {error}") from None
    target.check(_options(1, 1))


def _is_cut_short(url: str) -> bool:
    """Whether the user or password has an unescaped "/", "#" or "?", where a parser ends the host.
    Parsing may even succeed (``redis://:12/x@shop`` would be port 12 of this machine)."""
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    if scheme == "unix" and place.startswith("/"):  # a path may have an "@"
        return False
    credentials = place.rpartition("@")[0]
    beyond = any("@" in item and "=" not in item for item in query.split("&"))
    return beyond or "/" in credentials or "#" in credentials


def masked(url: str) -> str:
    """The URL with its password and query hidden."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***" if "@" in url or "?" in url else url
    place, _, query = rest.partition("?")
    if "@" in query:  # a password, perhaps one with a "?" in it
        return f"{scheme}{separator}***"
    credentials, at, host = place.rpartition("@")
    user, colon, _ = credentials.partition(":")
    if not colon and not user.startswith(("/", "~")):  # not a path: redis-cli logs in with it
        user = "***"
    shown = f"{user}:***@" if colon else f"{user}@"
    return f"{scheme}{separator}{shown if at else ''}{host}"


def locations(cache: Mapping[str, Any]) -> list[str]:
    """The URLs of an entry of ``CACHES``, the primary's first."""
    location = cache.get("LOCATION") or ""
    # For a file-based cache it may be a Path.
    found = location if isinstance(location, list | tuple) else re.split("[,;]", str(location))
    return [str(url).strip() for url in found]


def options_of(cache: Mapping[str, Any]) -> dict[str, Any]:
    """The connection options of an entry, with names in lower case."""
    options = cache.get("OPTIONS") or {}
    given = {**(options.get("CONNECTION_POOL_KWARGS") or {}), **options}
    return {name.lower(): value for name, value in given.items()}


def primary_url(cache: Mapping[str, Any]) -> str:
    """The URL of an entry's primary, with credentials, database and TLS from its options. As in
    redis-py, those in the URL take precedence."""
    url, options = locations(cache)[0], options_of(cache)
    user, password = options.get("username") or "", options.get("password") or ""
    scheme, separator, rest = url.partition("://")
    if (user or password) and separator and "@" not in url:
        # Options are not part of a URL, so they may contain characters that a URL must quote.
        url = f"{scheme}://{quote(str(user), safe='')}:{quote(str(password), safe='')}@{rest}"
    if options.get("db") is not None and not _names_database(url):
        url = _with_option(url, "db", options["db"])
    if scheme == "rediss":
        if options.get("ssl_cert_reqs", VerifyMode.CERT_REQUIRED) is None:
            options["ssl_cert_reqs"] = VerifyMode.CERT_NONE
        own = parse_qs(url.partition("?")[2])
        for name in TLS_OPTIONS:
            if options.get(name) is not None and name not in own:
                url = _with_option(url, name, options[name])
    return url


def _with_option(url: str, name: str, value: object) -> str:
    if isinstance(value, VerifyMode):
        value = value.name.removeprefix("CERT_").lower()
    return f"{url}{'&' if '?' in url else '?'}{name}={quote(str(value), safe='')}"


def _names_database(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # opening the connection will explain it
        return True
    return "db" in parse_qs(parts.query) or (parts.scheme != "unix" and parts.path.strip("/") != "")
