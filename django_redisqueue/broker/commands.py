"""All commands: one method per transition, each one script call. Nothing else changes a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from ..core.job_data import NewJob
from ..core.records import WorkerOrder
from ..exceptions import ParentNotFound, WrongKeyType
from .base import BATCH, MAX_CALL_BYTES
from .connection import RedisConnection
from .policies import LimitCommands, UniqueCommands
from .replies import (
    SINGLE_STEP,
    ClaimReply,
    ContinuationStep,
    FinishCode,
    FinishReply,
    HeartbeatReply,
    LeadReply,
    Outcome,
    OutcomeKind,
    PromoteReply,
    ReapReply,
    RequeueReply,
    RoleTerm,
    StepReply,
    parse_broken,
    parse_finish,
)
from .schedules import ScheduleCommands
from .steps import StepCommands
from .wire import bulk, known_bulk, packed_head
from .workflows import GatherCommands, WorkflowCommands

REPORT_TTL_MS = 600_000  # how long a worker's report outlives the worker
PLAIN_ARGUMENTS = 4  # the arguments of enqueue.lua for one plain job
ALIAS_MS = 86_400_000  # how long a duplicate's id leads to the other job, if a caller may have it


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Who claims: a child, its queues in strict order, and the lowest priority it claims."""

    child: str
    queues: tuple[str, ...]
    min_priority: int = -100


