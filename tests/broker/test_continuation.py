"""A verb over many jobs stores what remains to be done: if its caller is gone, maintenance
continues it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_redisqueue.broker.continuations import (
    Continuation,
    ContinuationStep,
    StepReply,
    abandoned_continuations,
)
from django_redisqueue.broker.replies import LeadReply
from django_redisqueue.exceptions import WrongKeyType
from django_redisqueue.worker.maintenance.upkeep import ContinuationRunner

from .lab import Lab, invariants

Act = Callable[[Lab, int, ContinuationStep], StepReply]


def clear(lab: Lab, jobs: int, step: ContinuationStep) -> StepReply:
    return lab.store.clear("default", "failed", jobs, step)


def requeue(lab: Lab, jobs: int, step: ContinuationStep) -> StepReply:
    return lab.store.requeue_oldest("default", "failed", jobs, step)


both = pytest.mark.parametrize("act", [clear, requeue])


def failed(lab: Lab, jobs: int) -> None:
    for at in range(0, jobs, 50):
        lab.end(*[f"j{n:03}" for n in range(at, min(jobs, at + 50))], verdict="failed")


@both
def test_each_step_stores_what_remains_and_the_last_one_nothing(lab: Lab, act: Act) -> None:
    failed(lab, 5)
    assert act(lab, 2, ContinuationStep("t", 5, 1)) == (2, 2)
    assert lab.redis.hgetall(lab.keys.continuations) == {
        "t": f"{act.__name__} default failed 3 {lab.now + 5000}"
    }
    lab.advance(1000)
    assert act(lab, 2, ContinuationStep("t", 3, 0)) == (2, 2)
    assert lab.redis.hget(lab.keys.continuations, "t").endswith(f" failed 1 {lab.now + 5000}")
    assert act(lab, 1, ContinuationStep("t", 1, 0)) == (1, 1)
    assert not lab.redis.exists(lab.keys.continuations)
    invariants(lab)


@both
def test_a_caller_with_a_stale_remainder_does_nothing(lab: Lab, act: Act) -> None:
    failed(lab, 6)
    act(lab, 2, ContinuationStep("t", 6, 1))
    assert act(lab, 2, ContinuationStep("t", 6, 0)) == (
        0,
        0,
    )  # it slept while another process took the second step
    assert act(lab, 2, ContinuationStep("t", 6, 1)) == (0, 0)  # already begun
    assert act(lab, 2, ContinuationStep("other", 4, 0)) == (0, 0)  # another process has finished it
    assert len(lab.ids("failed")) == 4


@both
def test_it_ends_early_if_the_list_is_empty(lab: Lab, act: Act) -> None:
    failed(lab, 2)
    act(lab, 1, ContinuationStep("t", 9, 1))
    act(lab, 50, ContinuationStep("t", 8, 0))
    assert act(lab, 50, ContinuationStep("t", 7, 0)) == (0, 0)
    assert not lab.redis.exists(lab.keys.continuations)


def test_a_key_of_another_type_stops_it_before_anything_is_written(lab: Lab) -> None:
    failed(lab, 2)
    lab.redis.set(lab.keys.continuations, "x")
    with pytest.raises(WrongKeyType, match="continuations"):
        clear(lab, 1, ContinuationStep("t", 2, 1))
    assert len(lab.ids("failed")) == 2


def test_only_those_with_a_silent_caller_are_overdue(lab: Lab) -> None:
    failed(lab, 2)
    clear(lab, 1, ContinuationStep("t", 2, 1))  # years ago, by Redis's own clock
    assert abandoned_continuations(lab.connection, lab.keys) == [
        Continuation("t", "clear", "default", "failed", 1)
    ]
    lab.redis.hset(lab.keys.continuations, "t", "clear default failed 1 99999999999999")
    assert abandoned_continuations(lab.connection, lab.keys) == []


@pytest.mark.parametrize(("act", "status"), [(clear, "failed"), (requeue, "queued")])
def test_maintenance_does_the_rest_and_no_more(lab: Lab, act: Act, status: str) -> None:
    failed(lab, 130)
    assert act(lab, 50, ContinuationStep("t", 120, 1)) == (50, 50)  # ten were added later
    assert lab.store.lead("m", 1000) is LeadReply.AND_CONTINUE
    assert ContinuationRunner(lab.store).run_once() is False
    assert lab.ids("failed") == [f"j{n:03}" for n in range(129, 119, -1)]
    assert len(lab.ids("queued")) == (120 if status == "queued" else 0)
    assert lab.store.lead("m", 1000) is LeadReply.YES
    invariants(lab)


@pytest.mark.parametrize(
    "words", ["", "clear default failed", "clear default failed x 5", "clear default failed 5 -1",
              "dance default failed 1 5", "clear a:b failed 1 5", "clear default odd 1 5",
              "clear default failed 1e5 5", "clear default failed \u0665 5"],
)  # fmt: skip
def test_a_continuation_that_cannot_be_read_is_left_alone_and_the_others_continue(
    lab: Lab, words: str
) -> None:
    failed(lab, 3)
    lab.redis.hset(lab.keys.continuations, "a", words)
    clear(lab, 1, ContinuationStep("t", 3, 1))
    lab.redis.hset(lab.keys.continuations, "z", words)
    assert ContinuationRunner(lab.store).run_once() is False
    assert lab.ids("failed") == []
    assert lab.redis.hgetall(lab.keys.continuations) == {"a": words, "z": words}


def test_a_continuation_that_cannot_continue_does_not_block_the_others(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    failed(lab, 3)
    lab.redis.set(lab.keys.queue("odd").failed, "of a wrong type")
    lab.redis.hset(lab.keys.continuations, "a", "clear odd failed 5 1")
    clear(lab, 1, ContinuationStep("t", 3, 1))
    lab.redis.hset(lab.keys.continuations, "z", "clear odd failed 5 1")
    assert ContinuationRunner(lab.store).run_once() is False
    assert lab.ids("failed") == []
    assert "queue odd: to clear goes on later" in caplog.text


FOREIGN_TOKENS = st.binary(max_size=20).filter(lambda token: token != b"t")  # "t" is the test's own


@settings(max_examples=15, derandomize=True, database=None)
@given(st.dictionaries(FOREIGN_TOKENS, st.binary(max_size=40), min_size=1, max_size=4))
def test_maintenance_gets_past_any_value_in_the_key(lab: Lab, found: dict[bytes, bytes]) -> None:
    lab.redis.flushdb()
    failed(lab, 2)
    parts = [part for pair in found.items() for part in pair]
    lab.redis.execute_command("HSET", lab.keys.continuations, *parts)
    clear(lab, 1, ContinuationStep("t", 2, 1))
    assert ContinuationRunner(lab.store).run_once() is False
    assert lab.ids("failed") == []
    assert not lab.redis.hexists(lab.keys.continuations, "t")
