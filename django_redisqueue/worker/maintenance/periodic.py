"""Periodic tasks, and threads for those that use the database.

A locked table can block a task for seconds. Promotion of due jobs, in the same process, must be on
time to 50 ms, and a database that hangs must not stop tasks that use another one. So each of these
tasks has a thread of its own, which works while this process leads its shard.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import Error as DatabaseError
from django.db import connections

from ...exceptions import RedisQueueError, first_line

logger = logging.getLogger("django_redisqueue")

MORE = 0.1  # s between two passes while there is more to do
CHECK_DUE = 5.0  # s between two checks of what is due
STOP = 2.0  # s to wait for threads at the end
HUNG_AFTER = 300.0  # s; each task is a bounded pass, which takes milliseconds to seconds


@dataclass(slots=True)
class PeriodicTask:
    """Something to do every ``interval`` seconds. ``do`` returns True if it has more to do now.
    ``rests``: only transitions of jobs make work for it."""

    do: Callable[[], object]
    interval: float
    due: float = 0.0
    name: str = ""
    rests: bool = False


def run_due(tasks: Sequence[PeriodicTask], rest: float = 0.0) -> bool:
    """Run the tasks that are due; those that rest, so many seconds later. True if one of them has
    more to do now."""
    more = False
    for task in tasks:
        now = time.monotonic()
        if now >= task.due + (rest if task.rests else 0.0):
            task.due = now + task.interval  # also when it fails
            if task.do():
                task.due, more = now, True
    return more


class TaskThreads:
    """A thread for each task. They work while this process leads. ``rest``: by how many seconds
    those that rest come later now."""

    def __init__(
        self, tasks: Sequence[PeriodicTask], rest: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.rest = rest
        self.leads = threading.Event()
        self.closed = threading.Event()
        self._threads = [_TaskThread(task, self) for task in tasks]

    def lead(self, leads: bool) -> None:
        """Start or pause the work."""
        if not leads:
            self.leads.clear()
        elif not self.leads.is_set():
            self.leads.set()
            for thread in self._threads:
                if not thread.is_alive():
                    thread.start()

    def hangs(self) -> bool:
        """True if a task has run for so long that only a new process can help: its database
        connection may never answer."""
        hung = [thread.name for thread in self._threads if thread.seconds > HUNG_AFTER]
        if hung:
            #: A step of the maintenance hangs, mostly in a database connection that never answers.
            #: A new process takes over; give the database a timeout if it repeats.
            logger.error(
                "maintenance: %s has not come back for %g s; a new process takes over",
                " and ".join(hung), HUNG_AFTER,
            )  # fmt: skip
        return bool(hung)

    def close(self) -> None:
        """Stop the threads after their current pass."""
        self.closed.set()
        self.leads.set()
        end = time.monotonic() + STOP
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))


class _TaskThread(threading.Thread):
    """Runs one task. A daemon, so that a database that hangs does not keep the process alive."""

    def __init__(self, task: PeriodicTask, threads: TaskThreads) -> None:
        super().__init__(name=task.name, daemon=True)
        self._task = task
        self._threads = threads
        self._logged = ""
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """How long the current pass has taken; 0 between two passes."""
        began = self._began
        return time.monotonic() - began if began else 0.0

    def run(self) -> None:
        while not self._threads.closed.is_set():
            self._threads.leads.wait()
            more = not self._threads.closed.is_set() and self._work()
            self._threads.closed.wait(MORE if more else CHECK_DUE)
        connections.close_all()

    def _work(self) -> bool:
        self._began = time.monotonic()
        try:
            more = run_due([self._task], self._threads.rest())
        except Exception as error:  # such as any error of a project's database router
            problem = first_line(error)
            if problem != self._logged:
                expected = isinstance(error, RedisQueueError | DatabaseError)
                #: A step of the maintenance has failed and is tried again. Jobs go on meanwhile;
                #: the text says what does not answer, a traceback is a fault to report.
                logger.error("maintenance: %s; trying again", problem, exc_info=not expected)
            self._logged = problem
            connections.close_all()
            return False
        finally:
            self._began = 0.0
        self._logged = ""
        return more
