"""URLs that name several servers, ``scheme://[user:password@]host[:port][,...]/path?options``, and
connections to one of them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool, parse_url
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

Address = tuple[str, int]

DRIVER: dict[str, Any] = {}  # options of every connection
with suppress(ImportError):
    from redis.driver_info import DriverInfo

    # Without this, the releases that have this class read their version from disk for every
    # connection, which takes longer than connecting.
    DRIVER["driver_info"] = DriverInfo(lib_version=redis.__version__)


@dataclass(frozen=True, slots=True)
class NodesUrl:
    """The parts of such a URL. ``options`` are those of its query, and whether to use TLS."""

    nodes: tuple[Address, ...]
    path: str
    login: Mapping[str, str] = field(repr=False)
    options: dict[str, Any] = field(repr=False)


def parse_nodes_url(url: str, kind: str, port: int) -> NodesUrl:
    """Parse the URL. ``kind`` names a server in errors, ``port`` is the default. Raises
    ValueError, saying what is wrong."""
    # Not by urlsplit, which accepts brackets for only one address.
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    credentials, _, hosts = netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    login = {"username": unquote(user), "password": unquote(password)}
    return NodesUrl(
        nodes=tuple(_address(item, kind, port) for item in hosts.split(",")),
        path=path.strip("/"),
        login={name: text for name, text in login.items() if text},
        options=dict(parse_url(f"{scheme.partition('+')[0]}://?{query}")),
    )


def _address(text: str, kind: str, port: int) -> Address:
    one = urlsplit(f"//{text}")
    if not one.hostname:
        raise ValueError(f"{kind} is {text!r}, not host or host:port")
    return one.hostname, one.port or port


def unconnected(
    address: Address, options: Mapping[str, Any], own: Mapping[str, Any]
) -> AbstractConnection:
    """A connection of redis-py to this address, not yet connected. ``options`` take precedence
    over ``own``, those of the URL."""
    merged = {**DRIVER, **own, **options}
    pool = ConnectionPool(host=address[0], port=address[1], **merged)
    return cast(AbstractConnection, pool.make_connection())


def connected(
    address: Address, options: Mapping[str, Any], own: Mapping[str, Any]
) -> AbstractConnection:
    """The same, connected. Raises whatever redis-py raises, with the address: it may have been
    announced by other servers, and be reachable only from them."""
    connection = unconnected(address, options, own)
    try:
        connection.connect()
    except NoAnswer as error:
        raise NoAnswer(f"{address[0]}:{address[1]}: {error}") from error
    return connection


def unconnected_query(
    address: Address, seconds: float, own: Mapping[str, Any]
) -> AbstractConnection:
    """The same, for asking where the data is: with one timeout for everything, and no retries."""
    options = {
        "socket_connect_timeout": seconds,
        "socket_timeout": seconds,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": True,
    }
    return unconnected(address, options, own)


def socket_of(connection: AbstractConnection) -> socket.socket:
    """The socket, for which redis-py has no public API. Raises its ConnectionError if closed."""
    found: socket.socket | None = connection._sock
    if found is None:
        raise NoConnection("the connection is closed")
    return found
