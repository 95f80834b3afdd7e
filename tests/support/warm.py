"""Processes that start in milliseconds, forked from one that has Django and the package loaded.

A new interpreter that imports all this takes most of a second of CPU, and the suite starts hundreds
of processes. ``WarmProcess`` stands in for ``subprocess.Popen``: a real process with its own
environment, settings, working directory, standard streams and session. Only the start itself is
not the real one; tests that are about the start run ``sys.executable``.

A run of the suite has one fork server, which the first ``WarmProcess`` starts. It has no threads
and no connections to Redis or a database, and ends with the run. A dead process stays a zombie
until ``wait`` or ``poll`` has returned its exit code, as if it were a child of this process.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NoReturn

from . import suite

ROOT = Path(__file__).resolve().parents[2]


# -- the tests' side


class WarmProcess:
    """``python -m django ...``, ``python -m module ...`` or ``python -c code ...``.

    ``stdin``, ``stdout`` and ``stderr`` are file descriptors.
    """

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str],
        stdout: int,
        stderr: int | None = None,
        stdin: int | None = None,
        cwd: Path = ROOT,
        start_new_session: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self._socket, theirs = socket.socketpair()
        null = os.open(os.devnull, os.O_RDONLY)
        streams = (null if stdin is None else stdin, stdout, stdout if stderr is None else stderr)
        with theirs:
            socket.send_fds(_server(), [b"!"], [theirs.fileno(), *streams])
        os.close(null)
        _send(
            self._socket,
            {
                "arguments": arguments,
                "env": dict(env),
                "cwd": str(cwd),
                "start_new_session": start_new_session,
            },
        )
        self.pid = int(self._socket.recv(64))

    def poll(self) -> int | None:
        """The exit code (of a signal: negative), or None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises ``subprocess.TimeoutExpired``."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is not None:
            return self.returncode
        if not select.select([self._socket], [], [], timeout)[0]:
            return None
        self.returncode = int(self._socket.recv(64))
        self._socket.shutdown(socket.SHUT_WR)
        self._socket.recv(1)  # the end of the socket: the pid is free
        self._socket.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Does nothing if the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _server() -> socket.socket:
    """This process's connection to the fork server."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(suite.shared("warm", _start_server) / "socket"))
    atexit.register(connection.close)
    return connection


_started: list[subprocess.Popen[bytes]] = []  # it may end after this process: no one waits for it


def _start_server(folder: Path) -> None:
    """Its output goes to a file: a pipe held by this process would stay open for the whole run."""
    end_of_run = suite.open_until_the_end()
    with socket.socket(socket.AF_UNIX) as listener, (folder / "log").open("wb") as log:
        listener.bind(str(folder / "socket"))
        listener.listen(64)
        descriptors = [listener.fileno(), end_of_run]
        _started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.warm", *map(str, descriptors)],
                cwd=ROOT,
                env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
    os.close(end_of_run)


def _send(to: socket.socket, request: dict[str, Any]) -> None:
    to.sendall(json.dumps(request).encode() + b"\n")


# -- the server's side


class WarmServer:
    """Forks on request. ``serve`` returns in a forked process, with what that process is to run."""

    def __init__(self, listener: socket.socket, end_of_run: int) -> None:
        self._listener = listener
        self._end_of_run = end_of_run
        self._clients: list[socket.socket] = []  # one per process of the suite
        self._sockets: dict[int, socket.socket] = {}  # by pid
        self._running: set[int] = set()
        self._awake, self._wake = os.pipe()
        for end in (self._awake, self._wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def serve(self) -> dict[str, Any] | None:
        """Returns None once the suite has ended."""
        while True:
            waiting = [self._end_of_run, self._awake, *self._all_sockets()]
            ready = select.select(waiting, [], [])[0]
            if self._end_of_run in ready:
                return None
            if self._awake in ready:
                os.read(self._awake, 4096)
                self._report()
            for pid, its in list(self._sockets.items()):
                if its in ready:
                    self._reap(pid)
            if self._listener in ready:
                self._clients.append(self._listener.accept()[0])
            for client in [each for each in self._clients if each in ready]:
                request = self._answer(client)
                if request is not None:
                    return request

    def _answer(self, client: socket.socket) -> dict[str, Any] | None:
        _, streams, _, _ = socket.recv_fds(client, 1, 4)
        if streams:
            return self._fork(*streams)
        self._clients.remove(client)
        client.close()
        return None

    def _all_sockets(self) -> list[socket.socket]:
        return [self._listener, *self._clients, *self._sockets.values()]

    def _fork(self, own: int, *streams: int) -> dict[str, Any] | None:
        its = socket.socket(fileno=own)
        with its.makefile("rb") as file:
            request: dict[str, Any] = json.loads(file.readline())
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite may run under nohup
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            fds = [each.fileno() for each in self._all_sockets()]
            os.closerange(3, max(own, *streams, self._wake, self._end_of_run, *fds) + 1)
            for each in (its, *self._all_sockets()):
                each.detach()
            return request
        for stream in streams:
            os.close(stream)
        its.sendall(str(pid).encode())
        self._sockets[pid] = its
        self._running.add(pid)
        return None

    def _report(self) -> None:
        for pid in list(self._running):
            # Look without reaping: the pid stays taken until the test has read the exit code.
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                continue
            self._running.discard(pid)
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            try:
                self._sockets[pid].sendall(str(code).encode())
            except (KeyError, BrokenPipeError):  # no one asks any more
                self._reap(pid)

    def _reap(self, pid: int) -> None:
        its = self._sockets.pop(pid, None)
        if pid not in self._running:
            os.waitpid(pid, 0)
        if its is not None:
            its.close()


def become(request: dict[str, Any]) -> None:
    """Turn this forked process into what a new interpreter would be for this request."""
    if request["start_new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = _writer(1, unbuffered)
    sys.stderr = sys.__stderr__ = _writer(2, unbuffered)
    _read_settings()


def _writer(fd: int, unbuffered: bool) -> io.TextIOWrapper:
    stream = os.fdopen(fd, "wb", 0 if unbuffered else -1, closefd=False)
    return io.TextIOWrapper(
        stream,
        errors="backslashreplace" if fd == 2 else None,
        line_buffering=fd == 2 or stream.isatty(),
        write_through=unbuffered,
    )


def _read_settings() -> None:
    """Reload the settings, which depend on the environment, and import the tasks that they name."""
    from django.apps import apps
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.db import connections
    from django.utils.functional import empty

    del sys.modules[os.environ["DJANGO_SETTINGS_MODULE"]]
    settings._wrapped = empty
    for each in connections.all(initialized_only=True):
        del connections[each.alias]
    connections._settings = None
    connections.__dict__.pop("settings", None)
    setting_changed.send(None, setting="REDISQUEUE", value=settings.REDISQUEUE, enter=True)
    apps.ready = False  # as Django has it during setup
    apps.get_app_config("django_redisqueue").ready()
    apps.ready = True


def run(arguments: Sequence[str]) -> int:
    """Do what ``python`` would do with these arguments; returns the exit code."""
    try:
        _run(arguments)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    return 0


def _run(arguments: Sequence[str]) -> None:
    kind, what, *rest = arguments
    if kind == "-W":
        warnings.simplefilter(what)
        _run(rest)
    elif kind == "-c":
        sys.argv = ["-c", *rest]
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        assert kind == "-m", arguments
        sys.argv = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)


def leave(code: int) -> NoReturn:
    """Exit as an interpreter does, but leave freeing the memory to the kernel, which is faster:
    most of it is shared with the server, and would be copied first."""
    from django.db import connections

    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    connections.close_all()  # SQLite checkpoints its log into the file
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def remember_versions() -> None:
    """Read the version of a distribution only once. It takes milliseconds, which a worker spends at
    startup, and newer releases of redis-py for every connection."""
    metadata.version = cache(metadata.version)


def check_what_is_common() -> None:
    """Run the checks whose findings are the same in every process, and load what they read. Those
    of the package depend on its settings and are left to the processes; running them all takes half
    of the CPU time of a worker's start."""
    from django.core.checks import run_checks
    from django.core.checks.registry import registry

    checks = registry.registered_checks
    own = {check for check in checks if check.__module__.startswith("django_redisqueue.")}
    registry.registered_checks = checks - own
    problems = run_checks()
    assert not problems, problems
    registry.registered_checks = own


def warm_up() -> None:
    """Load what the tests' processes load, except what depends on settings."""
    import django

    remember_versions()
    metadata.version("django-redisqueue")
    django.setup()
    from django.core.management import get_commands
    from django.db.migrations.loader import MigrationLoader
    from django.template.backends.django import get_installed_libraries

    from django_redisqueue.broker import scripts

    commands = "django_redisqueue.management.commands"
    for module in iter_modules(import_module(commands).__path__):
        import_module(f"{commands}.{module.name}")
    get_commands()
    check_what_is_common()
    if find_spec("psycopg") is not None:
        import_module("django.db.backends.postgresql.base")
    get_installed_libraries()
    MigrationLoader(None)  # imports all migrations
    for verb in scripts.names():
        scripts.load(verb)


def main() -> None:
    listener, end_of_run = map(int, sys.argv[1:])
    gc.disable()  # almost everything that is loaded stays
    warm_up()
    gc.collect()
    gc.freeze()
    gc.enable()
    request = WarmServer(socket.socket(fileno=listener), end_of_run).serve()
    if request is not None:
        become(request)
        leave(run(request["arguments"]))


if __name__ == "__main__":
    main()
