import json
from datetime import timedelta
from types import SimpleNamespace

from django.utils.text import slugify

from django_redisqueue import Cron, task
from django_redisqueue.models import PeriodicJob
from django_redisqueue.testing import capture_jobs

REDISQUEUE = {"QUEUES": {"default": {}, "slow": {}}}


@task
def sales(region): ...


COMMON = {"task": sales.name, "args": '["JP"]', "kwargs": "{}"}
AT = SimpleNamespace(
    minute="0", hour="4", day_of_month="*", month_of_year="*", day_of_week="mon-fri",
    timezone="Asia/Tokyo",
)  # fmt: skip
INTERVAL = SimpleNamespace(schedule=SimpleNamespace(run_every=timedelta(days=3)))
ROWS = [
    SimpleNamespace(name="Sales: Tokyo", crontab=AT, interval=None, **COMMON),
    SimpleNamespace(name="again", crontab=None, interval=INTERVAL, **COMMON),
    SimpleNamespace(name="at sunset", crontab=None, interval=None, **COMMON),
]
# The model of django-celery-beat
PeriodicTask = SimpleNamespace(objects=SimpleNamespace(filter=lambda enabled: ROWS))


def check(page):
    rows = PeriodicJob.objects.filter(source="admin").order_by("pk")
    assert [(one.name, one.cron, one.every, one.args) for one in rows] == [
        ("sales-tokyo", "0 4 * * mon-fri", "", ["JP"]),
        ("again", "", "3d", ["JP"]),
    ]
    page.jobs.drain()
    assert {job.status for job in page.jobs.jobs} == {"completed"}
    sold = {job.args for job in page.jobs.jobs if job.task_name == sales.name and job.args}
    assert sold - {("JP",)} == {("EU",)}  # Tokyo's is not due at weekends
