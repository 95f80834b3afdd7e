"""A shard as plain Python: what every verb must do, without Redis. For test_model.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .harness import FINISHED, T0

LEASE, RESEND, POISON = 15_000, 10_000, 3
LATER = ("scheduled", "retrying")


@dataclass
class Job:
    id: str
    queue: str
    priority: int
    status: str
    due: int = 0
    ready: int = 0  # when it was queued
    child: str = ""
    lease: int = 0
    call: int = 0
    attempts: int = 0
    recoveries: int = 0
    forgiven: int = 0  # of the recoveries: whether it has stored a step since
    generation: int = 0
    seq: int = 1
    is_flagged: bool = False
    finished: int = 0

    def move(self, status: str) -> None:
        self.status = status
        self.seq += 1


@dataclass
class Queue:
    """``lines``: the queued ids of each priority, next to run first. ``aside``: likewise those that
    wait for a child that holds nothing. ``finished``: ids, newest first; those that finished in the
    same millisecond by name."""

    lines: dict[int, list[str]] = field(default_factory=dict)
    aside: dict[int, list[str]] = field(default_factory=dict)
    finished: dict[str, list[str]] = field(default_factory=lambda: {s: [] for s in FINISHED})
    is_paused: bool = False
    aging: int | None = None  # ms of waiting that raise the priority by one step

    def line(self, priority: int) -> list[str]:
        return self.lines.setdefault(priority, [])

    def ranked(self) -> list[str]:
        """All queued ids except those of priority 0 that are in their line, next to run first."""
        found: list[str] = []
        for lines in (self.lines, self.aside):
            for priority in sorted(lines, reverse=True):
                if priority or lines is self.aside:
                    found += lines[priority]
        return found

    def leave_aside(self, job_id: str) -> bool:
        found = [line for line in self.aside.values() if job_id in line]
        for line in found:
            line.remove(job_id)
        return bool(found)


class Model:
    def __init__(self, queues: Sequence[str]) -> None:
        self.now = T0
        self.jobs: dict[str, Job] = {}
        self.queues = {name: Queue() for name in queues}
        self.held: dict[str, list[str]] = {}  # child -> ids, oldest claim first
        self.leases: dict[str, int] = {}  # child -> ms until which it holds its lease
        self.beat: int | None = None
        self.steady = T0
        # cleared ids that a repeated enqueue still finds, and until when
        self.tombs: dict[str, int] = {}

    # -- verbs

    def enqueue(self, job_id: str, queue: str, priority: int, delay: int) -> bool:
        if job_id in self.jobs or job_id in self.tombs or self._lingers(job_id):
            return False
        job = Job(job_id, queue, priority, "queued", ready=self.now)
        self.jobs[job_id] = job
        if delay > 0:
            job.status, job.due = "scheduled", self.now + delay
        else:
            self.queues[queue].line(priority).append(job_id)
        return True

    def claim(
        self, child: str, call: int, wanted: int, queues: Sequence[str], floor: int
    ) -> tuple[list[tuple[str, int]], bool]:
        """The (id, lease) pairs taken, and whether a job must wait until the child holds
        nothing."""
        held = self.held.setdefault(child, [])
        taken: list[tuple[str, int]] = []
        alone = len(held) == 1 and self.jobs[held[0]].recoveries > 0
        waits = False

        def take(job: Job) -> None:
            job.move("processing")
            job.child, job.call, job.lease = child, call, job.lease + 1
            taken.append((job.id, job.lease))

        for name in queues:
            if self.queues[name].is_paused or alone or len(taken) == wanted:
                continue
            self._promote(name, 100)
            suspect = self._first_aside(self.queues[name], floor)
            if suspect and (held or taken):
                waits = True
            elif suspect:
                self.queues[name].leave_aside(suspect)
                take(self.jobs[suspect])
                alone = True
            while len(taken) < wanted and not alone:
                priority = self._next_priority(self.queues[name], floor)
                if priority is None:
                    break
                job_id = self.queues[name].line(priority).pop(0)
                job = self.jobs.get(job_id)
                if job is None or job.status != "queued":
                    self._forget_tombstone(job_id)
                elif job.recoveries > 0 and (held or taken):
                    self.queues[name].aside.setdefault(priority, []).append(job.id)
                    waits = True
                else:
                    alone = job.recoveries > 0
                    take(job)
        held += [job_id for job_id, _ in taken]
        if taken:
            self.leases[child] = max(self.leases.get(child, 0), self.now + LEASE)
        return taken, waits or (alone and not taken)

    def settle(self, child: str, job_id: str, lease: int, kind: str, delay: int) -> int:
        job = self.jobs.get(job_id)
        if job is None or job.child != child or job.lease != lease:
            return 0
        if job.status != "processing":
            return 2
        self.held[child].remove(job_id)
        if kind in ("completed", "failed", "cancelled"):
            job.attempts += kind == "failed"
            self._end(job, kind)
        elif job.is_flagged:
            self._end(job, "cancelled")
            return 3
        elif kind == "queued":
            job.move("queued")
            self.queues[job.queue].line(job.priority).insert(0, job_id)
        else:
            job.move("retrying")
            job.attempts += kind == "retrying"
            job.due = self.now + delay
        return 1

    def cancel(self, job_id: str) -> int:
        job = self.jobs.get(job_id)
        if job is None:
            return -1
        if job.status in FINISHED:
            return 0
        if job.status == "processing":
            job.is_flagged = True
            return 2
        queue = self.queues[job.queue]
        if job.status == "queued" and not queue.leave_aside(job_id) and job.priority:
            queue.line(job.priority).remove(job_id)
        self._end(job, "cancelled")  # with priority 0 the id lingers in its line
        return 1

    def requeue(self, job_id: str) -> int:
        job = self.jobs.get(job_id)
        if job is None:
            return -1
        if job.status not in ("failed", "cancelled"):
            return 0
        self.queues[job.queue].finished[job.status].remove(job_id)
        if not self._lingers(job_id):
            self.queues[job.queue].line(job.priority).append(job_id)
        job.move("queued")
        job.ready = self.now
        job.attempts = job.recoveries = job.forgiven = 0
        job.child, job.is_flagged = "", False
        job.generation += 1
        return 1

    def requeue_oldest(self, queue: str, status: str, count: int) -> int:
        ids = self.queues[queue].finished[status][::-1][:count]
        return sum(self.requeue(job_id) for job_id in ids)

    def promote(self) -> int:
        return sum(self._promote(name, 100) for name in self.queues)

    def run_now(self, job_id: str) -> int:
        job = self.jobs.get(job_id)
        if job is None:
            return -1
        if job.status not in LATER:
            return 0
        self.queues[job.queue].line(job.priority).append(job_id)
        job.move("queued")
        job.ready = self.now
        return 1

    def reap(self, child: str, started: Sequence[str] | None) -> dict[str, str]:
        """What became of each job that the child held."""
        self.leases.pop(child, None)
        ids = self.held.pop(child, [])
        alone = len(ids) == 1 if started is None else len(set(started)) == 1
        became = {}
        for job_id in reversed(ids):
            blamed = started is None or job_id in started
            became[job_id] = self._recover(self.jobs[job_id], blamed, alone)
        return became

    def lapsed(self) -> str:
        """The child whose lease expired first, or ''."""
        gone = sorted((until, child) for child, until in self.leases.items() if until < self.now)
        return gone[0][1] if gone else ""

    def heartbeat(self, children: Sequence[str]) -> None:
        if self.beat is None or self.now - self.beat > LEASE / 2:
            self.steady = self.now
        self.beat = self.now
        for child in children:
            self.leases[child] = self.now + LEASE

    def may_reap(self) -> bool:
        is_beaten = self.beat is not None and self.now - self.beat <= LEASE / 2
        return is_beaten and self.now - self.steady >= LEASE

    def clear(self, queue: str, status: str, count: int) -> None:
        if status in FINISHED:
            ids = self.queues[queue].finished[status]
            for job_id in ids[::-1][:count]:
                job = self.jobs.pop(job_id)
                if job.finished + RESEND > self.now:
                    self.tombs[job_id] = job.finished + RESEND
                ids.remove(job_id)
        elif status in LATER:
            for job in self.due_order(queue, status)[:count]:
                self._end(job, "cancelled")
        else:
            self._clear_queued(self.queues[queue], count)

    def prune(self, queue: str, status: str, keep: int, ttl: int) -> int:
        ids, gone = self.queues[queue].finished[status], 0
        while ids:
            age = self.now - self.jobs[ids[-1]].finished
            if not (age > ttl or len(ids) > keep) or age <= RESEND:
                break
            del self.jobs[ids.pop()]
            gone += 1
        return gone

    # -- their parts

    def due_order(self, queue: str, status: str) -> list[Job]:
        jobs = [job for job in self.jobs.values() if (job.queue, job.status) == (queue, status)]
        return sorted(jobs, key=lambda job: (job.due, job.id))

    def _next_priority(self, queue: Queue, floor: int) -> int | None:
        """The priority whose first job is next."""
        found = [one for one, line in queue.lines.items() if line and one >= floor]
        if queue.aging is None or len(found) < 2:
            return max(found, default=None)
        aging = queue.aging

        def instant(priority: int) -> int:
            job = self.jobs.get(queue.lines[priority][0])
            return (job.ready if job else 0) - priority * aging

        return min(found, key=lambda one: (instant(one), -one))

    def _forget_tombstone(self, job_id: str) -> None:
        if self.tombs.get(job_id, 0) <= self.now:
            self.tombs.pop(job_id, None)

    def _first_aside(self, queue: Queue, floor: int) -> str:
        """The first job aside, unless jobs of a higher priority wait in a queue without aging; or
        ''."""
        waiting = [priority for priority, line in queue.aside.items() if line]
        first = max(waiting, default=-101)
        if first < floor:
            return ""
        if queue.aging is None and any(queue.lines[one] for one in queue.lines if one > first):
            return ""
        return queue.aside[first][0]

    def _lingers(self, job_id: str) -> bool:
        return any(job_id in queue.line(0) for queue in self.queues.values())

    def _end(self, job: Job, status: str) -> None:
        job.move(status)
        job.finished = self.now
        ids = self.queues[job.queue].finished[status]
        ids.append(job.id)
        ids.sort(key=lambda name: (self.jobs[name].finished, name), reverse=True)

    def _promote(self, queue: str, limit: int) -> int:
        due = [
            job for status in LATER for job in self.due_order(queue, status) if job.due <= self.now
        ][:limit]
        for job in due:
            job.move("queued")
            job.ready = self.now
            self.queues[queue].line(job.priority).append(job.id)
        return len(due)

    def _recover(self, job: Job, blamed: bool, alone: bool) -> str:
        job.recoveries += blamed
        job.child = ""
        if job.is_flagged:
            self._end(job, "cancelled")
            return "cancelled"
        if blamed and alone and job.recoveries - job.forgiven >= POISON:
            job.attempts += job.recoveries
            self._end(job, "failed")
            return "poison"
        job.move("queued")
        self.queues[job.queue].line(job.priority).insert(0, job.id)
        return "recovered" if blamed else "released"

    def _clear_queued(self, queue: Queue, count: int) -> None:
        line = queue.line(0)
        ids = line[:count]
        if ids:
            del line[:count]
        else:
            ids = queue.ranked()[:count]
            for other in (*queue.lines.values(), *queue.aside.values()):
                other[:] = [job_id for job_id in other if job_id not in ids]
        for job_id in ids:
            job = self.jobs.get(job_id)
            if job is not None and job.status == "queued":
                self._end(job, "cancelled")
            else:
                self._forget_tombstone(job_id)
