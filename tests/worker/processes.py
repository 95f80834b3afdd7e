"""Real worker processes, and bounded waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from tests.support import commands
from tests.support.stopwatch import Stopwatch

Found = TypeVar("Found")

# s; long, because the machine may be busy. Tests of speed pass their own limits.
PATIENCE = 20.0
HAS_LISTS = Path(f"/proc/self/task/{os.getpid()}/children").exists()


def eventually(
    condition: Callable[[], Found],
    timeout: float = PATIENCE,
    *,
    every: float = 0.0,
    why: object = "",
) -> Found:
    """Ask until the answer is true, and return it; fail after ``timeout`` seconds, or later if the
    machine is busy.

    Without ``every`` it asks less often the longer it waits: asking costs the cores on which what
    it waits for is to happen.
    """
    watch = Stopwatch()
    while True:
        found = condition()
        if found:
            return found
        if watch.is_over(timeout):
            told = why() if callable(why) else why
            raise AssertionError(f"not within {timeout:g} s; last answer {found!r}\n{told}")
        time.sleep(every or min(0.1, max(0.01, watch.elapsed / 6)))


def holds_for(condition: Callable[[], object], seconds: float) -> None:
    """Fail unless the condition stays true for this long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"stopped being true {end - time.monotonic():.2f} s early"
        time.sleep(0.02)


class WorkerProcess:
    """``runworker`` with these arguments, in its own session, until ``end``."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        environment: dict[str, str],
        settings: dict[str, object],
        command: str = "runworker",
        fresh: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        self.log = folder / f"{command}.{time.monotonic_ns()}.log"
        self._output = self.log.open("w")
        self._seen: dict[int, psutil.Process] = {}
        self.process = commands.start(
            "-m", "django", command, *arguments,
            env={
                **commands.environment(PYTHONUNBUFFERED="1"),
                **environment,
                "REDISQUEUE_TEST_SETTINGS": json.dumps(settings),
            },
            stdout=self._output.fileno(),
            fresh=fresh,
            prefix=prefix,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self.log.read_text()

    def tree(self) -> list[psutil.Process]:
        """The live processes below the supervisor."""
        for pid in descendants(self.pid):
            if pid not in self._seen or not self._seen[pid].is_running():  # the pid has been reused
                with suppress(psutil.NoSuchProcess):
                    self._seen[pid] = psutil.Process(pid)
        return [process for process in list(self._seen.values()) if is_alive(process)]

    @property
    def fork_server(self) -> psutil.Process:
        return next(process for process in self.tree() if parent(process) == self.pid)

    @property
    def children(self) -> list[int]:
        """Pids of the processes that the fork server started, oldest first."""
        tree = self.tree()
        parents = {process.pid for process in tree if parent(process) == self.pid}
        return [process.pid for process in tree if parent(process) in parents]

    def wait_until_up(self, children: int) -> WorkerProcess:
        """Wait until it has this many children, including maintenance."""
        eventually(lambda: len(self.children) >= children, every=0.05, why=lambda: self.output)
        return self

    def term(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def interrupt_group(self) -> None:
        """Ctrl-C, as a terminal sends it: to every process in the foreground."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill the supervisor only."""
        self.tree()
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Send SIGSTOP to all processes, the supervisor first, so that it notices nothing."""
        self._signal_all([self.pid, *[process.pid for process in self.tree()]], signal.SIGSTOP)

    def cont(self) -> None:
        self._signal_all([*[process.pid for process in self.tree()], self.pid], signal.SIGCONT)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait until it has ended; returns its exit code."""
        watch = Stopwatch()
        while True:
            try:
                return self.process.wait(max(0.1, timeout - watch.elapsed))
            except subprocess.TimeoutExpired:
                if watch.is_over(timeout):
                    told = f"did not end within {timeout:g} s\n{self.output}"
                    raise AssertionError(told) from None

    def end(self) -> None:
        """Kill what is left, by pid. May be called twice."""
        left = self.tree()
        self.process.kill()
        self.process.wait()
        for process in left:
            if is_alive(process):
                process.kill()
        self._output.close()

    @staticmethod
    def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def descendants(pid: int) -> list[int]:
    """The pids of its children, and of their children. Linux keeps lists of children; elsewhere
    psutil reads every process of the machine, which takes thirty times as long."""
    if not HAS_LISTS:
        try:
            return [process.pid for process in psutil.Process(pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
    found: list[int] = []
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):  # of each thread
            found += map(int, children.read_text().split())
    except (FileNotFoundError, ProcessLookupError):  # it is ending
        pass
    return [*found, *(below for child in found for below in descendants(child))]


def parent(process: psutil.Process) -> int:
    """The pid of its parent, 0 if it has just ended."""
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return 0


def is_alive(process: psutil.Process) -> bool:
    """True unless it has ended (a zombie has)."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
