"""Management commands as processes of their own, with the settings of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment(**variables: str) -> dict[str, str]:
    """Of a process that is to find the package and the tests, and these variables besides."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
        **variables,
    }


def manage(*command: str, **variables: str) -> None:
    """Run a management command to its end, which must be a good one."""
    subprocess.run(
        [sys.executable, "-m", "django", *command],
        cwd=ROOT, env=environment(**variables), check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def migrate(**variables: str) -> None:
    """Make the tables where these variables say."""
    manage("migrate", "--verbosity", "0", **variables)
