"""Every verb at once, at random, from several producers, while children are killed: at rest the
history of each job is asked whether it can be true, and everything else whether it agrees with it.

The model is the history: the mirror's events of a job, in order, are a walk through the states of
docs/transitions.md. Where the job is, what its lists and counters say, how often it ran (a ledger
outside Redis) and what its record shows all follow from that walk.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, product

import pytest

from django_redisqueue import Job, JobQueue
from django_redisqueue.exceptions import JobNotFound, WrongState
from django_redisqueue.models import JobEvent, JobRecord
from tests.support.history import FINAL, flaw
from tests.support.shards import all_keys
from tests.worker import tasks
from tests.worker.processes import WorkerProcess, eventually

from .mirror_processes import MirrorProcesses

SECONDS = float(os.environ.get("REDISQUEUE_TEST_SOAK", "8"))
QUEUES = ("high", "default", "low")
LATER = ("scheduled", "retrying")


class Producer(threading.Thread):
    """Enqueues, cancels, requeues, clears and pauses until told to stop; what it did is
    recorded."""

    def __init__(self, book: str, number: int, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self._book, self._number, self._stop_event = book, number, stop
        self._dice = random.Random(seed)
        self.jobs: dict[str, Job] = {}
        self.cleared = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_event.wait(0.002):
                self._step()
        except BaseException as error:
            self.error = error

    def _step(self) -> None:
        verbs: list[tuple[int, Callable[[], object]]] = [
            (60, self._enqueue), (5, self._cancel), (5, self._requeue), (1, self._clear),
            (1, self._requeue_all), (1, self._pause),
        ]  # fmt: skip
        weights, acts = zip(*verbs, strict=True)
        self._dice.choices(acts, weights)[0]()

    def _enqueue(self) -> None:
        dice, name = self._dice, f"job{self._number}x{len(self.jobs)}"
        task, more = dice.choice(
            [(tasks.run, ())] * 8
            + [(tasks.run_then_sleep, (0.03,)), (tasks.async_run, (0.02,))]
            + [(tasks.retried_once, ()), (tasks.picky, ("value",)), (tasks.picky, ("os",))]
        )
        bound = task.using(
            queue_name=dice.choice(QUEUES), priority=dice.choice((0, 0, 0, -5, 5, 9))
        )
        if dice.random() < 0.2:
            bound = bound.using(run_after=dice.uniform(0, 0.6))
        self.jobs[name] = bound.enqueue(self._book, name, *more)

    def _some(self) -> Job | None:
        recent = list(self.jobs.values())[-200:]
        return self._dice.choice(recent) if recent else None

    def _cancel(self) -> None:
        if job := self._some():
            try:
                job.cancel()
            except JobNotFound:
                pass  # cleared

    def _requeue(self) -> None:
        if job := self._some():
            try:
                job.requeue()
            except (JobNotFound, WrongState):
                pass  # cleared, or neither failed nor cancelled

    def _clear(self) -> None:
        queue, status = self._queue(), self._dice.choice((*FINAL, "queued", *LATER))
        done = queue.clear(status)
        self.cleared += done if status in FINAL else 0

    def _requeue_all(self) -> None:
        self._queue().requeue_all(self._dice.choice(("failed", "cancelled")))

    def _pause(self) -> None:
        queue = self._queue()
        queue.pause()
        self._stop_event.wait(self._dice.uniform(0, 0.1))
        queue.resume()

    def _queue(self) -> JobQueue:
        return JobQueue(self._dice.choice(QUEUES))


@contextmanager
def producers(processes: MirrorProcesses, seed: int, count: int = 4) -> Iterator[list[Producer]]:
    stop = threading.Event()
    made = [Producer(processes.harness.book, n, seed + n, stop) for n in range(count)]
    for producer in made:
        producer.start()
    try:
        yield made
    finally:
        stop.set()
        for producer in made:
            producer.join()
    assert [producer.error for producer in made] == [None] * count


def kill_children(workers: list[WorkerProcess], seed: int) -> int:
    dice, killed, end = random.Random(seed), 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(dice.uniform(0.1, 0.5))  # the time between two faults
        children = [pid for worker in workers for pid in worker.children]
        if children:
            try:
                os.kill(dice.choice(children), signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                continue
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["sqlite"], indirect=True)
def test_every_verb_at_once(processes: MirrorProcesses) -> None:
    seed = int(os.environ.get("REDISQUEUE_TEST_SEED", random.randrange(10**6)))
    print(f"REDISQUEUE_TEST_SEED={seed}")  # pytest shows it if the test fails
    processes.harness.configure(
        QUEUES={name: {} for name in QUEUES}, MAX_RECOVERIES=1000, EVENTS_CAP=10_000_000
    )
    workers = [
        processes.worker("--processes", "2", "--queues", "high,default,low"),
        processes.worker("--processes", "2", "--queues", "low,default", "--min-priority", "1"),
    ]
    for worker in workers:
        worker.wait_until_up(3)
    with producers(processes, seed) as made:
        killed = kill_children(workers, seed)
    assert killed > 5
    at_rest(processes)
    processes.until_at_the_end(60)
    accepted = {name: job.id for producer in made for name, job in producer.jobs.items()}
    assert len(accepted) > 100  # about 3,000, or fewer on a busy machine
    print(f"{len(accepted)} jobs, {killed} children killed")
    histories = read_histories()
    assert histories.keys() == set(accepted.values())
    for job_id, history in histories.items():
        check_history(job_id, history)
    check_places(processes, histories)
    check_runs(processes, accepted, histories)
    check_counters(processes, histories, sum(producer.cleared for producer in made))
    check_records(processes, histories)


def at_rest(processes: MirrorProcesses) -> None:
    def is_at_rest() -> bool:
        stats = [processes.harness.stats(name) for name in QUEUES]
        return not any(
            stat[name] for stat in stats for name in ("queued", "processing", "waiting", *LATER)
        )

    def why() -> str:
        stats = {name: processes.harness.stats(name) for name in QUEUES}
        return f"{stats}\n{processes.harness.report()}"

    eventually(is_at_rest, 40, every=0.1, why=why)


def read_histories() -> dict[str, list[JobEvent]]:
    histories: dict[str, list[JobEvent]] = {}
    for event in JobEvent.objects.order_by("id").iterator():
        histories.setdefault(event.job_id, []).append(event)
    return histories


def check_history(job_id: str, history: list[JobEvent]) -> None:
    told = [(event.seq, event.status) for event in history]
    assert flaw(told) == "", (job_id, told)


def last(history: list[JobEvent]) -> str:
    return history[-1].status


def check_places(processes: MirrorProcesses, histories: dict[str, list[JobEvent]]) -> None:
    """An id is in the list of its status, once, or was cleared from it; and in no other list."""
    redis = processes.broker.redis
    listed: Counter[str] = Counter()
    for keys, name, status in product(all_keys(), QUEUES, FINAL):
        for job_id in redis.zrange(getattr(keys.queue(name), status), 0, -1):
            listed[job_id] += 1
            found = redis.hmget(keys.job(job_id), "status", "queue")
            assert found == [status, name if name != "default" else found[1]], job_id
            assert last(histories[job_id]) == status
    assert set(listed.values()) <= {1}
    hashes = {
        key.rpartition(":")[2]: redis.hexists(key, "status")
        for keys in all_keys()
        for key in redis.scan_iter(f"{keys.base}job:*")
    }
    assert {job_id for job_id, is_no_tomb in hashes.items() if is_no_tomb} == set(listed)
    assert redis.keys("*child:*:processing") == []


def check_runs(
    processes: MirrorProcesses, accepted: dict[str, str], histories: dict[str, list[JobEvent]]
) -> None:
    """A job ran at least once for each end that only a run produces, and never without a claim that
    its events show and that was not released: no run is silent."""
    runs = processes.harness.runs()
    assert runs.keys() <= accepted.keys()
    for name, job_id in accepted.items():
        history = histories[job_id]
        moves = Counter(pairwise(event.status for event in history))
        certain = sum(moves["processing", end] for end in ("completed", "failed", "retrying"))
        handed_back = moves["processing", "queued"] - recoveries(history)
        possible = sum(event.status == "processing" for event in history) - handed_back
        told = [(event.status, event.detail) for event in history]
        assert certain <= runs[name] <= possible, (name, job_id, runs[name], told)


def recoveries(history: list[JobEvent]) -> int:
    """How often the job was recovered from a child that died while it ran."""
    total = before = 0
    for event in history:
        detail = json.loads(event.detail or "{}")
        now = 0 if "requeues" in detail else int(detail.get("recoveries", before))
        total += now > before
        before = now
    return total


def check_counters(
    processes: MirrorProcesses, histories: dict[str, list[JobEvent]], cleared: int
) -> None:
    ends = Counter(event.status for history in histories.values() for event in history)
    for status in FINAL:
        counted = sum(processes.harness.count(f"{status}_total", name) for name in QUEUES)
        assert counted == ends[status], status
    assert sum(processes.harness.count("enqueued_total", name) for name in QUEUES) == len(histories)
    for name in QUEUES:  # maintenance may prune between these two reads
        eventually(
            lambda name=name: (
                processes.harness.count("finished_bytes", name) == size_of(processes, name)
            ),
            why=name,
        )
    left = sum(processes.harness.stats(name)[status] for name in QUEUES for status in FINAL)
    assert left + cleared == len(histories)


def size_of(processes: MirrorProcesses, queue: str) -> int:
    """The bytes of a queue's finished jobs, according to their hashes."""
    redis = processes.broker.redis
    listed = [
        keys.job(job_id)
        for keys, status in product(all_keys(), (*FINAL, "deleted"))
        for job_id in redis.zrange(getattr(keys.queue(queue), status), 0, -1)
    ]
    return sum(int(redis.hget(key, "bytes") or 0) for key in listed)


def check_records(processes: MirrorProcesses, histories: dict[str, list[JobEvent]]) -> None:
    records = dict(JobRecord.objects.values_list("id", "status"))
    assert records == {job_id: last(history) for job_id, history in histories.items()}
