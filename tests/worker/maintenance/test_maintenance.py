"""The maintenance role, in the process of the test."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.conf import get_settings
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.maintenance import maintenance
from django_redisqueue.worker.maintenance.maintenance import Maintenance
from tests.worker import tasks
from tests.worker.processes import eventually
from tests.worker.stage import Stage

CLAIM_REQUEST = ClaimRequest("c1", ("default",))


def test_maintenance_finds_jobs_whose_child_nobody_knows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "AUDIT", 0.0)
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    # Their tasks would query the database.
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    stage.configure(LEASE=0.6, HEARTBEAT=0.2)
    job = tasks.run.enqueue(stage.book, "held")
    store = Commands(worker_connection(), get_settings())
    store.claim(CLAIM_REQUEST, 1, 1)
    stage.redis.delete("job_queue:{0}:child:c1:processing", "job_queue:{0}:workers")
    role = Maintenance("w.0", ChildState(0, 1), get_settings())

    def is_back() -> bool:
        store.heartbeat([])
        role.run_once()
        job.refresh()
        return job.status == "queued"

    eventually(is_back)
    assert job.recoveries == 1
    store.connection.close()


def test_maintenance_mends_slots(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    slots = "job_queue:{0}:slots"
    stage.redis.zadd(slots, {"c:t:1 ghost": 0})
    role = Maintenance("w.0", ChildState(0, 1), get_settings())

    def is_gone() -> bool:
        role.run_once()
        return not stage.redis.exists(slots)

    eventually(is_gone)
