"""Waiting for work, and making room for suspect jobs."""

from __future__ import annotations

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.conf import get_settings
from django_redisqueue.worker.child.claims import Claims
from django_redisqueue.worker.child.idle import IdleWait, SuspectPauses
from django_redisqueue.worker.child.in_flight import InFlight
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.interrupts import Interrupts
from tests.support.shards import keys_of
from tests.worker import tasks
from tests.worker.stage import Stage

CLAIM_REQUEST = ClaimRequest("c1", ("default",))


def test_a_child_that_stops_gives_back_a_wake_up_that_it_may_have_swallowed(stage: Stage) -> None:
    tasks.run.enqueue(stage.book, "waiting")
    wake = keys_of().queue("default").wake
    assert stage.redis.delete(wake) == 1  # popped by the wait that was cut short
    state, settings = ChildState(0, 1), get_settings()
    in_flight = InFlight(state, lambda *_: True, lambda _: [])
    claims = Claims(CLAIM_REQUEST, state, settings, lambda: False)
    IdleWait(claims, CLAIM_REQUEST, Interrupts(state), in_flight).close()
    assert stage.redis.llen(wake) == 1
    assert stage.stats()["queued"] == 1
    claims.current.store.connection.close()


def test_a_busy_child_makes_more_and_more_room_for_a_suspect() -> None:
    """It waits for 30 s; then for the same time as it goes on, twice as long each time."""
    patience, pauses, now = SuspectPauses(), [], 1000.0
    while now < 1100:
        until = patience.paused_until(True, now)
        if until:
            pauses.append((now - 1000, until - now))
        now = max(until, now + 0.25)
    assert pauses == [(30, 1), (32, 2), (36, 4), (44, 8), (60, 16), (92, 32)]
    assert not patience.paused_until(False, now)  # it has run, or another child has it
    assert not patience.paused_until(True, now)
    assert not patience.paused_until(True, now + 29)
    assert patience.paused_until(True, now + 30) == now + 31
