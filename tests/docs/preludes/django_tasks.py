import sys

import django
import pytest

from tests.app.django_api import TAKES_OPTIONS, task
from tests.support.burst import work

if not TAKES_OPTIONS:
    pytest.skip("the page says that the @task of Django 6.0 takes no options")

if django.VERSION < (6, 0):  # "import from django_tasks where this page has django.tasks"
    sys.modules["django.tasks"] = sys.modules["django_tasks"]
    cleanup.callback(sys.modules.pop, "django.tasks")

url = "https://example.org"


@task
def fetch(url):
    return f"the text of {url}"


@task
def parse(text):
    return text.upper()


@task
def store(text):
    return len(text)


def check(page):
    work()
    assert store.get_result(page.last.id).return_value == len(fetch.func(url))
