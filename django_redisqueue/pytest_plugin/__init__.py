"""Fixtures for an application's tests: jobs in memory, without Redis.

pytest loads this module by its entry point, before the settings are loaded, so it must not import
anything that needs models. The fixtures do, when a test requests them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.utils.module_loading import import_string

TESTING = "django_redisqueue.testing"


@pytest.fixture
def redisqueue_jobs() -> Iterator[Any]:
    """``capture_jobs()``: jobs are kept until the test runs them."""
    with import_string(f"{TESTING}.capture_jobs")() as jobs:
        yield jobs


@pytest.fixture
def redisqueue_inline() -> Iterator[Any]:
    """``run_inline()``: each job runs as soon as it is enqueued."""
    with import_string(f"{TESTING}.run_inline")() as jobs:
        yield jobs
