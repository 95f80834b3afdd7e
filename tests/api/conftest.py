from __future__ import annotations

from collections.abc import Callable
from threading import current_thread, main_thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connections
from django.test import Client

from django_redisqueue.api import hub as hub_module
from django_redisqueue.api.hub import hub
from django_redisqueue.models import ApiToken

from .api import Api
from .streams import eventually, run

ALL = ("view_jobrecord", "retry_job", "cancel_job", "clear_queue", "enqueue_job", "pause_queue")


@pytest.fixture
def threads_db(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database for requests in threads of their own, which close their connections.

    Django never closes one in memory, for its data would be gone; here this thread's keeps them.
    """
    kind = type(connections["default"])
    if connections["default"].vendor == "sqlite":
        monkeypatch.setattr(kind, "is_in_memory_db", lambda self: current_thread() is main_thread())


@pytest.fixture
def streams_end(
    threads_db: None, queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """No stream, reader or thread outlives its test."""
    monkeypatch.setattr(hub_module, "BLOCK", 0.1)
    yield
    run(eventually(lambda: not hub.streams and not hub.readers))
    assert "redisqueue-events" not in {thread.name for thread in enumerate_threads()}


@pytest.fixture
def make_user(db: None) -> Callable[..., Any]:
    """``make_user("ann", "view_jobrecord")``: a user with these permissions."""

    def make(name: str, *permissions: str) -> Any:
        user = get_user_model().objects.create_user(name, password="secret")
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return user

    return make


@pytest.fixture
def user(make_user: Callable[..., Any]) -> Any:
    """A user who may do everything."""
    return make_user("ann", *ALL)


@pytest.fixture
def token(user: Any) -> str:
    return str(ApiToken.create(user, "tests")[1])


@pytest.fixture
def api(queue_settings: dict[str, Any], token: str) -> Api:
    """Calls with the token of a user who may do everything."""
    return Api(Client(), token)
