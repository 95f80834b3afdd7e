"""Which link to Redis is for whom, with timeouts chosen for their use."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from django.core.signals import setting_changed

from .conf import check_redis_is_meant
from .exceptions import RedisUnavailable
from .link import BLOCK, Link
from .ports import replaced_transport
from .targets import get_target

PRODUCER_TIMEOUT = 0.45  # s, for connecting and again for the answer: under 1 s in all (law 5)
IDLE = 0.01  # s; after this a restart or the server's idle timeout may have cut a connection
WORKER_TIMEOUT = 5.0  # s; a worker waits, and sends the same call again
Answer = TypeVar("Answer")

_local = threading.local()


def producer_link() -> Link:
    """This thread's link for web requests: it fails within a second. One connection a thread.

    Raises ConfigurationError when REDISQUEUE is wrong, or in a test that did not ask for Redis.
    """
    link: Link | None = getattr(_local, "link", None)
    if link is None or _local.made != (os.getpid(), _generation()):
        _check_redis_is_meant()
        target = get_target()
        link = _local.link = Link(target, PRODUCER_TIMEOUT, PRODUCER_TIMEOUT)
        _local.made = (os.getpid(), _generation())
        _local.used = 0.0
    now = time.monotonic()
    if now - _local.used > IDLE:
        link.drop_if_cut()
    _local.used = now
    return link


def bulk_link() -> Link:
    """A producer's link of the caller's own, for a stream of calls in whose midst this thread may
    ask its other link something. Close it at the end. Raises as ``producer_link``."""
    _check_redis_is_meant()
    return Link(get_target(), PRODUCER_TIMEOUT, PRODUCER_TIMEOUT)


def _check_redis_is_meant() -> None:
    check_redis_is_meant(in_memory=replaced_transport() is not None)


def insist(act: Callable[[], Answer]) -> Answer:
    """Call ``act``, which a repeat must not harm, and once more if Redis was not there but a web
    request can still wait: an idle timeout or a restart has cut the connection."""
    begun = time.monotonic()
    try:
        return act()
    except RedisUnavailable:
        if time.monotonic() - begun > PRODUCER_TIMEOUT / 2:
            raise
        return act()


def worker_link() -> Link:
    """A link of the caller's own, for a worker's loop: patient, for it will ask again."""
    return Link(get_target(), WORKER_TIMEOUT, 2.0)


def blocking_link() -> Link:
    """A link for ``wait``: its timeout is longer than any blocking pop."""
    return Link(get_target(), BLOCK + 3.0, 2.0)


@cache
def _generation() -> object:
    """A token that changes when the settings do, so that every thread opens a link anew."""
    return object()


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("REDISQUEUE", "CACHES"):
        _generation.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_redisqueue.connection")
