"""``--autoreload``: a parent process restarts the worker when a file changes.

The worker is stopped by SIGTERM, as usual, so a reload costs no job an attempt.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType

from django.utils.autoreload import StatReloader

from .interrupts import StoppableWaits
from .supervisor.fork_server import die_with_parent

logger = logging.getLogger("django_redisqueue")

INTERVAL = 1.0  # s between two checks of the files, like Django's StatReloader


def run_with_autoreload() -> int:
    """Run this command line without ``--autoreload``, again after every change."""
    reloader = _Reloader()
    reloader.handle_signals()
    while True:
        changed, code = reloader.run_worker()
        if reloader.is_stopping or (changed is None and code == 0):
            return code
        if changed is None:
            #: Under --autoreload the worker exited on its own, usually because of an error in the
            #: code. It starts again once you correct the file.
            logger.error("the worker ended with exit code %d; waiting for a change", code)
            changed = reloader.wait_for_change()
            if changed is None:
                return code
        #: --autoreload noticed that a file has changed. No action is needed.
        logger.info("%s changed, restarting", changed)


def _is_option(part: str) -> bool:
    """Whether this is ``--autoreload``, or an abbreviation of it, which argparse accepts. With
    either, the worker would itself be such a parent, and so on."""
    return part.startswith("--au") and "--autoreload".startswith(part)


class _Reloader:
    """The parent process of the worker."""

    def __init__(self) -> None:
        self._waits = StoppableWaits()
        self._worker: subprocess.Popen[bytes] | None = None

    @property
    def is_stopping(self) -> bool:
        return self._waits.stopping

    def handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_stopping and self._worker is not None:
            self._worker.send_signal(signal.SIGTERM)  # a second signal: stop at once
        self._waits.stopping = True
        self._waits.end_wait()

    def run_worker(self) -> tuple[Path | None, int]:
        """Run the worker until a file changes or it ends: the changed file, and the exit code."""
        command = [sys.executable, *[part for part in sys.orig_argv[1:] if not _is_option(part)]]
        # In a session of its own, so that Ctrl-C only reaches this process, which passes it on.
        # If this process dies first, the kernel ends the worker.
        worker = self._worker = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=partial(  # noqa: PLW1509 (there is one thread)
                die_with_parent, os.getpid(), signal.SIGTERM
            ),
        )
        changed = self.wait_for_change(worker)
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        return changed, worker.wait()

    def wait_for_change(self, worker: subprocess.Popen[bytes] | None = None) -> Path | None:
        """Return the file that changed, or None if told to stop or if the worker has ended."""
        reloader = StatReloader()
        seen = dict(reloader.snapshot_files())
        while True:
            self._waits.wait(lambda: time.sleep(INTERVAL))
            if self.is_stopping:
                return None
            if worker is not None and worker.poll() is not None:
                return None
            now = dict(reloader.snapshot_files())
            for path, _ in now.items() - seen.items():
                return path
            seen = now
