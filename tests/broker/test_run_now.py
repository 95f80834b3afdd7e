"""run_now: jobs that are due later run now."""

from __future__ import annotations

import pytest

from .lab import ERROR, Lab, invariants, outcome


@pytest.mark.parametrize("priority", [0, 3])
def test_scheduled_and_retrying_jobs_go_to_the_tail_and_wake_a_worker(
    lab: Lab, priority: int
) -> None:
    lab.add("a", priority=priority)
    lab.finish(outcome(lab.take(), "retrying", ERROR, "60000"))
    lab.add("later", when="+60000", priority=priority)
    lab.add("first", priority=priority)
    assert lab.store.run_now(["later", "a", "later"]) == [1, 1, 0]
    assert (lab.ids("scheduled"), lab.ids("retrying")) == ([], [])
    assert lab.tokens() == 1
    assert "due_ms" not in lab.job("a")
    assert lab.job("a")["ready_ms"] == str(lab.now)
    assert lab.story("later") == ["scheduled", "queued"]
    assert lab.events("a")[-1]["attempt"] == 1
    invariants(lab)
    assert lab.taken(jobs=5) == ["first", "later", "a"]


def test_others_are_left_alone(lab: Lab) -> None:
    lab.end("done", verdict="failed")
    lab.add("queued")
    lab.add("after", after="wait queued")
    before = lab.dump()
    assert lab.store.run_now(["queued", "done", "after", "never"]) == [0, 0, 0, -1]
    assert lab.dump() == before


@pytest.mark.parametrize(("event", "due"), [("paid", ""), ("", "60000")])
def test_a_parked_job_stays_parked(lab: Lab, event: str, due: str) -> None:
    lab.add("a")
    lab.finish(outcome(lab.take(), "parked", event, due))
    assert lab.store.run_now(["a"]) == [-2]
    assert lab.status("a") == "scheduled"
    invariants(lab)


def test_a_job_with_a_lane_waits_in_it(lab: Lab) -> None:
    lab.add("a", "b", lane="|c:t:1 c:t=1", when="+1000")
    assert lab.store.run_now(["a", "b"]) == [1, 1]
    assert lab.taken(jobs=2) == ["a"]
    invariants(lab)