class Commands(
    WorkflowCommands, GatherCommands, StepCommands, ScheduleCommands, UniqueCommands, LimitCommands
):
    """The commands, on one connection. Tests set ``now_ms`` to replace Redis's clock."""

    def enqueue(self, jobs: Sequence[NewJob], *, allow_missing_parents: bool = False) -> list[bool]:
        """Create up to 100 jobs (their parents count); True for each that is new.

        Repeating the call changes nothing. A job whose unique key another job has is not created;
        its ``owner`` is then that job's id. Either all jobs have outbox rows, or none. Raises
        ParentNotFound for a job with an unknown parent; with ``allow_missing_parents`` such a job
        is created and cancelled (or run, if its policy is go_on).
        """
        return self._created(jobs, self._accept(self._creation(jobs, allow_missing_parents)))

    def enqueue_plain(self, job: NewJob) -> None:
        """``enqueue`` of one plain job, by Redis's clock and without WAIT_REPLICAS. An application
        waits for this call, so the part that all such calls share is encoded only once."""
        head, script = self._plain_head
        arguments = _plain_arguments(job)
        job_id, queue, task, payload = arguments
        call = (head, bulk(job_id), known_bulk(queue), known_bulk(task), bulk(payload))
        reply = self.connection.script_packed(b"".join(call), *script, *arguments)
        if reply != 1:
            self._created((job,), reply)

    @cached_property
    def _plain_head(self) -> tuple[bytes, tuple[Any, ...]]:
        """The beginning of the call by digest, encoded, and of the call by source."""
        sha, source, *shared = self._head("enqueue")
        return packed_head(("EVALSHA", sha, 1, *shared), PLAIN_ARGUMENTS), (source, *shared)

    def enqueue_all(self, batches: Iterable[Sequence[NewJob]]) -> int:
        """Create any number of jobs in batches of up to 100; return how many were new. Raises what
        ``enqueue`` raises. One batch is written while Redis works on another, so other clients
        never wait for more than two batches."""
        created = 0
        calls = ((batch, self._creation(batch, False)) for batch in batches)
        for batch, codes in self.connection.stream_scripts(calls, self.wait):
            created += sum(self._created(batch, codes))
        return created

    def _creation(self, jobs: Sequence[NewJob], allow_missing_parents: bool) -> tuple[Any, ...]:
        """The script call that creates these jobs, by the faster script if none has conditions."""
        if len(jobs) == 1 and jobs[0].is_plain:
            return (*self._head("enqueue"), *_plain_arguments(jobs[0]))
        if any(job.after or job.unique or job.lane for job in jobs):
            return self.enqueue_with_conditions(jobs, allow_missing_parents)
        return (*self._head("enqueue"), int(jobs[0].stored), *_arguments(jobs))

    def _created(self, jobs: Sequence[NewJob], reply: int | Sequence[int | str]) -> list[bool]:
        codes = (reply,) if isinstance(reply, int) else reply  # of one plain job
        for job, code in zip(jobs, codes, strict=True):
            if code == 1:
                continue
            if isinstance(code, str):
                _note_owner(job, *code.split(" "))
            elif code < 0:
                raise WrongKeyType(
                    f"the key {self.keys.job(job.id)} does not hold a job; "
                    "it was left alone, and this job was not created"
                )
        return [code == 1 for code in codes]

    def enqueue_with_conditions(
        self, jobs: Sequence[NewJob], allow_missing_parents: bool
    ) -> tuple[Any, ...]:
        """The script call that also creates jobs with parents, a unique key or a lane."""
        is_known = any(job.is_known or job.stored for job in jobs)
        keep_ms = ALIAS_MS if is_known else max(1, self.settings.resend_window_ms)
        arguments: list[Any] = [int(allow_missing_parents), int(jobs[0].stored), keep_ms]
        for job in jobs:
            arguments += _arguments((job,))
            arguments += (job.after, job.unique, job.lane)
        return (*self._head("enqueue_with_conditions"), *arguments)

    def claim(
        self, claim_request: ClaimRequest, call: int, jobs: int, *, resent: bool = False
    ) -> ClaimReply:
        """``finish`` without outcomes: claim up to ``jobs`` jobs. A resent call returns what it
        claimed the first time. With 0 jobs it only restores the wake tokens of queues with work."""
        _, claim = self.finish(claim_request, call, (), jobs, resent=resent)
        return claim

    def finish(
        self,
        claim_request: ClaimRequest,
        call: int,
        outcomes: Sequence[Outcome],
        jobs: int,
        *,
        resent: bool = False,
    ) -> FinishReply:
        """Report outcomes and claim up to ``jobs`` more jobs, in one round trip.

        Returns a ``FinishCode`` for each outcome (a stale one changes nothing and is returned as
        LEASE_LOST), and the claim.
        """
        arguments = self._finish(claim_request, call, outcomes, jobs, resent)
        return parse_finish(self.connection.script(*arguments), len(outcomes))

    def finish_after_pop(
        self,
        blocking: RedisConnection,
        keys: Sequence[str],
        timeout: float,
        claim_request: ClaimRequest,
        call: int,
        outcomes: Sequence[Outcome],
        jobs: int,
    ) -> FinishReply:
        """``finish`` as soon as one of the keys has a wake token, or after ``timeout`` seconds, in
        the same round trip as the wait for it."""
        sha, _, *arguments = self._finish(claim_request, call, outcomes, jobs, False)
        reply = blocking.script_after_pop(keys, timeout, sha, *arguments)
        return parse_finish(reply, len(outcomes))

    def _finish(
        self,
        claim_request: ClaimRequest,
        call: int,
        outcomes: Sequence[Outcome],
        jobs: int,
        resent: bool,
    ) -> tuple[Any, ...]:
        short, first = _first_completions(outcomes)
        others = [part for o in outcomes[first:] for part in (o.id, o.lease, *o[3:])]
        return (
            *self._head("finish"), claim_request.child, call, int(resent), jobs,
            claim_request.min_priority, self.settings.lease_ms, len(claim_request.queues),
            *claim_request.queues, first, *short, *others,
        )  # fmt: skip

    def release(self, child: str, held: Sequence[tuple[str, int]]) -> list[FinishCode]:
        """Return unstarted jobs, (id, lease) with the oldest first, to the head of their queue."""
        reply = self._run("release", child, *chain.from_iterable(held))
        return [FinishCode(code) for code in reply]

    def release_unknown(self, child: str, before_ms: int, known: Sequence[str]) -> list[str]:
        """Release the jobs that, according to Redis, the child has held since before ``before_ms``,
        except the ``known`` ids; return up to 100 released ids. Redis resurrects such claims when
        it loses writes."""
        return self._run("release_unknown", child, before_ms, *known)

    def progress(self, child: str, job_id: str, lease: int, progress: str) -> bool:
        """Store a running job's progress (JSON); False when the lease is lost."""
        return bool(self._run("progress", child, job_id, lease, progress))

    def record_result_file(self, job_id: str, lease: int, name: str) -> int:
        """Record the file that is about to hold a job's result: 1 recorded, 0 the lease is lost, -1
        its gather is over, -2 no other job reads its result."""
        return self._run("record_result_file", job_id, lease, name)

    def forget_result_files(self, names: Sequence[str]) -> int:
        """Forget up to 100 files that have been deleted; return how many were recorded."""
        return self._run("forget_result_files", *names)

    def watch(self, job_id: str) -> str:
        """Ask for a message on the job's own channel when it ends. Returns its status, or ''."""
        return self._run("watch", job_id)

    def cancel(self, ids: Sequence[str]) -> list[int]:
        """Codes of cancel.lua: 1 cancelled, 2 asked to stop, 0 already finished, -1 unknown."""
        return self._run("cancel", *ids)

    def requeue(self, ids: Sequence[str]) -> list[int]:
        """A RequeueReply for each job."""
        return self._run("requeue", "", "", 0, *ids)

    def requeue_oldest(
        self,
        queue: str,
        status: str,
        jobs: int,
        step: ContinuationStep = SINGLE_STEP,
        meant: Sequence[str] = (),
    ) -> StepReply:
        """Requeue the oldest ``jobs`` (at most 100) of a list, or those among them in ``meant``.
        Jobs of a workflow that is cancelled or cleaned up stay."""
        codes: list[int] = self._run("requeue", queue, status, jobs, *step, *meant)
        return StepReply(len(codes), codes.count(RequeueReply.REQUEUED))

    def run_now(self, ids: Sequence[str]) -> list[int]:
        """Codes of run_now.lua: 1 queued, 0 neither scheduled nor retrying, -1 unknown, -2 it is
        parked."""
        return self._run("run_now", *ids)

    def clear(
        self,
        queue: str,
        status: str,
        jobs: int = BATCH,
        step: ContinuationStep = SINGLE_STEP,
        meant: Sequence[str] = (),
    ) -> StepReply:
        """Remove the oldest ``jobs`` from a list, or those among them in ``meant``. Completed jobs
        stay while others may read their results."""
        retained = self._retained()
        return StepReply(*self._run("clear", queue, status, jobs, *retained, *step, *meant))

    def delete(self, ids: Sequence[str]) -> list[int]:
        """Codes of delete.lua: 1 deleted, 0 unfinished or needed by other jobs, -1 unknown."""
        return self._run("delete", *self._retained(), *ids)

    def _retained(self) -> tuple[int, int]:
        """How long a repeated enqueue may still arrive, and whether a mirror reads events."""
        return self.settings.resend_window_ms, int(self.settings.mirror)

    def pause(self, queue: str, paused: bool, by: str = "") -> bool:
        """Pause or resume a queue; True if that changed anything. ``by`` names who did it."""
        return bool(self._run("pause", queue, int(paused), by))

    def set_aging(self, aging_ms: Mapping[str, int | None]) -> int:
        """Store how long a job of each queue waits to gain one step of priority; None: jobs of the
        queue never gain any. Returns how many queues changed."""
        pairs = ((queue, "" if ms is None else ms) for queue, ms in aging_ms.items())
        return self._run("set_aging", *chain.from_iterable(pairs))

    # Leases and maintenance: called by supervisors and the maintenance child

    def promote(self, queues: Sequence[str]) -> PromoteReply:
        """Move the due jobs of these and all other known queues into their queues."""
        moved, next_ms, broken, schedule_ms = self._run("promote", *queues)
        return PromoteReply(moved, next_ms, parse_broken(broken), schedule_ms)

    def heartbeat(
        self,
        children: Sequence[str],
        running: Sequence[tuple[str, str, int]] = (),
        queues: Sequence[str] = (),
        worker: str = "",
        report: str = "",
        roles: Sequence[RoleTerm] = (),
    ) -> HeartbeatReply:
        """Renew the leases of one supervisor's children, and the terms of sleeping ``roles``;
        announce the ``queues`` that the children serve, and ask about up to 100 ``running`` jobs:
        (id, child, lease). ``report``: what the ``worker`` reports about itself."""
        terms = ((one.role, one.child, one.term_ms, int(one.sleeps)) for one in roles)
        interrupted, lapsed, lost, flagged, steady_ms, order, to_ask, activity = self._run(
            "heartbeat", self.settings.lease_ms, len(children), len(queues), worker, report,
            REPORT_TTL_MS, len(roles), *children, *queues,
            *chain.from_iterable(terms), *chain.from_iterable(running),
        )  # fmt: skip
        return HeartbeatReply(
            bool(interrupted), steady_ms, lapsed, lost, flagged, order, to_ask, activity
        )

    def order_worker(self, worker: str, order: WorkerOrder, at_ms: int) -> bool:
        """Send an order to a worker unless it got one after ``at_ms``; False if it is unknown."""
        return bool(self._run("order_worker", worker, f"{at_ms} {order.value}", REPORT_TTL_MS))

    def reap(
        self, child: str = "", started: Sequence[str] | None = None, keep: Sequence[str] = ()
    ) -> ReapReply:
        """Return a dead child's jobs; without a name, those of a child whose lease has expired.

        ``started``: the ids that had begun, or None if unknown, which blames them all. ``keep``:
        ids that stay, because their outcomes are still to be reported.
        """
        mark = "*" if started is None else "="
        reply = self._run(
            "reap", self.settings.lease_ms, self.settings.max_recoveries, child, mark,
            len(keep), *keep, *(started or ()),
        )  # fmt: skip
        if reply[0] < 0:
            return ReapReply(wait_ms=reply[1])
        if reply[0] == 0:
            return ReapReply()
        _, name, more, *became = reply
        jobs = list(zip(became[::2], became[1::2], strict=True))
        return ReapReply(name, more == 1, more == 2, jobs, unreadable=more == 3)

    def recover_orphans(self, queue: str, position: int) -> tuple[int, list[tuple[str, str, str]]]:
        """Recover jobs whose child does not exist: (the next position, [(id, child, outcome)])."""
        reply = self._run(
            "recover_orphans", self.settings.lease_ms, self.settings.max_recoveries, queue, position
        )
        return reply[0], list(zip(reply[1::3], reply[2::3], reply[3::3], strict=True))

    def prune(
        self, queue: str, status: str, keep: int, ttl_ms: int, jobs: int = BATCH
    ) -> tuple[int, int, bool]:
        """Remove old finished jobs: (removed, of them for the byte cap alone, more to do)."""
        gone, forced, more = self._run(
            "prune", queue, status, keep, ttl_ms, self.settings.resend_window_ms,
            self.settings.finished_max_bytes, jobs, int(self.settings.mirror),
        )  # fmt: skip
        return gone, forced, bool(more)

    def compact(self, queue: str, allowed: int) -> bool:
        """Drop the cancelled ids that remain in a queue's list, if there are more than ``allowed``;
        True if there is more to do."""
        return bool(self._run("compact", queue, allowed))

    def trim(self, entry: str, keep: int) -> int:
        """Record that the mirror has read up to this entry, and remove the entries before it except
        the last ``keep`` events. Returns how many entries were removed; repeat until that is 0."""
        return self._run("trim", entry, keep)

    def lead(self, who: str, lease_ms: int, role: str = "leader") -> LeadReply:
        """Take or keep a role that one process per shard has, for ``lease_ms``; 0 gives it up.
        ``who``: a child, which takes over at once from another child of its worker."""
        return LeadReply(self._run("lead", who, lease_ms, role))


