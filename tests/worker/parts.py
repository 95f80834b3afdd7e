"""Made-up jobs and outcomes, and processes that end with a test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from django_redisqueue.broker.replies import ClaimedJob, Outcome, OutcomeKind


def outcome(n: int, size: int = 0) -> Outcome:
    return Outcome(f"job_{n}", n, 1, OutcomeKind.COMPLETED, "x" * size)


def claimed(job_id: str = "job_1", lease: int = 1, call: int = 1) -> ClaimedJob:
    return ClaimedJob(job_id, "default", "a.task", "[[],{}]", lease, 0, 0, "", call)


@contextmanager
def forked(run: Callable[[], object]) -> Iterator[None]:
    """Call ``run`` in a forked process, which is killed at the end of the block."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            run()
        os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
