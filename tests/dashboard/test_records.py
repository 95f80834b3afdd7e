"""Pages of records: cursors instead of counts, and slices where no index helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_redisqueue.dashboard import records_page as module
from django_redisqueue.dashboard.filters import JobListFilter
from django_redisqueue.dashboard.records_page import RecordQuery, parse_key, search
from django_redisqueue.exceptions import InvalidOption
from django_redisqueue.models import JobRecord

from ..support.postgres import multiply_by_sql, rows_read_in_vain
from .site import Site

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.django_db


def fill(count: int, **fields: Any) -> list[str]:
    """Records one second apart, three with each time; returns their ids, newest first."""
    start = JobRecord.objects.count()
    rows = [
        JobRecord(**{
            "id": f"job_{n:05}", "task": "shop.pay", "queue": "default", "status": "completed",
            "payload": f'[["order {n}"],{{}}]', "enqueued_at": BEGIN + timedelta(seconds=n // 3),
            **fields,
        })
        for n in range(start, start + count)
    ]  # fmt: skip
    JobRecord.objects.bulk_create(rows)
    return [row.id for row in reversed(rows)]


def pages(wanted: RecordQuery) -> list[str]:
    """The ids of all pages."""
    ids: list[str] = []
    for _ in range(100):
        found = search(wanted)
        ids += [row.id for row in found.rows]
        if found.following is None:
            return ids
        key = parse_key(found.following.text())
        wanted = replace(wanted, after=key)
    raise AssertionError("no end of pages")


def test_all_records_newest_first_each_once() -> None:
    ids = fill(173)
    assert pages(RecordQuery()) == ids
    assert len(search(RecordQuery()).rows) == module.SIZE


@pytest.mark.parametrize(
    "wanted",
    [
        RecordQuery(status="failed"),
        RecordQuery(queue="low"),
        RecordQuery(queue="low", status="failed"),
        RecordQuery(JobListFilter(task="shop.mail")),
        RecordQuery(JobListFilter(task="shop.mail"), status="failed"),
        RecordQuery(JobListFilter(task="shop.mail"), queue="low"),
        RecordQuery(JobListFilter(task="shop.mail"), queue="low", status="failed"),
        RecordQuery(JobListFilter(text="ORDER 1"), status="failed"),
        RecordQuery(JobListFilter(text="order 1"), queue="low"),
        RecordQuery(JobListFilter(task="shop.mail", text="order 1"), queue="low", status="failed"),
    ],
    ids=str,
)
def test_every_combination_finds_what_a_plain_query_finds(
    wanted: RecordQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_combination(wanted, monkeypatch)


@pytest.mark.parametrize("wanted", [RecordQuery(queue="low"), RecordQuery(status="failed")])
def test_the_same_on_postgresql(
    wanted: RecordQuery, monkeypatch: pytest.MonkeyPatch, on_postgres: object
) -> None:
    check_combination(wanted, monkeypatch)


def check_combination(wanted: RecordQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 40)
    monkeypatch.setattr(module, "SIZE", 7)
    for queue in ("default", "low"):
        for status in ("completed", "failed"):
            for task in ("shop.pay", "shop.mail"):
                fill(25, queue=queue, status=status, task=task)
    plain = JobRecord.objects.order_by("-enqueued_at", "-id")
    if wanted.status:
        plain = plain.filter(status=wanted.status)
    if wanted.queue:
        plain = plain.filter(queue=wanted.queue)
    if wanted.which.task:
        plain = plain.filter(task=wanted.which.task)
    if wanted.which.text:
        plain = plain.filter(payload__icontains=wanted.which.text)
    expected = list(plain.values_list("id", flat=True))
    assert expected
    assert pages(wanted) == expected


def test_matches_that_do_not_exist_are_not_searched_for_in_all_records(
    on_postgres: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All failures are in one queue, of one task and in one error group, but PostgreSQL expects
    some everywhere."""
    monkeypatch.setattr(module, "SLICE", 200)
    is_failed = "n % 5 = 0"
    fill(1)
    multiply_by_sql(
        JobRecord, 40_000, id="'job_' || n", enqueued_at="r.enqueued_at + n * interval '1 second'",
        status=f"CASE WHEN {is_failed} THEN 'failed' ELSE 'completed' END",
        queue=f"CASE WHEN {is_failed} THEN 'low' ELSE 'default' END",
        task=f"CASE WHEN {is_failed} THEN 'shop.pay' ELSE 'tests.app.tasks.noop' END",
        error_group=f"CASE WHEN {is_failed} THEN 'one' END",
    )  # fmt: skip
    for wanted in (
        RecordQuery(queue="default"),
        RecordQuery(queue="default", status="failed"),
        RecordQuery(group="one"),
        RecordQuery(JobListFilter(text="x"), queue="default", status="failed"),
        RecordQuery(JobListFilter(task="tests.app.tasks.noop"), status="failed"),
        RecordQuery(JobListFilter(task="tests.app.tasks.noop", text="x"), status="failed"),
    ):
        assert rows_read_in_vain(partial(search, wanted)) < 2000, wanted


