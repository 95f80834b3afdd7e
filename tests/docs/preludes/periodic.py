from django_redisqueue import Cron, task
from django_redisqueue.testing import capture_jobs

REDISQUEUE = {"QUEUES": {"default": {}, "slow": {}}}


@task
def sales(region): ...


def check(page):
    page.jobs.drain()
    assert {job.status for job in page.jobs.jobs} == {"completed"}
    (europe,) = {job.args for job in page.jobs.jobs if job.task_name == sales.name and job.args}
    assert europe == ("EU",)
