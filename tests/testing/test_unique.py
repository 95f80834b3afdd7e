"""Unique keys in memory: the same replies as with Redis."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_redisqueue import (
    Backoff,
    For,
    Replace,
    UniqueConflict,
    Workflow,
    get_job,
    listener,
    publish,
    release_unique_key,
    task,
    unique_keys,
)
from django_redisqueue.testing import capture_jobs, run_inline

from ..app import tasks

MODES: dict[str, Any] = {
    "until_started": "until_started",
    "until_finished": "until_finished",
    "keep_last": "keep_last",
    "for": For("1h"),
    "replace": Replace(wait=10, max_wait=60),
}
seen: list[Any] = []


@task(max_attempts=3, backoff=Backoff(base=60, jitter=0))
def note(value: Any, again: Any = None) -> Any:
    """Record the value. ``again``: enqueue these values with this mode, and fail."""
    seen.append(value)
    if again is not None:
        mode, values, fails = again
        for one in values:
            unique(mode).enqueue(one)
        if fails:
            raise ValueError
    return value


def unique(mode: str) -> Any:
    return note.using(unique=MODES[mode], unique_by=lambda *_: "k")


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@pytest.mark.parametrize("mode", MODES)
def test_a_second_enqueue_returns_the_first_job(mode: str) -> None:
    with capture_jobs() as jobs:
        first, second = unique(mode).enqueue(1), unique(mode).enqueue(2)
        assert (second.id, second.is_duplicate) == (first.id, True)
        assert len(jobs.jobs) == 1
        jobs.drain()
    assert seen == ([2] if mode in ("keep_last", "replace") else [1])


def test_debounce_by_the_clock() -> None:
    with capture_jobs() as jobs:
        for n in range(20):
            unique("replace").enqueue(n)
            jobs.travel(seconds=5)
            jobs.run_due()
        jobs.travel(seconds=60)
        jobs.run_due()
    assert seen == [11, 19]


def test_at_most_once_an_hour() -> None:
    with capture_jobs() as jobs:
        for n in range(5):
            unique("for").enqueue(n)
            jobs.drain()
            jobs.travel(minutes=25)
    assert seen == [0, 3]


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        ("until_started", [1, 2]),
        ("until_finished", [1]),
        ("keep_last", [1, 4]),
        ("replace", [1, 4]),
        ("for", [1]),
    ],
)
def test_an_enqueue_while_the_job_runs(mode: str, after: list[int]) -> None:
    with capture_jobs() as jobs:
        unique(mode).enqueue(1, (mode, [2, 3, 4], False))
        jobs.drain()
    assert seen == after


def test_keep_last_waits_for_the_end() -> None:
    """This includes the retries of a job that fails."""
    with capture_jobs() as jobs:
        unique("keep_last").enqueue(1, ("keep_last", [2], True))
        jobs.run_due()
        assert [job.status for job in jobs.jobs] == ["retrying", "waiting"]
        jobs.travel(minutes=5)
        jobs.drain()
        assert [job.status for job in jobs.jobs] == ["failed", "completed"]
    assert seen[-1] == 2


def test_newer_arguments_replace_those_of_a_failed_attempt() -> None:
    with capture_jobs() as jobs:
        job = unique("replace").enqueue(1, ("for", [], True))
        jobs.travel(seconds=10)
        jobs.run_due()
        job.refresh()
        assert (job.status, job.attempts) == ("retrying", 1)
        assert unique("replace").enqueue(2).id == job.id
        job.refresh()
        assert (job.status, job.attempts) == ("scheduled", 0)
        jobs.travel(seconds=10)
        jobs.run_due()
    assert seen == [1, 2]


def test_a_failed_run_with_a_successor_is_superseded() -> None:
    with capture_jobs() as jobs:
        unique("replace").enqueue(1, ("replace", [2], True))
        jobs.drain()
        first, second = jobs.jobs
    assert (first.status, first.data.reason, second.status) == (
        "cancelled",
        "superseded",
        "completed",
    )
    assert seen == [1, 2]


def test_workflows_requeue_and_ids() -> None:
    mode = unique("until_finished")
    with capture_jobs() as jobs:
        first = mode.enqueue(1)
        workflow = Workflow()
        workflow.add(mode, 2)
        with pytest.raises(UniqueConflict, match=f"job {first.id} has the unique key .*note:k"):
            workflow.push()
        assert len(jobs.jobs) == 1
        first.cancel()
        workflow.push()
        node = workflow.jobs()[0]
        with pytest.raises(UniqueConflict, match=f"job {node.id} has its unique key .*note:k"):
            first.requeue()
        jobs.drain()
        first.requeue()
        assert mode.enqueue(3).id == first.id


@pytest.mark.django_db(transaction=True)
def test_an_id_given_out_before_the_commit() -> None:
    mode = unique("until_finished")
    with capture_jobs() as jobs:
        first = mode.enqueue(1)
        with transaction.atomic():
            second = mode.enqueue(2)
        assert second.is_duplicate
        assert get_job(second.id).data.id == first.id
        assert second.cancel()
        assert jobs.jobs[0].status == "cancelled"
    assert get_job(second.id).data.id == first.id


def test_keys_are_listed_and_released() -> None:
    with capture_jobs() as jobs:
        first = unique("for").enqueue(1)
        second = tasks.noop.using(unique="until_finished").enqueue()
        keys = {key.job_id: key for key in unique_keys()}
        assert keys.keys() == {first.id, second.id}
        assert keys[first.id].until_ms == keys[first.id].taken_ms + 3_600_000
        assert (keys[second.id].status, keys[second.id].until_ms) == ("queued", None)
        jobs.drain()
        assert [key.job_id for key in unique_keys()] == [first.id]
        assert release_unique_key(keys[first.id].key) == first.id
        assert (unique_keys(), release_unique_key("k")) == ([], "")
        assert not unique("for").enqueue(1).is_duplicate


def test_publish_and_inline() -> None:
    listener("unique-topic")(tasks.noop.using(unique="until_finished"))
    with capture_jobs():
        first, second = (publish("unique-topic", {"x": 1})[0] for _ in range(2))
        assert (first.id, second.is_duplicate) == (second.id, True)
    with run_inline():
        assert not unique("until_finished").enqueue(1).is_duplicate
        assert not unique("until_finished").enqueue(1).is_duplicate


def test_a_job_that_a_parent_cancels_frees_its_key() -> None:
    with capture_jobs():
        parent = tasks.noop.enqueue()
        parent.cancel()
        once = unique("for")
        skipped = once.using(after=parent, on_parent_failure="skip").enqueue(1)
        assert skipped.status == "cancelled"
        assert not once.enqueue(2).is_duplicate


@task(takes_context=True, max_attempts=2)
def pause_and_fail(context: Any, value: int) -> None:
    if value == 1:
        context.sleep(60)
    seen.append(value)
    if value == 1:
        raise ValueError


def test_a_job_does_not_run_again_after_newer_arguments() -> None:
    """Its successor has already run when it fails."""
    with capture_jobs() as jobs:
        debounced = pause_and_fail.using(unique=MODES["replace"], unique_by=lambda *_: "k")
        first = debounced.enqueue(1)
        jobs.travel(seconds=10)
        jobs.run_due()
        assert not debounced.enqueue(2).is_duplicate
        jobs.travel(minutes=1)
        jobs.run_due()
        jobs.travel(hours=1)
        jobs.run_due()
        first.refresh()
    assert (first.status, first.reason, seen) == ("cancelled", "superseded", [2, 1])


def test_expires_counts_from_the_newer_arguments_of_a_failed_attempt() -> None:
    with capture_jobs() as jobs:
        job = unique("keep_last").enqueue(1, ("for", [], True))
        jobs.run_due()
        assert unique("keep_last").using(expires="10s").enqueue(2).is_duplicate
        jobs.travel(minutes=5)
        jobs.run_due()
        job.refresh()
    assert (job.status, job.reason) == ("cancelled", "expired")
