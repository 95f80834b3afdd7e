from django.dispatch import receiver

from django_redisqueue import JobQueue, task
from django_redisqueue.conf import get_settings
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.signal_delivery import SignalDelivery
from django_redisqueue.signals import job_failed
from tests.support.burst import work

REDISQUEUE = {"MIRROR": True}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
mails = []


@task
def deliver():
    raise ConnectionError("nobody opens")


@task
def mail_failure(task, error):
    mails.append((task, error))


def check(page):
    deliver.enqueue()
    work()
    bridge = Bridge(get_settings())
    while bridge.run_once():
        pass
    bridge.connection.close()
    while SignalDelivery().run_once():
        pass
    work()
    ((name, error),) = mails
    assert name == deliver.name
    assert "nobody opens" in error
    JobQueue("default").clear("failed")
