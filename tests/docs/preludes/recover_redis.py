import sys
from datetime import timedelta
from types import SimpleNamespace

from django.utils import timezone

from django_redisqueue import JobQueue, get_job, task
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.models import Receipt
from django_redisqueue.outbox.relay import Relay
from tests.mirror.rows import record
from tests.support.burst import work


@task
def charge(order_id, amount): ...


@task(exactly_once=True)
def settle(order_id, amount):
    raise AssertionError("it has its receipt")


for module in ("shop", "shop.tasks"):
    sys.modules[module] = SimpleNamespace(charge=charge, settle=settle)
    cleanup.callback(sys.modules.pop, module)

PAYLOAD = '[[7], {"amount": 100}]'
LOST = {"reason": "lost", "task": "shop.tasks.charge", "payload": PAYLOAD}
NOW = timezone.now().replace(microsecond=0)
DUE = NOW + timedelta(hours=1)
record("job_lost", "failed", **LOST, queued_at=NOW)
record("job_late", "failed", **LOST, due_at=DUE)
record("job_asleep", "failed", **LOST, queued_at=NOW, due_at=DUE)  # its steps are lost as well
record("job_settled", "failed", **{**LOST, "task": "shop.tasks.settle"}, queued_at=NOW)
Receipt.objects.create(job_id="job_settled", result='"settled"')
for left_out in ("flow_1_x_0.1", "gather_1_x_0.1"):
    record(left_out, "failed", **LOST, queued_at=NOW)
record("job_that_waited", "failed", **LOST)


def check(page):
    page.OutboxJob.objects.update(created_at=NOW - timedelta(minutes=1))
    Relay(Commands(worker_connection()), "default").run_once()
    work()
    assert {job.id for job in JobQueue("default").get_jobs("completed")} == {
        "job_asleep", "job_lost", "job_settled",
    }  # fmt: skip
    assert (get_job("job_lost").args, get_job("job_lost").kwargs) == ((7,), {"amount": 100})
    assert get_job("job_settled").result == "settled"
    (job,) = JobQueue("default").get_jobs("scheduled")
    assert (job.id, job.args, job.run_after) == ("job_late", (7,), DUE)
