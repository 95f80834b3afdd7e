"""Failures and retried attempts are counted in groups, each once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from django_redisqueue.conf import get_settings
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.statuses import Status
from django_redisqueue.metrics.histograms import HOURS, add_hours, last_hours
from django_redisqueue.mirror import aggregates
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.retention import Retention, mirror_rules
from django_redisqueue.models import ErrorGroup, JobRecord, MirrorState, Rollup
from django_redisqueue.worker.child.retry_policy import describe
from tests.broker.harness import T0, outcome

from .mirrored_shard import MirroredShard


def body(message: str, kind: str = "ValueError", size: int = 0) -> str:
    frame = 'Traceback (most recent call last):\n  File "/a/shop/tasks.py", line 3, in charge\n'
    return json.dumps({"type": kind, "message": message, "traceback": frame + "x" * size})


def fail(shard: MirroredShard, job_id: str, error: str, how: str = "failed") -> None:
    job = shard.broker.take()
    assert job.id == job_id
    shard.broker.finish(outcome(job, how, error, "1000" if how == "retrying" else ""))


def test_failures_and_retried_attempts_count_in_one_group(shard: MirroredShard) -> None:
    shard.broker.add("a", "b")
    fail(shard, "a", body("order 1"), "retrying")
    fail(shard, "b", body("order 2"))  # in the same millisecond
    shard.mirror()
    assert ErrorGroup.objects.get().job_id == "b"
    shard.broker.advance(1000)
    fail(shard, "a", body("order 3"))
    shard.mirror()
    group = ErrorGroup.objects.get()
    assert (group.task, group.exception, group.message) == ("app.task", "ValueError", "order <n>")
    assert (group.frame, group.queue_names) == ("/a/shop/tasks.py in charge"[1:], ["default"])
    assert (group.count, group.failed, group.retried, group.job_id) == (3, 2, 1, "a")
    assert group.first_seen == datetime.fromtimestamp(T0 / 1000, UTC)
    assert group.last_seen - group.first_seen == timedelta(seconds=1)
    assert group.last_error is not None
    assert group.last_error.message == "order 3"
    assert last_hours(group.hours, T0 // 3_600_000)[-1] == 3
    assert {shard.record(job_id).error_group for job_id in "ab"} == {group.pk}
    shard.assert_complete()


def test_of_failures_in_the_same_millisecond_the_last_in_the_stream_is_shown(
    shard: MirroredShard,
) -> None:
    shard.broker.add("a", "b")
    first, second = shard.broker.claim(jobs=2).jobs
    shard.broker.finish(outcome(second, "failed", body("order 1")))
    shard.broker.finish(outcome(first, "retrying", body("order 2"), "0"))
    shard.mirror()
    assert ErrorGroup.objects.get().job_id == "a"
    for order in (3, 4):
        shard.broker.finish(outcome(shard.broker.take(), "retrying", body(f"order {order}"), "0"))
    shard.mirror()
    group = ErrorGroup.objects.get()
    assert group.last_error is not None
    assert (group.count, group.last_error.message) == (4, "order 4")
    assert shard.record("a").error == group.error


def test_a_repeated_event_counts_once(shard: MirroredShard) -> None:
    shard.broker.add("a")
    fail(shard, "a", body("no"), "retrying")
    shard.mirror()
    MirrorState.objects.update(position="0-0")
    again = Bridge()
    shard.mirror(again)
    again.connection.close()
    assert ErrorGroup.objects.get().count == 1


def test_the_group_of_a_record_is_that_of_its_last_error(shard: MirroredShard) -> None:
    shard.broker.add("a", "b")
    fail(shard, "a", body("no"), "retrying")
    fail(shard, "b", body("no"))
    shard.mirror()
    shard.broker.advance(1000)
    fail(shard, "a", body("else", "KeyError"))
    shard.mirror()
    groups = {group.exception: group for group in ErrorGroup.objects.all()}
    assert shard.record("a").error_group == groups["KeyError"].pk
    shard.broker.store.requeue(["a", "b"])
    shard.mirror()
    assert {shard.record(job_id).error_group for job_id in "ab"} == {None}
    assert {group.exception: group.count for group in ErrorGroup.objects.all()} == {
        "ValueError": 2,
        "KeyError": 1,
    }


def test_a_large_error_that_was_replaced_counts_for_the_next(shard: MirroredShard) -> None:
    """The stream does not carry it, and the job's hash only has the last one."""
    shard.broker.add("a", "b")
    fail(shard, "a", body("first", size=2000), "retrying")
    fail(shard, "b", body("first", size=2000), "retrying")
    shard.broker.advance(1000)
    fail(shard, "a", body("last", size=2000))
    shard.broker.finish(outcome(shard.broker.take()))
    shard.mirror()
    last, unknown = ErrorGroup.objects.order_by("-exception")
    assert (last.message, last.count, last.failed) == ("last", 2, 1)
    assert (unknown.exception, unknown.count) == ("", 1), "b has completed"
    assert unknown.last_error is None


