"""The lists of finished jobs: however long they are, an id is added, found and removed with few
commands."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from django_redisqueue.broker import scripts
from django_redisqueue.core.job_data import JobData
from django_redisqueue.core.statuses import Status

from .harness import ERROR, FINISHED, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

LINEAR = {"lrem", "lpos", "linsert", "lindex", "lset"}
Act = Callable[[BrokerHarness], object]
STATUSES = pytest.mark.parametrize("status", FINISHED)


def grow(broker: BrokerHarness, status: str, jobs: int) -> None:
    """Older ids that nothing asks for."""
    key = getattr(broker.keys.queue("default"), status)
    if jobs:
        broker.redis.zadd(key, {f"older{n}": n for n in range(jobs)})


def commands(broker: BrokerHarness, act: Act) -> dict[str, int]:
    """How often each command was called in the script."""
    broker.redis.config_resetstat()
    act(broker)
    stats = broker.redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}
    return {name: count for name, count in calls.items() if not name.startswith("eval")}


@pytest.mark.parametrize(
    ("status", "act"),
    [
        ("failed", lambda broker: broker.store.requeue(["a", "b"])),
        ("cancelled", lambda broker: broker.store.requeue(["a", "b"])),
        *((status, lambda broker: broker.store.delete(["a", "b"])) for status in FINISHED),
    ],
)
def test_removing_by_id_takes_the_same_commands_whatever_the_length(
    broker: BrokerHarness, status: str, act: Act
) -> None:
    """None of the commands searches the whole list."""
    took = []
    for length in (0, 1000):
        broker.redis.flushdb()
        grow(broker, status, length)
        broker.end("a", "b", kind=status)
        broker.advance(20_000)
        took.append(commands(broker, act))
        assert not {"a", "b"} & set(broker.ids(status))
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
    broker: BrokerHarness, status: str
) -> None:
    broker.end("b", "a", kind=status)
    broker.advance(1)
    broker.end("c", kind=status)
    which = Status(status)
    assert broker.queries.ids("default", which, 0, 9) == ["c", "b", "a"]
    assert broker.queries.ids("default", which, 1, 1) == ["b"]
    assert broker.queries.oldest("default", which, 2) == ["a", "b"]
    key = getattr(broker.keys.queue("default"), status)
    assert broker.redis.zscore(key, "c") == float(broker.job("c")["finished_ms"]) == broker.now
    assert broker.queries.stats(["default"])["default"][status] == 3
    invariants(broker)


def test_an_action_on_the_oldest_jobs_is_not_affected_by_jobs_that_end_meanwhile(
    broker: BrokerHarness,
) -> None:
    broker.end("a", "b", "c", kind="failed")
    taken = []
    for n in range(3):
        broker.advance(1)
        broker.end(f"new{n}", kind="failed")
        taken += broker.queries.oldest("default", Status.FAILED, 1)
        broker.store.requeue_oldest("default", "failed", 1)
        taken += broker.taken()
    assert taken == ["a", "a", "b", "b", "c", "c"]
    assert broker.ids("failed") == ["new2", "new1", "new0"]


def test_a_job_that_ends_again_has_its_new_end(broker: BrokerHarness) -> None:
    broker.end("a", "b", kind="failed")
    broker.advance(5)
    broker.store.requeue(["a"])
    broker.finish(outcome(broker.take(), "failed", ERROR))
    assert broker.ids("failed") == ["a", "b"]
    found = broker.queries.jobs(broker.ids("failed"))[0]
    assert isinstance(found, JobData)
    assert found.id == "a"
    invariants(broker)


def test_jobs_that_stay_move_behind_the_newest_and_are_visited_once(broker: BrokerHarness) -> None:
    """Even if all of them ended in the same millisecond as the bulk action."""
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.push()
    broker.finish(*[outcome(job, "failed", ERROR) for job in broker.claim(jobs=2).jobs])
    broker.store.control_workflow(workflow.id, "cancel")
    broker.end("x", "y", kind="failed")
    took = [broker.store.requeue_oldest("default", "failed", 1).done for _ in range(4)]
    assert took == [0, 0, 1, 1]
    assert broker.ids("failed") == [workflow.job(1), workflow.job(0)]
    assert broker.ids("queued") == ["x", "y"]
    invariants(broker)


@STATUSES
def test_within_a_millisecond_the_microseconds_decide(broker: BrokerHarness, status: str) -> None:
    broker.store.now_ms = None  # Redis's own clock
    names = [f"j{n:02}" for n in range(30)][::-1]
    for name in names:
        broker.end(name, kind=status)
    assert broker.ids(status) == names[::-1]
