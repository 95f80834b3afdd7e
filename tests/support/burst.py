"""A worker in the test's own process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from django_redisqueue.conf import get_settings
from django_redisqueue.worker.child.loop import Child
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.interrupts import IGNORED_SIGNALS
from django_redisqueue.worker.options import WorkerOptions

HANDLED = (*IGNORED_SIGNALS, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1)


def work(**options: int) -> None:
    """Run everything that is queued, in all queues, as one child of a worker with these options
    would."""
    settings = get_settings()
    child_options = WorkerOptions(queues=tuple(settings.queues), burst=True, **options)
    state = ChildState(0, child_options.slots)
    with kept_signals():
        Child("burst", state, child_options, settings, lambda: None).run()
    state.close()


@contextmanager
def kept_signals() -> Iterator[None]:
    """A child takes over its process's signals; restore them after the block."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
