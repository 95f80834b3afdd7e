"""One method a verb: the only way to change a job. Each is one call of one script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..exceptions import ParentNotFound, WrongKeyType
from ..jobdata import NewJob
from .continuations import ALONE, Step, Taken
from .gathers import GatherVerbs
from .replies import Claim, Outcome, Settled, Verdict, parse_claim, parse_finish
from .upkeep import UpkeepVerbs
from .verbs import BATCH
from .workflows import WorkflowVerbs


@dataclass(frozen=True, slots=True)
class Seeker:
    """Who claims: a child, its queues in strict order, and the lowest priority it takes."""

    child: str
    queues: tuple[str, ...]
    min_priority: int = -100


class Transitions(UpkeepVerbs, WorkflowVerbs, GatherVerbs):
    """The verbs, on one link. ``now_ms`` replaces Redis's clock, in tests."""

    def enqueue(self, jobs: Sequence[NewJob], *, orphans: bool = False) -> list[bool]:
        """Make up to 100 jobs, their parents counted; True for each that was new. Repeating the
        call changes nothing. Either all of them have rows in an outbox, or none.

        Raises ParentNotFound for a job that waits for one that is not known, unless ``orphans``:
        then it is made, and cancelled (or runs, if its policy is go_on)."""
        return self._made(jobs, self._accept(self._making(jobs, orphans)))

    def admit(self, jobs: Sequence[NewJob], *, orphans: bool = False) -> list[bool]:
        """``enqueue`` for jobs of which some have more than most: parents to wait for."""
        return self._made(jobs, self._accept((*self._head("admit"), *_in_full(jobs, orphans))))

    def _making(self, jobs: Sequence[NewJob], orphans: bool) -> tuple[Any, ...]:
        """The call that makes these jobs: the fast one, unless one of them has more than most."""
        if any(job.after for job in jobs):
            return (*self._head("admit"), *_in_full(jobs, orphans))
        return (*self._head("enqueue"), int(jobs[0].stored), *_flat(jobs))

    def enqueue_all(self, batches: Iterable[Sequence[NewJob]]) -> int:
        """Make any number of jobs, in batches of up to 100; how many were new. Raises what
        ``enqueue`` raises.

        While Redis works on one batch the next is being written: two are under way at a time, so
        that other clients wait for no more than that.
        """
        made = 0
        commands = ((batch, self._making(batch, False)) for batch in batches)
        for batch, codes in self.link.stream_scripts(commands, self.wait):
            made += sum(self._made(batch, codes))
        return made

    def _made(self, jobs: Sequence[NewJob], codes: Sequence[int | str]) -> list[bool]:
        for job, code in zip(jobs, codes, strict=True):
            if code == 1:
                continue
            if isinstance(code, str):
                raise ParentNotFound(
                    f"a job of {job.task} was to wait for job {code}, which is not in Redis (its "
                    "transaction has not committed, it is in the outbox, or retention has let it "
                    "go), so it was not made"
                )
            if code < 0:
                raise WrongKeyType(
                    f"the key {self.keys.job(job.id)} holds something else than a job; "
                    "it was left alone, and this job was not made"
                )
        return [code == 1 for code in codes]

    def claim(self, seeker: Seeker, call: int, jobs: int, *, resent: bool = False) -> Claim:
        """Take up to ``jobs`` jobs. A resent call returns what it took the first time.

        With 0 jobs it only puts back the wake tokens of queues that have work.
        """
        reply = self._run(
            "claim", seeker.child, call, int(resent), jobs, seeker.min_priority,
            self.settings.lease_ms, *seeker.queues,
        )  # fmt: skip
        return parse_claim(reply)

    def finish(
        self,
        seeker: Seeker,
        call: int,
        outcomes: Sequence[Outcome],
        jobs: int,
        *,
        resent: bool = False,
    ) -> tuple[list[int], Claim]:
        """Settle outcomes and take up to ``jobs`` more jobs, in one round trip.

        Returns a code of ``Settled`` for each outcome (a stale one changes nothing and comes back
        as LEASE_LOST), and the claim.
        """
        short, first = _first_completions(outcomes)
        others = [part for o in outcomes[first:] for part in (o.id, o.lease, *o[3:])]
        reply = self._run(
            "finish", seeker.child, call, int(resent), jobs, seeker.min_priority,
            self.settings.lease_ms, len(seeker.queues), *seeker.queues, first, *short, *others,
        )  # fmt: skip
        return parse_finish(reply, len(outcomes))

    def release(self, child: str, held: Sequence[tuple[str, int]]) -> list[Settled]:
        """Hand back unstarted jobs, (id, lease) oldest first, to the head of their queue."""
        return [Settled(code) for code in self._run("release", child, *chain.from_iterable(held))]

    def disown(self, child: str, before_ms: int, known: Sequence[str]) -> list[str]:
        """Hand back what a child has held since before an instant and is not among what it knows
        that it holds; the ids, at most 100 a call."""
        ids: list[str] = self._run("disown", child, before_ms, *known)
        return ids

    def cancel(self, ids: Sequence[str]) -> list[int]:
        """Codes of cancel.lua: 1 cancelled, 2 asked to stop, 0 finished already, -1 not known."""
        codes: list[int] = self._run("cancel", *ids)
        return codes

    def requeue(self, ids: Sequence[str]) -> list[int]:
        """Codes of requeue.lua: 1 requeued, 0 neither failed nor cancelled, -1 not known, -2 and -3
        its workflow is cleaned up or cancelled."""
        codes: list[int] = self._run("requeue", "", "", 0, *ids)
        return codes

    def requeue_oldest(self, queue: str, status: str, jobs: int, step: Step = ALONE) -> Taken:
        """Requeue the oldest ``jobs`` (at most 100) of a list; those of a workflow that is
        cancelled or cleaned up stay in it."""
        codes: list[int] = self._run("requeue", queue, status, jobs, *step)
        return Taken(len(codes), codes.count(1))

    def progress(self, child: str, job_id: str, lease: int, progress: str) -> bool:
        """Store a running job's progress (JSON); False when the lease is lost."""
        return bool(self._run("progress", child, job_id, lease, progress))

    def clear(self, queue: str, status: str, jobs: int = BATCH, step: Step = ALONE) -> Taken:
        """Empty the oldest ``jobs`` of a list; completed ones stay while other jobs may read their
        results."""
        return Taken(*self._run("clear", queue, status, jobs, *self._keeping(), *step))

    def delete(self, ids: Sequence[str]) -> list[int]:
        """Codes of delete.lua: 1 deleted, 0 not finished or needed by others, -1 not
        known."""
        codes: list[int] = self._run("delete", *self._keeping(), *ids)
        return codes

    def _keeping(self) -> tuple[int, int]:
        """For how long a repeated enqueue may still arrive, and whether a mirror reads."""
        return self.settings.resend_window_ms, int(self.settings.mirror)

    def pause(self, queue: str, paused: bool) -> bool:
        """Pause or resume a queue; True when that changed anything."""
        return bool(self._run("pause", queue, int(paused)))

    def watch(self, job_id: str) -> str:
        """Ask for a message on the job's own channel when it ends; its present status, or ''."""
        status: str = self._run("watch", job_id)
        return status


def _flat(jobs: Sequence[NewJob]) -> list[Any]:
    arguments: list[Any] = []
    for job in jobs:
        arguments += (
            job.id, job.queue, job.task, job.payload,
            job.options, job.priority, job.when, job.audit,
        )  # fmt: skip
    return arguments


def _first_completions(outcomes: Sequence[Outcome]) -> tuple[list[Any], int]:
    """The outcomes for which there is a short way, as completed_first.lua takes them: first runs
    that have completed, up to the first other outcome; and how many they are."""
    short: list[Any] = []
    first, count_at, of_call = 0, 0, None  # how many; where those of the present call are counted
    for job_id, lease, call, verdict, body, _ in outcomes:
        if verdict != Verdict.COMPLETED or lease != 1:
            break
        if call != of_call:
            short += (call, 0)
            count_at, of_call = len(short) - 1, call
        short += (job_id, body)
        short[count_at] += 1
        first += 1
    return short, first


def _in_full(jobs: Sequence[NewJob], orphans: bool) -> list[Any]:
    """The arguments of admit.lua."""
    arguments: list[Any] = [int(orphans), int(jobs[0].stored)]
    for job in jobs:
        arguments += _flat((job,))
        arguments.append(job.after)
    return arguments