@pytest.mark.parametrize("has_index", [True, False])
def test_records_by_correlation_id(has_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.features, "supports_partial_indexes", has_index)
    monkeypatch.setattr(module, "SLICE", 40)
    monkeypatch.setattr(module, "SIZE", 7)
    ids = fill(25, correlation_id="req-7", status="failed", queue="low")
    fill(60)
    ids = fill(20, correlation_id="req-7") + ids
    fill(20, correlation_id="req-8")
    assert pages(RecordQuery(correlation="req-7")) == ids
    assert pages(RecordQuery(correlation="req-7", status="failed")) == ids[20:]
    assert pages(RecordQuery(correlation="req-7", queue="low", status="failed")) == ids[20:]
    assert pages(RecordQuery(correlation="req-7", queue="low")) == ids[20:]
    assert pages(RecordQuery(JobListFilter(text="order 1"), correlation="req-8")) == [
        f"job_{n:05}" for n in range(124, 104, -1)
    ]
    assert pages(RecordQuery(correlation="req")) == []
    if has_index:
        plan = module._in_order(RecordQuery(), {"correlation_id": "req-7"}).explain()
        assert "drq_record_correlation" in plan


def test_a_time_range() -> None:
    fill(30)
    found = pages(RecordQuery(JobListFilter(since_ms=ms(3), until_ms=ms(5))))
    assert found == [f"job_{n:05}" for n in range(17, 8, -1)]


def ms(seconds: float) -> int:
    return round((BEGIN.timestamp() + seconds) * 1000)


def test_a_slice_says_how_far_it_searched(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.setattr(module, "SLICE", 30)
    fill(60)
    found = search(RecordQuery(JobListFilter(text="order 0")))
    assert found.rows == []
    assert found.back_to == BEGIN + timedelta(seconds=10)
    words = site.text("jobrecord_changelist", text='order 0"')
    assert "Nothing found so far." in words
    assert "back to 2026-01-01 00:00:10. Continue searching" in words
    assert pages(RecordQuery(JobListFilter(text='order 0"'))) == ["job_00000"]


def test_ids_by_prefix() -> None:
    check_prefixes()


@pytest.fixture
def on_danish_postgres(on_postgres: object) -> Iterator[None]:
    """By the collation of the ids, "aa" comes last, and LIKE needs an index of its own."""
    change = "ALTER TABLE django_redisqueue_jobrecord ALTER COLUMN id TYPE varchar(80) COLLATE"
    with connection.cursor() as cursor:
        cursor.execute(f'{change} "da-x-icu"')
        yield
        cursor.execute("TRUNCATE django_redisqueue_jobrecord")
        cursor.execute(f'{change} "default"')


def test_ids_by_prefix_in_the_order_of_a_collation(on_danish_postgres: None) -> None:
    check_prefixes()
    fill(1, id="job_aa")
    assert pages(RecordQuery(prefix="job_"))[:2] == ["job_aa", "job_00129"]
    JobRecord.objects.exclude(pk="job_00000").delete()
    multiply_by_sql(JobRecord, 40_000, id="'job_' || 20000 + n")
    assert rows_read_in_vain(partial(search, RecordQuery(prefix="job_2"))) < 2000


def check_prefixes() -> None:
    fill(130)
    fill(1, id="job%_x")
    assert pages(RecordQuery(prefix="job_0012")) == [f"job_{n:05}" for n in range(129, 119, -1)]
    assert pages(RecordQuery(prefix="job_00077")) == ["job_00077"]
    assert pages(RecordQuery(prefix="job%")) == ["job%_x"]
    assert len(pages(RecordQuery(prefix="job_"))) == 130
    assert pages(RecordQuery(prefix="nothing")) == []


@pytest.mark.parametrize("text", ["x", "1", "a.job", "99999999999999999999.job", "1."])
def test_an_invalid_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="is not a valid position"):
        parse_key(text)


def test_bad_filters_are_messages(site: Site) -> None:
    fill(1)
    assert "&#x27;done&#x27; is not a status; use one of scheduled" in site.get(
        "jobrecord_changelist", status="done"
    )
    assert "After: &#x27;x&#x27; is not a valid position" in site.get(
        "jobrecord_changelist", after="x"
    )
    assert "is not a valid time" in site.get("jobrecord_changelist", until="tomorrow")


def test_the_page_leads_on_and_back(site: Site) -> None:
    fill(120)
    first = site.get("jobrecord_changelist", status="completed")
    following = first.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
    second = site.client.get(following.replace("&amp;", "&")).content.decode()
    assert "job_00069" in second
    assert "job_00070" not in second
    assert "« First" in second
    assert "option selected>completed" in second
