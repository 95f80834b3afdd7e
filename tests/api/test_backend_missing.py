"""Where Django has no tasks of its own, the backend says so."""

import importlib

import django
import pytest


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has tasks of its own from 6.0 on")
def test_the_backend_says_what_it_needs() -> None:
    with pytest.raises(
        ImportError, match=r"needs Django 6.0 or newer.*use the @task of django_red"
    ):
        importlib.import_module("django_redisqueue.backend")
