"""Invented jobs and outcomes."""

from __future__ import annotations

from django_redisqueue.broker.replies import ClaimedJob, Outcome, OutcomeKind


def outcome(n: int, size: int = 0) -> Outcome:
    return Outcome(f"job_{n}", n, 1, OutcomeKind.COMPLETED, "x" * size)


def claimed(job_id: str = "job_1", lease: int = 1, call: int = 1) -> ClaimedJob:
    return ClaimedJob(job_id, "default", "a.task", "[[],{}]", lease, 0, 0, "", call)
