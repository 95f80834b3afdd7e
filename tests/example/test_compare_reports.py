"""``comparereports``: the same report in both ways, by its own worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.embedded import stop_server

from .site import MANAGE, copy_tables


def compare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MANAGE), "comparereports", "--plain", *arguments],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "REDISQUEUE_URL": f"embedded://{folder}/redis",
            "EXAMPLE_DATABASE": str(folder / "db.sqlite3"),
            "EXAMPLE_MEDIA": str(folder / "media"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_both_times_are_shown_and_nothing_is_left(tmp_path: Path, migrated: Path) -> None:
    copy_tables(migrated, tmp_path)
    try:
        done = compare(tmp_path, "--users", "300", "--rounds", "2")
    finally:
        stop_server(tmp_path / "redis")
    assert done.returncode == 0, done.stdout + done.stderr
    for way in ("in turn", "side by side"):
        assert re.search(rf"^ +{way}( +\d+\.\d{{3}} s){{3}} +2$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^Side by side: \d+\.\d\d times as fast as in turn\.$", done.stdout, re.MULTILINE
    )
    rows = re.search(r"the (\d+) rows that one SQL statement returns", done.stdout)
    assert rows is not None
    assert 250 < int(rows[1]) < 300
    assert list((tmp_path / "media" / "reports").glob("*/*")) == []


@pytest.mark.slow
def test_a_bad_number_of_rounds_is_named(tmp_path: Path) -> None:
    done = compare(tmp_path, "--rounds", "-1")
    assert done.returncode == 2
    assert "--rounds: must be a whole number from 0 to 1,000,000, not '-1'" in done.stderr
