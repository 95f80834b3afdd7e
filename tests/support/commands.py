"""Management commands as processes of their own, with the settings of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from .warm import ROOT, WarmProcess


def environment(**variables: str) -> dict[str, str]:
    """Of a process that is to find the package and the tests, and these variables besides."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
        **variables,
    }


def start(
    *arguments: str,
    env: Mapping[str, str],
    stdout: int,
    stdin: int | None = None,
    fresh: bool = False,
    prefix: Sequence[str] = (),
) -> WarmProcess | subprocess.Popen[bytes]:
    """Python with these arguments, in a session of its own, with all output in one file. It is
    forked, unless ``fresh`` asks for a new interpreter or ``prefix`` is a program to run it by."""
    if not fresh and not prefix:
        return WarmProcess(*arguments, env=env, stdin=stdin, stdout=stdout, start_new_session=True)
    return subprocess.Popen(
        [*prefix, sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class Script:
    """Code that runs in a process of its own, with Django ready and the ``options`` of Python."""

    def __init__(self, code: str, *options: str, **variables: str) -> None:
        descriptor, name = tempfile.mkstemp()
        os.unlink(name)
        self._output = os.fdopen(descriptor, "rb")
        code = f"import django; django.setup()\n{code}"
        self.process = start(
            *options, "-c", code, env=environment(**variables), stdout=self._output.fileno()
        )

    @property
    def output(self) -> str:
        """Of both streams, so far; it stays when the process has ended."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode()

    def wait(self, timeout: float = 60) -> int:
        """Its exit code, negative for a signal. Raises ``subprocess.TimeoutExpired``."""
        return self.process.wait(timeout)

    def __del__(self) -> None:
        self._output.close()


def manage(*command: str, **variables: str) -> None:
    """Run a management command to its end, which must be a good one."""
    with open(os.devnull, "w") as nowhere:
        process = WarmProcess(
            "-m", "django", *command, env=environment(**variables), stdout=nowhere.fileno()
        )
    assert process.wait() == 0


def migrate(**variables: str) -> None:
    """Make the tables where these variables say."""
    manage("migrate", "--verbosity", "0", **variables)
