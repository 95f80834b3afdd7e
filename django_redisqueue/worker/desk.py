"""Chores that ask the database, in a thread of their own while this process leads its shard.

A table that somebody has locked holds up a database for seconds; the timer, which shares the
process, has to be on time to 50 ms.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from django.db import Error as DatabaseError

from ..exceptions import RedisQueueError
from .databases import close_all
from .roles import Chore, do_due

logger = logging.getLogger("django_redisqueue")

MORE = 0.1  # s between two rounds while there is more to do
LOOK = 5.0  # s at the most between two looks at what is due
STOP = 2.0  # s to wait for a chore at the end


class Desk:
    """``lead`` it from the main thread, and ``close`` it at the end."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._leads = threading.Event()
        self._closed = threading.Event()
        self._said = ""
        # A daemon, for a database that hangs must not keep the process.
        self._thread = threading.Thread(target=self._run, name="desk", daemon=True)

    def lead(self, leads: bool) -> None:
        """Work from now on, or do not."""
        if not leads:
            self._leads.clear()
        elif not self._leads.is_set():
            self._leads.set()
            if not self._thread.is_alive():
                self._thread.start()

    def close(self) -> None:
        """Stop, at the next line between two chores."""
        self._closed.set()
        self._leads.set()
        if self._thread.is_alive():
            self._thread.join(STOP)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._leads.wait()
            more = not self._closed.is_set() and self._work()
            self._closed.wait(MORE if more else LOOK)
        close_all()

    def _work(self) -> bool:
        try:
            more = do_due(self._chores)
        except Exception as error:  # a router of the project may raise anything, and one chore's
            # error must not end the others: this thread is the only one that does them
            problem = f"{type(error).__name__}: {error}"
            if problem != self._said:
                expected = isinstance(error, RedisQueueError | DatabaseError)
                logger.error("maintenance: %s; trying again", problem, exc_info=not expected)
            self._said = problem
            close_all()
            return False
        self._said = ""
        return more
