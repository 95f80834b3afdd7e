"""Nothing waits behind a slow job: neither unstarted jobs nor the outcomes of ended ones."""

from __future__ import annotations

import pytest

from django_redisqueue import JobQueue
from tests.worker import tasks
from tests.worker.processes import eventually
from tests.worker.stage import Stage

SLOW = {"sleeping": tasks.run_until_let_go, "holding the GIL in C": tasks.run_until_let_go_in_c}


@pytest.mark.parametrize("how", SLOW)
def test_short_jobs_do_not_wait_behind_a_slow_one(stage: Stage, how: str) -> None:
    stage.worker("--processes", "2").wait_until_up(3)
    warm = stage.warm_up()
    queue = JobQueue("default")
    queue.pause()
    gate = stage.gate()
    slow = SLOW[how].enqueue(stage.book, "slow", gate)
    short = tasks.run.enqueue_many([(stage.book, f"short{n}") for n in range(400)])
    queue.resume()
    eventually(lambda: stage.stats()["completed"] == warm + 400, why=stage.report)
    slow.refresh()
    assert slow.status == "processing"
    assert stage.statuses(short) == {"completed": 400}
    stage.let_go(gate)
    stage.until_done(warm + 401)
    assert set(stage.runs().values()) == {1}
    assert stage.count("recovered_total") == 0


@pytest.mark.parametrize("how", SLOW)
@pytest.mark.parametrize("behind", [0, 10], ids=["the slow one is last", "others follow"])
def test_outcomes_are_reported_while_a_slow_job_of_their_batch_runs(
    stage: Stage, how: str, behind: int
) -> None:
    stage.worker("--processes", "1").wait_until_up(2)
    warm = stage.warm_up()
    queue = JobQueue("default")
    queue.pause()
    before = tasks.run.enqueue_many([(stage.book, f"before{n}") for n in range(10)])
    gate = stage.gate()
    slow = SLOW[how].enqueue(stage.book, "slow", gate)
    tasks.run.enqueue_many([(stage.book, f"behind{n}") for n in range(behind)])
    queue.resume()
    eventually(lambda: stage.runs()["slow"], why=stage.report)
    eventually(lambda: stage.statuses(before) == {"completed": 10}, why=stage.report)
    slow.refresh()
    assert slow.status == "processing"
    # The jobs behind it are in the queue again, where another worker could take them.
    eventually(lambda: stage.stats()["queued"] == behind, why=stage.report)
    assert stage.stats()["processing"] == 1
    stage.let_go(gate)
    stage.until_done(warm + 11 + behind)
    assert set(stage.runs().values()) == {1}


def test_a_high_result_limit_does_not_make_small_jobs_go_back(stage: Stage) -> None:
    """Although the log of unreported outcomes only holds 4 MB."""
    stage.configure(MAX_RESULT_BYTES=16_000_000)
    stage.worker("--processes", "1").wait_until_up(2)
    warm = stage.warm_up()
    assert stage.count("released_total") < warm / 2  # some do when the machine is busy


def test_released_jobs_keep_their_order(stage: Stage) -> None:
    # A window that no stall of the machine outlasts: a second release would come too late.
    stage.worker("--processes", "1", BATCH_WINDOW_MS=1000).wait_until_up(2)
    warm = stage.warm_up()
    queue = JobQueue("default")
    queue.pause()
    gate = stage.gate()
    tasks.run_until_let_go.enqueue(stage.book, "slow", gate)
    tasks.run.enqueue_many([(stage.book, f"{n:03}") for n in range(200)])
    queue.resume()
    # Later, the child would claim others before those of its batch are back.
    eventually(lambda: stage.stats()["queued"] == 200 and stage.runs()["slow"], why=stage.report)
    stage.let_go(gate)
    stage.until_done(warm + 201)
    assert stage.in_order() == ["slow", *[f"{n:03}" for n in range(200)]]
