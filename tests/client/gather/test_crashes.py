"""Gathers while processes die: the follow-up of each runs once, and every result is there."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

import pytest

from django_redisqueue import Gather, JobQueue
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.replies import Outcome
from tests.support.shards import all_stores
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually

from . import tasks

GATHERS = 300
RESULTS = ["first", "second", "third"]


@pytest.fixture(autouse=True)
def _tasks(harness: WorkerHarness) -> None:
    harness.configure(
        TASK_MODULES=["tests.worker.tasks", "tests.client.gather.tasks"], MAX_RECOVERIES=50
    )


def start(harness: WorkerHarness, n: int) -> Gather:
    return Gather.start(
        f"g{n}", topic="work", payload={"book": harness.book, "n": n}, poll_delay=120,
        then=tasks.note.s(harness.book, f"then{n}"),
        on_failure=tasks.note.s(harness.book, f"lost{n}"),
    )  # fmt: skip


def check(harness: WorkerHarness, gathers: list[Gather], runs_over: int = 0) -> None:
    """Each was released once, with all its results, and its follow-up was accepted once."""

    def all_ended() -> bool:
        open_ = [g for g in gathers if not g.follow_up or not g.follow_up.status.is_final]
        return not open_

    eventually(all_ended, 90, every=0.3, why=harness.report)
    for n, gather in enumerate(gathers):
        assert gather.status == "released"
        assert gather.results == {"first": n, "second": n + 1, "third": n + 2}
        assert gather.done_count == 3
        follow_up = gather.follow_up
        assert follow_up is not None
        assert (follow_up.status, follow_up.result) == ("completed", RESULTS)
    runs = harness.runs()
    assert set(runs) == {f"then{n}" for n in range(len(gathers))}
    # A process that dies between a run and its report causes a second run; the result counts once.
    assert sum(runs.values()) - len(runs) <= runs_over, runs
    assert harness.count("completed_total") == 4 * len(gathers)


def test_kills_at_random_lose_nothing_and_release_once(harness: WorkerHarness) -> None:
    chance = random.Random(4)
    workers = [harness.worker("--processes", "2").wait_until_up(3) for _ in range(2)]
    gathers, kills = [], 0
    for n in range(GATHERS):
        gathers.append(start(harness, n))
        if n % 20 == 10:
            children = chance.choice(workers).children
            if children:
                os.kill(chance.choice(children), signal.SIGKILL)
                kills += 1
        if n in (GATHERS // 3, 2 * GATHERS // 3):
            workers[1].kill()
            workers[1] = harness.worker("--processes", "2")
            kills += 1
    assert kills >= 5, "hardly anything was killed"
    check(harness, gathers, runs_over=3 * kills)
    hit = harness.count("recovered_total") + harness.count("released_total")
    assert hit, "nothing was running when its process was killed"


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_redis_is_killed_and_restarted(harness: WorkerHarness) -> None:
    harness.server.client().config_set("appendfsync", "always")
    JobQueue().pause()  # so that the workers are not finished before the kill
    harness.worker("--processes", "2").wait_until_up(3)
    gathers = [start(harness, n) for n in range(100)]
    JobQueue().resume()
    eventually(lambda: harness.count("completed_total"))
    assert harness.stats()["queued"], "all was over before the kill"
    harness.server.kill()
    harness.server.start()
    check(harness, gathers, runs_over=20)


def test_every_finish_is_delivered_again(harness: WorkerHarness) -> None:
    """As if each reply was lost: the same call with the same number, and the bare report."""
    gathers = [start(harness, n) for n in range(20)]
    results: Counter[str] = Counter()
    with all_stores() as stores:
        for store in stores:
            _deliver_twice(store, gathers, results)
    assert list(results.values()) == [1] * 20
    for n, gather in enumerate(gathers):
        assert gather.results == {"first": n, "second": n + 1, "third": n + 2}
        assert (gather.done_count, gather.status) == (3, "released")


def _deliver_twice(store: Commands, gathers: list[Gather], results: Counter[str]) -> None:
    claim_request = ClaimRequest("manual_worker", ("default",))
    for call in range(1, 1000):
        jobs = store.claim(claim_request, 2 * call, 7).jobs
        if not jobs:
            break
        outcomes = []
        for job in jobs:
            name = job.task.rpartition(".")[2]
            if name == "note":
                results[job.id] += 1
                body = '["first","second","third"]'
            else:
                gather = next(g for g in gathers if job.id.startswith(g.id))
                body = str(int(gather.key[1:]) + RESULTS.index(name))
            outcomes.append(Outcome(job.id, job.lease, job.call, "completed", body))
        assert set(store.finish(claim_request, 2 * call + 1, outcomes, 0)[0]) == {1}
        for _ in range(2):
            codes, _ = store.finish(claim_request, 2 * call + 1, outcomes, 0, resent=True)
            assert set(codes) == {2}
