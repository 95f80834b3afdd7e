from django_redisqueue import JobQueue, task
from tests.support.burst import work


@task(queue_name="hot")
def charge(n): ...


def check(page):
    charge.enqueue_many([(n,) for n in range(8)])
    work()
    assert JobQueue("hot").get_stats()["completed"] == 8
