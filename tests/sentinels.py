"""A real Redis Sentinel for tests."""

from __future__ import annotations

from redis import Redis
from redis.exceptions import RedisError

from .program import Program
from .servers import free_port, program

QUICK = ("down-after-milliseconds jobs 300", "failover-timeout jobs 2000")


class RedisSentinel(Program):
    """Watches the master at ``master`` (host:port) under the name "jobs".

    ``options`` are those of its configuration file with underscores, ``requirepass="secret"``;
    with ``tls_port`` it is heard there only.
    """

    def __init__(self, master: str, **options: str | int) -> None:
        super().__init__("drq-s-")
        host, _, port = master.rpartition(":")
        options = {"port": 0 if "tls_port" in options else free_port(), **options}
        self.address = f"127.0.0.1:{options.get('tls_port') or options['port']}"
        lines = [f"{name.replace('_', '-')} {value}" for name, value in options.items()]
        lines += ["bind 127.0.0.1", f"sentinel monitor jobs {host} {port} 1"]
        lines += [f"sentinel {line}" for line in QUICK]
        # It writes into this file what it learns.
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
        scheme, query = "redis", ""
        if "tls_port" in options:
            scheme, query = "rediss", f"?ssl_ca_certs={options['tls_ca_cert_file']}"
        self._url = f"{scheme}://:{options.get('requirepass', '')}@{self.address}/0{query}"
        self.launch(program(), "sentinel.conf", "--sentinel")

    def answers(self) -> bool:
        return self.replicas() >= 0

    def replicas(self) -> int:
        """How many replicas of the master it knows of, -1 when it does not answer."""
        try:
            with Redis.from_url(self._url) as asker:
                return len(asker.sentinel_slaves("jobs"))
        except RedisError:
            return -1
