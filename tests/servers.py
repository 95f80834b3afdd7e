"""Real Redis servers for tests: each a child of this process, in a folder of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from django_redisqueue.embedded import find_program

Option = str | int | bool

START_SECONDS = 20.0


def program() -> str:
    """What to test against: ``$DRQ_REDIS_SERVER``, else what the embedded server would run."""
    return os.environ.get("DRQ_REDIS_SERVER") or find_program()


class RedisServer:
    """A redis-server on a unix socket, or with ``tcp=True`` on a free loopback port.

    ``options`` are those of ``redis.conf`` with underscores: ``appendonly=True``,
    ``maxmemory="4mb"``, ``requirepass="secret"``. Nothing is persisted unless they say so.
    Address, folder and data stay the same over ``kill``, ``stop`` and ``restart``.
    """

    def __init__(self, *, tcp: bool = False, **options: Option) -> None:
        # Not pytest's tmp_path: a socket's path has 104 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix="drq-", dir="/tmp"))
        self.address = f"127.0.0.1:{_free_port()}" if tcp else f"{self.folder}/redis.sock"
        self.password = str(options.get("requirepass", ""))
        self._options: dict[str, Option] = {"save": "", "appendonly": False, **options}
        self._clients: list[Redis] = []
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        self.start()

    @property
    def url(self) -> str:
        return redis_url(self.address, self.password)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def client(self, **options: Any) -> Redis:
        """A client of this server, closed with it. It does not retry: tests see what happens."""
        options = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 10, **options}
        client = Redis.from_url(self.url, **options)
        self._clients.append(client)
        return client

    def start(self) -> None:
        """Start it and wait until it has loaded its data and answers."""
        assert self._process is None, "the server runs already"
        self._process = subprocess.Popen(
            [program(), *self._arguments()],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the tests first, and they end the server
        )
        self._wait_until_it_answers()

    def kill(self) -> None:
        """SIGKILL: as a crash or the kernel's memory killer would do it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """An orderly end; nothing happens if it does not run."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop it if it runs, and start it with the same address, options and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered, until ``resume``."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, with its clients and its folder. May be called twice."""
        atexit.unregister(self.close)
        for client in self._clients:
            client.close()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def log(self) -> str:
        path = self.folder / "redis.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _arguments(self) -> list[str]:
        if self.address.startswith("/"):
            where = {"port": 0, "unixsocket": self.address}
        else:
            where = {"bind": "127.0.0.1", "port": self.address.rpartition(":")[2]}
        arguments = []
        for name, value in {**where, "logfile": "redis.log", **self._options}.items():
            value = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            arguments += [f"--{name.replace('_', '-')}", value]
        return arguments

    def _wait_until_it_answers(self) -> None:
        client = self.client()
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            try:
                client.ping()
                return
            except RedisError:
                time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"redis-server did not start: {self.log()}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a paused one would never see a SIGTERM
        process.wait()


def redis_url(address: str, password: str = "") -> str:
    """The URL of database 0 at ``address``: a socket's path, or ``host:port``."""
    login = f":{password}@" if password else ""
    return f"unix://{login}{address}" if address.startswith("/") else f"redis://{login}{address}/0"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
