"""Makes a worker's child die by SIGKILL at the steps of a report, as many times as a folder has
tokens for that step: files ``<step>.<n>``, which move to ``spent``. Every merge dies while a file
``poison`` exists.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.files.base import ContentFile

from example_project.reports import downloads, tasks

KILLS = Path(os.environ["REDISQUEUE_TEST_DEATHS"])
SOURCES = ("users", "funds", "accounts")


def die_at(step: str) -> None:
    for token in sorted(KILLS.glob(f"{step}.*")):
        try:
            token.rename(KILLS / "spent" / token.name)
        except FileNotFoundError:  # another process took it
            continue
        os.kill(os.getpid(), signal.SIGKILL)


def deadly(step: str, query: Callable[[], Any]) -> Callable[[], Any]:
    def ask() -> Any:
        die_at(f"asking-{step}")
        found = query()
        die_at(f"found-{step}")
        return found

    return ask


for source in SOURCES:
    setattr(tasks, f"query_{source}", deadly(source, getattr(tasks, f"query_{source}")))

write, sweep = downloads._write, downloads._sweep


def deadly_write(record: Any, lines: Any) -> tuple[str, int]:
    if (KILLS / "poison").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    die_at("joined")  # nothing has been written
    if any(KILLS.glob("within.*")):
        record.file.storage.save(f"{record.folder}/part.csv", ContentFile(b"user,na"))
        die_at("within")  # part of a file exists
    written = write(record, lines)
    die_at("written")  # the file exists, but the record does not know about it
    return written


def deadly_sweep(record: Any) -> None:
    die_at("ready")  # the record does
    sweep(record)
    die_at("swept")  # everything is done except the job's report


downloads._write = deadly_write
downloads._sweep = deadly_sweep
