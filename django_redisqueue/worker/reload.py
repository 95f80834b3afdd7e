"""``--autoreload``: a parent that watches files and starts the worker again when one changes.

The worker is a process of its own and is stopped in order (SIGTERM), so a reload spends no attempt.
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

from django.utils.autoreload import iter_all_python_module_files

from .zygote import die_with_parent

logger = logging.getLogger("django_redisqueue")

INTERVAL = 1.0  # s between two looks at the files, as Django's StatReloader has it


def run_reloading() -> int:
    """Run this command line without ``--autoreload``, again after every change; exit code."""
    command = [sys.executable, *[part for part in sys.orig_argv[1:] if part != "--autoreload"]]
    stop = threading.Event()
    workers: list[subprocess.Popen[bytes]] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and workers:
            workers[-1].send_signal(signal.SIGTERM)  # for the second time: stop at once
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    # A session of its own: the terminal's Ctrl-C reaches this process only, which passes it on.
    # Nobody else would end a worker that outlives it.
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
            logger.error("the worker ended with exit code %d; waiting for a change", code)
            changed = _watch(stop, None)
            if changed is None:
                return code
        logger.info("%s changed, starting again", changed)


def _watch(stop: threading.Event, worker: subprocess.Popen[bytes] | None) -> Path | None:
    """The file that changed, or None when told to stop or when the worker has ended."""
    seen = _times()
    while not stop.wait(INTERVAL):
        if worker is not None and worker.poll() is not None:
            return None
        now = _times()
        for path, time in now.items():
            if seen.get(path) != time:
                return path
        seen = now
    return None


def _times() -> dict[Path, float]:
    found = {}
    for path in iter_all_python_module_files():
        try:
            found[path] = path.stat().st_mtime
        except OSError:  # deleted meanwhile, which counts as a change when it comes back
            continue
    return found
