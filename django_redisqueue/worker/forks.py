"""What jobs do to their process: a fork ends where its job ends, and never goes on as a worker.

A process that a task has forked holds this child's connections and pipes, and stands in its loop.
If it came back from the task (it returned, it raised, or it called ``sys.exit``, which raises too),
two processes would read the replies to each other's calls, and run jobs that nobody watches.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn

logger = logging.getLogger("django_redisqueue")


_OF_THE_SUPERVISOR = (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1)


def let_forks_be_terminated() -> None:
    """Give what this process forks from now on the default handlers of the signals that a child
    keeps for its supervisor. ``multiprocessing.Pool`` ends its processes by SIGTERM, and waits: one
    that comes before the handlers are changed is held up until they are.
    """
    before = threading.local()

    def hold_up() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_SUPERVISOR)

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def by_default() -> None:
        for number in _OF_THE_SUPERVISOR:
            signal.signal(number, signal.SIG_DFL)
        let_through()

    os.register_at_fork(before=hold_up, after_in_parent=let_through, after_in_child=by_default)


def leave_the_wreck(jobs: Sequence[str]) -> NoReturn:
    """End a child one of whose jobs has closed its files. The supervisor reports what the seat has
    of them, and seats another child."""
    logger.error("files of a child were closed by a job of these, so it ends: %s", ", ".join(jobs))
    os._exit(1)


class ForksEnd:
    """A ``with`` block around a task: a forked process that leaves it ends there."""

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
        """What the block does at its end, for who runs very many tasks: end a fork that has come
        back from one, with ``error`` or without."""
        if os.getpid() != self._pid:
            _end(error)


def _end(error: BaseException | None) -> NoReturn:
    code = 1
    try:
        code = _exit_code(error)
        logger.warning(
            "a process that a job forked came back from the task, and was ended (exit code %d); "
            "end it with os._exit(), or use multiprocessing or subprocess", code,
        )  # fmt: skip
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    """As the interpreter itself has it at the end of a program."""
    if error is None:
        return 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    sys.excepthook(type(error), error, error.__traceback__)
    return 1