def test_beyond_the_bound_a_task_has_one_more_group(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregates, "MAX_GROUPS", 2)
    for letter in "abcd":
        shard.broker.add(letter)
        fail(shard, letter, body(f"wrong {letter}"))
        shard.mirror()
    shard.broker.add("e")
    fail(shard, "e", body("wrong a"))
    shard.mirror()
    found = dict(ErrorGroup.objects.values_list("message", "count"))
    assert found == {"wrong a": 2, "wrong b": 1, "": 2}
    assert shard.record("d").error_group == ErrorGroup.objects.get(message="").pk


def test_rows_that_shards_share_are_inserted_in_one_order(shard: MirroredShard) -> None:
    """In whatever order their events come, so that two bridges never wait for each other."""
    for task in ("app.b", "app.c", "app.a"):
        shard.broker.store.enqueue([NewJob(task, "default", task, "[[],{}]")])
        fail(shard, task, body("no"))
    shard.mirror()
    assert list(Rollup.objects.order_by("pk").values_list("task", flat=True)) == [
        "app.a", "app.b", "app.c",
    ]  # fmt: skip


def test_old_groups_are_deleted_and_may_recur(shard: MirroredShard) -> None:
    shard.broker.add("a", "b")
    fail(shard, "a", body("no"))
    shard.mirror()
    later = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(days=365)
    retention = Retention(get_settings(), mirror_rules)
    while retention.run_once(later):
        pass
    assert not ErrorGroup.objects.exists()
    fail(shard, "b", body("no"))
    shard.mirror()
    assert ErrorGroup.objects.get().count == 1


def test_the_failed_jobs_of_a_group_are_found_by_an_index(shard: MirroredShard) -> None:
    rows = JobRecord.objects.filter(error_group="f", status=Status.FAILED).order_by("-enqueued_at")
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # the table is empty
        plan = rows.explain()
    assert "drq_record_error" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


def test_values_redacted_by_a_task_are_in_no_group(shard: MirroredShard) -> None:
    shard.broker.add("a")
    error = describe(ValueError("card s3cret refused"), 1000, ["s3cret"])
    fail(shard, "a", error)
    shard.mirror()
    [group] = ErrorGroup.objects.values()
    assert group["message"] == "card [redacted] refused"
    assert "s3cret" not in str(group)


def test_hours_are_counted_for_a_week() -> None:
    text = add_hours(add_hours("", {100: 1, 101: 2}), {101: 3})
    assert last_hours(text, 101)[-2:] == [1, 5]
    assert sum(last_hours(text, 100 + HOURS)) == 5
    assert last_hours(add_hours(text, {101 + HOURS: 1}), 101 + HOURS) == [0] * (HOURS - 1) + [1]
    for corrupt in ("", "[]", '{"x":1,"5":-1,"6":"7"}', "{"):
        assert sum(last_hours(corrupt, 7)) == 0
