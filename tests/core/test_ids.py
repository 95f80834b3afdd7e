"""Ids are unique, whatever an application does to the module ``random``; and which shard they
belong to."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from django_redisqueue.core import ids
from django_redisqueue.core.ids import (
    MAX_SHARDS,
    SLOTS,
    crc16,
    manual_job_id,
    new_gather_id,
    new_job_id,
    new_workflow_id,
    shard_of_id,
    shard_of_key,
    slot,
    tag,
)

FORKS = """
import os
from django_redisqueue.core.ids import new_job_id
new_job_id()
for _ in range(3):
    pid = os.fork()
    if not pid:
        break
    os.waitpid(pid, 0)
print(new_job_id().split("_")[2], flush=True)
"""


@pytest.mark.parametrize(
    "make", [new_job_id, new_workflow_id, new_gather_id, lambda: manual_job_id("nightly")]
)
def test_a_seed_set_by_the_application_repeats_no_id(make: Callable[[], str]) -> None:
    def random_part() -> str:
        random.seed(42)
        return make().split("_")[-2]

    state = random.getstate()
    try:
        assert random_part() != random_part()
    finally:
        random.setstate(state)


def test_forked_processes_make_different_ids() -> None:
    found = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(set(found)) == len(found) == 4


def test_the_hash_is_that_of_redis_cluster() -> None:
    assert crc16("123456789") == 0x31C3  # from the specification of Redis Cluster
    assert crc16("") == 0
    assert slot("0") == 13907


def test_tags_never_change() -> None:
    """Existing data is stored under them."""
    assert [tag(n) for n in range(8)] == ["0", "1li", "2xa", "3fg", "4ow", "5pj", "6io", "7ys"]
    assert crc16(" ".join(map(tag, range(MAX_SHARDS)))) == 36214


def test_no_two_shards_share_a_slot() -> None:
    assert len({slot(tag(n)) for n in range(MAX_SHARDS)}) == MAX_SHARDS


@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 8, 12])
def test_shards_spread_evenly_over_nodes(nodes: int) -> None:
    """However many shards there are, the numbers of two nodes never differ by two or more."""
    counts = Counter(dict.fromkeys(range(nodes), 0))
    for shard in range(MAX_SHARDS):
        counts[slot(tag(shard)) * nodes // SLOTS] += 1
        assert max(counts.values()) - min(counts.values()) <= 1, (shard, counts)


@pytest.mark.parametrize("shards", [1, 2, 7, 64])
def test_keys_use_all_shards(shards: int) -> None:
    found = Counter(shard_of_key(f"queue{n}", shards) for n in range(64 * 50))
    assert set(found) == set(range(shards))
    assert max(found.values()) < 2 * 64 * 50 / shards


@pytest.mark.parametrize("shard", [0, 1, 9, 10, 63])
def test_an_id_ends_with_its_shard(shard: int) -> None:
    for made in (
        ids.new_job_id(shard),
        ids.new_workflow_id(shard),
        f"{ids.new_workflow_id(shard)}.12",
        f"{ids.new_workflow_id(shard)}.complete.3",
        f"{ids.new_gather_id(shard)}.then",
        ids.periodic_job_id("nightly", 1_700_000_000_000, shard),
        ids.manual_job_id("nightly", shard),
    ):
        assert shard_of_id(made) == shard, made


@pytest.mark.parametrize(
    "foreign",
    ["a", "a_3", "job_3", "job_x_3", "flow_a.1_2", "job_1700000000000_0123456789_64", "", "_3",
     "job_1700000000000_0123456789_3x", "job_1700000000000_01234_3", "xjob_1_0123456789_3"],
)  # fmt: skip
def test_other_ids_are_looked_for_in_shard_0(foreign: str) -> None:
    assert shard_of_id(foreign) == 0
