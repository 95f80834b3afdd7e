from django_redisqueue import task
from tests.support.burst import work


@task
def charge(): ...


def check(page):
    charge.enqueue()
    work()
    assert 'redisqueue_jobs_completed_total{queue="default"} 1.0' in page.metrics(None).text
