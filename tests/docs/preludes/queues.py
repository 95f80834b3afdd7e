from datetime import timedelta
from types import SimpleNamespace

from django.utils import timezone

from django_redisqueue import JobQueue
from tests.support.burst import work

auction = SimpleNamespace(ends_at=timezone.now() - timedelta(seconds=1))


def check(page):
    (job,) = JobQueue().get_jobs("queued")
    work()
    job.refresh()
    assert job.reason == "expired"
