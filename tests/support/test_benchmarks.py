"""Every benchmark can be imported with what `make bench` installs."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.__main__ import NAMES
from benchmarks.processes import ROOT

IMPORT_ALL = """
import sys
from importlib import import_module
from unittest.mock import MagicMock

import django

sys.modules["pytest"] = None  # of the extra `dev`; importing it raises ImportError
sys.modules["huey"] = MagicMock()  # of the extra `benchmark`, which tests do not have
django.setup()
for name in sys.argv[1:]:
    import_module(f"benchmarks.suite.{name}")
"""


def test_benchmarks_need_no_pytest() -> None:
    environ = {
        "BENCHMARK_URL": "redis://localhost:1",
        "BENCHMARK_FOLDER": "/nowhere",
        "DJANGO_SETTINGS_MODULE": "benchmarks.project.settings",
    }
    imports = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *NAMES],
        check=False, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True,
    )  # fmt: skip
    assert imports.returncode == 0, imports.stderr
