"""Retention: old rows are deleted in bounded steps; recent or unfinished ones stay."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections, models
from django.db.backends.utils import CursorWrapper
from django.db.models.signals import post_delete
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_redisqueue.conf import Settings, load
from django_redisqueue.core.clock import MAX_DURATION
from django_redisqueue.mirror import retention
from django_redisqueue.mirror.retention import Retention, RetentionRule, mirror_rules, receipt_rules
from django_redisqueue.models import (
    JobEvent,
    JobRecord,
    Receipt,
    Rollup,
    StepReceipt,
    WorkflowEvent,
    WorkflowRecord,
)
from django_redisqueue.models.tables import reset_table_cache

from .rows import event, record

pytestmark = pytest.mark.django_db(databases=["default", "other"])

NOW = datetime(2024, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SETTINGS = load({"AUDIT_RETENTION": 10 * 86_400})


def everything() -> list[RetentionRule]:
    return [*mirror_rules(), *receipt_rules()]


def run(settings: Settings = SETTINGS) -> int:
    """Take all steps; returns their number."""
    made = Retention(settings, everything)
    steps = 1
    while made.run_once(NOW):
        steps += 1
    return steps


def ids(model: type[models.Model] = JobRecord) -> set[Any]:
    return set(model._default_manager.values_list("pk", flat=True))


def ended(job_id: str, days_ago: float, *, began: float = 20, status: str = "completed") -> None:
    record(job_id, status, enqueued_at=NOW - began * DAY, finished_at=NOW - days_ago * DAY)


def test_records_that_ended_before_the_limit_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS_PER_STEP", 2)
    for status in ("completed", "failed", "cancelled"):
        ended(f"old.{status}", 10.001, status=status)
        ended(f"young.{status}", 9.999, status=status)
    for status in ("queued", "processing", "scheduled", "retrying", "waiting"):
        record(status, status, enqueued_at=NOW - 1000 * DAY)
    ended("new", 0.5, began=1)
    run()
    assert {one for one in ids() if one.startswith("old")} == set()
    assert len(ids()) == 3 + 5 + 1


def test_workflows_that_ended_before_the_limit_are_deleted_with_their_events() -> None:
    for name, days, ended_at in (
        ("old", 10.001, NOW - 10.001 * DAY), ("young", 9.999, NOW - 9.999 * DAY), ("runs", 99, None)
    ):  # fmt: skip
        then = NOW - days * DAY
        WorkflowRecord.objects.create(id=name, made_at=then - DAY, ended_at=ended_at)
        at_ms = round(then.timestamp() * 1000)
        WorkflowEvent.objects.create(workflow_id=name, status="running", at=then, entry_ms=at_ms)
    run()
    assert ids(WorkflowRecord) == {"young", "runs"}
    assert [one.workflow_id for one in WorkflowEvent.objects.all()] == ["young"]


def test_events_rollups_and_receipts_are_deleted_too() -> None:
    for name, days in (("old", 10.001), ("young", 9.999)):
        then = NOW - days * DAY
        event(name, at=then, entry_ms=round(then.timestamp() * 1000))
        Rollup.objects.create(minute=then, queue="default", task=name)
        Receipt.objects.create(job_id=name)
        Receipt.objects.filter(pk=name).update(created_at=then)
    run()
    assert [one.job_id for one in JobEvent.objects.all()] == ["young"]
    assert [one.task for one in Rollup.objects.all()] == ["young"]
    assert ids(Receipt) == {"young"}


def test_a_receipt_outlives_a_short_retention() -> None:
    ended("a", 1)
    for name, days in (("recent", 6.9), ("old", 7.1)):
        Receipt.objects.create(job_id=name)
        Receipt.objects.filter(pk=name).update(created_at=NOW - days * DAY)
    run(load({"AUDIT_RETENTION": 60}))
    assert (ids(), ids(Receipt)) == (set(), {"recent"})


def test_receipts_are_deleted_without_time_zones_too(settings: Any) -> None:
    """exactly_once needs neither the mirror nor the outbox, which do not work that way (E008)."""
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Kolkata"
    for name, days in (("recent", 6.9), ("old", 7.1)):
        Receipt.objects.create(job_id=name)
        Receipt.objects.filter(pk=name).update(created_at=timezone.now() - days * DAY)
    made = Retention(load({"MIRROR": False, "AUDIT_RETENTION": 60}), receipt_rules)
    assert made.run_once() is False
    assert ids(Receipt) == {"recent"}


def test_the_longest_retention_ends_before_dates_begin() -> None:
    ended("a", 1000, began=2000)
    run(load({"AUDIT_RETENTION": MAX_DURATION}))
    assert ids() == {"a"}


def test_zero_keeps_everything_forever() -> None:
    ended("a", 1000, began=2000)
    with CaptureQueriesContext(connection) as queries:
        assert run(replace(SETTINGS, audit_retention_ms=0)) == 1
    assert ids() == {"a"}
    assert len(queries) == 0


def test_it_continues_where_it_stopped_and_restarts_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "ROWS_PER_STEP", 10)
    # all of them stay: a walk that restarted each time would never get past them
    for n in range(25):
        record(f"runs{n}", "processing", enqueued_at=NOW - 100 * DAY)
    ended("last", 11, began=50)
    made = Retention(SETTINGS, everything)
    while made.run_once(NOW):
        pass
    assert "last" not in ids()
    ended("again", 11, began=200)
    while made.run_once(NOW):
        pass
    assert len(ids()) == 25


def test_a_step_sorts_no_more_than_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would take longer the more rows are left; SQLite shows this in its plan."""
    monkeypatch.setattr(retention, "ROWS_PER_STEP", 1)
    ended("a", 20), ended("b", 20), event(NOW - 20 * DAY), event(NOW - 20 * DAY)
    with CaptureQueriesContext(connection) as queries:
        assert run() > 4
    walks = {found["sql"] for found in queries if " LIMIT 1" in found["sql"]}
    assert any(">=" in walk for walk in walks)
    with connection.cursor() as cursor:
        for walk in walks:
            cursor.execute(f"EXPLAIN QUERY PLAN {walk}")
            plan = [line for *_, line in cursor.fetchall()]
            assert "USING" in plan[0], (walk, plan)
            assert "USE TEMP B-TREE FOR ORDER BY" not in plan, (walk, plan)


