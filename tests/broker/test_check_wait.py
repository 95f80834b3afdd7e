"""check_wait: whether a running job's wait for an event, or its sleep, is over."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue.broker.replies import ClaimedJob, WaitReply, WaitState
from django_redisqueue.exceptions import WrongKeyType

from .harness import ERROR, T0, BrokerHarness, invariants, outcome
from .test_step import remembered


def ask(
    broker: BrokerHarness,
    job: ClaimedJob,
    ms: int | None = 1000,
    event: str = "e",
    *,
    sleeps: bool = False,
) -> WaitReply:
    return broker.store.check_wait("c1", job.id, job.lease, event, ms, sleeps=sleeps)


def park(broker: BrokerHarness, job: ClaimedJob, ms: int | None = 1000, event: str = "e") -> None:
    """Do what a worker does with a job that waits."""
    reply = ask(broker, job, ms, event)
    assert reply.state is WaitState.GOES_ON
    assert broker.finish(outcome(job, "parked", event, reply.value)) == [1]


def started(broker: BrokerHarness, **options: Any) -> ClaimedJob:
    broker.add("a", **options)
    return broker.take()


def test_a_sleep_lasts_until_a_fixed_time(broker: BrokerHarness) -> None:
    job = started(broker)
    assert ask(broker, job, sleeps=True) == (WaitState.GOES_ON, str(T0 + 1000))
    broker.advance(400)
    assert ask(broker, job, 5000, sleeps=True) == (WaitState.GOES_ON, str(T0 + 1000))
    broker.advance(600)
    assert ask(broker, job, sleeps=True) == (WaitState.OVER, "null")
    assert ask(broker, job, sleeps=True) == (WaitState.OVER, "null")
    assert remembered(broker) == {"sleep:e": f"until {T0 + 1000}"}
    assert ask(broker, job, 0, "none", sleeps=True) == (WaitState.OVER, "null")
    invariants(broker)


def test_an_event_sent_before_the_wait_is_found_and_kept(broker: BrokerHarness) -> None:
    broker.store.send_event("e", '{"a":1}', 5000)
    job = started(broker)
    assert ask(broker, job) == (WaitState.OVER, '{"a":1}')
    broker.redis.delete(broker.keys.event("e"))
    broker.advance(10_000)
    assert ask(broker, job) == (WaitState.OVER, '{"a":1}')
    invariants(broker)


def test_an_event_is_forgotten_after_its_ttl(broker: BrokerHarness) -> None:
    broker.store.send_event("e", "1", 5000)
    assert 0 < broker.redis.pttl(broker.keys.event("e")) <= 5000  # type: ignore[operator]


def test_a_timeout_is_final_until_a_requeue(broker: BrokerHarness) -> None:
    """A job that continued without the event must not see it in a later run."""
    job = started(broker)
    park(broker, job)
    broker.advance(1000)
    job = broker.take()
    assert ask(broker, job) == (WaitState.LATE, "")
    assert not broker.redis.exists(broker.keys.awaiting("e"))
    broker.store.send_event("e", "1", 5000)
    assert ask(broker, job) == (WaitState.LATE, "")
    broker.finish(outcome(job, "failed", ERROR))
    broker.store.requeue(["a"])
    invariants(broker)
    assert ask(broker, broker.take()) == (WaitState.OVER, "1")


def test_after_a_requeue_a_job_waits_as_long_again(broker: BrokerHarness) -> None:
    job = started(broker)
    park(broker, job)
    broker.advance(1000)
    job = broker.take()
    ask(broker, job)
    broker.finish(outcome(job, "failed", ERROR))
    broker.store.requeue(["a"])
    assert ask(broker, broker.take()) == (WaitState.GOES_ON, str(broker.now + 1000))


def test_a_job_cancelled_while_it_waited_waits_as_long_again(broker: BrokerHarness) -> None:
    park(broker, started(broker))
    broker.store.cancel(["a"])
    broker.advance(5000)
    broker.store.requeue(["a"])
    job = broker.take()
    due = str(broker.now + 1000)
    assert ask(broker, job) == (WaitState.GOES_ON, due)
    broker.advance(400)
    assert ask(broker, job) == (WaitState.GOES_ON, due)
    broker.advance(600)
    assert ask(broker, job) == (WaitState.LATE, "")
    invariants(broker)


def test_a_requeue_does_not_lengthen_a_sleep(broker: BrokerHarness) -> None:
    job = started(broker)
    reply = ask(broker, job, sleeps=True)
    broker.finish(outcome(job, "parked", "", reply.value))
    broker.store.cancel(["a"])
    broker.advance(5000)
    broker.store.requeue(["a"])
    assert ask(broker, broker.take(), sleeps=True) == (WaitState.OVER, "null")


def test_a_wait_without_a_timeout(broker: BrokerHarness) -> None:
    job = started(broker)
    assert ask(broker, job, None) == (WaitState.GOES_ON, "")
    park(broker, job, None)
    assert "due_ms" not in broker.job("a")
    broker.advance(10**12)
    assert broker.store.promote(["default"]).moved == 0
    assert broker.store.send_event("e", "1", 1) == 1


@pytest.mark.parametrize(("child", "lease"), [("c2", 1), ("c1", 0), ("c1", 2)])
@pytest.mark.parametrize("sleeps", [True, False])
def test_a_stale_run_changes_nothing(
    broker: BrokerHarness, child: str, lease: int, sleeps: bool
) -> None:
    started(broker)
    with broker.unchanged():
        assert broker.store.check_wait(child, "a", lease, "e", 5, sleeps=sleeps) == (0, "")


def test_a_payload_over_the_cap(broker: BrokerHarness) -> None:
    broker.store.send_event("e", '"' + "x" * broker.store.settings.max_result_bytes + '"', 5000)
    job = started(broker)
    with broker.unchanged():
        assert ask(broker, job).state is WaitState.TOO_LARGE


@pytest.mark.parametrize(("key", "kind"), [("event", "string"), ("awaiting", "zset")])
def test_a_key_of_another_type_is_named(broker: BrokerHarness, key: str, kind: str) -> None:
    job = started(broker)
    broker.redis.hset(getattr(broker.keys, key)("e"), "theirs", 1)
    with broker.unchanged():
        with pytest.raises(WrongKeyType, match=f"holds a hash where a {kind} belongs"):
            ask(broker, job)
        with pytest.raises(WrongKeyType, match=f"holds a hash where a {kind} belongs"):
            broker.store.send_event("e", "1", 5)
