"""A user's type checker checks calls of tasks, and their options."""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from django_redisqueue.client.options import CALL_CHECKS, TASK_CHECKS, CallKeywords, TaskKeywords

CALLS = Path(__file__).with_name("typed_calls.py")
CACHE = Path(__file__).parents[2] / ".mypy_cache" / "users"
WRONG = re.compile(r"# wrong: (.*)")
MESSAGE = re.compile(r"calls\.py:(\d+): error: (.*)")


def test_calls_are_checked_against_the_function(tmp_path: Path) -> None:
    """As in a project that has the package installed, without its own settings for the checker."""
    shutil.copy(CALLS, tmp_path / "calls.py")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", CACHE, "calls.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "MYPYPATH"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    messages = defaultdict(str)
    for number, text in MESSAGE.findall(done.stdout):
        messages[int(number)] += text + "\n"
    expected = {
        number: found[1]
        for number, line in enumerate(CALLS.read_text(encoding="utf-8").splitlines(), 1)
        if (found := WRONG.search(line))
    }
    assert messages.keys() == expected.keys(), done.stdout
    for number, text in expected.items():
        assert text in messages[number], number


def test_type_checkers_know_every_option() -> None:
    called_otherwise = {"takes_context", "chunk"}  # their own parameters of @task
    assert {*TaskKeywords.__annotations__} == {*TASK_CHECKS, "name", "aliases"} - called_otherwise
    assert {*CallKeywords.__annotations__} == {*CALL_CHECKS}
