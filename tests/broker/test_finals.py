"""The lists of finished jobs: however long they are, an id is added, found and removed with few
commands."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from django_redisqueue.broker import scripts
from django_redisqueue.core.job_data import JobData
from django_redisqueue.core.statuses import Status

from .lab import ERROR, FINISHED, Lab, invariants, outcome
from .workflows import LabWorkflow

LINEAR = {"lrem", "lpos", "linsert", "lindex", "lset"}
Act = Callable[[Lab], object]
STATUSES = pytest.mark.parametrize("status", FINISHED)


def grow(lab: Lab, status: str, jobs: int) -> None:
    """Older ids that nothing asks for."""
    key = getattr(lab.keys.queue("default"), status)
    if jobs:
        lab.redis.zadd(key, {f"older{n}": n for n in range(jobs)})


def commands(lab: Lab, act: Act) -> dict[str, int]:
    """How often each command was called in the script."""
    lab.redis.config_resetstat()
    act(lab)
    stats = lab.redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}
    return {name: count for name, count in calls.items() if not name.startswith("eval")}


@pytest.mark.parametrize(
    ("status", "act"),
    [
        ("failed", lambda lab: lab.store.requeue(["a", "b"])),
        ("cancelled", lambda lab: lab.store.requeue(["a", "b"])),
        *((status, lambda lab: lab.store.delete(["a", "b"])) for status in FINISHED),
    ],
)
def test_removing_by_id_takes_the_same_commands_whatever_the_length(
    lab: Lab, status: str, act: Act
) -> None:
    """None of the commands searches the whole list."""
    took = []
    for length in (0, 1000):
        lab.redis.flushdb()
        grow(lab, status, length)
        lab.end("a", "b", verdict=status)
        lab.advance(20_000)
        took.append(commands(lab, act))
        assert not {"a", "b"} & set(lab.ids(status))
    assert took[0] == took[1]
    assert took[0]["zrem"] >= 1
    assert not took[0].keys() & LINEAR


def test_no_script_searches_a_list_for_an_id() -> None:
    """The only exception is the list of what one child holds, which is no longer than a batch."""
    searching = re.compile(r"'(LREM|LPOS|LINSERT)', (\w+)")
    found = {
        match for verb in scripts.names() for match in searching.findall(scripts.load(verb).source)
    }
    assert found == {("LREM", "key"), ("LREM", "held_key")}
    assert "local key, is_settled, others = processing_key(child)" in scripts.load("release").source


@STATUSES
def test_the_newest_end_comes_first_and_ids_decide_within_a_millisecond(
    lab: Lab, status: str
) -> None:
    lab.end("b", "a", verdict=status)
    lab.advance(1)
    lab.end("c", verdict=status)
    which = Status(status)
    assert lab.queries.ids("default", which, 0, 9) == ["c", "b", "a"]
    assert lab.queries.ids("default", which, 1, 1) == ["b"]
    assert lab.queries.oldest("default", which, 2) == ["a", "b"]
    key = getattr(lab.keys.queue("default"), status)
    assert lab.redis.zscore(key, "c") == float(lab.job("c")["finished_ms"]) == lab.now
    assert lab.queries.stats(["default"])["default"][status] == 3
    invariants(lab)


def test_an_action_on_the_oldest_jobs_is_not_affected_by_jobs_that_end_meanwhile(lab: Lab) -> None:
    lab.end("a", "b", "c", verdict="failed")
    taken = []
    for n in range(3):
        lab.advance(1)
        lab.end(f"new{n}", verdict="failed")
        taken += lab.queries.oldest("default", Status.FAILED, 1)
        lab.store.requeue_oldest("default", "failed", 1)
        taken += lab.taken()
    assert taken == ["a", "a", "b", "b", "c", "c"]
    assert lab.ids("failed") == ["new2", "new1", "new0"]


def test_a_job_that_ends_again_has_its_new_end(lab: Lab) -> None:
    lab.end("a", "b", verdict="failed")
    lab.advance(5)
    lab.store.requeue(["a"])
    lab.finish(outcome(lab.take(), "failed", ERROR))
    assert lab.ids("failed") == ["a", "b"]
    found = lab.queries.jobs(lab.ids("failed"))[0]
    assert isinstance(found, JobData)
    assert found.id == "a"
    invariants(lab)


def test_jobs_that_stay_move_behind_the_newest_and_are_visited_once(lab: Lab) -> None:
    """Even if all of them ended in the same millisecond as the bulk action."""
    workflow = LabWorkflow(lab, {0: [], 1: []})
    workflow.push()
    lab.finish(*[outcome(job, "failed", ERROR) for job in lab.claim(jobs=2).jobs])
    lab.store.control_workflow(workflow.id, "cancel")
    lab.end("x", "y", verdict="failed")
    took = [lab.store.requeue_oldest("default", "failed", 1).done for _ in range(4)]
    assert took == [0, 0, 1, 1]
    assert lab.ids("failed") == [workflow.job(1), workflow.job(0)]
    assert lab.ids("queued") == ["x", "y"]
    invariants(lab)


@STATUSES
def test_within_a_millisecond_the_microseconds_decide(lab: Lab, status: str) -> None:
    lab.store.now_ms = None  # Redis's own clock
    names = [f"j{n:02}" for n in range(30)][::-1]
    for name in names:
        lab.end(name, verdict=status)
    assert lab.ids(status) == names[::-1]
