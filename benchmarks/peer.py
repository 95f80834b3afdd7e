"""One other queue on one Redis: its environment, the program that enqueues jobs, its workers and
the notes that its jobs write."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from .processes import ROOT, Process, running

ADAPTERS = ROOT / "benchmarks" / "peers"
CACHE = ROOT / ".peers"
OURS = "django_redisqueue"
FILL_SECONDS = 60.0  # after which a filler that does not answer is killed


class PeerFailed(Exception):
    """A case cannot be measured. The table shows the text in place of a number."""


@dataclass(frozen=True, slots=True)
class Note:
    """The start of a job, or the end of a job that sleeps for 10 ms."""

    number: int
    time: float
    pid: int
    session: int


@dataclass(frozen=True, slots=True)
class Filled:
    """How many jobs were enqueued, how many per second, and, with pauses, the time of each call."""

    jobs: int
    rate: float
    called: list[float]


def names() -> list[str]:
    """All peers with an adapter, ours first."""
    found = sorted(path.stem.removesuffix("_peer") for path in ADAPTERS.glob("*_peer.*"))
    return sorted(found, key=OURS.__ne__)


def adapter(name: str) -> Path:
    return next(ADAPTERS.glob(f"{name}_peer.*"))


def packages(name: str) -> list[str]:
    """What the adapter needs to be installed. It is read, not imported, because importing it needs
    these packages."""
    found = re.search(r"^(?:const )?PACKAGES = ([(\[].*?[)\]]);?$", adapter(name).read_text(), re.M)
    assert found, f"{adapter(name)} has no PACKAGES"
    return list(ast.literal_eval(found[1]))


def settings(name: str) -> str:
    """How the adapter describes itself in its first line."""
    return adapter(name).read_text().partition("\n")[0].strip('/" ')


def prepare(name: str) -> None:
    """Create the environment of a peer unless it is complete. Raises PeerFailed."""
    folder = CACHE / name
    if name == OURS or (folder / ".ready").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if adapter(name).suffix == ".js":
        commands = [["npm", "install", "--silent", "--prefix", str(folder), *packages(name)]]
    else:
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        commands = [[sys.executable, "-m", "venv", str(folder)], [*install, *packages(name)]]
    try:
        for command in commands:
            subprocess.run(command, check=True, timeout=300, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerFailed("cannot be installed") from error
    (folder / ".ready").touch()


class Peer:
    """A peer on the Redis at ``url``. ``fill`` enqueues its jobs."""

    def __init__(self, name: str, url: str, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        self.environ = {
            **os.environ, "PEER_URL": url, "PEER_NOTES": str(self.folder / "notes"),
            "PYTHONPATH": str(ADAPTERS),
            "DJANGO_SETTINGS_MODULE": "",  # those of the benchmarks themselves
            "NODE_PATH": str(CACHE / name / "node_modules"),
        }  # fmt: skip
        self.log = self.folder / "fill.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                self._filler(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=self.environ, cwd=self.folder, text=True,
            )  # fmt: skip
        try:
            said = self._answer()
        except PeerFailed:
            self.close()
            raise
        self.version: str = said["version"]
        self.workers: Mapping[str, list[str] | None] = said["workers"]

    def close(self) -> None:
        self.popen.kill()
        self.popen.communicate()

    def fill(
        self, kind: str, jobs: int, *, first: int = 0, seconds: float = 60, pause: float = 0
    ) -> Filled:
        """Enqueue jobs one at a time, until there are this many or the time is up."""
        assert self.popen.stdin is not None
        request = {"kind": kind, "first": first, "jobs": jobs, "seconds": seconds, "pause": pause}
        self.popen.stdin.write(json.dumps(request) + "\n")
        self.popen.stdin.flush()
        return Filled(**self._answer())

    @contextmanager
    def worker(self, kind: str, name: str = "worker") -> Iterator[Process]:
        """Run a worker for jobs of this kind; at the end, kill it with all its processes."""
        command = self.workers[kind]
        if command is None:
            raise PeerFailed("no coroutines")
        environ = {**self.environ, "PEER_KIND": kind}
        with running(command, self.folder / f"{name}.log", environ) as process:
            try:
                yield process
            finally:
                kill(process)

    def notes(self) -> list[Note]:
        """What the jobs have written so far, as far as lines are complete."""
        path = Path(self.environ["PEER_NOTES"])
        text = path.read_text() if path.exists() else ""
        found = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [Note(int(a), float(b), int(c), int(d)) for a, b, c, d in found]

    def forget(self) -> None:
        """Delete all notes."""
        for path in self.folder.glob("notes*"):
            path.unlink()

    def _filler(self) -> list[str]:
        path = adapter(self.name)
        if path.suffix == ".js":
            return ["node", str(path)]
        python = sys.executable if self.name == OURS else str(CACHE / self.name / "bin" / "python")
        return [python, str(ADAPTERS / "fill.py"), self.name]

    def _answer(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        timer = Timer(FILL_SECONDS, self.popen.kill)
        timer.start()
        try:
            line = self.popen.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise PeerFailed(f"cannot enqueue: {last_line(self.log)}")
        found: dict[str, Any] = json.loads(line)
        return found


def kill(process: Process) -> None:
    """Send SIGKILL to a process and then to all its descendants."""
    for pid in process.tree():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def wait_for(process: Process, condition: Callable[[], object], what: str) -> None:
    """Wait for a worker. Raises PeerFailed."""
    try:
        process.until(condition, what)
    except (RuntimeError, TimeoutError) as error:
        raise PeerFailed(f"{what}: {last_line(process.log) or error}") from error


def last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or [""])[-1][:120]
