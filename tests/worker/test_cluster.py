"""Redis Cluster under load: what was accepted ends, whatever becomes of the slot and its owner."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue.core.placement import slot
from django_redisqueue.exceptions import RedisUnavailable
from tests.support.cluster import ClusterNodes, wait_for

from .processes import eventually
from .producers import Accepted, Producer
from .stage import Stage

SLOT = slot("0")
ROUNDS = int(os.environ.get("REDISQUEUE_TEST_SOAK", "1"))


@pytest.fixture
def stage(cluster: ClusterNodes, tmp_path: Path, settings: Any) -> Iterator[Stage]:
    """What an enqueue has accepted is on a replica."""
    with ExitStack() as stack:
        stage = Stage(cluster.owner(SLOT), tmp_path, settings, stack)
        stage.environment["REDISQUEUE_TEST_URL"] = cluster.url
        stage.settings["WAIT_REPLICAS"] = 1
        settings.REDISQUEUE = {"CONNECTION": {"URL": cluster.url}, **stage.settings}
        yield stage


def _promote(cluster: ClusterNodes) -> None:
    cluster.promote(SLOT)


def _move(cluster: ClusterNodes) -> None:
    with cluster.moving(SLOT):
        pass


def _kill(cluster: ClusterNodes) -> None:
    """The dead master comes back as a replica; before that nothing is accepted."""
    owner = cluster.owner(SLOT)
    cluster.kill_owner(SLOT)
    owner.start()


def _kill_unaided(cluster: ClusterNodes) -> None:
    owner, replica = cluster.owner(SLOT), cluster.replica(SLOT)
    with cluster.noticing():
        owner.kill()
        wait_for(lambda: cluster.owner(SLOT) is replica, "the nodes do not notice")
    owner.start()


@pytest.mark.parametrize("change", [_promote, _move, _kill, _kill_unaided])
def test_what_was_accepted_ends(
    stage: Stage, cluster: ClusterNodes, change: Callable[[ClusterNodes], None]
) -> None:
    stage.worker("--processes", "2").wait_until_up(3)
    producers = [Producer(stage.book, f"{letter}_") for letter in "abc"]

    def accepted() -> list[Accepted]:
        return [one for producer in producers for one in list(producer.accepted)]

    try:
        for _ in range(ROUNDS):
            before = len(accepted())
            eventually(lambda n=before: len(accepted()) > n + 100, why=stage.report)
            change(cluster)
            changed = time.monotonic()
            eventually(
                lambda at=changed: sum(one.at > at for one in accepted()) > 50, why=stage.report
            )
    finally:
        for producer in producers:
            producer.stop()
    jobs = [one.job for one in accepted()]
    want = Counter(completed=len(jobs))
    eventually(lambda: stage.statuses(jobs) == want, 40, every=0.2, why=stage.report)
    runs = stage.runs()
    # Reports that the new owner has not seen are lost: a batch per child and round.
    assert sum(runs[one.name] > 1 for one in accepted()) <= 2 * 64 * ROUNDS
    refused = [error for producer in producers for error in producer.refused]
    assert all(isinstance(error, RedisUnavailable) for error in refused)
    # Each process logs an outage when it begins, not at every try.
    assert stage.report().count("trying again until it answers") <= 20 * ROUNDS
