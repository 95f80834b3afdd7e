"""Makes a child die by SIGKILL before and behind each step from a claim to the next report, at
each place once. It notes the places in a folder. A child has run a job before it dies, so that the
supervisor does not wait before it starts the next one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from django_redisqueue.broker.commands import Commands
from django_redisqueue.worker.child.loop import Child
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.outcome_log import OutcomeLog

STEPS = (
    (Commands, "finish"),  # which reports and claims
    (Child, "_run_batch"),
    (ChildState, "offer"),
    (ChildState, "take"),
    (ChildState, "begin"),
    (OutcomeLog, "record"),
    (ChildState, "end"),
    (ChildState, "add_done"),
)
PLACES = [f"{when} {name}" for _, name in STEPS for when in ("before", "after")]

_done: list[int] = []  # has an item only in a child that runs jobs, not where others report for it


def _die(place: str) -> None:
    if not _done:
        return
    try:
        path = Path(os.environ["REDISQUEUE_TEST_GRAVES"]) / place
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _make_deadly(owner: type, name: str) -> None:
    step = getattr(owner, name)

    def deadly_step(*args: Any, **kwargs: Any) -> Any:
        _die(f"before {name}")
        found = step(*args, **kwargs)
        _die(f"after {name}")
        if name == "add_done":
            _done.append(1)
        return found

    setattr(owner, name, deadly_step)


if "REDISQUEUE_TEST_GRAVES" in os.environ:  # not in the test's own process
    for owner, name in STEPS:
        _make_deadly(owner, name)
