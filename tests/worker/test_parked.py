"""Jobs that sleep or wait hold no child, and go on when their time or their event comes."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue import send_event
from tests.worker import tasks
from tests.worker.processes import eventually
from tests.worker.stage import Stage


@pytest.mark.parametrize("task", [tasks.wait_for_an_event, tasks.await_an_event])
def test_a_parked_job_holds_no_child(stage: Stage, task: Any) -> None:
    stage.configure(LEASE=30)
    stage.worker("--processes", "1", "--async-concurrency", "1")
    jobs = [task.enqueue(stage.book, f"e{n}") for n in range(3)]

    def all_wait() -> bool:
        for n, job in enumerate(jobs):
            job.refresh()
            if job.status != "scheduled" or job.data.waits_for != f"e{n}":
                return False
        return True

    eventually(all_wait, why=stage.report)
    for n, job in reversed(list(enumerate(jobs))):
        send_event(f"e{n}", {"n": n})
        stage.ended(job)
        assert (job.status, job.result, job.attempts) == ("completed", {"n": n}, 0)
    assert stage.runs() == {f"e{n}": 3 for n in range(3)}
