"""Protects a child from processes that its jobs fork and from file descriptors that they close.

A process that a task forks inherits the child's connections and pipes, and its place in the main
loop. If it returned from the task (or raised, as ``sys.exit`` does), two processes would read each
other's replies and run jobs that no supervisor watches. So a forked process ends when the task
does. A child that ends also ends the pools of processes that its tasks have kept.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util
from types import TracebackType
from typing import NoReturn

logger = logging.getLogger("django_redisqueue")


EXIT_SECONDS = 5.0  # for the processes that jobs have left to end
_SUPERVISOR_SIGNALS = (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1)


def reset_signals_in_forks() -> None:
    """Restore the default handlers of the supervisor's signals in every process forked from now on.

    ``multiprocessing.Pool`` ends its processes with SIGTERM and waits for them. The signals are
    blocked during the fork, so that one that arrives early also meets the default handler.
    """
    before = threading.local()

    def block() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SUPERVISOR_SIGNALS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def reset() -> None:
        for number in _SUPERVISOR_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)


def end_processes() -> None:
    """End the pools, managers and daemons that jobs have left running, and delete the temporary
    folder of ``multiprocessing``, as Python does when it exits. A child ends by ``os._exit``, so
    otherwise each would leave its own behind, idle for ever.

    In a thread, because that may take long: an executor first finishes its work.
    """
    ending = threading.Thread(target=_end_processes, name="end processes", daemon=True)
    with suppress(RuntimeError):  # the machine has no room for a thread
        ending.start()
        ending.join(EXIT_SECONDS)


def _end_processes() -> None:
    if futures := sys.modules.get("concurrent.futures.process"):
        futures._python_exit()
    util._run_finalizers()  # type: ignore[attr-defined]
    for process in multiprocessing.active_children():
        if process.daemon:
            process.terminate()


def exit_after_fd_loss(jobs: Sequence[str]) -> NoReturn:
    """End this child because one of its jobs has closed its file descriptors. The supervisor
    reports the outcomes in the shared memory and starts another child."""
    #: A job closed files that are not its own, for example with os.closerange. Its process is
    #: replaced, and the other jobs of that process are recovered. Fix the task.
    logger.error("files of a child were closed by a job of these, so it ends: %s", ", ".join(jobs))
    os._exit(1)


def exit_without_files() -> NoReturn:
    """End this child, in which no job is running: jobs have left open as many files as it may open.
    It may have no connection to report their outcomes, but the supervisor has."""
    #: Tasks left so many files or connections open that their process may open no more (ulimit -n),
    #: so jobs fail. The process is replaced. Close what the tasks open.
    logger.error("jobs of a child have left open all files that it may open, so it ends")
    os._exit(1)


class ForkGuard:
    """A ``with`` block around a task. A process that the task forks ends here at the latest."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self.check(error)

    def check(self, error: BaseException | None = None) -> None:
        """End this process if a task has forked it. Called at the end of the block; call it
        directly where the block would take too much time."""
        if os.getpid() != self._pid:
            _end(error)


def _end(error: BaseException | None) -> NoReturn:
    code = 1
    try:
        code = _exit_code(error)
        #: A task called os.fork(), and the forked process returned into the worker. Do what the
        #: line says.
        logger.warning(
            "a process that a job forked returned from the task, and was ended (exit code %d); "
            "end it with os._exit(), or use multiprocessing or subprocess", code,
        )  # fmt: skip
        flush_output()
    finally:
        os._exit(code)


def flush_output() -> None:
    """Write out what jobs have printed, unless a stream was closed or its disk is full."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _exit_code(error: BaseException | None) -> int:
    """The exit code that Python itself would use."""
    if error is None:
        return 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    sys.excepthook(type(error), error, error.__traceback__)
    return 1
