"""A worker on a database without this app's tables waits for them, and says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.app import tasks as app_tasks
from tests.support.commands import migrate
from tests.support.stopwatch import Stopwatch

from .processes import eventually, holds_for
from .stage import Stage


@pytest.mark.parametrize("needs", [{"MIRROR": True}, {"MIRROR": False, "OUTBOX": True}])
def test_a_worker_waits_for_its_tables(
    stage: Stage, tmp_path: Path, needs: dict[str, bool]
) -> None:
    stage.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path)
    job = app_tasks.noop.enqueue()
    worker = stage.worker("--processes", "1", **needs)
    eventually(
        lambda: "takes no jobs yet: the database 'default' lacks migrations" in worker.output,
        why=stage.report,
    )
    assert "run: manage.py migrate" in worker.output
    holds_for(lambda: stage.stats()["queued"] == 1, 1.0)
    migrate(REDISQUEUE_TEST_FOLDER=str(tmp_path))
    stage.ended(job)
    assert "the database is ready: the worker starts" in worker.output
    logged = re.findall("takes no jobs yet: .*", worker.output)
    assert len(logged) == len(set(logged))  # more than one if the worker looks while migrate runs
    worker.term()
    assert worker.wait() == 0


def test_a_worker_that_needs_no_tables_does_not_look(stage: Stage, tmp_path: Path) -> None:
    stage.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path / "missing")
    job = app_tasks.noop.enqueue()
    watch = Stopwatch()
    stage.worker("--processes", "1", MIRROR=False)
    stage.ended(job)
    assert watch.seconds < 10


def test_ctrl_c_ends_the_wait_without_a_traceback(stage: Stage, tmp_path: Path) -> None:
    stage.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path)
    worker = stage.worker("--processes", "1", MIRROR=True)
    eventually(lambda: "takes no jobs yet" in worker.output, why=stage.report)
    worker.interrupt_group()
    assert worker.wait() == 130
    assert "stopped before it took a job" in worker.output
    assert "Traceback" not in worker.output


def test_a_worker_waits_for_its_database(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "mounted later"
    stage.environment["REDISQUEUE_TEST_FOLDER"] = str(folder)
    job = app_tasks.noop.enqueue()
    worker = stage.worker("--processes", "1", MIRROR=True)
    eventually(lambda: "'default' does not answer (unable" in worker.output, why=stage.report)
    folder.mkdir()
    migrate(REDISQUEUE_TEST_FOLDER=str(folder))
    stage.ended(job)