def test_a_job_requeued_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    ended("a", 11)
    ended("b", 11)
    original = models.QuerySet.delete

    def requeued_first(rows: Any) -> Any:
        JobRecord.objects.filter(pk="a").update(status="queued", finished_at=None)
        return original(rows)

    monkeypatch.setattr(models.QuerySet, "delete", requeued_first)
    run()
    assert ids() == {"a"}


def test_receipts_of_every_alias_that_has_them(caplog: pytest.LogCaptureFixture) -> None:
    Receipt.objects.using("other").create(job_id="there")
    Receipt.objects.using("other").update(created_at=NOW - 100 * DAY)
    run()
    assert not Receipt.objects.using("other").exists()
    assert caplog.records == []


def test_an_alias_that_is_away_keeps_no_other_from_its_turn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Receipt.objects.create(job_id="old")
    Receipt.objects.update(created_at=NOW - 20 * DAY)

    def fail(*_: Any) -> Any:
        raise retention.DatabaseError("no route to 10.0.0.1")

    reset_table_cache()
    monkeypatch.setattr(connections["other"].introspection, "table_names", fail)
    run()
    reset_table_cache()
    assert ids(Receipt) == set()
    assert {one.getMessage() for one in caplog.records} == {
        f"retention: {model._meta.db_table} on other: no route to 10.0.0.1; trying again"
        for model in (Receipt, StepReceipt)
    }


def test_an_alias_without_our_tables_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with connections["other"].cursor() as cursor:
        cursor.execute("ALTER TABLE django_redisqueue_receipt RENAME TO not_ours")
    reset_table_cache()
    ended("a", 11)
    run()
    reset_table_cache()
    assert ids() == set()
    assert caplog.records == []


def test_a_receiver_of_every_deletion_loads_no_results_into_memory() -> None:
    """Such as a search engine's: Django then reads the rows before it deletes them."""
    deleted: list[str] = []

    def receiver(instance: models.Model, **_: Any) -> None:
        deleted.append(str(instance.pk))

    ended("a", 11)
    post_delete.connect(receiver)
    try:
        with CaptureQueriesContext(connection) as queries:
            run()
    finally:
        post_delete.disconnect(receiver)
    assert deleted == ["a"]
    assert not [one for one in queries.captured_queries if "payload" in one["sql"]]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_database_that_fails_is_logged_and_retried(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("a", 11)
    made = Retention(SETTINGS, everything)
    execute = CursorWrapper.execute
    with monkeypatch.context() as broken:

        def refuse(self: Any, sql: str, params: Any = None) -> Any:
            if sql.startswith("DELETE"):
                raise retention.DatabaseError("database is locked\nCONTEXT:  COPY, line 1: ...")
            return execute(self, sql, params)

        broken.setattr(CursorWrapper, "execute", refuse)
        for _ in range(3):  # an outage is logged once, not every minute
            assert made.run_once(NOW) is False
    said = "retention: django_redisqueue_jobrecord on default: database is locked; trying again"
    assert [one.getMessage() for one in caplog.records] == [said]
    assert made.run_once(NOW) is False
    assert ids() == set()
    ended("b", 11)
    with monkeypatch.context() as broken:
        broken.setattr(CursorWrapper, "execute", refuse)
        assert made.run_once(NOW) is False
    assert [one.getMessage() for one in caplog.records] == [said] * 2


def peak_of(step: Callable[[], bool]) -> tuple[bool, int]:
    """What a step returns, and its peak memory; tracing it is slow."""
    tracemalloc.start()
    try:
        return step(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_200_000_rows_at_constant_memory_in_short_transactions() -> None:
    ended("young", 1)
    ended("old", 20, began=100)
    names = [connection.ops.quote_name(field.column) for field in JobRecord._meta.concrete_fields]
    later = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', enqueued_at, (n / 1e3) || ' seconds')"
    other = {'"id"': "'j' || n", '"enqueued_at"': later}
    values = [other.get(name, name) for name in names]
    # creating the rows through Django would take longer than the test
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {JobRecord._meta.db_table} ({', '.join(names)}) "
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT %s) "
            f"SELECT {', '.join(values)} FROM {JobRecord._meta.db_table}, numbers WHERE id = 'old'",
            [199_999],
        )
    made, longest, peak, steps = Retention(SETTINGS, everything), 0.0, 0, 0
    blocks = sys.getallocatedblocks()
    going = True
    while going:
        began = time.process_time()  # SQLite runs in this process, and no other counts
        if steps % 20:
            going = made.run_once(NOW)
        else:
            left = JobRecord.objects.count()
            going, traced = peak_of(lambda: made.run_once(NOW))
            peak = max(peak, traced)
            assert left - JobRecord.objects.count() <= retention.ROWS_PER_STEP
        steps += 1
        longest = max(longest, time.process_time() - began)
    assert sys.getallocatedblocks() - blocks < 20_000, "nothing is kept from step to step"
    assert ids() == {"young"}
    assert steps >= 200_000 / retention.ROWS_PER_STEP
    assert peak < 4_000_000
    assert longest < 1
