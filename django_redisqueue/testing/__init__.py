"""Jobs in an application's tests: kept in memory or run at once, without Redis.

    with capture_jobs() as jobs, self.captureOnCommitCallbacks(execute=True):
        self.client.post("/orders/", {"item": 1})
    jobs.assert_enqueued(send_mail, args=(1,), queue_name="default", count=1)
    jobs.drain()

For a whole class, call ``self.jobs = self.enterContext(capture_jobs())`` in ``setUp``. A test that
enqueues in any other way gets an error: a developer's worker may serve the Redis in the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from django.conf import settings
from django.core.signals import setting_changed

from ..core.ports import ports, use_transport
from .memory import InMemoryQueue

__all__ = ["InMemoryQueue", "capture_jobs", "run_inline", "use_redis"]


@contextmanager
def capture_jobs(*, raises: bool = False) -> Iterator[InMemoryQueue]:
    """Capture enqueued jobs; the test inspects them, and may run them with ``drain()``.

    ``raises``: a job that ends as failed raises JobFailed where it is run. Also a decorator.
    """
    with _use(queue := InMemoryQueue(raises=raises)):
        yield queue


@contextmanager
def run_inline(*, raises: bool = False) -> Iterator[InMemoryQueue]:
    """Run every job as soon as it is enqueued (or its transaction commits), retries included.

    Delays between attempts are skipped. A job whose ``run_after`` is in the future stays scheduled,
    and a job that a running job enqueues runs after it. ``raises`` is as in ``capture_jobs``. Also
    a decorator.
    """
    with _use(queue := InMemoryQueue(inline=True, raises=raises)):
        yield queue


@contextmanager
def _use(queue: InMemoryQueue) -> Iterator[None]:
    """Use a queue in memory inside the block; its jobs can still be read afterwards."""
    with use_transport(queue):
        try:
            yield
        finally:
            ports.ended.append(queue)


@contextmanager
def use_redis() -> Iterator[None]:
    """Let a test use the Redis in the settings.

    This Redis and its worker should be for tests only, because the Redis is not cleared.
    """
    # What override_settings does, with REDISQUEUE unchanged.
    value = getattr(settings, "REDISQUEUE", {})
    announce = partial(setting_changed.send, use_redis, setting="REDISQUEUE", value=value)
    announce(enter=True)
    try:
        yield
    finally:
        announce(enter=False)
