"""Redis Cluster under load: every accepted job ends, whatever happens to the slot and its owner."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue.core.ids import shard_of_id, slot, tag
from django_redisqueue.exceptions import RedisUnavailable
from tests.mirror.conftest import processes
from tests.mirror.mirror_processes import MirrorProcesses
from tests.support.cluster import ClusterNode, ClusterNodes, can_be_cut_off
from tests.support.round_trips import calls_of
from tests.support.servers import wait_for
from tests.support.stopwatch import Stopwatch

from . import tasks
from .harness import QUICK, Producers, WorkerHarness, check_ends
from .processes import eventually
from .test_shards import Shards

__all__ = ["processes"]
pytestmark = pytest.mark.parametrize("processes", ["sqlite"], indirect=True)

SLOT = slot("0")
ROUNDS = int(os.environ.get("REDISQUEUE_TEST_SOAK", "1"))


@pytest.fixture
def shards() -> int:
    return 4


@pytest.fixture
def harness(
    cluster: ClusterNodes, tmp_path: Path, settings: Any, shards: int
) -> Iterator[WorkerHarness]:
    """What an enqueue call has accepted is on a replica. Jobs go to each shard in turn."""
    with ExitStack() as stack:
        harness = WorkerHarness(cluster, tmp_path, settings, stack)
        spread = {"default": {"SPREAD": True}}
        harness.configure(WAIT_REPLICAS=1, SHARDS=shards, QUEUES=spread)
        yield harness


def _promote(cluster: ClusterNodes) -> None:
    cluster.promote(SLOT)


def _move(cluster: ClusterNodes) -> None:
    with cluster.moving(SLOT):
        pass


def _kill(cluster: ClusterNodes) -> None:
    """The dead master returns as a replica; until then nothing is accepted."""
    owner = cluster.owner(SLOT)
    cluster.kill_owner(SLOT)
    owner.start()


def _kill_unaided(cluster: ClusterNodes) -> None:
    owner, replica = cluster.owner(SLOT), cluster.replica(SLOT)
    with cluster.noticing():
        owner.kill()
        wait_for(lambda: cluster.owner(SLOT) is replica, "the nodes do not notice")
    owner.start()


def _cut_off(cluster: ClusterNodes) -> None:
    """For a while, clients write to a master that has been replaced: what it accepted is lost."""
    with cluster.cut_off(SLOT) as former:
        before = _scripts(former)
        wait_for(lambda: _scripts(former) > before + 20, "nobody writes to the former master")


def _scripts(node: ClusterNode) -> int:
    """How many scripts it has run."""
    return calls_of(node.asked, "evalsha")


@dataclass(frozen=True)
class Fault:
    """``loses``: the new owner lacks the former owner's last writes."""

    change: Callable[[ClusterNodes], None]
    loses: bool = False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "shards"),
    [
        pytest.param(Fault(_promote), 4, id="promoted"),
        pytest.param(Fault(_move), 1, id="moved-1"),
        pytest.param(Fault(_move), 4, id="moved-4"),
        pytest.param(Fault(_kill, loses=True), 4, id="killed"),
        pytest.param(Fault(_kill_unaided, loses=True), 1, id="killed_unaided-1"),
        pytest.param(Fault(_kill_unaided, loses=True), 4, id="killed_unaided-4"),
        pytest.param(Fault(_cut_off, loses=True), 4, id="cut_off"),
    ],
)
def test_what_was_accepted_ends(
    harness: WorkerHarness,
    processes: MirrorProcesses,
    cluster: ClusterNodes,
    fault: Fault,
    shards: int,
) -> None:
    """It ends once, and the mirror agrees with Redis."""
    if fault.change is _cut_off and not can_be_cut_off():
        pytest.skip("a node of this server cannot be cut off from the others alone")
    harness.worker("--processes", "2").wait_until_up(3)
    processes.until_known(shards)
    with Producers(harness.book) as producers:
        for _ in range(ROUNDS):
            before = len(producers.accepted)
            eventually(lambda n=before: len(producers.accepted) > n + 100, why=harness.report)
            fault.change(cluster)
            changed = time.monotonic()
            eventually(
                lambda at=changed: sum(one.at > at for one in producers.accepted) > 50,
                why=harness.report,
            )
    jobs = [one.job for one in producers.accepted]
    assert {shard_of_id(job.id) for job in jobs} == set(range(shards))
    want = Counter(completed=len(jobs))
    eventually(lambda: harness.statuses(jobs) == want, 40, every=0.2, why=harness.report)
    if fault.change is not _cut_off:
        runs = harness.runs()
        # Reports that the new owner has not received are lost: one batch per child and round, in
        # the shards that the former owner had.
        assert sum(runs[one.name] > 1 for one in producers.accepted) <= 2 * 64 * ROUNDS
    assert all(isinstance(error, RedisUnavailable) for error in producers.refused)
    # Each process logs a shard's outage once when it begins, not at every attempt.
    assert harness.report().count("trying again until it answers") <= 20 * shards * ROUNDS

    processes.until_equal()
    check_ends(harness, jobs)
    if not fault.loses:
        processes.until_mirrored()


@pytest.mark.slow
def test_a_silent_node_holds_up_its_own_shards_only(
    harness: WorkerHarness, processes: MirrorProcesses, cluster: ClusterNodes, shards: int
) -> None:
    """It is silent for more than two leases, and no replica takes over. Then its jobs run, each
    once."""
    silent = cluster.owner(SLOT)
    others = [n for n in range(shards) if cluster.owner(slot(tag(n))) is not silent]
    assert others  # their number depends on where earlier tests have moved slots
    harness.configure(WAIT_REPLICAS=0)
    jobs = Shards(harness)
    worker = harness.worker("--processes", "2").wait_until_up(3)
    gate = harness.gate()
    held = jobs.enqueue(0, "held", task=tasks.run_until_gate_opens, more=(gate,))
    eventually(lambda: harness.runs()["held"], why=harness.report)
    waiting = jobs.enqueue(0, *(f"waiting{n}" for n in range(20)))
    silent.pause()
    try:
        watch, rounds = Stopwatch(), count()
        while watch.elapsed < 2 * QUICK["LEASE"]:
            n = next(rounds)
            jobs.until({shard: jobs.enqueue(shard, f"round{n}.{shard}") for shard in others})
            if n == 0:
                harness.open_gate(gate)  # it ends while its shard is unavailable
    finally:
        silent.resume()
    jobs.until({0: [*held, *waiting]})
    assert set(harness.runs().values()) == {1}, harness.report()
    processes.until_mirrored()
    worker.term()
    assert worker.wait() == 0, worker.output
