from datetime import timedelta
from types import SimpleNamespace

from django.contrib import admin
from django.dispatch import receiver
from django.urls import include, path

from django_redisqueue import task
from tests.support.burst import work

order = photo = SimpleNamespace(pk=7)
orders, tables, day = [8, 9], ["users", "funds"], "2026-11-23"
client = SimpleNamespace(post=lambda url: charge.enqueue(7, amount=100))


@task
def earlier(): ...


@task
def extract_orders(day): ...


@task
def load(name): ...


@task
def announce(): ...


@task
def merge(record_id): ...


@task
def mark_failed(record_id): ...


@task
def resize(pk):
    return pk


@task
def watermark(pk):
    return f"{pk} with a mark"


@task
def show(text): ...


@task
def remind():
    return "sent"


job_id = earlier.enqueue().id


def check(page):
    work()
    assert page.flow.status == "completed"
    finished = page.queue.get_jobs("completed")
    assert {"shop.tasks.users", "shop.tasks.merge", "shop.tasks.show"} <= {
        job.task_name for job in finished
    }
