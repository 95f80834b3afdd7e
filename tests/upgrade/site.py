"""An installation of one version or the other: the same Redis, database and tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.warm import ROOT
from tests.worker.processes import WorkerProcess

#: The last commit of version 0.1.0.
PREVIOUS = "3026d77ff89ecc0c89fba53f9cd13632642234a4"


class Site:
    """``entry`` is an entry of DATABASES; ``package`` is the folder that contains the package, by
    default that of this version."""

    def __init__(self, url: str, entry: dict[str, Any], folder: Path, package: Path = ROOT) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {
            "CONNECTION": {"URL": url},
            "QUEUES": {"default": {}, "paused": {}},
            "LEASE": 3,
            "HEARTBEAT": 0.5,
        }
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "tests.upgrade.settings",
            "PYTHONPATH": f"{package}:{ROOT}",
            "PYTHONSAFEPATH": "1",  # otherwise this version, in the current folder, comes first
            "UPGRADE_FOLDER": str(folder),
            "UPGRADE_DATABASE": json.dumps(entry),
            "UPGRADE_SETTINGS": json.dumps(self.settings),
        }

    def python(self, *arguments: str) -> str:
        """Run Python to its end, which must be successful; returns its output."""
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **self.environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def act(self, *arguments: str) -> Any:
        """The last line that ``act.py`` prints, decoded."""
        return json.loads(self.python("-m", "tests.upgrade.act", *arguments).splitlines()[-1])

    def start(self, command: str, *arguments: str) -> WorkerProcess:
        return WorkerProcess(
            *arguments,
            folder=self.folder,
            environment=self.environment,
            settings=self.settings,
            command=command,
            fresh=True,
        )


def unpack_previous(folder: Path) -> str:
    """Unpack the previous version into ``folder``; returns the reason if that is impossible, or
    ''."""
    archive = subprocess.run(
        ["git", "archive", PREVIOUS, "django_redisqueue"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    if archive.returncode:
        return f"the history of this checkout does not have {PREVIOUS[:7]}: git fetch --unshallow"
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return ""
