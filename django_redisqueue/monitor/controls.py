"""Keys of the live screen: choose a queue, pause it, retry its failed jobs, show failures only."""

from __future__ import annotations

import os
import re
import select
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from ..client.queue import JobQueue
from ..core import formatting
from ..exceptions import RedisQueueError

HELP = "up/down: queue   p: pause or resume   r: retry failed   f: failures only"
NAME = "queuemonitor"  # in the history of pauses
UP, DOWN = "\x1b[A", "\x1b[B"
_KEY = re.compile(r"\x1b\[[A-Z]|[ -~]")


class Keyboard:
    """The keys of a terminal, as they are pressed."""

    def __init__(self, terminal: IO[str]) -> None:
        self._fd = terminal.fileno()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let the terminal neither wait for Enter nor show the keys."""
        before = termios.tcgetattr(self._fd)
        try:
            tty.setcbreak(self._fd)
            yield
        finally:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)

    def pressed(self) -> list[str]:
        """The keys since the last call."""
        if not select.select([self._fd], [], [], 0)[0]:
            return []
        return _KEY.findall(os.read(self._fd, 1000).decode("ascii", "replace"))


class Controls:
    """What the keys have chosen, and what they do to queues."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self.selected = 0
        self._is_asking = False  # whether to retry
        self._done = ""
        self.failures_only = False

    @property
    def queue(self) -> str:
        """The selected queue."""
        return self._queues[self.selected]

    @property
    def line(self) -> str:
        """A question, or what was done last, or which keys there are."""
        if self._is_asking:
            return f"Retry all failed jobs of {self.queue}? y/n"
        return self._done or HELP

    def press(self, key: str) -> bool:
        """Do what the key asks; whether that may have changed queues."""
        was_asking, self._is_asking, self._done = self._is_asking, False, ""
        if was_asking:
            return key in "yY" and self._act(self._retry)
        if key in (UP, "k", DOWN, "j"):
            step = 1 if key in (DOWN, "j") else -1
            self.selected = min(max(self.selected + step, 0), len(self._queues) - 1)
        elif key == "f":
            self.failures_only = not self.failures_only
        elif key == "r":
            self._is_asking = True
        elif key == "p":
            return self._act(self._pause)
        return False

    def _act(self, act: Callable[[], str]) -> bool:
        try:
            self._done = act()
        except RedisQueueError as error:
            self._done = str(error)
        return True

    def _retry(self) -> str:
        return f"{formatting.jobs(JobQueue(self.queue).requeue_all())} of {self.queue} retried"

    def _pause(self) -> str:
        queue = JobQueue(self.queue)
        if queue.resume(by=NAME):
            return f"{self.queue} resumed"
        queue.pause(by=NAME)
        return f"{self.queue} paused"
