from django.apps import apps
from django.dispatch import receiver

from django_redisqueue import JobQueue, task
from django_redisqueue.conf import APP, get_settings
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.signal_delivery import SignalDelivery
from django_redisqueue.models import mirror
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
    check_mirror(page)
    router = page.QueueRouter()
    tables = {one._meta.model_name: one for one in apps.get_app_config(APP).get_models()}
    del tables["dashboard"]  # a proxy
    of_mirror = {name for name, one in tables.items() if one.__module__ == mirror.__name__}
    of_users = {
        name for name, one in tables.items() if any(f.is_relation for f in one._meta.fields)
    }
    there = {
        alias: {name for name in tables if router.allow_migrate(alias, APP, name)}
        for alias in ("default", "orders", "audit")
    }
    assert {name for name, one in tables.items() if router.db_for_read(one)} == of_mirror
    assert there["audit"] == of_mirror
    assert there["default"] == tables.keys() - of_mirror
    assert there["default"] > there["orders"] | of_users
    assert not there["orders"] & of_users


def check_mirror(page):
    deliver.enqueue()
    work()
    bridge = Bridge()
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
