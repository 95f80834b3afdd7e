"""``--autoreload``: a parent process restarts the worker when a file changes.

The worker is stopped by SIGTERM, as usual, so a reload costs no job an attempt.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import FrameType

from django.utils.autoreload import StatReloader

from .supervisor.fork_server import die_with_parent

logger = logging.getLogger("django_redisqueue")

INTERVAL = 1.0  # s between two checks of the files, like Django's StatReloader


def run_with_autoreload() -> int:
    """Run this command line without ``--autoreload``, again after every change."""
    command = [sys.executable, *[part for part in sys.orig_argv[1:] if part != "--autoreload"]]
    stop = threading.Event()
    workers: list[subprocess.Popen[bytes]] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and workers:
            workers[-1].send_signal(signal.SIGTERM)  # the second signal: stop at once
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    # In a session of its own, so that Ctrl-C only reaches this process, which passes it on. Should
    # this process die first, the kernel ends the worker.
    bind = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    while True:
        worker = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=bind,  # noqa: PLW1509 (there is one thread)
        )
        workers[:] = [worker]
        changed = _watch(stop, worker)
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        code = worker.wait()
        if stop.is_set() or (changed is None and code == 0):
            return code
        if changed is None:
            #: Under --autoreload the worker stopped by itself, mostly by an error in the code.
            #: Correct the file; it starts again then.
            logger.error("the worker ended with exit code %d; waiting for a change", code)
            changed = _watch(stop, None)
            if changed is None:
                return code
        #: --autoreload has seen a file change. Do nothing.
        logger.info("%s changed, restarting", changed)


def _watch(stop: threading.Event, worker: subprocess.Popen[bytes] | None) -> Path | None:
    """Return the file that changed, or None if told to stop or if the worker has ended."""
    reloader = StatReloader()
    seen = dict(reloader.snapshot_files())
    while not stop.wait(INTERVAL):
        if worker is not None and worker.poll() is not None:
            return None
        now = dict(reloader.snapshot_files())
        for path, _ in now.items() - seen.items():
            return path
        seen = now
    return None
