"""``queuemonitor`` as a separate process, on a terminal or a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from contextlib import ExitStack
from typing import Any

from tests.support import commands
from tests.support.manual_worker import ManualWorker
from tests.support.servers import RedisServer
from tests.worker.processes import PATIENCE, eventually

Size = tuple[int, int]  # lines and columns

WITHOUT_RICH = (
    "import sys; sys.modules['rich'] = None\n"
    "from django.core.management import execute_from_command_line\n"
    "execute_from_command_line(['manage.py', *sys.argv[1:]])"
)


def environment(url: str) -> dict[str, str]:
    size = ("COLUMNS", "LINES")  # the size of the terminal itself is meant
    found = commands.environment(TERM="xterm-256color", REDISQUEUE_TEST_URL=url)
    return {name: value for name, value in found.items() if name not in size}


class Monitor:
    """The command's process; its output is collected as it arrives."""

    def __init__(self, *arguments: str, url: str, terminal: bool, rich: bool, size: Size) -> None:
        self._reader, writer = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self._read: list[bytes] = []
        self.process = commands.start(
            *(["-m", "django"] if rich else ["-c", WITHOUT_RICH]),
            "queuemonitor",
            *arguments,
            env=environment(url),
            stdin=writer if terminal else None,
            stdout=writer,
            fresh=not rich,
        )
        os.close(writer)
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        while True:
            try:
                data = os.read(self._reader, 65536)
            except OSError:  # Linux raises this when a terminal's other end is closed
                return
            if not data:
                return
            self._read.append(data)

    @property
    def output(self) -> str:
        return b"".join(self._read).decode()

    @property
    def last_screen(self) -> str:
        """The last drawing; each begins at the home position."""
        return self.output.rpartition("\x1b[H")[2]

    def lines(self) -> list[str]:
        """The lines of the last screen, as a user sees them."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.last_screen).splitlines()

    def press(self, keys: str) -> None:
        """Type on its terminal."""
        os.write(self._reader, keys.encode())

    def terminal_modes(self) -> Any:
        """How its terminal handles keys."""
        return termios.tcgetattr(self._reader)

    def documents(self) -> list[dict[str, Any]]:
        """The complete lines so far, as JSON."""
        return [json.loads(line) for line in self.output.splitlines(keepends=True) if "\n" in line]

    def until(self, *words: str) -> None:
        """Wait until it has written all of these."""
        eventually(lambda: all(word in self.output for word in words), why=lambda: self.output)

    def until_drawn(self, *words: str) -> None:
        """Wait until the last screen contains all of these."""
        eventually(
            lambda: all(word in self.last_screen for word in words), why=lambda: self.last_screen
        )

    def signal(self, number: signal.Signals) -> int:
        """Send it, and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._thread.join(PATIENCE)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(PATIENCE)
        os.close(self._reader)


class MonitorHarness:
    """A server for the test, with a worker that the test operates; ``change`` is pytest-django's
    settings."""

    def __init__(self, server: RedisServer, change: Any, stack: ExitStack) -> None:
        change.REDISQUEUE = {"CONNECTION": {"URL": server.url}}
        self.server = server
        self.redis = server.client(decode_responses=True)
        self.manual_worker = ManualWorker()
        self._stack = stack
        stack.callback(self.manual_worker.close)

    def monitor(
        self, *arguments: str, terminal: bool = False, rich: bool = True, size: Size = (30, 150)
    ) -> Monitor:
        made = Monitor(*arguments, url=self.server.url, terminal=terminal, rich=rich, size=size)
        self._stack.callback(made.close)
        return made

    def shell(self, command: str) -> subprocess.Popen[str]:
        """Run a pipeline that begins with a management command; its exit code is that of the
        failing part."""
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m django {command}"],
            cwd=commands.ROOT,
            env=environment(self.server.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
