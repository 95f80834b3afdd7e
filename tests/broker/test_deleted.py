"""delete and clear before the mirror has read a job's end: the job's hash stays until then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from django_redisqueue.broker.queries import UnreadableJob
from django_redisqueue.exceptions import JobNotFound

from .harness import ERROR, FINISHED, PAYLOAD, T0, BrokerHarness, invariants
from .test_prune import entry_of, finished_ms

LARGE = '"' + "x" * 2000 + '"'
Delete = Callable[[BrokerHarness], None]


def by_name(broker: BrokerHarness) -> None:
    status = broker.status("a")
    assert broker.store.delete(["a"]) == [1]
    assert broker.store.delete(["a"]) == [-1]
    assert broker.ids(str(status)) == []


def as_a_list(broker: BrokerHarness) -> None:
    status = str(broker.status("a"))
    assert broker.store.clear("default", status) == (1, 1)
    assert broker.store.clear("default", status) == (0, 0)


either = pytest.mark.parametrize("delete", [by_name, as_a_list])
STATUSES = pytest.mark.parametrize("status", FINISHED)


def prune(broker: BrokerHarness) -> tuple[int, int, bool]:
    return broker.store.prune("default", "completed", 10**6, 10**12)


def let_the_mirror_read(broker: BrokerHarness, status: str = "completed") -> None:
    broker.store.trim(entry_of(broker, "a", status), 10_000)


@either
@STATUSES
def test_a_hash_that_the_mirror_needs_stays_until_it_is_read(
    mirrored: BrokerHarness, status: str, delete: Delete
) -> None:
    mirrored.end("a", kind=status, body=LARGE)
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    before = mirrored.redis.hgetall(mirrored.keys.job("a"))
    delete(mirrored)
    kept = mirrored.redis.hgetall(mirrored.keys.job("a"))
    assert before.items() - kept.items() == {("status", status)}
    assert mirrored.meta()["finished_bytes"] == int(before["bytes"])
    invariants(mirrored)
    assert prune(mirrored) == (0, 0, False)
    let_the_mirror_read(mirrored, status)
    assert prune(mirrored) == (1, 0, False)
    assert mirrored.job("a") == {}
    assert mirrored.ids("deleted") == []
    assert mirrored.meta()["finished_bytes"] == 0


def test_a_job_that_a_list_names_by_mistake_is_left_alone(mirrored: BrokerHarness) -> None:
    """Somebody has changed the list, and the mirror has read nothing yet."""
    mirrored.end("b")
    mirrored.add("a")
    before = mirrored.job("a")
    mirrored.redis.zadd(mirrored.keys.queue("default").completed, {"a": T0})
    mirrored.store.clear("default", "completed")
    assert mirrored.job("a") == before
    assert mirrored.taken() == ["a"]


@either
def test_a_job_is_deleted_at_once_when_the_mirror_has_read_its_end(
    mirrored: BrokerHarness, delete: Delete
) -> None:
    mirrored.end("a")
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    let_the_mirror_read(mirrored)
    delete(mirrored)
    assert mirrored.job("a") == {}


@either
def test_to_every_other_reader_it_is_gone(mirrored: BrokerHarness, delete: Delete) -> None:
    mirrored.end("a", kind="failed", body=ERROR)
    delete(mirrored)
    with pytest.raises(JobNotFound):
        mirrored.queries.job("a")
    gone = [UnreadableJob("a", "its hash is gone")]
    assert mirrored.queries.jobs(["a"]) == mirrored.queries.outlines(["a"]) == gone
    assert mirrored.queries.statuses(["a"]) == [None]
    assert mirrored.store.requeue(["a"]) == mirrored.store.cancel(["a"]) == [-1]
    assert mirrored.store.watch("a") == ""
    assert mirrored.add("a") == [False]
    invariants(mirrored)


@either
def test_the_byte_cap_overrides_it_and_is_counted(mirrored: BrokerHarness, delete: Delete) -> None:
    mirrored.end("a", body=LARGE)
    delete(mirrored)
    mirrored.end("b")
    mirrored.store.settings = replace(mirrored.store.settings, finished_max_bytes=2500)
    assert prune(mirrored) == (1, 1, False)
    assert (mirrored.job("a"), mirrored.ids("completed")) == ({}, ["b"])
    assert mirrored.meta()["forced_total"] == 1
    invariants(mirrored)


@either
def test_waiting_callers_are_told_at_once_and_only_once(
    mirrored: BrokerHarness, delete: Delete
) -> None:
    mirrored.end("a", kind="failed", body=ERROR)
    mirrored.add("waits", after="wait a")
    delete(mirrored)
    [*_] = mirrored.advancing()
    assert mirrored.job("waits")["reason"] == "parent_gone"
    let_the_mirror_read(mirrored, "failed")
    finished_ms_of_the_deleted(mirrored)
    assert prune(mirrored)[0] == 1
    assert [*mirrored.advancing()] == []
    invariants(mirrored)


def finished_ms_of_the_deleted(broker: BrokerHarness) -> None:
    """Act as if it had ended long before what the mirror has read."""
    broker.redis.zadd(broker.keys.queue("default").deleted, {"a": 1})


@either
@pytest.mark.parametrize("meets_first", ["claim", "prune"])
def test_a_cancelled_id_in_its_queue_is_discarded(
    mirrored: BrokerHarness, delete: Delete, meets_first: str
) -> None:
    mirrored.add("a", "b")
    mirrored.store.cancel(["a"])
    delete(mirrored)
    invariants(mirrored)
    let_the_mirror_read(mirrored, "cancelled")
    finished_ms_of_the_deleted(mirrored)
    if meets_first == "prune":
        assert prune(mirrored) == (1, 0, False)
        assert mirrored.job("a") == {"lingers": "1"}
    claim = mirrored.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], [])
    if meets_first == "claim":
        assert mirrored.job("a")["payload"] == PAYLOAD
        assert prune(mirrored) == (1, 0, False)
    assert mirrored.job("a") == {}


def test_the_deleted_and_the_old_share_a_step(mirrored: BrokerHarness) -> None:
    mirrored.store.now_ms = T0  # Redis's own clock may be set back meanwhile
    names = [f"j{n:03}" for n in range(150)]
    for at in range(0, 150, 50):
        mirrored.end(*names[at : at + 50])
    mirrored.store.clear("default", "completed", 60)
    mirrored.store.settings = replace(mirrored.store.settings, mirror=False)
    mirrored.advance(1)
    assert mirrored.store.prune("default", "completed", 0, 0) == (100, 0, True)
    assert mirrored.store.prune("default", "completed", 0, 0) == (50, 0, False)
    assert mirrored.redis.keys(mirrored.keys.job("*")) == []
    assert mirrored.meta()["finished_bytes"] == 0


def test_a_full_redis_deletes(mirrored: BrokerHarness) -> None:
    mirrored.end("a", "b")
    with mirrored.full():
        assert mirrored.store.delete(["a"]) == [1]
        assert mirrored.store.clear("default", "completed") == (1, 1)
    invariants(mirrored)


@either
def test_a_key_of_another_type_is_refused_before_anything_is_written(
    mirrored: BrokerHarness, delete: Delete
) -> None:
    mirrored.end("a")
    with mirrored.refused_over(mirrored.keys.queue("default").deleted):
        delete(mirrored)