def _note_owner(job: NewJob, what: str, other: str) -> None:
    """Note the reply of enqueue_with_conditions.lua for a job that it did not create."""
    if what == "parent":
        raise ParentNotFound(
            f"a job of {job.task} was to wait for job {other}, which is not in Redis (its "
            "transaction has not committed, it is in the outbox, or retention has removed "
            "it), so it was not created"
        )
    job.owner, job.differs = other, what == "other"


def batches(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """Split jobs into lists that fit into one script call, which also reads their parents. Jobs
    with outbox rows get lists of their own."""
    batch: list[NewJob] = []
    size = weight = 0
    for job in jobs:
        weight += job.weight if job.after else 1
        is_full = weight > BATCH or size + len(job.payload) > MAX_CALL_BYTES
        if batch and (is_full or job.stored != batch[0].stored):
            yield batch
            batch, size, weight = [], 0, job.weight
        batch.append(job)
        size += len(job.payload)
    if batch:
        yield batch


def _arguments(jobs: Sequence[NewJob]) -> list[Any]:
    """The arguments of enqueue.lua for these jobs."""
    arguments: list[Any] = []
    for job in jobs:
        arguments += (
            job.id, job.queue, job.task, job.payload,
            job.options, job.priority, job.when, job.audit,
        )  # fmt: skip
    return arguments


def _plain_arguments(job: NewJob) -> tuple[str, ...]:
    """The arguments of enqueue.lua for one plain job."""
    return job.id, job.queue, job.task, job.payload


def _first_completions(outcomes: Sequence[Outcome]) -> tuple[list[Any], int]:
    """The leading completions of first runs, grouped by call as the fast path of finish.lua takes
    them, and how many there are."""
    short: list[Any] = []
    first, count_at, of_call = 0, 0, None
    for job_id, lease, call, kind, body, _ in outcomes:
        if kind != OutcomeKind.COMPLETED or lease != 1:
            break
        if call != of_call:
            short += (call, 0)
            count_at, of_call = len(short) - 1, call
        short += (job_id, body)
        short[count_at] += 1
        first += 1
    return short, first
