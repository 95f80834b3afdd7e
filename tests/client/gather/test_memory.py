"""Gathers in an application's own tests, without Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_redisqueue import Gather, get_gather, publish
from django_redisqueue.exceptions import GatherExists, GatherFailed, GatherNotFound, WaitTimeout
from django_redisqueue.testing import capture_jobs, run_inline

from . import tasks

MERGED = {"id": 1, "users": [1, 1], "funds": {"id": 1, "funds": 2}, "accounts": "accounts of 1"}


def start(key: str = "k") -> Gather:
    return Gather.start(key, topic="report", payload={"record_id": 1}, then=tasks.merge)


def test_a_drain_runs_listeners_and_the_follow_up() -> None:
    with capture_jobs() as jobs:
        gather = start()
        assert (gather.status, gather.missing) == ("collecting", ("accounts", "funds", "users"))
        jobs.assert_enqueued(tasks.users, kwargs={"record_id": 1}, count=1)
        with pytest.raises(WaitTimeout):
            gather.wait(timeout=1)
        jobs.drain()
        assert gather.wait().done_count == 3
        (merged,) = jobs.assert_enqueued(tasks.merge)
        assert merged.result == MERGED
        assert gather.follow_up == merged
        assert get_gather("k").results.keys() == MERGED.keys() - {"id"}
        with pytest.raises(GatherExists):
            start()
    with capture_jobs(), pytest.raises(GatherNotFound):
        get_gather("k")


@run_inline()
def test_it_runs_inline() -> None:
    gather = start()
    assert gather.follow_up is not None
    assert gather.follow_up.result == MERGED
    assert len(publish("report", {"record_id": 1})) == 3


@run_inline()
def test_a_failure_looks_the_same_as_with_a_worker(tmp_path: Path) -> None:
    gather = Gather.start(
        "f", topic="shaky", payload={"book": str(tmp_path)}, then=tasks.note,
        on_failure=tasks.note.s(str(tmp_path), "failed"),
    )  # fmt: skip
    with pytest.raises(GatherFailed, match=r"unreachable.*missing: broken"):
        gather.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["failed.1"]
    (tmp_path / "mended").touch()
    next(job for job in gather.jobs() if job.status == "failed").requeue()
    assert gather.results == {"broken": "mended", "steady": "steady"}
    assert gather.status == "failed"
    assert not (tmp_path / "f.1").exists()


def test_a_cancelled_listener_is_missing() -> None:
    with capture_jobs():
        gather = start()
        assert gather.jobs()[0].cancel()
        assert (gather.status, gather.follow_up) == ("failed", None)
        assert gather.missing == ("accounts", "funds", "users")


@run_inline()
def test_a_large_result_stays_in_memory() -> None:
    gather = Gather.start("l", topic="large", payload={"size": 2_000_000}, then=tasks.sizes)
    assert gather.follow_up is not None
    assert gather.follow_up.result == {"large": 2_000_000, "large_async": 2_000_004}
