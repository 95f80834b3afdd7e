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

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

SENTINEL_SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
Address = tuple[str, int]
_OWN_LOGIN = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class Watched:
    """A master that sentinels watch. ``own``: what logs in to the sentinels; ``common``: what
    redis-py is told of any connection, TLS for example."""

    sentinels: tuple[Address, ...]
    service: str
    database: int
    login: Mapping[str, str]
    own: Mapping[str, str]
    common: Mapping[str, Any]

    @property
    def question(self) -> tuple[str, str, str]:
        """What a sentinel is asked for the master's address. (The one that leads a failover goes on
        describing the former master for a second more in its answer to SENTINEL MASTER.)"""
        return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)

    def ask(self, seconds: float) -> Address:
        """Where the master is, from the first sentinel that knows, within so many seconds. Each has
        an equal part of them, for the first may be down. Raises MasterNotFoundError."""
        problems = []
        for place in self.sentinels:
            sentinel = self.to_sentinel(place, seconds / len(self.sentinels))
            try:
                sentinel.connect()
                sentinel.send_command(*self.question)
                found = sentinel.read_response()
            except (RedisError, OSError) as error:
                problems.append(f"{place[0]}:{place[1]}: {error}")
                continue
            finally:
                sentinel.disconnect()
            if found:
                return str(found[0]), int(found[1])
            problems.append(f"{place[0]}:{place[1]}: No such master with that name")
        told = "; ".join(problems)
        raise MasterNotFoundError(f"no sentinel names a live master {self.service!r}: {told}")

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise what ``to_master`` would for a query that redis-py does not take."""
        self.to_sentinel(("", 0), 1)
        self.to_master(("", 0), options)

    def to_master(self, address: Address, options: Mapping[str, Any]) -> AbstractConnection:
        """A new connection to a server that is the master, not yet connected."""
        connect = {"socket_connect_timeout": options["socket_connect_timeout"]}
        return _unconnected(
            address, db=self.database, **{**options, **self.common, **self.login, **connect}
        )

    def to_sentinel(self, address: Address, seconds: float) -> AbstractConnection:
        """A new connection to a sentinel, not yet connected, with this timeout for all it does."""
        timeouts = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        options = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "decode_responses": True}
        return _unconnected(address, **{**options, **self.common, **self.own, **timeouts})


def _unconnected(address: Address, **options: Any) -> AbstractConnection:
    pool = ConnectionPool(host=address[0], port=address[1], **options)
    return cast(AbstractConnection, pool.make_connection())


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


def _address(text: str) -> Address:
    """Host and port of one sentinel."""
    one = urlsplit(f"//{text}")
    if not one.hostname:
        raise ValueError(f"a sentinel is {text!r}, not host or host:port")
    return one.hostname, one.port or 26379
