"""prune: old finished jobs are deleted, hash and id together, and never too early."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import RedisQueueError
from django_redisqueue.worker.maintenance import upkeep

from .harness import ERROR, FINISHED, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

WINDOW = 10_000  # RESEND_WINDOW in ms
LONG = 10**12
STATUSES = pytest.mark.parametrize("status", FINISHED)


def prune(
    broker: BrokerHarness,
    status: str = "completed",
    keep: int = 10**6,
    ttl_ms: int = LONG,
    jobs: int = 100,
) -> tuple[int, int, bool]:
    return broker.store.prune("default", status, keep, ttl_ms, jobs)


def make_pruner(broker: BrokerHarness, *statuses: Status) -> upkeep.Pruner:
    return upkeep.Pruner(broker.store, statuses, upkeep.KnownQueues(broker.store, ["default"]))


@STATUSES
def test_by_age_oldest_first(broker: BrokerHarness, status: str) -> None:
    broker.end("old", kind=status)
    broker.advance(60_000)
    broker.end("new", kind=status)
    broker.advance(40_000)
    assert prune(broker, status, ttl_ms=50_000) == (1, 0, False)
    assert broker.ids(status) == ["new"]
    assert (broker.job("old"), broker.status("new")) == ({}, status)
    invariants(broker)


@STATUSES
def test_by_count_oldest_first(broker: BrokerHarness, status: str) -> None:
    broker.end(*[f"j{n}" for n in range(10)], kind=status)
    broker.advance(WINDOW + 1)
    assert prune(broker, status, keep=4) == (6, 0, False)
    assert broker.ids(status) == ["j9", "j8", "j7", "j6"]
    invariants(broker)


@pytest.mark.parametrize(("keep", "ttl_ms"), [(0, 0), (10, 0), (0, LONG)])
def test_never_inside_the_resend_window(broker: BrokerHarness, keep: int, ttl_ms: int) -> None:
    broker.end("a")
    broker.advance(WINDOW)
    with broker.unchanged():
        assert prune(broker, keep=keep, ttl_ms=ttl_ms) == (0, 0, False)
        assert broker.add("a") == [False]
    broker.advance(1)
    assert prune(broker, keep=keep, ttl_ms=ttl_ms) == (1, 0, False)


def test_in_bounded_steps(broker: BrokerHarness) -> None:
    for at in range(3):
        broker.end(*[f"{at}.{n}" for n in range(100)])
    broker.advance(WINDOW + 1)
    assert prune(broker, keep=50) == (100, 0, True)
    assert prune(broker, keep=50) == (100, 0, True)
    assert prune(broker, keep=50) == (50, 0, False)
    assert prune(broker, keep=0, jobs=30) == (30, 0, True)
    assert prune(broker, keep=0, jobs=20) == (20, 0, True)
    assert prune(broker, keep=0) == (0, 0, False)
    invariants(broker)
    assert broker.meta()["finished_bytes"] == 0


def test_the_byte_cap_overrides_every_promise_and_is_counted(broker: BrokerHarness) -> None:
    broker.store.settings = replace(broker.store.settings, finished_max_bytes=5000)
    broker.end(*[f"j{n}" for n in range(4)], body="x" * 1000)
    assert prune(broker) == (2, 2, False)
    assert broker.ids("completed") == ["j3", "j2"]
    assert broker.meta()["forced_total"] == 2
    assert broker.meta()["finished_bytes"] <= 5000
    assert broker.job("j0") == {}
    invariants(broker)


def test_jobs_deleted_early_are_logged_once_a_minute(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(upkeep, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    broker.store.settings = replace(broker.store.settings, finished_max_bytes=0)
    pruner = make_pruner(broker, Status.COMPLETED)
    for ids in (["a"], ["b"], ["c", "d"]):
        broker.end(*ids)
        assert pruner.run_once() == len(ids)
    assert [record.args for record in caplog.records] == [("default", 1, "completed")]
    clock[0] += 61
    assert pruner.run_once() == 0
    assert caplog.records[-1].args == ("default", 3, "completed")
    clock[0] += 61
    assert pruner.run_once() == 0
    assert len(caplog.records) == 2


def test_jobs_that_were_due_anyway_are_not_counted_as_forced(broker: BrokerHarness) -> None:
    broker.store.settings = replace(broker.store.settings, finished_max_bytes=0)
    broker.end("a")
    broker.advance(WINDOW + 1)
    assert prune(broker, ttl_ms=0) == (1, 0, False)
    assert "forced_total" not in broker.meta()


def test_the_bytes_of_every_path_return_to_zero(broker: BrokerHarness) -> None:
    broker.end("done", payload='[["' + "x" * 3000 + '"],{}]', body='"' + "y" * 5000 + '"')
    broker.end("failed", kind="failed", body=ERROR)
    broker.end("told", kind="cancelled", body=ERROR)
    broker.add("waits")
    broker.store.cancel(["waits"])
    for kind in ("retrying", "delayed"):
        for last in ("completed", "failed", "cancelled"):
            broker.add(f"{kind}.{last}", queue="again")
            job = broker.take(queues=["again"])
            broker.finish(outcome(job, kind, ERROR, "0"))
            broker.finish(outcome(broker.take(queues=["again"]), last, "{}"))
        broker.add(f"{kind}.stopped", queue="again")
        broker.finish(outcome(broker.take(queues=["again"]), kind, ERROR))
        broker.store.cancel([f"{kind}.stopped"])
    broker.add("poison")
    for _ in range(3):
        broker.take()
        broker.store.reap("c1", ["poison"])
    broker.store.requeue(["failed"])
    broker.finish(outcome(broker.take()))
    invariants(broker)
    broker.advance(WINDOW + 1)
    for queue in ("default", "again"):
        assert broker.meta(queue)["finished_bytes"] > 400
        for status in FINISHED:
            broker.store.prune(queue, status, 0, 0)
        assert broker.meta(queue)["finished_bytes"] == 0
    invariants(broker)


def test_a_cancelled_id_that_lingers_leaves_a_tombstone_for_the_claim(
    broker: BrokerHarness,
) -> None:
    broker.add("a", "b")
    broker.store.cancel(["a"])
    broker.advance(WINDOW + 1)
    assert prune(broker, "cancelled", keep=0) == (1, 0, False)
    assert broker.job("a") == {"lingers": "1"}
    assert broker.redis.ttl(broker.keys.job("a")) == -1
    assert broker.queries.statuses(["a"]) == [None]
    invariants(broker)
    claim = broker.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], [])
    assert broker.job("a") == {}


def test_an_id_without_a_hash_is_removed_from_the_list(broker: BrokerHarness) -> None:
    broker.end("a", "b")
    broker.redis.delete(broker.keys.job("a"))
    broker.advance(WINDOW + 1)
    assert prune(broker, ttl_ms=0) == (2, 0, False)
    assert broker.ids("completed") == []


def test_an_id_that_does_not_belong_in_the_list_keeps_its_hash(broker: BrokerHarness) -> None:
    broker.add("runs")
    broker.redis.zadd(broker.keys.queue("default").completed, {"runs": 1, "theirs": 2})
    broker.redis.set(broker.keys.job("theirs"), "theirs")
    assert prune(broker, ttl_ms=0) == (2, 0, False)
    assert broker.status("runs") == "queued"
    assert broker.redis.get(broker.keys.job("theirs")) == "theirs"


def test_nothing_to_do(broker: BrokerHarness) -> None:
    assert prune(broker, keep=0, ttl_ms=0) == (0, 0, False)
    assert broker.dump() == {}


@pytest.mark.parametrize("status", ["queued", "processing", "scheduled", "wake"])
def test_only_finished_jobs(broker: BrokerHarness, status: str) -> None:
    broker.add("a")
    with broker.unchanged(), pytest.raises(RedisQueueError, match="only finished jobs are pruned"):
        prune(broker, status, keep=0, ttl_ms=0)


@pytest.mark.parametrize("name", ["completed", "meta"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str
) -> None:
    with broker.refused_over(getattr(broker.keys.queue("default"), name)):
        prune(broker, ttl_ms=0)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.end("a")
    broker.advance(WINDOW + 1)
    with broker.full():
        assert prune(broker, ttl_ms=0) == (1, 0, False)


# -- jobs that the mirror has not read yet


def entry_of(broker: BrokerHarness, job_id: str, status: str) -> str:
    wanted = (job_id, status)
    (found,) = [
        event.entry
        for event in broker.written("job")
        if (event.data["jobId"], event.data["status"]) == wanted
    ]
    return found


def finished_ms(broker: BrokerHarness, job_id: str, instant_ms: int) -> None:
    """Act as if it had ended at that time."""
    broker.redis.hset(broker.keys.job(job_id), "finished_ms", instant_ms)
    key = getattr(broker.keys.queue("default"), str(broker.status(job_id)))
    broker.redis.zadd(key, {job_id: instant_ms}, xx=True)


@STATUSES
def test_not_before_the_mirror_has_read_its_last_event(
    mirrored: BrokerHarness, status: str
) -> None:
    mirrored.end("a", kind=status)
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


def test_a_mirror_at_the_end_has_read_everything(mirrored: BrokerHarness) -> None:
    mirrored.end("a")
    mirrored.store.trim(entry_of(mirrored, "a", "completed"), 10_000)
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 0, False)


def test_a_missing_stream_holds_nothing_back(mirrored: BrokerHarness) -> None:
    mirrored.end("a")
    mirrored.redis.delete(mirrored.keys.events)
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 0, False)


def test_a_clock_that_was_set_back_holds_everything_until_the_end_is_read(
    mirrored: BrokerHarness,
) -> None:
    mirrored.end("a")
    mirrored.add("b")
    mirrored.store.trim(entry_of(mirrored, "a", "completed"), 10_000)
    mirrored.store.now_ms = mirrored.queries.now_ms() - 3_600_000
    finished_ms(mirrored, "a", mirrored.now - 1000)
    assert prune(mirrored, keep=0, ttl_ms=0) == (0, 0, False)
    mirrored.store.trim(entry_of(mirrored, "b", "queued"), 10_000)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 0, False)


def test_the_byte_cap_overrides_the_mirror_too_and_is_counted(mirrored: BrokerHarness) -> None:
    mirrored.end("a")
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    mirrored.store.settings = replace(mirrored.store.settings, finished_max_bytes=0)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 1, False)
    assert mirrored.meta()["forced_total"] == 1


def test_without_a_mirror_nothing_is_waited_for(mirrored: BrokerHarness) -> None:
    mirrored.end("a")
    finished_ms(mirrored, "a", mirrored.queries.now_ms() - 1)
    mirrored.store.settings = replace(mirrored.store.settings, mirror=False)
    assert prune(mirrored, keep=0, ttl_ms=0) == (1, 0, False)


def test_a_failed_job_that_others_wait_for_stays_as_long_as_its_workflow(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.push()
    workflow.run_one(kind="failed")
    broker.end("plain", kind="failed", body=ERROR)
    broker.advance(20_000)
    assert broker.store.prune("default", "failed", 0, 1000) == (1, 0, False)
    assert broker.ids("failed") == [workflow.job(0)]
    assert broker.store.requeue([workflow.job(0)]) == [1]
    workflow.advance()
    assert workflow.run_all() == [0, 1]


def test_a_queue_removed_from_the_settings_is_pruned_too(broker: BrokerHarness) -> None:
    broker.end("a", queue="former")
    broker.end("b", "c")
    broker.advance(2 * 86_400_000)
    pruner = make_pruner(broker, Status.COMPLETED)
    with broker.broken("retrying"), broker.broken("completed"):
        assert pruner.run_once() == 1
        assert broker.status("a") is None
        assert broker.status("b") == "completed"
    assert pruner.run_once() == 2


def test_cancelled_jobs_are_kept_like_completed_ones(broker: BrokerHarness) -> None:
    for status in FINISHED:
        broker.end(f"{status}-job", kind=status)
    broker.advance(2 * 86_400_000)  # longer than RESULT_TTL, shorter than FAILED_TTL
    assert make_pruner(broker, *map(Status, FINISHED)).run_once() == 2
    assert [broker.ids(status) for status in FINISHED] == [
        [f"{status}-job"] if status == "failed" else [] for status in FINISHED
    ]
