"""After every few steps of a history, the records agree with Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror.bridge import Bridge, make_bridge
from django_redisqueue.models import JobRecord, WorkflowRecord

from ..mirror.mirrored_shard import differences, job_hashes
from .history import generate
from .keyspace import SimulatedBroker
from .rest import come_to_rest
from .run import WEIGHTS
from .shard import Shard
from .world import World

pytestmark = pytest.mark.django_db
SEEDS = range(1000, 1012)
# Reconciliation has its own tests, and this one's reports of progress are not JSON objects.
LEFT_OUT = {"snapshot", "rewind", "the_clock_jumps", "remember", "write_what_is_stale"}


@pytest.fixture
def bridge(brokers: list[SimulatedBroker], settings: Any) -> Iterator[Bridge]:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "AUDIT_RETENTION": 0}  # its clock is in the past
    made = make_bridge(get_settings())
    yield made
    made.connection.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_records_follow(brokers: list[SimulatedBroker], bridge: Bridge, seed: int) -> None:
    world = World(brokers[:1])
    for step in generate(seed, WEIGHTS, 40):
        if step.verb not in LEFT_OUT:
            world.run([step._replace(shard=0)])
            if step.picks[0] % 4 == 0:
                check(world, bridge)
    come_to_rest(world)
    check(world, bridge)


def check(world: World, bridge: Bridge) -> None:
    (shard,) = world.shards
    while bridge.run_once():
        pass
    world.check()  # the mirror has stored its position
    jobs = {job_id: job for job_id, job in job_hashes(shard.broker).items() if "status" in job}
    gone = JobRecord.objects.exclude(pk__in=jobs)
    assert {record.status for record in gone} <= {"completed", "failed", "cancelled"}
    gone.delete()
    assert list(differences(jobs)) == []
    assert set(workflows_by_redis(shard)) <= set(workflows_by_mirror())


def workflows_by_redis(shard: Shard) -> Iterator[tuple[Any, ...]]:
    for workflow in shard.known_workflows():
        found = shard.broker.redis.hgetall(shard.broker.keys.workflow(workflow.id))
        assert isinstance(found, dict)
        if found and found["status"] != "building":
            is_paused, generation = "paused_ms" in found, int(found.get("generation", 0))
            yield workflow.id, found["status"], is_paused, generation


def workflows_by_mirror() -> Iterator[tuple[Any, ...]]:
    yield from WorkflowRecord.objects.values_list("pk", "status", "is_paused", "generation")
