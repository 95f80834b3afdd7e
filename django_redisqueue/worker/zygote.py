"""The zygote: a single-threaded process that has everything loaded and forks children on order.

The supervisor has threads, and forking a process with threads can copy a lock that is held for
ever; the zygote has none, and no connections either, so a child is there in milliseconds and
cannot deadlock. It is forked before the supervisor starts anything. The name is Android's.

A child's pid stays its own until the supervisor has said ``bury``: it can never signal a stranger.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from ..failovers import stop_following

Role = Literal["jobs", "maintenance", "bridge"]
Entry = Callable[[Role, int, str], int]  # role, seat number, child id -> exit code

_PR_SET_PDEATHSIG = 1
_CHUNK = 65536


def die_with_parent(parent: int, by: int = signal.SIGKILL) -> None:
    """Have the kernel end this process, by a signal, when ``parent`` ends (Linux); end now if it
    has already.

    Elsewhere the zygote notices by the end of its socket, and kills its children.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


@dataclass(frozen=True, slots=True)
class Born:
    """A child was forked."""

    seat: int
    pid: int


@dataclass(frozen=True, slots=True)
class Unborn:
    """There was no memory, or no pid, for a child: this seat stays empty for now."""

    seat: int
    problem: str


@dataclass(frozen=True, slots=True)
class Died:
    """A child has ended: ``code`` as of ``os.waitstatus_to_exitcode``, negative for a signal."""

    pid: int
    code: int

    @property
    def cause(self) -> str:
        """The code in words."""
        names = {number.value: number.name for number in signal.Signals}  # not of every signal
        number = -self.code
        return f"signal {names.get(number, number)}" if number > 0 else f"exit code {self.code}"


News = Born | Unborn | Died
_NEWS: dict[str, type[News]] = {kind.__name__: kind for kind in (Born, Unborn, Died)}


class Zygote:
    """The supervisor's end: starts the process, sends orders, receives news, in lines of JSON."""

    def __init__(self, entry: Entry) -> None:
        self.socket, theirs = socket.socketpair()
        self._unread = b""
        stop_following()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_zygote(theirs, self.socket, entry, parent)
        theirs.close()

    def spawn(self, role: Role, seat: int, child: str) -> None:
        """Fork a child into a seat; ``Born`` will follow, or ``Unborn``."""
        self._send({"verb": "spawn", "role": role, "seat": seat, "child": child})

    def bury(self, pid: int) -> None:
        """A dead child's pid is no longer needed."""
        self._send({"verb": "bury", "pid": pid})

    def news(self) -> list[News]:
        """What has happened since the last look. Raises ConnectionError when the zygote is gone."""
        found: list[News] = []
        while True:
            try:
                raw = self.socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            if not raw:
                raise ConnectionError("the zygote process is gone")
            *lines, self._unread = (self._unread + raw).split(b"\n")
            for message in map(json.loads, lines):
                found.append(_NEWS[message.pop("news")](**message))

    def stop(self) -> None:
        """End it, if it still lives, and wait for it."""
        self._send({"verb": "stop"})
        with suppress(ChildProcessError):  # whoever started us had SIGCHLD ignored: it is gone
            os.waitpid(self.pid, 0)
        self.socket.close()

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # it is gone; ``news`` says so
            self.socket.sendall(_line(message))


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _become_zygote(
    mine: socket.socket, theirs: socket.socket, entry: Entry, parent: int
) -> NoReturn:
    code = 1
    try:
        die_with_parent(parent)
        theirs.close()
        _Nursery(mine, entry).run()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


class _Nursery:
    """The zygote's own loop."""

    def __init__(self, orders: socket.socket, entry: Entry) -> None:
        self._orders = orders
        self._entry = entry
        self._alive: set[int] = set()
        self._unread = b""
        self._awake, wake = os.pipe()
        for end in (self._awake, wake):
            os.set_blocking(end, False)
        # Children inherit this, so that no order can kill one that has no handler for it yet.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # children share the pages of what is loaded as long as nobody touches them

    def run(self) -> None:
        poll = select.poll()  # select() ends at the descriptor 1023
        for source in (self._orders.fileno(), self._awake):
            poll.register(source, select.POLLIN)
        while True:
            ready = {source for source, _ in poll.poll()}
            if self._awake in ready:
                os.read(self._awake, 4096)
                self._report_dead()
            if self._orders.fileno() in ready and not self._obey():
                return

    def _obey(self) -> bool:
        """False when it is over: ordered so, or the supervisor is gone."""
        raw = self._orders.recv(_CHUNK)
        *lines, self._unread = (self._unread + raw).split(b"\n")
        for order in map(json.loads, lines):
            if order["verb"] == "spawn":
                self._spawn(order["role"], order["seat"], order["child"])
            elif order["verb"] == "bury":
                os.waitpid(order["pid"], 0)
            else:
                raw = b""
        if not raw:
            for pid in self._alive:
                os.kill(pid, signal.SIGKILL)
        return bool(raw)

    def _spawn(self, role: Role, seat: int, child: str) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell("Unborn", seat=seat, problem=str(error))
            return
        if pid == 0:
            self._become_child(role, seat, child, parent)
        self._alive.add(pid)
        self._tell("Born", seat=seat, pid=pid)

    def _become_child(self, role: Role, seat: int, child: str, parent: int) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(parent)
            self._orders.close()
            code = self._entry(role, seat, child)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _report_dead(self) -> None:
        for pid in list(self._alive):
            # Look without reaping: the pid must stay taken until the supervisor has buried it.
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                continue
            self._alive.discard(pid)
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            self._tell("Died", pid=pid, code=code)

    def _tell(self, news: str, **facts: Any) -> None:
        self._orders.sendall(_line({"news": news, **facts}))
