"""Real Redis servers for tests: each a child of this process, with its own folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from typing import Any, TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from django_redisqueue.broker.embedded import find_program

from .program import START_SECONDS, Program

Option = str | int | bool
Found = TypeVar("Found")


def program() -> str:
    """The program to test against: ``$DRQ_REDIS_SERVER``, or the one that the embedded server would
    run."""
    return os.environ.get("DRQ_REDIS_SERVER") or _program_here()


_program_here = cache(find_program)  # it runs the program, to ask for its version


class RedisServer(Program):
    """A redis-server on a unix socket, or on loopback: at ``port``, or with ``tcp=True`` on a free
    port.

    ``options`` are those of ``redis.conf`` with underscores: ``appendonly=True``,
    ``maxmemory="4mb"``, ``requirepass="secret"``. Nothing is persisted unless they say so.
    Address, folder and data stay the same over ``kill``, ``stop`` and ``restart``.
    """

    def __init__(self, *, tcp: bool = False, port: int = 0, **options: Option) -> None:
        super().__init__("drq-")
        port = port or (free_port() if tcp else 0)
        self.address = f"127.0.0.1:{port}" if port else f"{self.folder}/redis.sock"
        self.password = str(options.get("requirepass", ""))
        self._options: dict[str, Option] = {"save": "", "appendonly": False, **options}
        self._clients: list[Redis] = []
        self.start()

    @property
    def url(self) -> str:
        return redis_url(self.address, self.password)

    def client(self, **options: Any) -> Redis:
        """A client of this server, closed with it. It does not retry, so tests see every error."""
        options = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 10, **options}
        client = Redis.from_url(self.url, **options)
        self._clients.append(client)
        return client

    def follow(self, master: RedisServer) -> None:
        """Become a replica, and wait until it has everything that the master has."""
        host, _, port = master.address.rpartition(":")
        client = self.client(decode_responses=True)
        client.replicaof(host, int(port))
        wait_for(lambda: client.info("replication").get("master_link_status") == "up", "no link")

    def link(self) -> str:
        """The state of the link to its master, and the master's address; "" if it has no master or
        does not answer."""
        try:
            with Redis.from_url(self.url, decode_responses=True, socket_timeout=1) as client:
                found = client.info("replication")
        except RedisError:
            return ""
        if found["role"] == "master":
            return ""
        return f"{found['master_link_status']} {found['master_host']}:{found['master_port']}"

    def start(self) -> None:
        """Start it and wait until it has loaded its data and answers."""
        self.launch(program(), *self._arguments())

    def answers(self) -> bool:
        if self.address.startswith("/") and not os.path.exists(self.address):
            return False  # much sooner than a client would say it
        try:
            with Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=10) as client:
                return bool(client.ping())
        except RedisError:
            return False

    def kill(self) -> None:
        """SIGKILL: as a crash or the kernel's memory killer would do it."""
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it in order; does nothing if it is not running."""
        self.end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop it if it is running, and start it with the same address, options and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: until ``resume``, connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def save_failing(self) -> Iterator[None]:
        """Redis cannot write its snapshot, as on a full disk, and refuses every write and PING with
        MISCONF. It must hold at least one key."""
        in_the_way = self.folder / "dump.rdb"
        in_the_way.unlink(missing_ok=True)
        (in_the_way / "folder").mkdir(parents=True)  # a file cannot be renamed to it
        with Redis.from_url(self.url, decode_responses=True) as client:
            client.config_set("save", "3600 1")
            wait_for(lambda: not _saves(client) and "MISCONF" in _refusal(client), "it can save")
            yield
            client.config_set("save", "")
            wait_for(lambda: not _refusal(client), "it cannot save again")
        shutil.rmtree(in_the_way)

    def close(self) -> None:
        """End it, with its clients and its folder. May be called twice."""
        for client in self._clients:
            client.close()
        super().close()

    def _arguments(self) -> list[str]:
        if self.address.startswith("/"):
            where = {"port": 0, "unixsocket": self.address}
        else:
            where = {"bind": "127.0.0.1", "port": self.address.rpartition(":")[2]}
        arguments = []
        for name, value in {**where, **self._options}.items():
            value = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            arguments += [f"--{name.replace('_', '-')}", value]
        return arguments


def _saves(client: Redis) -> bool:
    """Try to write a snapshot. False if that failed."""
    with suppress(RedisError):  # one is already being written
        client.bgsave()
    return bool(client.info("persistence")["rdb_last_bgsave_status"] == "ok")


def _refusal(client: Redis) -> str:
    """How Redis refuses a PING; "" if it answers it."""
    try:
        client.ping()
    except RedisError as error:
        return str(error)
    return ""


def wait_for(condition: Callable[[], Found | None], problem: str) -> Found:
    """Returns the condition's value once it is true. A server may not answer yet, or no longer."""
    end = time.monotonic() + START_SECONDS
    found: Found | None = None
    last: object = None
    while not found:
        assert time.monotonic() < end, f"{problem}: {last}"
        try:
            found = condition()
        except RedisError as error:
            last = error
        if not found:
            time.sleep(0.02)
    return found


def redis_url(address: str, password: str = "") -> str:
    """The URL of database 0 at ``address``, which is a socket's path or ``host:port``."""
    login = f":{password}@" if password else ""
    return f"unix://{login}{address}" if address.startswith("/") else f"redis://{login}{address}/0"


_ports = count(os.getpid() * 101)  # processes that run tests begin at different ones


def free_port() -> int:
    """A loopback port that this process has until it ends. It is outside the kernel's ephemeral
    range, so no connection takes it."""
    return next(port for n in _ports if reserve(port := 26_000 + n % 6_000))


def reserve(port: int) -> bool:
    """Take a loopback port for this process, unless something listens on it or another process that
    runs tests has taken it. A server can therefore start later, and again, on its port.

    The sign is the UDP port of the same number, which the kernel frees when this process ends.
    """
    with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as sign:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sign.bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        sign.detach()  # stays open
    return True
