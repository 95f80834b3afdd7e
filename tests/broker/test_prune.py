"""prune: old finished jobs are deleted, hash and id together, and never too early."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import RedisQueueError, WrongKeyType
from django_redisqueue.worker.maintenance.upkeep import KnownQueues, Pruner

from .lab import ERROR, FINISHED, Lab, invariants, outcome
from .workflows import LabWorkflow

WINDOW = 10_000  # RESEND_WINDOW in ms
LONG = 10**12
STATUSES = pytest.mark.parametrize("status", FINISHED)


def prune(
    lab: Lab, status: str = "completed", keep: int = 10**6, ttl_ms: int = LONG, jobs: int = 100
) -> tuple[int, int, bool]:
    return lab.store.prune("default", status, keep, ttl_ms, jobs)


@STATUSES
def test_by_age_oldest_first(lab: Lab, status: str) -> None:
    lab.end("old", verdict=status)
    lab.advance(60_000)
    lab.end("new", verdict=status)
    lab.advance(40_000)
    assert prune(lab, status, ttl_ms=50_000) == (1, 0, False)
    assert lab.ids(status) == ["new"]
    assert (lab.job("old"), lab.status("new")) == ({}, status)
    invariants(lab)


@STATUSES
def test_by_count_oldest_first(lab: Lab, status: str) -> None:
    lab.end(*[f"j{n}" for n in range(10)], verdict=status)
    lab.advance(WINDOW + 1)
    assert prune(lab, status, keep=4) == (6, 0, False)
    assert lab.ids(status) == ["j9", "j8", "j7", "j6"]
    invariants(lab)


@pytest.mark.parametrize(("keep", "ttl_ms"), [(0, 0), (10, 0), (0, LONG)])
def test_never_inside_the_resend_window(lab: Lab, keep: int, ttl_ms: int) -> None:
    lab.end("a")
    lab.advance(WINDOW)
    before = lab.dump()
    assert prune(lab, keep=keep, ttl_ms=ttl_ms) == (0, 0, False)
    assert lab.add("a") == [False]
    assert lab.dump() == before
    lab.advance(1)
    assert prune(lab, keep=keep, ttl_ms=ttl_ms) == (1, 0, False)


def test_in_bounded_steps(lab: Lab) -> None:
    for at in range(3):
        lab.end(*[f"{at}.{n}" for n in range(100)])
    lab.advance(WINDOW + 1)
    assert prune(lab, keep=50) == (100, 0, True)
    assert prune(lab, keep=50) == (100, 0, True)
    assert prune(lab, keep=50) == (50, 0, False)
    assert prune(lab, keep=0, jobs=30) == (30, 0, True)
    assert prune(lab, keep=0, jobs=20) == (20, 0, True)
    assert prune(lab, keep=0) == (0, 0, False)
    invariants(lab)
    assert lab.meta()["finished_bytes"] == 0


def test_the_byte_cap_overrides_every_promise_and_is_counted(lab: Lab) -> None:
    lab.store.settings = replace(lab.store.settings, finished_max_bytes=5000)
    lab.end(*[f"j{n}" for n in range(4)], body="x" * 1000)
    assert prune(lab) == (2, 2, False)
    assert lab.ids("completed") == ["j3", "j2"]
    assert lab.meta()["forced_total"] == 2
    assert lab.meta()["finished_bytes"] <= 5000
    assert lab.job("j0") == {}
    invariants(lab)


def test_jobs_that_were_due_anyway_are_not_counted_as_forced(lab: Lab) -> None:
    lab.store.settings = replace(lab.store.settings, finished_max_bytes=0)
    lab.end("a")
    lab.advance(WINDOW + 1)
    assert prune(lab, ttl_ms=0) == (1, 0, False)
    assert "forced_total" not in lab.meta()


def test_the_bytes_of_every_path_return_to_zero(lab: Lab) -> None:
    lab.end("done", payload='[["' + "x" * 3000 + '"],{}]', body='"' + "y" * 5000 + '"')
    lab.end("failed", verdict="failed", body=ERROR)
    lab.end("told", verdict="cancelled", body=ERROR)
    lab.add("waits")
    lab.store.cancel(["waits"])
    for verdict in ("retrying", "delayed"):
        for last in ("completed", "failed", "cancelled"):
            lab.add(f"{verdict}.{last}", queue="again")
            job = lab.take(queues=["again"])
            lab.finish(outcome(job, verdict, ERROR, "0"))
            lab.finish(outcome(lab.take(queues=["again"]), last, "{}"))
        lab.add(f"{verdict}.stopped", queue="again")
        lab.finish(outcome(lab.take(queues=["again"]), verdict, ERROR))
        lab.store.cancel([f"{verdict}.stopped"])
    lab.add("poison")
    for _ in range(3):
        lab.take()
        lab.store.reap("c1", ["poison"])
    lab.store.requeue(["failed"])
    lab.finish(outcome(lab.take()))
    invariants(lab)
    lab.advance(WINDOW + 1)
    for queue in ("default", "again"):
        assert lab.meta(queue)["finished_bytes"] > 400
        for status in FINISHED:
            lab.store.prune(queue, status, 0, 0)
        assert lab.meta(queue)["finished_bytes"] == 0
    invariants(lab)


def test_a_cancelled_id_that_lingers_leaves_a_tombstone_for_the_claim(lab: Lab) -> None:
    lab.add("a", "b")
    lab.store.cancel(["a"])
    lab.advance(WINDOW + 1)
    assert prune(lab, "cancelled", keep=0) == (1, 0, False)
    assert lab.job("a") == {"lingers": "1"}
    assert lab.redis.ttl(lab.keys.job("a")) == -1
    assert lab.queries.statuses(["a"]) == [None]
    invariants(lab)
    claim = lab.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], [])
    assert lab.job("a") == {}


def test_an_id_without_a_hash_is_removed_from_the_list(lab: Lab) -> None:
    lab.end("a", "b")
    lab.redis.delete(lab.keys.job("a"))
    lab.advance(WINDOW + 1)
    assert prune(lab, ttl_ms=0) == (2, 0, False)
    assert lab.ids("completed") == []


def test_an_id_that_does_not_belong_in_the_list_keeps_its_hash(lab: Lab) -> None:
    lab.add("runs")
    lab.redis.zadd(lab.keys.queue("default").completed, {"runs": 1, "theirs": 2})
    lab.redis.set(lab.keys.job("theirs"), "theirs")
    assert prune(lab, ttl_ms=0) == (2, 0, False)
    assert lab.status("runs") == "queued"
    assert lab.redis.get(lab.keys.job("theirs")) == "theirs"


def test_nothing_to_do(lab: Lab) -> None:
    assert prune(lab, keep=0, ttl_ms=0) == (0, 0, False)
    assert lab.dump() == {}


@pytest.mark.parametrize("status", ["queued", "processing", "scheduled", "wake"])
def test_only_finished_jobs(lab: Lab, status: str) -> None:
    lab.add("a")
    before = lab.dump()
    with pytest.raises(RedisQueueError, match="only finished jobs are pruned"):
        prune(lab, status, keep=0, ttl_ms=0)
    assert lab.dump() == before


@pytest.mark.parametrize("name", ["completed", "meta"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    key = getattr(lab.keys.queue("default"), name)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        prune(lab, ttl_ms=0)
    assert lab.dump() == before


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.end("a")
    lab.advance(WINDOW + 1)
    with lab.full():
        assert prune(lab, ttl_ms=0) == (1, 0, False)


# -- jobs that the mirror has not read yet


def entry_of(lab: Lab, job_id: str, status: str) -> str:
    wanted = (job_id, status)
    (found,) = [
        event.entry
        for event in lab.written("job")
        if (event.told["jobId"], event.told["status"]) == wanted
    ]
    return found


def finished_ms(lab: Lab, job_id: str, instant_ms: int) -> None:
    """Act as if it had ended at that time."""
    lab.redis.hset(lab.keys.job(job_id), "finished_ms", instant_ms)
    key = getattr(lab.keys.queue("default"), str(lab.status(job_id)))
    lab.redis.zadd(key, {job_id: instant_ms}, xx=True)


@STATUSES
def test_not_before_the_mirror_has_read_its_last_event(mirrored: Lab, status: str) -> None:
    mirrored.end("a", verdict=status)
    mirrored.add("later")
    cursor = entry_of(mirrored, "a", "processing")
    cursor_ms = int(cursor.partition("-")[0])
    finished_ms(mirrored, "a", cursor_ms - 5000)
    # nothing has been read at all
    assert prune(mirrored, status, keep=0, ttl_ms=0) == (0, 0, False)
    mirrored.store.trim(cursor, 10_000)
    for before in (-1, 0, 1, 1000):  # a script's entries may be later than its clock by this much
        finished_ms(mirrored, "a", cursor_ms - before)
        assert prune(mirrored, status, keep=0, ttl_ms=0) == (0, 0, False)
    finished_ms(mirrored, "a", cursor_ms - 1001)
    assert prune(mirrored, status, keep=0, ttl_ms=0) == (1, 0, False)
    assert mirrored.job("a") == {}


def test_a_mirror_at_the_end_has_read_everything(mirrored: Lab) -> None:
    mirrored.end("a")
    mirrored.store.trim(entry_of(mirrored, "a", "completed"), 10_000)
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 0, False)


def test_a_missing_stream_holds_nothing_back(mirrored: Lab) -> None:
    mirrored.end("a")
    mirrored.redis.delete(mirrored.keys.events)
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 0, False)


def test_a_clock_that_was_set_back_holds_everything_until_the_end_is_read(mirrored: Lab) -> None:
    mirrored.end("a")
    mirrored.add("b")
    mirrored.store.trim(entry_of(mirrored, "a", "completed"), 10_000)
    mirrored.store.now_ms = mirrored.queries.now_ms() - 3_600_000
    finished_ms(mirrored, "a", mirrored.now - 1000)
    assert prune(mirrored, keep=0, ttl_ms=0) == (0, 0, False)
    mirrored.store.trim(entry_of(mirrored, "b", "queued"), 10_000)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 0, False)


def test_the_byte_cap_overrides_the_mirror_too_and_is_counted(mirrored: Lab) -> None:
    mirrored.end("a")
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    mirrored.store.settings = replace(mirrored.store.settings, finished_max_bytes=0)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 1, False)
    assert mirrored.meta()["forced_total"] == 1


def test_without_a_mirror_nothing_is_waited_for(mirrored: Lab) -> None:
    mirrored.end("a")
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    mirrored.store.settings = replace(mirrored.store.settings, mirror=False)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 0, False)


def test_a_failed_job_that_others_wait_for_stays_as_long_as_its_workflow(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0]})
    workflow.push()
    workflow.run_one(verdict="failed")
    lab.end("plain", verdict="failed", body=ERROR)
    lab.advance(20_000)
    assert lab.store.prune("default", "failed", 0, 1000) == (1, 0, False)
    assert lab.ids("failed") == [workflow.job(0)]
    assert lab.store.requeue([workflow.job(0)]) == [1]
    workflow.advance()
    assert workflow.run_all() == [0, 1]


def test_a_queue_removed_from_the_settings_is_pruned_too(lab: Lab) -> None:
    lab.end("a", queue="former")
    lab.end("b", "c")
    lab.advance(2 * 86_400_000)
    pruner = Pruner(lab.store, (Status.COMPLETED,), KnownQueues(lab.store, ["default"]))
    with lab.broken("retrying"), lab.broken("completed"):
        assert pruner.run_once() == 1
        assert lab.status("a") is None
        assert lab.status("b") == "completed"
    assert pruner.run_once() == 2
