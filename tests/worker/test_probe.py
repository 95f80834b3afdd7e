"""The heartbeat file: what the supervisor writes, and what a health check reads from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import django_redisqueue
from django_redisqueue.worker.probe import Health, HeartbeatFile, check_heartbeat


def test_the_probe_reads_what_the_supervisor_writes(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    heartbeat_file = HeartbeatFile(str(file))
    assert check_heartbeat(file, 5)[0] is Health.DEAD
    heartbeat_file.write(False)
    assert check_heartbeat(file, 5)[0] is Health.CUT_OFF
    heartbeat_file.write(True)
    assert check_heartbeat(file, 5)[0] is Health.ALIVE
    beat = json.loads(file.read_text())
    file.write_text(json.dumps({**beat, "beat": beat["beat"] - 60, "redis": beat["beat"] - 60}))
    assert check_heartbeat(file, 5)[0] is Health.DEAD
    assert check_heartbeat(file, 120)[0] is Health.ALIVE
    file.write_text(json.dumps({**beat, "beat": beat["beat"] + 60}))  # the clock was set back
    assert check_heartbeat(file, 5)[0] is Health.DEAD
    heartbeat_file.remove()
    assert list(tmp_path.iterdir()) == []
    HeartbeatFile(None).write(True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a heartbeat file: JSONDecodeError"),
        ("[1]", "is not a heartbeat file: TypeError"),
        ('{"beat": 1, "redis": 1}', "is not a heartbeat file: KeyError: 'pid'"),
        ('{"pid": 1, "beat": "now", "redis": 1}', "is not a heartbeat file: ValueError"),
        ('{"pid": 1, "beat": %s, "redis": 1}' % 10**400, "heartbeat file: OverflowError"),
        ('{"pid": 1, "beat": NaN, "redis": NaN}', "no heartbeat for nan s (pid 1)"),
    ],
    ids=["empty", "list", "no pid", "text", "huge", "nan"],
)
def test_an_unreadable_heartbeat_file_means_dead(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "heartbeat"
    file.write_text(text)
    health, said = check_heartbeat(file, 5)
    assert health is Health.DEAD
    assert words in said
    assert check_heartbeat(tmp_path, 5)[
        1
    ] == f"{tmp_path} is not a heartbeat file: IsADirectoryError: " + (
        f"[Errno 21] Is a directory: {str(tmp_path)!r}"
    )


def test_a_failure_to_write_the_heartbeat_file_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    heartbeat_file = HeartbeatFile(str(folder / "beat"))
    shutil.rmtree(folder)
    heartbeat_file.write(True)
    heartbeat_file.write(True)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert f"the heartbeat file {folder / 'beat'} cannot be written" in told[0]
    folder.mkdir()
    heartbeat_file.write(True)
    assert check_heartbeat(folder / "beat", 5)[0] is Health.ALIVE
    shutil.rmtree(folder)
    heartbeat_file.write(True)
    assert len(caplog.records) == 2
    (folder / "beat").mkdir(parents=True)  # cannot be deleted like a file
    heartbeat_file.remove()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_of_somebody_else_is_not_written_to(tmp_path: Path, kind: str) -> None:
    """In a folder such as /tmp, anybody may create a file of the name that is written first."""
    target, file = tmp_path / "target", tmp_path / "heartbeat"
    target.write_text("theirs")
    draft = Path(f"{file}.{os.getpid()}")
    if kind == "link":
        draft.symlink_to(target)
    else:
        os.mkfifo(draft)  # has no reader, so opening it would wait forever
    file.symlink_to(target)
    heartbeat_file = HeartbeatFile(str(file))
    heartbeat_file.write(True)
    assert target.read_text() == "theirs"
    assert not file.is_symlink()
    assert check_heartbeat(file, 5)[0] is Health.ALIVE
    heartbeat_file.remove()
    assert list(tmp_path.iterdir()) == [target]


def test_the_probe_imports_neither_django_nor_redis_and_little_of_the_package() -> None:
    """It starts every few seconds, often with only part of a core, and must answer within a
    second."""
    code = (
        "import sys, django_redisqueue.worker.probe; print(*{'django', 'redis'} & {*sys.modules}, "
        "*sorted(name for name in sys.modules if name.startswith('django_redisqueue.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = ("core", "core.text", "worker", "worker.probe")
    assert done.stdout.split() == [f"django_redisqueue.{name}" for name in own]


def test_the_package_still_has_its_public_names() -> None:
    names = {name for name in dir(django_redisqueue) if not name.startswith("_")}
    assert {"task", "Job", "JobQueue", "Retry"} <= {*django_redisqueue.__all__} <= names
    assert all(hasattr(django_redisqueue, name) for name in names)
    with pytest.raises(ImportError, match="cannot import name 'tsak' from 'django_redisqueue'"):
        exec("from django_redisqueue import tsak")
