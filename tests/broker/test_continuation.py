"""A verb over many jobs stores what remains to be done: if its caller is gone, maintenance
continues it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_redisqueue.broker.queries import Continuation, Queries
from django_redisqueue.broker.replies import ContinuationStep, LeadReply, StepReply
from django_redisqueue.exceptions import WrongKeyType
from django_redisqueue.worker.maintenance.upkeep import ContinuationRunner

from .harness import BrokerHarness, invariants, outcome

Act = Callable[[BrokerHarness, int, ContinuationStep], StepReply]


def clear(broker: BrokerHarness, jobs: int, step: ContinuationStep) -> StepReply:
    return broker.store.clear("default", "failed", jobs, step)


def requeue(broker: BrokerHarness, jobs: int, step: ContinuationStep) -> StepReply:
    return broker.store.requeue_oldest("default", "failed", jobs, step)


both = pytest.mark.parametrize("act", [clear, requeue])


def failed(broker: BrokerHarness, jobs: int) -> None:
    for at in range(0, jobs, 50):
        broker.end(*[f"j{n:03}" for n in range(at, min(jobs, at + 50))], kind="failed")


@both
def test_each_step_stores_what_remains_and_the_last_one_nothing(
    broker: BrokerHarness, act: Act
) -> None:
    failed(broker, 5)
    assert act(broker, 2, ContinuationStep("t", 5, 1)) == (2, 2)
    assert broker.redis.hgetall(broker.keys.continuations) == {
        "t": f"{act.__name__} default failed 3 {broker.now + 5000}"
    }
    broker.advance(1000)
    assert act(broker, 2, ContinuationStep("t", 3, 0)) == (2, 2)
    assert broker.redis.hget(broker.keys.continuations, "t").endswith(
        f" failed 1 {broker.now + 5000}"
    )
    assert act(broker, 1, ContinuationStep("t", 1, 0)) == (1, 1)
    assert not broker.redis.exists(broker.keys.continuations)
    invariants(broker)


@both
def test_a_caller_with_a_stale_remainder_does_nothing(broker: BrokerHarness, act: Act) -> None:
    failed(broker, 6)
    act(broker, 2, ContinuationStep("t", 6, 1))
    assert act(broker, 2, ContinuationStep("t", 6, 0)) == (
        0,
        0,
    )  # it slept while another process took the second step
    assert act(broker, 2, ContinuationStep("t", 6, 1)) == (0, 0)  # already begun
    # another process has finished it
    assert act(broker, 2, ContinuationStep("other", 4, 0)) == (
        0,
        0,
    )
    assert len(broker.ids("failed")) == 4


@both
def test_jobs_that_ended_after_the_call_are_not_meant(broker: BrokerHarness, act: Act) -> None:
    """Another operator has removed some, or a call arrives a second time after the last step."""
    failed(broker, 2)
    broker.add("new")
    token = f"{broker.now}-t"
    broker.advance(1)
    broker.finish(outcome(broker.take(), "failed"))
    assert act(broker, 3, ContinuationStep(token, 3, 1)) == (2, 2)
    assert act(broker, 1, ContinuationStep(token, 1, 0)) == (0, 0)
    assert act(broker, 3, ContinuationStep(token, 3, 1)) == (0, 0)
    assert broker.ids("failed") == ["new"]
    assert not broker.redis.exists(broker.keys.continuations)
    broker.advance(-1000)  # the clock goes back
    assert act(broker, 1, ContinuationStep(f"{broker.now}-u", 1, 1)) == (1, 1)


@both
def test_it_ends_early_if_the_list_is_empty(broker: BrokerHarness, act: Act) -> None:
    failed(broker, 2)
    act(broker, 1, ContinuationStep("t", 9, 1))
    act(broker, 50, ContinuationStep("t", 8, 0))
    assert act(broker, 50, ContinuationStep("t", 7, 0)) == (0, 0)
    assert not broker.redis.exists(broker.keys.continuations)


def test_a_key_of_another_type_stops_it_before_anything_is_written(broker: BrokerHarness) -> None:
    failed(broker, 2)
    broker.redis.set(broker.keys.continuations, "x")
    with pytest.raises(WrongKeyType, match="continuations"):
        clear(broker, 1, ContinuationStep("t", 2, 1))
    assert len(broker.ids("failed")) == 2


def test_only_those_with_a_silent_caller_are_overdue(broker: BrokerHarness) -> None:
    failed(broker, 2)
    clear(broker, 1, ContinuationStep("t", 2, 1))  # years ago, by Redis's own clock
    assert Queries(broker.connection).abandoned_continuations() == [
        Continuation("t", "clear", "default", "failed", 1)
    ]
    broker.redis.hset(broker.keys.continuations, "t", "clear default failed 1 99999999999999")
    assert Queries(broker.connection).abandoned_continuations() == []


@pytest.mark.parametrize(("act", "status"), [(clear, "failed"), (requeue, "queued")])
def test_maintenance_does_the_rest_and_no_more(
    broker: BrokerHarness, act: Act, status: str
) -> None:
    failed(broker, 130)
    assert act(broker, 50, ContinuationStep("t", 120, 1)) == (50, 50)  # ten were added later
    assert broker.store.lead("m", 1000) is LeadReply.AND_CONTINUE
    assert ContinuationRunner(broker.store).run_once() is False
    assert broker.ids("failed") == [f"j{n:03}" for n in range(129, 119, -1)]
    assert len(broker.ids("queued")) == (120 if status == "queued" else 0)
    assert broker.store.lead("m", 1000) is LeadReply.YES
    invariants(broker)


@pytest.mark.parametrize(
    "words", ["", "clear default failed", "clear default failed x 5", "clear default failed 5 -1",
              "dance default failed 1 5", "clear a:b failed 1 5", "clear default odd 1 5",
              "clear default failed 1e5 5", "clear default failed \u0665 5"],
)  # fmt: skip
def test_a_continuation_that_cannot_be_read_is_left_alone_and_the_others_continue(
    broker: BrokerHarness, words: str
) -> None:
    failed(broker, 3)
    broker.redis.hset(broker.keys.continuations, "a", words)
    clear(broker, 1, ContinuationStep("t", 3, 1))
    broker.redis.hset(broker.keys.continuations, "z", words)
    assert ContinuationRunner(broker.store).run_once() is False
    assert broker.ids("failed") == []
    assert broker.redis.hgetall(broker.keys.continuations) == {"a": words, "z": words}


def test_a_continuation_that_cannot_continue_does_not_block_the_others(
    broker: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    failed(broker, 3)
    broker.redis.set(broker.keys.queue("odd").failed, "of a wrong type")
    broker.redis.hset(broker.keys.continuations, "a", "clear odd failed 5 1")
    clear(broker, 1, ContinuationStep("t", 3, 1))
    broker.redis.hset(broker.keys.continuations, "z", "clear odd failed 5 1")
    assert ContinuationRunner(broker.store).run_once() is False
    assert broker.ids("failed") == []
    assert "queue odd: the clear continues later" in caplog.text


FOREIGN_TOKENS = st.binary(max_size=20).filter(lambda token: token != b"t")  # "t" is the test's own


@settings(max_examples=15, derandomize=True, database=None)
@given(st.dictionaries(FOREIGN_TOKENS, st.binary(max_size=40), min_size=1, max_size=4))
def test_maintenance_gets_past_any_value_in_the_key(
    broker: BrokerHarness, found: dict[bytes, bytes]
) -> None:
    broker.redis.flushdb()
    failed(broker, 2)
    parts = [part for pair in found.items() for part in pair]
    broker.redis.execute_command("HSET", broker.keys.continuations, *parts)
    clear(broker, 1, ContinuationStep("t", 2, 1))
    assert ContinuationRunner(broker.store).run_once() is False
    assert broker.ids("failed") == []
    assert not broker.redis.hexists(broker.keys.continuations, "t")
