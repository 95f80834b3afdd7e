"""check_wait: whether a running job's wait for an event, or its sleep, is over."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue.broker.replies import ClaimedJob, WaitReply, WaitState
from django_redisqueue.exceptions import WrongKeyType

from .lab import ERROR, T0, Lab, invariants, outcome
from .test_step import remembered


def ask(
    lab: Lab, job: ClaimedJob, ms: int | None = 1000, event: str = "e", *, sleeps: bool = False
) -> WaitReply:
    return lab.store.check_wait("c1", job.id, job.lease, event, ms, sleeps=sleeps)


def park(lab: Lab, job: ClaimedJob, ms: int | None = 1000, event: str = "e") -> None:
    """Do what a worker does with a job that waits."""
    reply = ask(lab, job, ms, event)
    assert reply.state is WaitState.GOES_ON
    assert lab.finish(outcome(job, "parked", event, reply.value)) == [1]


def started(lab: Lab, **options: Any) -> ClaimedJob:
    lab.add("a", **options)
    return lab.take()


def test_a_sleep_lasts_until_a_fixed_time(lab: Lab) -> None:
    job = started(lab)
    assert ask(lab, job, sleeps=True) == (WaitState.GOES_ON, str(T0 + 1000))
    lab.advance(400)
    assert ask(lab, job, 5000, sleeps=True) == (WaitState.GOES_ON, str(T0 + 1000))
    lab.advance(600)
    assert ask(lab, job, sleeps=True) == (WaitState.OVER, "null")
    assert ask(lab, job, sleeps=True) == (WaitState.OVER, "null")
    assert remembered(lab) == {"sleep:e": f"until {T0 + 1000}"}
    assert ask(lab, job, 0, "none", sleeps=True) == (WaitState.OVER, "null")
    invariants(lab)


def test_an_event_sent_before_the_wait_is_found_and_kept(lab: Lab) -> None:
    lab.store.send_event("e", '{"a":1}', 5000)
    job = started(lab)
    assert ask(lab, job) == (WaitState.OVER, '{"a":1}')
    lab.redis.delete(lab.keys.event("e"))
    lab.advance(10_000)
    assert ask(lab, job) == (WaitState.OVER, '{"a":1}')
    invariants(lab)


def test_an_event_is_forgotten_after_its_ttl(lab: Lab) -> None:
    lab.store.send_event("e", "1", 5000)
    assert 0 < lab.redis.pttl(lab.keys.event("e")) <= 5000  # type: ignore[operator]


def test_a_timeout_is_final_until_a_requeue(lab: Lab) -> None:
    """A job that continued without the event must not see it in a later run."""
    job = started(lab)
    park(lab, job)
    lab.advance(1000)
    job = lab.take()
    assert ask(lab, job) == (WaitState.LATE, "")
    assert not lab.redis.exists(lab.keys.awaiting("e"))
    lab.store.send_event("e", "1", 5000)
    assert ask(lab, job) == (WaitState.LATE, "")
    lab.finish(outcome(job, "failed", ERROR))
    lab.store.requeue(["a"])
    invariants(lab)
    assert ask(lab, lab.take()) == (WaitState.OVER, "1")


def test_after_a_requeue_a_job_waits_as_long_again(lab: Lab) -> None:
    job = started(lab)
    park(lab, job)
    lab.advance(1000)
    job = lab.take()
    ask(lab, job)
    lab.finish(outcome(job, "failed", ERROR))
    lab.store.requeue(["a"])
    assert ask(lab, lab.take()) == (WaitState.GOES_ON, str(lab.now + 1000))


def test_a_job_cancelled_while_it_waited_waits_as_long_again(lab: Lab) -> None:
    park(lab, started(lab))
    lab.store.cancel(["a"])
    lab.advance(5000)
    lab.store.requeue(["a"])
    job = lab.take()
    due = str(lab.now + 1000)
    assert ask(lab, job) == (WaitState.GOES_ON, due)
    lab.advance(400)
    assert ask(lab, job) == (WaitState.GOES_ON, due)
    lab.advance(600)
    assert ask(lab, job) == (WaitState.LATE, "")
    invariants(lab)


def test_a_requeue_does_not_lengthen_a_sleep(lab: Lab) -> None:
    job = started(lab)
    reply = ask(lab, job, sleeps=True)
    lab.finish(outcome(job, "parked", "", reply.value))
    lab.store.cancel(["a"])
    lab.advance(5000)
    lab.store.requeue(["a"])
    assert ask(lab, lab.take(), sleeps=True) == (WaitState.OVER, "null")


def test_a_wait_without_a_timeout(lab: Lab) -> None:
    job = started(lab)
    assert ask(lab, job, None) == (WaitState.GOES_ON, "")
    park(lab, job, None)
    assert "due_ms" not in lab.job("a")
    lab.advance(10**12)
    assert lab.store.promote(["default"]).moved == 0
    assert lab.store.send_event("e", "1", 1) == 1


@pytest.mark.parametrize(("child", "lease"), [("c2", 1), ("c1", 0), ("c1", 2)])
@pytest.mark.parametrize("sleeps", [True, False])
def test_a_stale_run_changes_nothing(lab: Lab, child: str, lease: int, sleeps: bool) -> None:
    started(lab)
    before = lab.dump()
    assert lab.store.check_wait(child, "a", lease, "e", 5, sleeps=sleeps) == (0, "")
    assert lab.dump() == before


def test_a_payload_over_the_cap(lab: Lab) -> None:
    lab.store.send_event("e", '"' + "x" * lab.store.settings.max_result_bytes + '"', 5000)
    job = started(lab)
    before = lab.dump()
    assert ask(lab, job).state is WaitState.TOO_LARGE
    assert lab.dump() == before


@pytest.mark.parametrize(("key", "kind"), [("event", "string"), ("awaiting", "zset")])
def test_a_key_of_another_type_is_named(lab: Lab, key: str, kind: str) -> None:
    job = started(lab)
    lab.redis.hset(getattr(lab.keys, key)("e"), "theirs", 1)
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=f"holds a hash where a {kind} belongs"):
        ask(lab, job)
    with pytest.raises(WrongKeyType, match=f"holds a hash where a {kind} belongs"):
        lab.store.send_event("e", "1", 5)
    assert lab.dump() == before
