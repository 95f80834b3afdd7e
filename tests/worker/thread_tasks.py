"""Tasks for threads."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

from django.db import connection

from django_redisqueue import task
from tests.app.models import Counter

from .tasks import trace

_here = ContextVar("_here", default="")
_running: set[int] = set()


@task
def gauge(seconds: float) -> int:
    """How many of these tasks run at the same time, including this one."""
    me = threading.get_ident()
    _running.add(me)
    time.sleep(seconds)
    peak = len(_running)
    _running.remove(me)
    return peak


@task
def leave_context(name: str) -> str:
    """Sets a context variable and leaves it set; returns its former value."""
    before = _here.get()
    _here.set(name)
    return before


@task
def nap_to_end(folder: str, name: str, seconds: float) -> int:
    """Sleeps in short naps, so that an interrupt can reach it; records its end."""
    n = trace(folder, name)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
    trace(folder, f"{name} to its end")
    return n


@task
def nap_at_first(folder: str, name: str) -> int:
    """Sleeps for a minute in short naps, only in its first run; records its end."""
    n = trace(folder, name)
    end = time.monotonic() + 60
    while n == 1 and time.monotonic() < end:
        time.sleep(0.01)
    trace(folder, f"{name} to its end")
    return n


@task(exactly_once=True)
def add_row(name: str) -> list[bool]:
    """Adds a row; returns whether it found an open connection, and whether that was in a
    transaction."""
    Counter.objects.create(name=name)
    return [threading.current_thread() is threading.main_thread(), connection.in_atomic_block]


@task
def has_connection() -> bool:
    """Whether the previous job in this thread left its connection open."""
    left = connection.connection is not None
    Counter.objects.count()
    return left
