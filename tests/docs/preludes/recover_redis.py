import sys
from datetime import timedelta
from types import SimpleNamespace

from django.utils import timezone

from django_redisqueue import JobQueue, task
from tests.mirror.rows import record
from tests.support.burst import work


@task
def charge(order_id, amount): ...


for module in ("shop", "shop.tasks"):
    sys.modules[module] = SimpleNamespace(charge=charge)
    cleanup.callback(sys.modules.pop, module)

PAYLOAD = '[[7], {"amount": 100}]'
LOST = {"reason": "lost", "task": "shop.tasks.charge", "payload": PAYLOAD}
NOW = timezone.now().replace(microsecond=0)
DUE = NOW + timedelta(hours=1)
record("job_lost", "failed", **LOST, queued_at=NOW)
record("job_late", "failed", **LOST, due_at=DUE)
for left_out in ("flow_1_x_0.1", "gather_1_x_0.1"):
    record(left_out, "failed", **LOST, queued_at=NOW)
record("job_that_waited", "failed", **LOST)


def check(page):
    work()
    (job,) = JobQueue("default").get_jobs("completed")
    assert (job.args, job.kwargs) == ((7,), {"amount": 100})
    (job,) = JobQueue("default").get_jobs("scheduled")
    assert (job.args, job.kwargs, job.run_after) == ((7,), {"amount": 100}, DUE)
