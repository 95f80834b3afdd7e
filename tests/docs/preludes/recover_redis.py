from django_redisqueue import JobQueue, task
from tests.mirror.rows import record
from tests.support.burst import work


@task
def charge(order_id, amount): ...


PAYLOAD = '[[7], {"amount": 100}]'
record("job_lost", "failed", reason="lost", task="shop.tasks.charge", payload=PAYLOAD)


def check(page):
    work()
    (job,) = JobQueue("default").get_jobs("completed")
    assert (job.args, job.kwargs) == ((7,), {"amount": 100})
