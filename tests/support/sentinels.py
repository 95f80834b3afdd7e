"""Real Redis Sentinels for tests."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError
from redis.sentinel import Sentinel

from .program import Program
from .servers import Option, RedisServer, free_port, program, wait_for

NEVER_DOWN_MS = 600_000  # a lone sentinel takes no busy server for dead
FLEET_DOWN_MS = 1500


class RedisSentinel(Program):
    """Watches the master at ``master`` (host:port) under the name "jobs". ``epoch`` is that of the
    last failover it has heard of. ``auth_pass`` is the master's password: a sentinel that cannot
    log in takes its master for dead.

    ``options`` are those of its configuration file with underscores, ``requirepass="secret"``;
    with ``tls_port`` it is heard there only.
    """

    def __init__(
        self,
        master: str,
        *,
        quorum: int = 1,
        down_ms: int = NEVER_DOWN_MS,
        epoch: int = 0,
        auth_pass: str = "",
        **options: str | int,
    ) -> None:
        super().__init__("drq-s-")
        host, _, port = master.rpartition(":")
        options = {"port": 0 if "tls_port" in options else free_port(), **options}
        self.address = f"127.0.0.1:{options.get('tls_port') or options['port']}"
        lines = [f"{name.replace('_', '-')} {value}" for name, value in options.items()]
        lines += ["bind 127.0.0.1", f"sentinel monitor jobs {host} {port} {quorum}"]
        lines += [f"sentinel down-after-milliseconds jobs {down_ms}"]
        lines += ["sentinel failover-timeout jobs 2000", f"sentinel config-epoch jobs {epoch}"]
        lines += [f"sentinel auth-pass jobs {auth_pass}"] if auth_pass else []
        # It writes what it learns into this file.
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
        scheme, query = "redis", ""
        if "tls_port" in options:
            scheme, query = "rediss", f"?ssl_ca_certs={options['tls_ca_cert_file']}"
        self._url = f"{scheme}://:{options.get('requirepass', '')}@{self.address}/0{query}"
        self.start()

    def start(self) -> None:
        """Start it, with what it learned before."""
        self.launch(program(), "sentinel.conf", "--sentinel")

    def answers(self) -> bool:
        return self.replicas() >= 0

    def replicas(self) -> int:
        """How many replicas of the master it has discovered, -1 if it does not answer."""
        found = self.ask("sentinel_slaves")
        return -1 if found is None else len(found)

    def take_for_dead_after(self, down_ms: int) -> None:
        """Change how long the master may be silent."""
        assert self.ask("sentinel_set", "down-after-milliseconds", down_ms)

    def ask(self, question: str, *arguments: str | int) -> Any:
        """What a method of redis-py's client returns for "jobs"; None if it does not answer."""
        try:
            with Redis.from_url(self._url, decode_responses=True) as asker:
                return getattr(asker, question)("jobs", *arguments)
        except RedisError:
            return None


class Fleet:
    """A master with replicas and three sentinels that have discovered each other. ``server`` is the
    class of the servers; ``more`` are their options."""

    def __init__(
        self, replicas: int = 2, *, server: type[RedisServer] = RedisServer, **more: Option
    ) -> None:
        self._stack = ExitStack()
        options: dict[str, Any] = {"tcp": True, "repl_diskless_sync_delay": 0, **more}
        self.servers = [self._stack.enter_context(server(**options)) for _ in range(replicas + 1)]
        for replica in self.servers[1:]:
            replica.follow(self.servers[0])
        self.sentinels = [
            self._stack.enter_context(
                RedisSentinel(self.servers[0].address, quorum=2, down_ms=FLEET_DOWN_MS)
            )
            for _ in range(3)
        ]
        wait_for(lambda: all(s.replicas() == replicas for s in self.sentinels), "no replicas")
        wait_for(
            lambda: all(len(s.ask("sentinel_sentinels")) == 2 for s in self.sentinels),
            "the sentinels do not find each other",
        )
        places = ",".join(sentinel.address for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{places}/jobs/0"

    @property
    def master(self) -> RedisServer:
        """The server that the first sentinel names as master."""
        host, port = self.sentinels[0].ask("sentinel_get_master_addr_by_name")
        return next(one for one in self.servers if one.address == f"{host}:{port}")

    def is_whole(self) -> bool:
        """Whether every server but the master follows it, and all sentinels say so."""
        master = self.master
        replicas = [server for server in self.servers if server is not master]
        links = [replica.link() for replica in replicas]
        known = [sentinel.ask("sentinel_get_master_addr_by_name") for sentinel in self.sentinels]
        return links == [f"up {master.address}"] * len(replicas) and len(set(known)) == 1

    def client(self, **options: Any) -> Redis:
        """A client of the current master. Closed with the fleet."""
        addresses = [tuple(sentinel.address.split(":")) for sentinel in self.sentinels]
        finder = Sentinel(addresses)
        client: Redis = finder.master_for("jobs", socket_timeout=10, **options)
        for one in (client, *finder.sentinels):
            self._stack.callback(one.close)
        return client

    def fail_over(self) -> None:
        """Have a replica promoted, as an operator would; it begins within 0.1 s."""
        assert self.sentinels[-1].ask("sentinel_failover")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
