"""Workflows of more than one call and more than one step, under random verbs: while they are
pushed, notified and cleaned up, jobs are cancelled, retried and followed by others. Nothing starts
before its parents, and no job is left waiting."""

from __future__ import annotations

from collections import Counter

import pytest

from django_redisqueue.broker.replies import ClaimedJob

from .harness import ERROR, BrokerHarness, invariants, outcome
from .test_workflow_model import WorkflowMachine
from .workflows import BrokerWorkflow

STEPS = 150
ENDED = ("completed", "failed", "cancelled")


class LargeWorkflowMachine(WorkflowMachine):
    """Drives workflows of 100 to 300 jobs, and jobs outside that wait for them."""

    def __init__(self, broker: BrokerHarness, seed: int) -> None:
        super().__init__(broker, seed)
        self.pushed = 0  # the existing jobs of the last workflow
        self.cleaned: set[str] = set()
        self.followers: list[str] = []
        self.on_fail: dict[str, dict[int, str]] = {}
        self.running: list[ClaimedJob] = []  # by the child "slow", during the steps of other calls

    # -- what happens

    def push(self) -> None:
        """The next call of the last workflow, or the first call of another."""
        if not self.workflows or self.pushed >= len(self.workflows[-1].jobs):
            parents = self.parents()
            on_fail = {n: self.chance.choice(self.policies) for n in parents}
            workflow = BrokerWorkflow(
                self.broker,
                parents,
                on_fail=on_fail,
                name=str(len(self.workflows)),
                ttl_ms="86400000",
            )
            for n, job in enumerate(workflow.jobs):
                if self.chance.random() < 0.1:
                    workflow.jobs[n] = job._replace(when="+1000")
            self.workflows.append(workflow)
            self.on_fail[workflow.id], self.pushed = on_fail, 0
        workflow, at = self.workflows[-1], self.pushed
        last = at + 100 >= len(workflow.jobs)
        if workflow.push_batch(at, at + 100, first=at == 0, last=last) == 1:
            self.pushed += 100
        else:  # it was cancelled meanwhile
            workflow.parents = {n: found for n, found in workflow.parents.items() if n < at}
            self.pushed = len(workflow.jobs)

    def parents(self) -> dict[int, list[int]]:
        """A fan-out from one job that joins again, or anything."""
        size = self.chance.randint(101, 300)
        if self.chance.random() < 0.5:
            wide = {0: [], 1: [0], **{n: [1] for n in range(2, size)}}
            return {**wide, size: sorted(self.chance.sample(range(2, size), 20))}
        return {
            n: sorted(self.chance.sample(range(n), min(n, self.chance.choice([0, 0, 1, 2]))))
            for n in range(size)
        }

    def ids(self, *statuses: str) -> list[str]:
        """The jobs of one workflow, or those with a status."""
        return self.of(self.chance.choice(self.workflows), *statuses)

    def having(self, jobs: list[str], *statuses: str) -> list[str]:
        found = zip(jobs, self.broker.statuses(jobs), strict=True)
        return [job for job, status in found if status in statuses]

    def work(self) -> None:
        jobs = self.broker.claim("a", self.chance.choice([1, 5, 30])).jobs
        for job in jobs:
            self.is_due(job.id)
            end = self.chance.choice(["completed"] * 8 + ["failed", "retrying", "queued"])
            body = {"completed": "1", "queued": ""}.get(end, ERROR)
            assert self.broker.finish(outcome(job, end, body), child="a") == [1]
            self.ended[job.id] += end == "completed"

    def start(self) -> None:
        """Some jobs keep running while other things happen."""
        jobs = self.broker.claim("slow", self.chance.choice([1, 5])).jobs
        for job in jobs:
            self.is_due(job.id)
        self.running += jobs

    def stop(self) -> None:
        """They end, are delayed or released, or are lost with their child."""
        way = self.chance.choice(
            ["completed", "failed", "retrying", "release", "release_unknown", "reap"]
        )
        if way == "release":
            self.broker.store.release("slow", [(job.id, job.lease) for job in self.running])
        elif way == "release_unknown":
            self.broker.store.release_unknown("slow", self.broker.now + 1, [])
        elif way == "reap":
            self.broker.store.reap("slow", None)
        elif self.running:
            body = "1" if way == "completed" else ERROR
            settled = [outcome(job, way, body) for job in self.running]
            codes = self.broker.finish(*settled, child="slow")
            for job, code in zip(self.running, codes, strict=True):
                self.ended[job.id] += way == "completed" and code == 1
        self.running = []

    def is_due(self, job_id: str) -> None:
        """Its workflow has not been cleaned up, and its parents are done, unless the job itself was
        requeued by hand."""
        workflow_id, _, number = job_id.rpartition(".")
        assert workflow_id not in self.cleaned, job_id
        if workflow_id not in self.on_fail or "generation" in self.broker.job(job_id):
            return
        workflow = next(workflow for workflow in self.workflows if workflow.id == workflow_id)
        for parent in workflow.parents[int(number)]:
            done = self.broker.status(workflow.job(parent)) == "completed"
            assert done or self.on_fail[workflow_id][parent] == "go_on", (job_id, parent)

    def cancel(self) -> None:
        self.broker.store.cancel(self.ids("waiting", "queued", "scheduled", "retrying")[:1])

    def retry(self) -> None:
        found = self.ids("failed", "cancelled")
        self.broker.store.requeue(self.chance.sample(found, min(3, len(found))))

    def follow(self) -> None:
        found = self.ids("waiting", "queued", *ENDED)
        if found:
            self.followers.append(f"other{len(self.followers)}")
            policy = self.chance.choice(["wait", "skip", "go_on"])
            self.broker.add(self.followers[-1], after=f"{policy} {self.chance.choice(found)}")

    def clean(self) -> None:
        """The first steps of a clean-up, and jobs that return behind them."""
        runs = {job.id.rpartition(".")[0] for job in self.running}
        workflow = self.chance.choice(
            [workflow for workflow in self.workflows if workflow.id in runs] or self.workflows
        )
        if self.chance.random() > (0.5 if runs else 0.1):
            return
        if self.broker.store.control_workflow(workflow.id, "clean") == 1:
            self.cleaned.add(workflow.id)
            self.broker.store.advance()
            self.stop()
            self.work()

    def step(self) -> None:
        verbs = [self.push, self.work, self.work, self.work, self.control, self.retry, self.retry]
        verbs += [self.broker.crash, self.later, self.cancel, self.follow, self.clean]
        verbs += [self.start, self.start, self.stop, self.clean]
        self.chance.choice(verbs)()

    def finish_all(self) -> None:
        """Everything is pushed, and what can be retried is retried, until nothing is left to do."""
        self.stop()
        while self.pushed < len(self.workflows[-1].jobs):
            self.push()
        for _ in range(20):
            self.rest()
            again = [
                job for workflow in self.open() for job in self.of(workflow, "failed", "cancelled")
            ]
            again += self.having(self.followers, "failed")
            for at in range(0, len(again), 100):
                assert set(self.broker.store.requeue(again[at : at + 100])) == {1}
            if not again:
                return
        raise AssertionError("it never comes to an end")

    def open(self) -> list[BrokerWorkflow]:
        """Those that a retry may resume."""
        left = [workflow for workflow in self.workflows if workflow.id not in self.cleaned]
        return [workflow for workflow in left if workflow.data().status != "cancelled"]

    def of(self, workflow: BrokerWorkflow, *statuses: str) -> list[str]:
        return self.having([workflow.job(n) for n in workflow.parents], *statuses)


@pytest.mark.parametrize("seed", range(6))
def test_random_large_workflows(broker: BrokerHarness, seed: int) -> None:
    machine = LargeWorkflowMachine(broker, seed)
    machine.push()
    for _ in range(STEPS):
        machine.step()
    machine.finish_all()
    invariants(broker, tokens=False)
    assert max(machine.ended.values()) == 1
    for workflow in machine.workflows:
        if workflow.id in machine.cleaned:
            assert broker.workflows.workflow(workflow.id) is None
            assert set(workflow.statuses()) <= set(ENDED)
        elif workflow.data().status == "cancelled":
            assert set(workflow.statuses()) <= set(ENDED)
        else:
            assert Counter(workflow.statuses()) == {"completed": len(workflow.parents)}
            assert workflow.data().status == "completed"
    assert set(broker.statuses(machine.followers)) <= {"completed", "cancelled"}
