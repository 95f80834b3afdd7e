import logging

from django_redisqueue import task
from tests.support.burst import work

records = []


class Collected(logging.Handler):
    def emit(self, record):
        records.append(record)


@task
def charge(): ...


def check(page):
    handler = Collected()
    logging.getLogger("django_redisqueue.jobs").addHandler(handler)
    job = charge.enqueue()
    work()
    (line,) = [record.getMessage() for record in records]
    assert line.startswith(f"id={job.id} task=shop.tasks.charge queue=default attempt=1 ms=")
