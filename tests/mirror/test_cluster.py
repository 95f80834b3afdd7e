"""Real workers and bridges on a Redis Cluster: several shards on three masters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import Gather, JobQueue, Workflow
from django_redisqueue.core.ids import shard_of_id, slot, tag
from django_redisqueue.models import JobRecord, WorkflowRecord
from tests.client.gather import tasks as gather_tasks
from tests.support.cluster import MASTERS, ClusterNodes
from tests.worker import limit_tasks, tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually
from tests.worker.test_limits import by_key, peak, read_runs

from .mirror_processes import MirrorProcesses

SHARDS = 4
QUEUES: dict[str, Any] = {"default": {}, "pinned": {}, "spread": {"SPREAD": True}}
TASK_MODULES = ["tests.worker.tasks", "tests.worker.limit_tasks", "tests.client.gather.tasks"]


@pytest.fixture
def harness(cluster: ClusterNodes, tmp_path: Path, settings: Any) -> Iterator[WorkerHarness]:
    with ExitStack() as stack:
        harness = WorkerHarness(cluster, tmp_path, settings, stack)
        harness.configure(SHARDS=SHARDS, QUEUES=QUEUES, TASK_MODULES=TASK_MODULES)
        yield harness


def add_workflow(book: str, name: str) -> Workflow:
    """Three parallel jobs, and one that depends on them."""
    workflow = Workflow(name)
    with workflow:
        parts = [workflow.add(tasks.run.s(book, f"{name}.{n}")) for n in range(3)]
        workflow.add(tasks.run.s(book, f"{name}.last"), after=parts)
    return workflow


@pytest.mark.parametrize("processes", ["sqlite"], indirect=True)
def test_jobs_of_all_kinds_end_once_and_are_mirrored(
    processes: MirrorProcesses, cluster: ClusterNodes
) -> None:
    assert len({cluster.owner(slot(tag(shard))) for shard in range(SHARDS)}) == MASTERS
    harness, marks = processes.harness, str(processes.harness.folder / "marks")
    names = [f"job{n}" for n in range(500)]
    jobs = tasks.run.using(queue_name="spread").enqueue_many([(harness.book, n) for n in names])
    jobs += [tasks.run.using(queue_name=q).enqueue(harness.book, q) for q in ("default", "pinned")]
    jobs += [limit_tasks.limited.enqueue(marks, f"k{n % 3}", f"k{n % 3}-{n}") for n in range(18)]
    workflows = [add_workflow(harness.book, f"w{n}") for n in range(8)]
    for _ in range(2):
        processes.worker("--processes", "2").wait_until_up(4)
    gathers = [
        Gather.start(f"g{n}", topic="report", payload={"record_id": n}, then=gather_tasks.merge)
        for n in range(8)
    ]
    late = tasks.run.using(run_after=0.3).enqueue(harness.book, "late")
    for job in (*jobs, late):
        assert harness.ended(job).status == "completed"
    for workflow in workflows:
        eventually(lambda w=workflow: w.status == "completed", why=harness.report)
    for n, gather in enumerate(gathers):
        assert gather.follow_up.wait(30)["users"] == [n, 1]

    expected = {*names, "default", "pinned", "late"}
    expected |= {f"w{n}.{part}" for n in range(8) for part in (0, 1, 2, "last")}
    assert harness.runs() == dict.fromkeys(expected, 1)
    limits = by_key(read_runs(Path(marks)))
    assert {key: len(runs) for key, runs in limits.items()} == {"k0": 6, "k1": 6, "k2": 6}
    assert max(map(peak, limits.values())) <= limit_tasks.LIMIT
    for many in (jobs, gathers):  # workflows are in random shards
        assert {shard_of_id(one.id) for one in many} == set(range(SHARDS))

    processes.until_mirrored()
    assert set(JobRecord.objects.values_list("status", flat=True)) == {"completed"}
    assert WorkflowRecord.objects.filter(status="completed").count() == len(workflows)
    assert JobQueue("spread").get_stats()["completed"] == 500
