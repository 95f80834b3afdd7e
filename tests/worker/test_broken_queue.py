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
from .harness import WorkerHarness
from .processes import eventually


@contextmanager
def another_programs_key(harness: WorkerHarness, name: str) -> Iterator[None]:
    key = f"{keys_of('low').queue('low').base}:{name}"
    harness.redis.set(key, "theirs")
    yield
    assert harness.redis.get(key) == "theirs"
    harness.redis.delete(key)


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
    harness: WorkerHarness, task: Any, dies: bool
) -> None:
    harness.configure(QUEUES={"default": {}, "low": {}})
    worker = harness.worker("--processes", "1", "--queues", "default,low").wait_until_up(2)
    job = task.using(queue_name="low").enqueue(harness.book, "kept", 1.0)
    waiting = tasks.run.using(queue_name="low").enqueue(harness.book, "waiting")
    eventually(lambda: harness.runs()["kept"], why=harness.report)
    with another_programs_key(harness, "retrying"):
        later = tasks.run.using(run_after=0.1).enqueue(harness.book, "later")
        assert harness.ended(later).status == "completed"
        eventually(lambda: "queue low is blocked" in worker.output, why=harness.report)
        if task is tasks.async_run_to_end:
            eventually(lambda: harness.runs()["kept to its end"], why=harness.report)
        assert harness.ended(tasks.run.enqueue(harness.book, "other")).status == "completed"
        if dies:
            os.kill(harness.pid("kept"), signal.SIGKILL)
            assert harness.ended(tasks.run.enqueue(harness.book, "another")).status == "completed"
        job.refresh()
        assert job.status == "processing"
    harness.ended(waiting)
    harness.ended(job)
    assert harness.statuses([job, waiting]) == {"completed": 2}
    assert (harness.runs()["kept"], harness.runs()["waiting"]) == (1, 1)
    eventually(lambda: "queue low continues" in worker.output, why=harness.report)
    assert job.recoveries == 0


@pytest.mark.slow
def test_a_worker_can_stop_while_a_queue_is_broken(harness: WorkerHarness) -> None:
    """Once the queue is repaired, the next worker recovers what the first could not report."""
    harness.configure(QUEUES={"default": {}, "low": {}})
    worker = harness.worker("--processes", "1", "--queues", "low").wait_until_up(2)
    low = tasks.run_until_gate_opens.using(queue_name="low")
    gate = harness.gate()
    job = low.enqueue(harness.book, "kept", gate)
    eventually(lambda: harness.runs()["kept"], why=harness.report)
    with another_programs_key(harness, "wake"):
        harness.open_gate(gate)
        eventually(lambda: "queue low is blocked" in worker.output, why=harness.report)
        worker.term()
        assert worker.wait() == 0
        assert "could not be written" in worker.output
    harness.worker("--processes", "1", "--queues", "low").wait_until_up(2)
    harness.open_gate(gate)
    harness.ended(job)
    assert (job.status, harness.runs()["kept"]) == ("completed", 2)
