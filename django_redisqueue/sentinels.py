"""Redis behind Sentinel: ``redis+sentinel://[user:password@]host[:port][,...]/service[/database]``.

``rediss+sentinel://`` speaks TLS to the sentinels and to the master. The query takes what that of
``rediss://`` takes in redis-py (``ssl_ca_certs=...``), and ``sentinel_username`` and
``sentinel_password`` where the sentinels ask for a password of their own. IPv6 in brackets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

SENTINEL_SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
_OWN_LOGIN = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class Watched:
    """A master that sentinels watch. ``own``: what logs in to the sentinels; ``common``: what
    redis-py is told of any connection, TLS for example."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    login: Mapping[str, str]
    own: Mapping[str, str]
    common: Mapping[str, Any]

    def open(self, options: Mapping[str, Any]) -> AbstractConnection:
        """A new connection to the master, not yet connected. Raises what redis-py raises.

        Half of the time to connect is for the sentinels, in equal parts, for the first may be down;
        the other half for the master. redis-py's own client would ask each of them for a minute.
        """
        half = options["socket_connect_timeout"] / 2
        host, port = self._ask(half / len(self.sentinels))
        return self._unconnected(host, port, {**options, "socket_connect_timeout": half})

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise what ``open`` would for a query that redis-py does not take; nobody is asked."""
        Redis(**self._client_options(1)).close()
        self._unconnected("", 0, options)

    def _unconnected(self, host: str, port: int, options: Mapping[str, Any]) -> AbstractConnection:
        connect = {"socket_connect_timeout": options["socket_connect_timeout"]}
        options = {**options, **self.common, **self.login, **connect}
        pool = ConnectionPool(host=host, port=port, db=self.database, **options)
        return cast(AbstractConnection, pool.make_connection())

    def _ask(self, seconds: float) -> tuple[str, int]:
        """Where the master is, from the first sentinel that says so within so many seconds."""
        problems = []
        for host, port in self.sentinels:
            with Redis(host=host, port=port, **self._client_options(seconds)) as sentinel:
                try:
                    master = sentinel.sentinel_master(self.service)
                except RedisError as error:
                    problems.append(f"{host}:{port}: {error}")
                    continue
            if master["is_master"] and not (master["is_sdown"] or master["is_odown"]):
                return str(master["ip"]), int(master["port"])
            problems.append(f"{host}:{port}: it is down")
        told = "; ".join(problems)
        raise MasterNotFoundError(f"no sentinel names a live master {self.service!r}: {told}")

    def _client_options(self, seconds: float) -> dict[str, Any]:
        options = {**self.common, **self.own, "retry": Retry(NoBackoff(), 0)}
        options["ssl"] = options.pop("connection_class", None) is not None
        return {**options, "socket_timeout": seconds, "socket_connect_timeout": seconds}


def parse_sentinel_url(url: str) -> Watched:
    """What the URL says. Raises ValueError, which says what is wrong with it."""
    # By hand: urlsplit takes brackets for one address only.
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise ValueError("the name of the service is missing: .../<service>")
    if database and not database.isdigit():
        raise ValueError(f"the database is {database!r}, not a number")
    common: dict[str, Any] = dict(parse_url(f"{scheme.partition('+')[0]}://?{query}"))
    own = {name.removeprefix("sentinel_"): common.pop(name, "") for name in _OWN_LOGIN}
    credentials, _, hosts = netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    login = {"username": unquote(user), "password": unquote(password)}
    return Watched(
        sentinels=tuple(_address(item) for item in hosts.split(",")),
        service=service,
        database=int(database or 0),
        login={name: text for name, text in login.items() if text},
        own={name: text for name, text in own.items() if text},
        common=common,
    )


def _address(text: str) -> tuple[str, int]:
    """Host and port of one sentinel."""
    one = urlsplit(f"//{text}")
    if not one.hostname:
        raise ValueError(f"a sentinel is {text!r}, not host or host:port")
    return one.hostname, one.port or 26379
