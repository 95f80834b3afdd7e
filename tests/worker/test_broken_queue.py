"""A queue with a key of the wrong type is blocked; everything else continues."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.shards import keys_of

from . import tasks
from .processes import eventually
from .stage import Stage


@contextmanager
def another_programs_key(stage: Stage, name: str) -> Iterator[None]:
    key = f"{keys_of('low').queue('low').base}:{name}"
    stage.redis.delete(key)
    stage.redis.set(key, "theirs")
    yield
    assert stage.redis.get(key) == "theirs"
    stage.redis.delete(key)


@pytest.mark.parametrize(
    ("task", "dies"),
    [
        (tasks.run_then_sleep, False),
        (tasks.async_run_to_end, True),
        pytest.param(tasks.run_then_sleep, True, marks=pytest.mark.slow),
        pytest.param(tasks.async_run_to_end, False, marks=pytest.mark.slow),
    ],
)
def test_outcomes_of_a_broken_queue_are_kept_until_it_is_repaired(
    stage: Stage, task: Any, dies: bool
) -> None:
    stage.configure(QUEUES={"default": {}, "low": {}})
    worker = stage.worker("--processes", "1", "--queues", "default,low").wait_until_up(2)
    job = task.using(queue_name="low").enqueue(stage.book, "kept", 1.0)
    waiting = tasks.run.using(queue_name="low").enqueue(stage.book, "waiting")
    eventually(lambda: stage.runs()["kept"], why=stage.report)
    with another_programs_key(stage, "retrying"):
        later = tasks.run.using(run_after=0.1).enqueue(stage.book, "later")
        assert stage.ended(later).status == "completed"
        eventually(lambda: "queue low stands still" in worker.output, why=stage.report)
        if task is tasks.async_run_to_end:
            eventually(lambda: stage.runs()["kept to its end"], why=stage.report)
        assert stage.ended(tasks.run.enqueue(stage.book, "other")).status == "completed"
        if dies:
            os.kill(stage.pid("kept"), signal.SIGKILL)
            assert stage.ended(tasks.run.enqueue(stage.book, "another")).status == "completed"
        job.refresh()
        assert job.status == "processing"
    stage.ended(waiting)
    stage.ended(job)
    assert stage.statuses([job, waiting]) == {"completed": 2}
    assert (stage.runs()["kept"], stage.runs()["waiting"]) == (1, 1)
    eventually(lambda: "queue low goes on" in worker.output, why=stage.report)
    assert job.recoveries == 0


@pytest.mark.slow
def test_a_worker_can_stop_while_a_queue_is_broken(stage: Stage) -> None:
    """Once the queue is repaired, the next worker recovers what the first could not report."""
    stage.configure(QUEUES={"default": {}, "low": {}})
    worker = stage.worker("--processes", "1", "--queues", "low").wait_until_up(2)
    low = tasks.run_then_sleep.using(queue_name="low")
    job = low.enqueue(stage.book, "kept", 1.0)  # longer than it takes to replace a key
    eventually(lambda: stage.runs()["kept"], why=stage.report)
    with another_programs_key(stage, "wake"):
        eventually(lambda: "queue low stands still" in worker.output, why=stage.report)
        worker.term()
        assert worker.wait() == 0
        assert "could not be written" in worker.output
    stage.worker("--processes", "1", "--queues", "low").wait_until_up(2)
    stage.ended(job)
    assert (job.status, stage.runs()["kept"]) == ("completed", 2)
