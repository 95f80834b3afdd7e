"""A simulated shard, the processes that work on it, and what they know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from typing import Any

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.replies import (
    ClaimedJob,
    ClaimReply,
    FinishCode,
    Outcome,
    PromoteReply,
)
from django_redisqueue.broker.schedules import FireCall
from django_redisqueue.core.job_data import NewJob

from ..broker.gathers import Query
from ..broker.harness import FINISHED, T0, check_keyspace, with_implied_fields
from ..broker.lanes import check_limits
from ..broker.schedules import check_schedules
from ..broker.uniques import check_uniques
from ..broker.workflows import BrokerWorkflow
from .keyspace import Dump, SimulatedBroker
from .order import check_order

QUEUES = ("default", "x")
WORKERS, CHILDREN = 2, 2  # children a worker
LEASE_MS = 15_000

Job = dict[str, str]
Send = Callable[[bool], tuple[Sequence[int], ClaimReply]]


@dataclass
class Child:
    """A process and its memory: the jobs that it believes it holds."""

    name: str
    worker: int
    holds: list[ClaimedJob] = field(default_factory=list)
    call: int = 0
    late: Send | None = None  # a resent call, whose first copy may still arrive


@dataclass
class Ledger:
    """What was accepted. A rewind undoes this as well."""

    completed: set[str] = field(default_factory=set)
    parents: dict[str, list[str]] = field(default_factory=dict)  # of followers
    released: set[str] = field(default_factory=set)  # jobs whose unique key an operator released


@dataclass
class Snapshot:
    """Redis as it was at an earlier step."""

    keys: list[tuple[bytes, bytes]]  # with their dumped values
    ledger: Ledger


class Shard:
    """One shard in a history. Its children are processes that also serve other shards, but the jobs
    that a child holds and the numbers of its calls belong to this shard."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.store = broker.store
        self.raw = broker.raw
        self.ledger = Ledger()
        self.children = [
            Child(f"w{worker}-{n}", worker) for worker in range(WORKERS) for n in range(CHILDREN)
        ]
        self.dead: list[Child] = []  # killed, and their jobs are not recovered yet
        self.workflows: list[BrokerWorkflow] = []
        self.gathers: list[Query] = []
        self.late_fires: list[FireCall] = []  # calls that are still under way
        self.snapshot: Snapshot | None = None
        self.births = 0
        self.timer_ms: float = 0  # when maintenance promotes again unless woken
        self.late_enqueues: list[tuple[int, list[NewJob]]] = []  # when they were sent first
        self.late_orders: list[tuple[str, tuple[Any, ...]]] = []  # methods of operators' calls
        broker.heard()  # the ends of another history
        self.store.now_ms = T0
        self.store.heartbeat([child.name for child in self.children], (), QUEUES)
        self.dump: Dump = {}  # the keys after the last step

    def check(self, after: Dump, *, has_rewound: bool = False) -> None:
        """Check the laws. ``after``: the shard's current keys."""
        before, self.dump = self.dump, after
        check_keyspace(after, self.broker.keys, tokens=True)
        check_limits(after, self.broker.keys.base, before)
        check_uniques(self.broker, after, self.ledger.released)
        check_schedules(after, self.broker.keys)
        for workflow in self.known_workflows():
            ids = [workflow.job(n) for n in workflow.parents]
            workflow.check_counts([self.job(job_id).get("status") for job_id in ids])
        for gather in self.known_gathers():
            gather.check_results(after)
        if not has_rewound:
            self._check_change(before, after)
            self._check_watchers(before, after)
            self._check_timer(after)

    def _check_change(self, before: Dump, after: Dump) -> None:
        """Nothing accepted is lost, nothing goes backwards, and what has completed stays
        completed."""
        found = dict(self._jobs_in(after))
        for key, old in self._jobs_in(before):
            new = found.get(key)
            if new is None:
                is_lost = old["status"] not in FINISHED and not self._is_half_pushed(before, key)
                assert not is_lost, f"{key} was {old['status']}, and is lost"
                continue
            old, new = with_implied_fields(old), with_implied_fields(new)
            for name in ("seq", "lease", "generation"):
                assert int(new.get(name, 0)) >= int(old.get(name, 0)), f"{name} of {key} went back"
            if old["status"] == "completed":
                assert new["status"] == "completed", f"{key} was completed, and is {new['status']}"
            elif new["status"] != old["status"]:
                if new.get("reason") == "superseded" and new["status"] == "cancelled":
                    assert _has_rival(found, key), f"{key} has no successor"
                assert int(new.get("seq", 1)) > int(old.get("seq", 1)), f"{key} moved in silence"
            if new["status"] == "processing":
                is_same = (old.get("child"), old.get("lease")) == (new["child"], new["lease"])
                has_risen = int(new["lease"]) > int(old.get("lease", 0))
                assert is_same or has_risen, f"{key} has two holders, or one with an old lease"

    def _check_watchers(self, before: Dump, after: Dump) -> None:
        """The end of a job for which somebody waits is published once."""
        watched = [
            key
            for key, old in self._jobs_in(before)
            if "1" in old.get("watched", "") and old["status"] not in FINISHED
        ]
        if not watched:
            return
        heard, found = self.broker.heard(), dict(self._jobs_in(after))
        for job_id in watched:
            status = found.get(job_id, {}).get("status")
            if status in FINISHED:
                assert heard[job_id, status] == 1, f"nobody, or twice, heard that {job_id} ended"

    def _check_timer(self, dump: Dump) -> None:
        """Nothing is due before maintenance promotes again, unless it has been woken. The clean-up
        of a workflow may be late."""
        keys = self.broker.keys
        if keys.timer in dump:
            return
        timers = [keys.schedules, keys.gathers, f"{keys.base}limits:due"]
        for queue in map(keys.queue, QUEUES):
            timers += [queue.scheduled, queue.retrying]
        due = [score for key in timers for _, score in dump.get(key, ("zset", []))[1]]
        if keys.pending_writes in dump or keys.changed_limits in dump:
            due.append(self.broker.now)
        assert min(due, default=inf) >= self.timer_ms, "nobody woke the timer"

    def _is_half_pushed(self, dump: Dump, job_id: str) -> bool:
        """Whether the job belongs to a workflow whose producer died: those are cleaned up."""
        key = self.broker.keys.workflow(job_id.rpartition(".")[0])
        return key in dump and dump[key][1]["status"] == "building"

    def check_unchanged(self, *but: str) -> None:
        """Nothing has changed since the last step, apart from these keys."""
        now = self.broker.dump()
        assert {**now, **dict.fromkeys(but)} == {**self.dump, **dict.fromkeys(but)}

    # -- looking

    def jobs(self, *statuses: str) -> list[str]:
        """The ids of the jobs, optionally only of those with these statuses."""
        return [
            job_id
            for job_id, found in self._jobs_in(self.dump)
            if found["status"] in (statuses or (found["status"],))
        ]

    def _jobs_in(self, dump: Dump) -> Iterator[tuple[str, Job]]:
        start = self.broker.keys.job("")
        for key, (kind, found) in dump.items():
            if kind == "hash" and key.startswith(start) and "status" in found:
                yield key.removeprefix(start), found

    def job(self, job_id: str) -> Job:
        """A job as it was after the last step."""
        return with_implied_fields(self.dump.get(self.broker.keys.job(job_id), ("hash", {}))[1])

    def is_held(self, child: Child, job: ClaimedJob) -> bool:
        """Whether Redis agrees that the child holds the job."""
        found = self.job(job.id)
        return (found.get("status"), found.get("child"), found.get("lease")) == (
            "processing", child.name, str(job.lease),
        )  # fmt: skip

    def known_workflows(self) -> list[BrokerWorkflow]:
        keys = self.broker.keys
        return [one for one in self.workflows if keys.workflow(one.id) in self.dump]

    def known_gathers(self) -> list[Query]:
        keys = self.broker.keys
        return [one for one in self.gathers if keys.gather_plan(one.key) in self.dump]

    # -- children

    def exchange(
        self,
        child: Child,
        outcomes: Sequence[Outcome],
        wanted: int,
        queues: Sequence[str] = QUEUES,
        floor: int = -100,
        *,
        loses_reply: bool = False,
    ) -> str:
        """Report and claim as a child does. If it ``loses_reply``, it sends the call again."""
        for queue in queues if wanted else ():
            self.broker.pop_token(queue)
        child.call += 1
        call, request = child.call, ClaimRequest(child.name, tuple(queues), floor)

        def send(resent: bool) -> tuple[Sequence[int], ClaimReply]:
            if outcomes:
                return self.store.finish(request, call, outcomes, wanted, resent=resent)
            return (), self.store.claim(request, call, wanted, resent=resent)

        codes, claim = send(False)
        self._check_codes(child, outcomes, codes)
        if not wanted and set(codes) <= {FinishCode.LEASE_LOST}:
            self.check_unchanged()
        # Redis may have lost the claim of a job that has ended here, so that the same call claims
        # it again under the same lease. When the call is sent again, it ends that job, and rightly
        # so: the job has run.
        ended = {(one.id, one.lease) for one in outcomes}
        takes_ended = any((job.id, job.lease) in ended for job in claim.jobs)
        # otherwise it makes a new call
        if loses_reply and not takes_ended and (claim.jobs or not wanted):
            self._send_again(child, send, outcomes, codes, claim)
        assert claim.lost == []
        for job in claim.jobs:
            assert not job.recoveries or len(claim.jobs) == 1, f"{job.id} does not run alone"
        if not outcomes:
            check_order(self.dump, self.broker.keys, [job.id for job in claim.jobs], floor)
        # A child that claims a job again under a lease that it already knows holds it only once:
        # in_flight.py.
        gone = ended | {(job.id, job.lease) for job in claim.jobs}
        child.holds = [job for job in child.holds if (job.id, job.lease) not in gone]
        child.holds += claim.jobs
        pairs = zip(outcomes, codes, strict=True)
        told = [f"{one.id}/{one.lease} {one.kind}: {code}" for one, code in pairs]
        told += [f"takes {job.id}/{job.lease}" for job in claim.jobs]
        return f"{child.name} {', '.join(told)}"

    def _check_codes(self, child: Child, outcomes: Sequence[Outcome], codes: Sequence[int]) -> None:
        """Fencing: only held jobs can end, and each job is completed once."""
        for outcome, code in zip(outcomes, codes, strict=True):
            job = self.job(outcome.id)
            is_ours = (job.get("child"), job.get("lease")) == (child.name, str(outcome.lease))
            expected = (0,) if not is_ours else (1, 3) if job["status"] == "processing" else (2,)
            assert code in expected, f"{child.name}: {outcome}: {code} of {job}"
            is_final, is_flagged = outcome.kind in FINISHED, "cancel_ms" in job
            if code == FinishCode.ACCEPTED_AS_CANCELLED:
                assert not is_final
                assert is_flagged or "unique" in job, f"{outcome.id} was cancelled for no reason"
            elif code == 1:
                assert is_final or not is_flagged, f"{outcome.id} was not cancelled"
            if code == 1 and outcome.kind == "completed":
                assert outcome.id not in self.ledger.completed, f"{outcome.id} ended twice"
                self.ledger.completed.add(outcome.id)

    def _send_again(
        self,
        child: Child,
        send: Send,
        outcomes: Sequence[Outcome],
        codes: Sequence[int],
        claim: ClaimReply,
    ) -> None:
        done = self.broker.dump()
        again, same = send(True)
        assert same.jobs == claim.jobs
        taken = {job.id for job in claim.jobs}  # under another lease, if they have only just ended
        pairs = zip(outcomes, codes, strict=True)
        assert list(again) == [0 if not code or one.id in taken else 2 for one, code in pairs]
        # The number of the call is stored with the child's lease, which a reap may have deleted.
        keys = self.broker.keys
        notes = dict.fromkeys((keys.resent(child.name), keys.workers), "")
        now = self.broker.dump()
        assert {**now, **notes} == {**done, **notes}, "a call sent again has an effect"
        child.late = send

    def kill(self, child: Child) -> None:
        """Another process takes its place at once."""
        self.children.remove(child)
        self.dead.append(child)
        self.births += 1
        self.children.append(Child(f"w{child.worker}-b{self.births}", child.worker))

    # -- maintenance

    def promote(self) -> PromoteReply:
        """Promote as maintenance does, and note when it does so again."""
        reply = self.store.promote(QUEUES)
        waits = [ms for ms in (reply.next_ms, reply.schedule_ms) if ms >= 0]
        wait_ms = min(waits, default=inf)
        self.timer_ms = self.broker.now + wait_ms if wait_ms else 0  # 0: it stays awake
        return reply

    # -- rewinds

    def save(self) -> None:
        """Remember the shard's current state."""
        self.snapshot = Snapshot(self.broker.save(), deepcopy(self.ledger))

    def rewind(self) -> None:
        """The shard returns to the saved state, but its children do not."""
        assert self.snapshot is not None
        self.broker.restore(self.snapshot.keys)
        self.ledger = deepcopy(self.snapshot.ledger)
        self.late_enqueues.clear()
        self.timer_ms = 0
        for child in self.children:
            child.late = None


def _has_rival(jobs: dict[str, Job], job_id: str) -> bool:
    """Whether another job has the same unique key."""
    key = jobs[job_id]["unique"].split()[0]
    return any(
        other != job_id and job.get("unique", "").split(" ")[0] == key
        for other, job in jobs.items()
    )
