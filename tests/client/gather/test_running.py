"""Gathers run by real workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_redisqueue import Gather, get_gather, publish
from django_redisqueue.exceptions import GatherFailed, WaitTimeout
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually

from . import tasks


@pytest.fixture(autouse=True)
def _tasks(harness: WorkerHarness) -> None:
    harness.configure(TASK_MODULES=["tests.worker.tasks", "tests.client.gather.tasks"])


def test_results_are_collected_and_the_follow_up_finds_them(harness: WorkerHarness) -> None:
    harness.worker("--processes", "2")
    gather = Gather.start("r-1", topic="report", payload={"record_id": 7}, then=tasks.merge)
    assert gather.wait(timeout=20).done_count == 3
    merged = gather.follow_up.wait(timeout=20)
    assert merged == {
        "id": 7, "users": [7, 1], "funds": {"id": 7, "funds": 2}, "accounts": "accounts of 7",
    }  # fmt: skip
    assert get_gather("r-1").results == {k: v for k, v in merged.items() if k != "id"}


def test_publish_calls_every_listener(harness: WorkerHarness) -> None:
    harness.worker()
    jobs = publish("report", {"record_id": 3})
    assert sorted(str(job.wait(timeout=20)) for job in jobs) == [
        "[3, 1]", "accounts of 3", "{'id': 3, 'funds': 2}",
    ]  # fmt: skip


def test_a_failed_listener_fails_the_gather_at_once_and_a_retry_is_kept(
    harness: WorkerHarness,
) -> None:
    harness.worker()
    gather = Gather.start(
        "s-1", topic="shaky", payload={"book": harness.book}, then=tasks.note,
        on_failure=tasks.note.s(harness.book, "failed"),
    )  # fmt: skip
    with pytest.raises(GatherFailed, match=r"failed \(unreachable\).*missing: broken"):
        gather.wait(timeout=20)
    gather.follow_up.wait(timeout=20)
    (Path(harness.book) / "mended").touch()
    job = next(job for job in gather.jobs() if job.status == "failed")
    job.requeue()
    job.wait(timeout=20)
    eventually(lambda: gather.results == {"steady": "steady", "broken": "mended"})
    assert gather.status == "failed"
    assert harness.runs() == {"failed": 1, "": 1}  # and the file "mended"


def test_results_that_expire_fail_it_in_time(harness: WorkerHarness) -> None:
    """Long before the next check, until which the timer would have slept."""
    harness.configure(QUEUES={"default": {}, "served": {}})
    harness.worker("--queues", "served").wait_until_up(2)
    gather = Gather.start(
        "ttl-1", topic="silent", payload={"record_id": 1}, then=tasks.merge,
        on_failure=tasks.mark_failed, ttl=0.5, poll_delay=600,
    )  # fmt: skip
    with pytest.raises(GatherFailed, match=r"failed \(expired\).*missing: silent"):
        gather.wait(timeout=10)


def test_a_gather_fails_after_its_last_check_even_if_no_listener_reports(
    harness: WorkerHarness,
) -> None:
    harness.configure(QUEUES={"default": {}, "served": {}})
    harness.worker("--queues", "served")
    gather = Gather.start(
        "late-1", topic="silent", payload={"record_id": 1}, then=tasks.merge,
        on_failure=tasks.mark_failed.using(queue_name="served"), polls=2, poll_delay=0.3,
    )  # fmt: skip
    with pytest.raises(WaitTimeout, match="0 of 1 listeners have a result, 1 are needed"):
        gather.wait(timeout=0.1)
    with pytest.raises(GatherFailed, match=r"failed \(late\)"):
        gather.wait(timeout=20)
    assert gather.follow_up.wait(timeout=20) == {"missing": ["silent"], "why": "late", "there": {}}
