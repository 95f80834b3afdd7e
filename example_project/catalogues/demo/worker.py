"""A worker for the duration of the demo: ``manage.py runworker`` in its own session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

from django.conf import settings

STOP_SECONDS = 30  # a little more than the worker's own grace


@dataclass(frozen=True, slots=True)
class Worker:
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def has_died(self) -> bool:
        return self.process.poll() is not None

    def output(self, lines: int = 40) -> str:
        """The last lines that it printed."""
        self.log.flush()
        size = os.fstat(self.log.fileno()).st_size
        printed = os.pread(self.log.fileno(), size, 0).decode(errors="replace")
        return "\n".join(printed.splitlines()[-lines:]) or "(nothing)"

    def stop(self) -> None:
        """Ask the worker to stop, and wait; kill it if it does not, or at a second Ctrl-C."""
        try:
            self.process.terminate()
            self.process.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running_worker(processes: int) -> Iterator[Worker]:
    """Run a worker that is stopped at the end, whatever happens in the block."""
    manage = settings.BASE_DIR / "manage.py"
    command = [sys.executable, str(manage), "runworker", "--processes", str(processes)]
    with tempfile.TemporaryFile() as log, signals_interrupt():
        worker = Worker(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C reaches only the demo, which stops the worker
            ),
            log,
        )
        try:
            yield worker
        finally:
            worker.stop()


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP act like Ctrl-C, so that the demo still cleans up."""
    before = {name: signal.signal(name, _interrupt) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _interrupt(signum: int, frame: FrameType | None) -> Any:
    raise KeyboardInterrupt
