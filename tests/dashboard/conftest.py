from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from tests.support.logins import logged_in

from .site import Site

APP = "django_redisqueue"


@pytest.fixture
def redisqueue(queue_settings: dict[str, Any], settings: Any) -> None:
    """Two queues, and a mirror that some tests fill by hand."""
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}, "MIRROR": True}


@pytest.fixture
def staff(db: None) -> Callable[..., User]:
    """Creates an admin user with these permissions on job records."""

    def make(*permissions: str, name: str = "ada") -> User:
        user = User.objects.create_user(name, password="secret", is_staff=True)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label=APP, codename__in=permissions)
        )
        return user

    return make


@pytest.fixture
def site(redisqueue: None, staff: Callable[..., User]) -> Site:
    """A browser without a screen, logged in as a user who may do everything."""
    user = staff(
        "view_jobrecord", "retry_job", "cancel_job", "pause_queue", "clear_queue", "enqueue_job",
        "control_worker",
    )  # fmt: skip
    return Site(logged_in(user))


@pytest.fixture(autouse=True)
def _quiet_requests(caplog: pytest.LogCaptureFixture) -> None:
    """Some tests expect 403 and 404."""
    caplog.set_level(logging.CRITICAL, "django.request")
