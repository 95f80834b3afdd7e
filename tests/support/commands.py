"""Management commands, in this process or in one of their own with the settings of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from django.core.management import call_command

from .warm import ROOT, WarmProcess


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process that can import the package and the tests, plus these
    variables."""
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
    """Run Python with these arguments in its own session, with all output in one file. The process
    is forked, unless ``fresh`` asks for a new interpreter or ``prefix`` is a program that runs
    it."""
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
    """Code that runs in a separate process, with Django set up and Python's ``options``."""

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
        """The output of both streams so far; still available after the process has ended."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode()

    def wait(self, timeout: float = 60) -> int:
        """The exit code, negative for a signal. Raises ``subprocess.TimeoutExpired``."""
        return self.process.wait(timeout)

    def __del__(self) -> None:
        self._output.close()


def output_of(name: str, *arguments: str, **options: Any) -> str:
    """What a management command prints that runs in this process."""
    out = StringIO()
    call_command(name, *arguments, stdout=out, **options)
    return out.getvalue()


def manage(*command: str, **variables: str) -> None:
    """Run a management command to its end, which must be successful."""
    with open(os.devnull, "w") as nowhere:
        process = WarmProcess(
            "-m", "django", *command, env=environment(**variables), stdout=nowhere.fileno()
        )
    assert process.wait() == 0


def migrate(**variables: str) -> None:
    """Create the tables in the database that these variables name."""
    manage("migrate", "--verbosity", "0", **variables)
