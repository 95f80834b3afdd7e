"""A job asks, and a person decides in another process: the outbox carries the decision to the
job."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.models import Approval
from django_redisqueue.worker.maintenance.upkeep import ApprovalCloser
from tests.dashboard import approval_tasks
from tests.support.shards import shard_of
from tests.worker.processes import eventually

from .conftest import MODULES, OutboxHarness


@pytest.mark.parametrize("outbox_harness", ["sqlite"], indirect=True)
def test_the_job_continues(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    harness.configure(TASK_MODULES=[*MODULES, "tests.dashboard.approval_tasks"])
    boss = User.objects.create_superuser("boss")
    tasks = approval_tasks.refund_once, approval_tasks.arefund, approval_tasks.refund_in_thread
    jobs = [task.enqueue() for task in tasks]
    harness.worker("--processes", "1")
    eventually(lambda: harness.stats()["scheduled"] == 3, why=harness.report)
    store = Commands(worker_connection(shard_of()))
    closer = ApprovalCloser(store)
    jobs[1].cancel()
    closer.run_once()
    assert Approval.objects.get(job_id=jobs[1].id).status == "closed"
    jobs[1].requeue()  # it asks again
    eventually(lambda: harness.stats()["scheduled"] == 3, why=harness.report)
    closer.run_once()
    store.connection.close()
    for row in Approval.objects.all():
        row.decide(boss, approved=True, comment="fine")
    for job in jobs:
        harness.ended(job)
    assert jobs[0].result == jobs[2].result == {"by": "boss", "comment": "fine"}
    assert jobs[1].result == "yes, says boss"
    assert {job.attempts for job in jobs} == {0}
