"""Chores that ask the database, each in a thread of its own while this process leads its shard.

A table that somebody has locked holds up a database for seconds; the timer, which shares the
process, has to be on time to 50 ms, and a database that hangs for one chore must not hold up the
others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from django.db import Error as DatabaseError

from ..exceptions import RedisQueueError
from .databases import close_all
from .roles import Chore, do_due

logger = logging.getLogger("django_redisqueue")

MORE = 0.1  # s between two rounds while there is more to do
LOOK = 5.0  # s at the most between two looks at what is due
STOP = 2.0  # s to wait for chores at the end
HANGS = 300.0  # s; each chore is a bounded pass, which takes milliseconds to seconds


class Desk:
    """``lead`` it from the main thread, ask it whether a chore ``hangs``, and ``close`` it."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._leads = threading.Event()
        self._closed = threading.Event()
        self._threads = [_ChoreThread(chore, self._leads, self._closed) for chore in chores]

    def lead(self, leads: bool) -> None:
        """Work from now on, or do not."""
        if not leads:
            self._leads.clear()
        elif not self._leads.is_set():
            self._leads.set()
            for thread in self._threads:
                if not thread.is_alive():
                    thread.start()

    def hangs(self) -> bool:
        """True when a chore has not come back for so long that only the end of this process helps:
        the database's connection may never answer."""
        hung = [thread.name for thread in self._threads if thread.seconds > HANGS]
        if hung:
            logger.error(
                "maintenance: %s has not come back for %g s; a new process takes over",
                " and ".join(hung), HANGS,
            )  # fmt: skip
        return bool(hung)

    def close(self) -> None:
        """Stop, at the next line between two passes."""
        self._closed.set()
        self._leads.set()
        end = time.monotonic() + STOP
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))


class _ChoreThread(threading.Thread):
    """One chore, whenever it is due. A daemon: a database that hangs must not keep the process."""

    def __init__(self, chore: Chore, leads: threading.Event, closed: threading.Event) -> None:
        super().__init__(name=chore.name, daemon=True)
        self._chore = chore
        self._leads = leads
        self._closed = closed
        self._said = ""
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """How long the pass under way has taken; 0 between two of them."""
        began = self._began
        return time.monotonic() - began if began else 0.0

    def run(self) -> None:
        while not self._closed.is_set():
            self._leads.wait()
            more = not self._closed.is_set() and self._work()
            self._closed.wait(MORE if more else LOOK)
        close_all()

    def _work(self) -> bool:
        self._began = time.monotonic()
        try:
            more = do_due([self._chore])
        except Exception as error:  # a router of the project may raise anything, and this thread
            # is the only one that does this chore
            problem = f"{type(error).__name__}: {error}"
            if problem != self._said:
                expected = isinstance(error, RedisQueueError | DatabaseError)
                logger.error("maintenance: %s; trying again", problem, exc_info=not expected)
            self._said = problem
            close_all()
            return False
        finally:
            self._began = 0.0
        self._said = ""
        return more
