"""What a worker does for the case that all else has failed, in its own processes' code."""

from __future__ import annotations

import pytest

from django_redisqueue.conf import get_settings
from django_redisqueue.connection import worker_link
from django_redisqueue.store.transitions import Seeker, Transitions
from django_redisqueue.worker import maintenance
from django_redisqueue.worker.idle import Idle
from django_redisqueue.worker.interrupts import Interrupts
from django_redisqueue.worker.lane import AsyncLane
from django_redisqueue.worker.maintenance import Maintenance
from django_redisqueue.worker.seat import Seat

from . import tasks
from .processes import eventually
from .stage import Stage

SEEKER = Seeker("c1", ("default",))


def test_a_child_that_stops_gives_back_a_wake_up_that_it_may_have_swallowed(stage: Stage) -> None:
    tasks.run.enqueue(stage.book, "waiting")
    wake = "job_queue:{0}:q:default:wake"
    assert stage.redis.delete(wake) == 1  # popped by the wait that was cut short
    seat, settings = Seat(0, 1), get_settings()
    lane = AsyncLane(settings, seat, 1, 1, lambda *_: True, lambda _: [])
    store = Transitions(worker_link(), settings)
    Idle(store, SEEKER, Interrupts(seat), lane).close()
    assert stage.redis.llen(wake) == 1
    assert stage.stats()["queued"] == 1
    store.link.close()


def test_maintenance_finds_jobs_whose_child_nobody_knows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "AUDIT", 0.0)
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance.Desk, "lead", lambda *_: None)  # it would ask the database
    stage.configure(LEASE=0.6, HEARTBEAT=0.2)
    job = tasks.run.enqueue(stage.book, "held")
    store = Transitions(worker_link(), get_settings())
    store.claim(SEEKER, 1, 1)
    stage.redis.delete("job_queue:{0}:child:c1:processing", "job_queue:{0}:workers")
    chores = Maintenance("w.0", Seat(0, 1), get_settings())

    def is_back() -> bool:
        store.heartbeat([])
        chores.run_once()
        job.refresh()
        return job.status == "queued"

    eventually(is_back)
    assert job.recoveries == 1
    store.link.close()
