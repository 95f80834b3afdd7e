"""If Django has no Tasks of its own, the backend says so."""

import subprocess
import sys

import django
import pytest


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has tasks of its own from 6.0 on")
def test_the_backend_says_what_it_needs() -> None:
    program = "import sys; sys.modules['django_tasks'] = None; import django_redisqueue.backend"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ImportError: django_redisqueue.backend needs Django 6.0 or newer" in done.stderr
    assert "or the package django-tasks 0.12 or newer" in done.stderr
