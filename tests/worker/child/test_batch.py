"""How many jobs a child claims at once."""

from __future__ import annotations

import time

import pytest

from django_redisqueue.worker.child.batch import FAR_ROUND_TRIP, BatchSize, largest_batch
from django_redisqueue.worker.child_state import MAX_BATCH


def test_the_batch_grows_slowly_and_shrinks_at_once() -> None:
    batch = BatchSize(20)
    assert batch.jobs() == 1
    for _ in range(40):
        batch.learn(10, 0.0001, of=10)
    assert batch.jobs() == batch.limit
    batch.learn(1, 0.5, of=1)
    assert batch.jobs() == 1
    sizes = []
    for _ in range(40):
        batch.learn(10, 0.01, of=10)
        sizes.append(batch.jobs())
    assert sizes == sorted(sizes)
    assert 15 <= sizes[-1] <= 20  # jobs of 1 ms in a window of 20


@pytest.mark.parametrize(("ms", "jobs"), [(7, 3), (10.1, 2), (19.9, 2), (20.1, 1), (60_000, 1)])
def test_a_batch_is_what_will_start_within_the_window(ms: float, jobs: int) -> None:
    batch = BatchSize(20)
    for _ in range(40):
        batch.learn(10, 0.0001, of=10)
    batch.learn(1, ms / 1000, of=1)
    assert batch.jobs() == jobs


def test_a_window_of_zero_turns_batches_off() -> None:
    batch = BatchSize(0)
    batch.learn(10, 0.0001, of=10)
    assert batch.jobs() == 1


@pytest.mark.parametrize(("siblings", "jobs"), [(1, 64), (2, 36), (64, 36)])
def test_the_children_of_a_worker_share_what_a_near_redis_is_held_up_for(
    siblings: int, jobs: int
) -> None:
    assert largest_batch(lambda: None, siblings) == jobs
    assert largest_batch(lambda: time.sleep(2 * FAR_ROUND_TRIP), siblings) == MAX_BATCH


def test_a_batch_of_which_jobs_went_back_is_followed_by_smaller_ones() -> None:
    batch = BatchSize(20)
    for _ in range(40):
        batch.learn(10, 0.0001, of=10)
    batch.learn(3, 0.0001, of=batch.limit)
    sizes = [batch.jobs()]
    while sizes[-1] < batch.limit:
        batch.learn(sizes[-1], 0.0001, of=sizes[-1])
        sizes.append(batch.jobs())
    assert sizes == [3, 6, 12, 24, 36]
