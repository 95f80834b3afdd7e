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
record("job_lost", "failed", reason="lost", task="shop.tasks.charge", payload=PAYLOAD)
DUE = timezone.now().replace(microsecond=0) + timedelta(hours=1)
record("job_late", "failed", reason="lost", task="shop.tasks.charge", payload=PAYLOAD, due_at=DUE)


def check(page):
    work()
    (job,) = JobQueue("default").get_jobs("completed")
    assert (job.args, job.kwargs) == ((7,), {"amount": 100})
    (job,) = JobQueue("default").get_jobs("scheduled")
    assert (job.args, job.kwargs, job.run_after) == ((7,), {"amount": 100}, DUE)
