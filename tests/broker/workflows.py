"""Workflows created by hand, for the tests of their verbs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from django_redisqueue.broker.replies import ClaimedJob, Outcome
from django_redisqueue.core.records import WorkflowData, WorkflowJob, WorkflowPart

from .harness import ERROR, FINISHED, PAYLOAD, BrokerHarness, outcome

WIDE = 100


class BrokerWorkflow:
    """A workflow of jobs 0, 1, ... with their parents; every job is a no-op in one queue."""

    def __init__(
        self,
        broker: BrokerHarness,
        parents: Mapping[int, Sequence[int]],
        *,
        on_fail: Mapping[int, str] | None = None,
        name: str = "0",
        options: str = "",
        **fields: str,
    ) -> None:
        self.broker = broker
        self.id = f"flow_{name}_0"
        self.parents = parents
        self._fields = [part for pair in fields.items() for part in pair]
        children: dict[int, list[int]] = {n: [] for n in parents}
        for n, found in parents.items():
            for parent in found:
                children[parent].append(n)
        wide = {n for n, found in children.items() if len(found) > WIDE}
        self.jobs = [
            WorkflowJob(
                self.job(n), "default", "app.task", PAYLOAD, options, 0, "", "",
                len(found),
                "*" if n in wide else " ".join(f".{child}" for child in children[n]),
                " ".join(f".{parent}" for parent in found),
                (on_fail or {}).get(n, ""),
                " ".join(f".{parent}" for parent in found if parent in wide),
            )
            for n, found in sorted(parents.items())
        ]  # fmt: skip

    def job(self, n: int) -> str:
        return f"{self.id}.{n}"

    def push(self) -> int:
        return self.push_batch(0, len(self.jobs), first=True, last=True)

    def push_all(self) -> None:
        for at in range(0, len(self.jobs), 100):
            last = at + 100 >= len(self.jobs)
            assert self.push_batch(at, at + 100, first=at == 0, last=last) == 1

    def push_batch(self, start: int, stop: int, *, first: bool = False, last: bool = False) -> int:
        fields = self._fields if first else []
        part = WorkflowPart(self.id, fields, self.jobs[start:stop], first, last)
        code: int
        (code,) = self.broker.store.connection.script(*self.broker.store.enqueue_workflow([part]))
        return code

    def advance(self) -> None:
        for _ in self.broker.advancing():
            pass

    # -- running

    def run_one(self, kind: str = "completed", body: str = "null") -> int:
        """Claim and finish the next job, which must belong to this workflow; returns its number."""
        job = self.broker.take("runner")
        settled = outcome(job, kind, ERROR if kind == "failed" else body)
        assert self.broker.finish(settled, child="runner") == [1]
        return int(job.id.removeprefix(f"{self.id}."))

    def run_all(self) -> list[int]:
        """Run until the queue is empty; returns the numbers of the jobs in the order in which they
        ran."""
        ran = []
        for _ in range(10_000):
            jobs = self.broker.claim("runner", 50).jobs
            if not jobs:
                if not self.broker.store.advance() and not self.broker.ids("queued"):
                    return ran
                continue
            ours = [job for job in jobs if job.id.removeprefix(f"{self.id}.").isdigit()]
            ran += [int(job.id.removeprefix(f"{self.id}.")) for job in ours]
            if len(ours) < len(jobs):
                others = [job for job in jobs if job not in ours]
                self.broker.store.release("runner", [(j.id, j.lease) for j in others])
            self.broker.finish(*[self.completed(job) for job in ours], child="runner")
            if not ours:
                return ran
        raise AssertionError("it never ends")

    @staticmethod
    def completed(job: ClaimedJob) -> Outcome:
        return outcome(job, "completed", "null")

    # -- looking

    def data(self) -> WorkflowData:
        found = self.broker.workflows.workflow(self.id)
        assert found is not None
        return found

    def statuses(self) -> list[str | None]:
        return self.broker.statuses([self.job(n) for n in sorted(self.parents)])

    def hashes(self, dump: dict[str, Any]) -> list[Any]:
        """The hashes of the workflow and its jobs, in a dump of all keys."""
        names = [self.broker.keys.job(self.job(n)) for n in self.parents]
        return [dump.get(name) for name in (self.broker.keys.workflow(self.id), *names)]

    def check_counts(self, statuses: Sequence[str | None]) -> None:
        """The counts match the jobs; ended jobs still count after they are deleted."""
        found, data = Counter(status for status in statuses if status), self.data()
        assert (data.waiting, data.processing) == (found["waiting"], found["processing"]), self.id
        assert data.queued == found["queued"] + found["retrying"] + found["scheduled"], self.id
        gone = data.total - sum(found.values())
        for name in FINISHED:
            deleted = getattr(data, name) - found[name]
            assert 0 <= deleted <= gone, (self.id, name, found, data)
            gone -= deleted
        assert gone == 0, (self.id, found, data)

    def counts(self) -> dict[str, Any]:
        data = self.data()
        names = ("total", "waiting", "processing", "completed", "failed", "cancelled")
        return {name: getattr(data, name) for name in names if getattr(data, name)}
