"""Made-up jobs and outcomes, for tests of a worker's parts."""

from __future__ import annotations

from django_redisqueue.store.replies import Claimed, Outcome, Verdict


def outcome(n: int, size: int = 0) -> Outcome:
    return Outcome(f"job_{n}", n, 1, Verdict.COMPLETED, "x" * size)


def claimed(job_id: str = "job_1", lease: int = 1, call: int = 1) -> Claimed:
    return Claimed(job_id, "default", "a.task", "[[],{}]", lease, 0, 0, "", call)
