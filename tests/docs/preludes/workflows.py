from django_redisqueue import task
from django_redisqueue.testing import capture_jobs

day, tables = "2026-11-23", ["users", "funds"]


@task
def extract_orders(day): ...


@task
def load(name): ...


@task
def report(): ...


@task
def announce(): ...


@task
def alarm(): ...


@task
def a(x):
    return x + 1


@task
def b(x):
    return x + 1


@task
def c(x):
    return x + 1


@task
def measure(country): ...


@task
def fetch(language): ...


@task
def translate(text):
    return "Guten Tag"
