"""The fork server: a single-threaded process with everything loaded, which forks the children.

The supervisor has threads, and forking a process with threads can copy a lock that is held forever.
The fork server has no threads and no connections, so a new child is ready in milliseconds and
cannot deadlock. It is forked before the supervisor starts anything.

A dead child keeps its pid until the supervisor has ordered `ForkServer.reap`, so the supervisor can
never signal an unrelated process.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Literal, NoReturn

from ...broker.scripts import load
from ...broker.sentinel import stop_following
from ..child.forks import flush_output

Role = Literal["jobs", "maintenance", "bridge"]
ChildEntry = Callable[[Role, int, str], int]  # role, slot number, child id -> exit code

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A child was forked."""

    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The machine had no memory, or no pid, for another process."""

    slot: int
    problem: str


@dataclass(frozen=True, slots=True)
class ChildExited:
    """A child has ended; ``code`` as from ``os.waitstatus_to_exitcode``, negative for a signal."""

    pid: int
    code: int


ChildEvent = ChildStarted | SpawnFailed | ChildExited
_EVENTS: dict[str, type[ChildEvent]] = {
    kind.__name__: kind for kind in (ChildStarted, SpawnFailed, ChildExited)
}


class ForkServer:
    """The supervisor's end: starts the process, sends commands, receives events, all as JSON."""

    def __init__(self, entry: ChildEntry) -> None:
        self.connection, theirs = Pipe()
        stop_following()
        for verb in ("finish", "reap"):  # scripts that all would assemble, or need in a hurry
            load(verb)
        parent = os.getpid()
        # All processes share the memory pages of loaded objects until one writes to them, as the
        # garbage collector does: it must not see these objects in a process that has been forked.
        gc.collect()
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            _run_fork_server(theirs, self.connection, entry, parent)
        theirs.close()

    def spawn(self, role: Role, slot: int, child: str) -> None:
        """Start a child; `ChildStarted` or `SpawnFailed` follows."""
        self._send("spawn", role, slot, child)

    def reap(self, pid: int) -> None:
        """Free the pid of a dead child."""
        self._send("reap", pid)

    def events(self) -> list[ChildEvent]:
        """What has happened since the last call. Raises ConnectionError if the server is gone."""
        found: list[ChildEvent] = []
        try:
            while self.connection.poll():
                kind, fields = json.loads(self.connection.recv_bytes())
                found.append(_EVENTS[kind](**fields))
        except (EOFError, OSError) as error:
            raise ConnectionError("the fork server process is gone") from error
        return found

    def stop(self) -> None:
        """End the process, if it still runs, and wait for it."""
        self._send("stop")
        with suppress(ChildProcessError):  # SIGCHLD was ignored when we started: already reaped
            os.waitpid(self.pid, 0)
        self.connection.close()

    def _send(self, *command: object) -> None:
        with suppress(BrokenPipeError):  # the process is gone; `events` raises
            self.connection.send_bytes(json.dumps(command).encode())


def exit_cause(code: int) -> str:
    """The exit code or signal of a child, for the log."""
    names = {number.value: number.name for number in signal.Signals}  # lacks real-time signals
    return f"signal {names.get(-code, -code)}" if code < 0 else f"exit code {code}"


def die_with_parent(parent: int, by: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when ``parent`` ends (Linux); exit if it already has.

    Elsewhere the fork server notices that its connection is closed, and kills its children.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _run_fork_server(
    mine: Connection, theirs: Connection, entry: ChildEntry, parent: int
) -> NoReturn:
    code = 1
    try:
        die_with_parent(parent)
        theirs.close()
        _ForkLoop(mine, entry).run()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


class _ForkLoop:
    """The main loop of the fork server's process."""

    def __init__(self, supervisor: Connection, entry: ChildEntry) -> None:
        self._supervisor = supervisor
        self._entry = entry
        self._alive: set[int] = set()
        self._signalled, wake = os.pipe()
        for end in (self._signalled, wake):
            os.set_blocking(end, False)
        # Children inherit this, so no signal can kill one that has not installed its handlers yet.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        poll = select.poll()  # select() cannot watch descriptors over 1023
        for source in (self._supervisor.fileno(), self._signalled):
            poll.register(source, select.POLLIN)
        while True:
            ready = {source for source, _ in poll.poll()}
            if self._signalled in ready:
                os.read(self._signalled, 4096)
                self._report_exits()
            if self._supervisor.fileno() in ready and not self._handle_command():
                for pid in self._alive:
                    os.kill(pid, signal.SIGKILL)
                return

    def _handle_command(self) -> bool:
        """False if it is time to end, by order or because the supervisor is gone."""
        try:
            command = json.loads(self._supervisor.recv_bytes())
        except (EOFError, OSError):
            return False
        match command:
            case "spawn", role, slot, child:
                self._spawn(role, slot, child)
            case "reap", pid:
                os.waitpid(pid, 0)
            case _:
                return False
        return True

    def _spawn(self, role: Role, slot: int, child: str) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._send(SpawnFailed(slot, str(error)))
            return
        if pid == 0:
            self._run_child(role, slot, child, parent)
        self._alive.add(pid)
        self._send(ChildStarted(slot, pid))

    def _run_child(self, role: Role, slot: int, child: str, parent: int) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(parent)
            self._supervisor.close()
            code = self._entry(role, slot, child)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            flush_output()
            os._exit(code)

    def _report_exits(self) -> None:
        for pid in list(self._alive):
            # Look without reaping: the pid stays taken until the supervisor orders `reap`.
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                continue
            self._alive.discard(pid)
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            self._send(ChildExited(pid, code))

    def _send(self, event: ChildEvent) -> None:
        message = [type(event).__name__, asdict(event)]
        self._supervisor.send_bytes(json.dumps(message).encode())
