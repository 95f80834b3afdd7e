"""A server process that tests start: a child of this process, with its own folder, which is deleted
with it."""

from __future__ import annotations

import atexit
import shutil
import signal
import subprocess
import time
from typing import Any, Self

from .suite import short_folder

START_SECONDS = 30.0


class Program:
    """A subclass defines what runs (``launch``) and whether it is up (``answers``)."""

    def __init__(self, prefix: str) -> None:
        self.folder = short_folder(prefix)
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def answers(self) -> bool:
        """Whether it is up."""
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not yet stopped by ``end``."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def launch(self, *command: str, **who: Any) -> None:
        """Run it until ``end``, and wait until it answers. Raises RuntimeError with its log."""
        assert self._process is None, "the server runs already"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C ends the tests first, and they stop the server
                **who,
            )  # fmt: skip
        end = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > end:
                self.end(signal.SIGKILL)
                raise RuntimeError(f"{command[0]} did not start: {self.log()}")
            time.sleep(0.01)

    def end(self, how: signal.Signals) -> None:
        """End it with a signal; does nothing if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a paused process would never handle a SIGTERM
        process.wait()

    def close(self) -> None:
        """End it and delete its folder. May be called twice."""
        atexit.unregister(self.close)
        self.end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""
