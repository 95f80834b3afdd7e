"""A Redis user with only the documented permissions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import NoPermissionError

from django_redisqueue import Gather, JobQueue, Workflow, publish
from django_redisqueue.checks.network import check_network
from tests.client.gather import tasks as gather_tasks
from tests.support.cluster import is_on_cluster
from tests.support.commands import ROOT
from tests.support.servers import RedisServer

from . import tasks
from .harness import QUICK, WorkerHarness


def documented_rules() -> list[str]:
    """The rules of the ACL line in docs/operations.md, without name and password."""
    text = (ROOT / "docs/operations.md").read_text()
    (line,) = [line for line in text.splitlines() if line.strip().startswith("ACL SETUSER")]
    return line.split()[5:]


def test_the_documented_rules_reveal_no_password(
    fresh_server: Callable[..., RedisServer],
) -> None:
    with fresh_server().client().client() as user:  # one connection, which logs in again
        user.execute_command("ACL SETUSER", "auditor", "on", "nopass", *documented_rules())
        user.execute_command("AUTH", "auditor", "any")
        for command in ("CONFIG GET requirepass", "ACL LIST", "CLIENT LIST", "GET other"):
            with pytest.raises(NoPermissionError):
                user.execute_command(*command.split())


def test_the_documented_rules_are_enough(harness: WorkerHarness) -> None:
    modules = [*QUICK["TASK_MODULES"], "tests.client.gather.tasks"]
    harness.configure(TASK_MODULES=modules, INDEXED=["task"])
    checks = [check.id for check in check_network()]
    more = ["+cluster|slots", "+config|get"] if is_on_cluster() else []
    harness.redis.execute_command(
        "ACL SETUSER", "queue", "on", ">password", *documented_rules(), *more
    )
    harness.url = harness.url.replace("://", "://queue:password@")
    harness.configure()
    worker = harness.worker("--processes", "2").wait_until_up(3)
    with Workflow("steps") as workflow:
        first = workflow.add(tasks.run, harness.book, "first")
        workflow.add(tasks.run, harness.book, "second", after=first)
    workflow.wait(timeout=10)
    workflow.cleanup()
    gather = Gather.start("r-1", topic="report", payload={"record_id": 7}, then=gather_tasks.merge)
    gather.wait(timeout=10)
    gather.follow_up.wait(timeout=10)
    for job in publish("report", {"record_id": 3}):
        job.wait(timeout=10)
    slow = harness.running(tasks.run_then_sleep.enqueue(harness.book, "slow", 60))
    slow.cancel()
    harness.ended(slow)
    tasks.run.using(run_after=0.2).enqueue(harness.book, "later").wait(timeout=10)
    crashed = harness.ended(tasks.run_then_exit.enqueue(harness.book, "crashed"))
    crashed.requeue()
    harness.ended(crashed)
    queue = JobQueue("default")
    queue.pause()
    tasks.run.enqueue(harness.book, "cleared")
    queue.resume()
    for status in ("completed", "failed"):
        queue.clear(status)
    assert [check.id for check in check_network()] == checks
    worker.term()
    assert worker.wait() == 0
    assert "permi" not in worker.output, worker.output
