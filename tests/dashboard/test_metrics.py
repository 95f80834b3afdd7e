"""Rollup rows as series and percentiles, and how they are folded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries

from django_redisqueue.dashboard.charts import make_charts
from django_redisqueue.metrics.histograms import add, encode, percentile
from django_redisqueue.metrics.rollups import (
    SPANS,
    chart,
    compact,
    figures,
    floor,
    task_figures,
    task_totals,
)
from django_redisqueue.models import Rollup

NOW = datetime(2026, 3, 4, 12, 34, 56, tzinfo=UTC)
pytestmark = pytest.mark.django_db


def histogram(*durations: float) -> str:
    counts: list[int] = []
    for ms in durations:
        add(counts, ms)
    return encode(counts)


def row(minutes_ago: int, queue: str = "default", task: str = "a.b", **values: Any) -> Rollup:
    minute = floor(NOW, timedelta(minutes=1)) - timedelta(minutes=minutes_ago)
    return Rollup.objects.create(minute=minute, queue=queue, task=task, **values)


def test_the_points_of_an_hour_are_its_minutes() -> None:
    row(0, enqueued=5)
    row(59, completed=7)
    row(60, completed=100)  # just outside
    columns = chart(figures(SPANS["1h"], NOW).points)
    assert len(columns["at"]) == 60
    assert columns["enqueued"] == [0] * 59 + [5]
    assert columns["completed"] == [7] + [0] * 59
    assert columns["at"][-1] == int(floor(NOW, timedelta(minutes=1)).timestamp())
    assert columns["wait50"] == [None] * 60


@pytest.mark.parametrize(("name", "points"), [("1h", 60), ("24h", 144), ("7d", 168)])
def test_every_span_has_its_points_and_takes_one_query(
    name: str, points: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    row(30, completed=1)
    with django_assert_num_queries(1):
        found = figures(SPANS[name], NOW)
    assert len(found.points) == points
    assert sum(chart(found.points)["completed"]) == 1


@pytest.mark.parametrize(
    ("name", "second", "minutes"), [("1h", 56, 0.93), ("1h", 14, None), ("24h", 56, 4.93)]
)
def test_the_last_point_has_the_rate_of_the_time_that_has_passed(
    name: str, second: int, minutes: float | None
) -> None:
    """Otherwise every chart would end with a drop."""
    row(0, completed=28)
    row(20, completed=100)
    columns = make_charts(figures(SPANS[name], NOW.replace(second=second)))["columns"]
    rate = columns["completed"][-1]
    assert rate == (None if minutes is None else pytest.approx(28 / minutes, 0.01))
    assert max(filter(None, columns["completed"][:-1])) == (100 if name == "1h" else 10)


def test_tasks_have_totals_and_their_own_figures(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    row(1, completed=1, failed=2)
    row(2, queue="low", completed=4, wait=histogram(10))
    row(3, task="c.d", enqueued=8)
    with django_assert_num_queries(2):
        totals = task_totals(SPANS["1h"], NOW)
        found = task_figures(SPANS["1h"], NOW, ["a.b"])
    assert {name: sums.completed for name, sums in totals.items()} == {"a.b": 5, "c.d": 0}
    assert (found["a.b"].total.failed, sum(chart(found["a.b"].points)["completed"])) == (2, 5)
    assert percentile(found["a.b"].total.wait, 0.5) is not None
    assert found["a.b"].ended[-4:] == [0, 4, 3, 0]
    assert figures(SPANS["1h"], NOW, task="c.d").total.enqueued == 8


def test_queues_and_tasks_add_up_and_one_queue_can_be_asked_for() -> None:
    row(1, completed=1, failed=2)
    row(1, task="c.d", completed=4)
    row(2, queue="low", completed=8, failed=16)
    found = figures(SPANS["1h"], NOW)
    assert {name: (sums.completed, sums.failed) for name, sums in found.queues.items()} == {
        "default": (5, 2),
        "low": (8, 16),
    }
    assert sum(chart(found.points)["completed"]) == 13
    assert list(figures(SPANS["1h"], NOW, "low").queues) == ["low"]


def test_percentiles_come_from_the_sum_of_the_histograms() -> None:
    row(1, wait=histogram(*[10] * 90), run=histogram(1000))
    row(2, wait=histogram(*[5000] * 10))
    sums = figures(SPANS["1h"], NOW).queues["default"]
    half, most = percentile(sums.wait, 0.5), percentile(sums.wait, 0.95)
    assert half is not None
    assert most is not None
    assert 7 < half < 13
    assert 3900 < most < 6400
    assert percentile(sums.run, 0.5) is not None


def everything(name: str) -> dict[str, Any]:
    return chart(figures(SPANS[name], NOW).points)


def test_folding_makes_fewer_rows_and_changes_no_chart() -> None:
    for ago in range(0, 48 * 60, 7):
        row(ago, completed=1, enqueued=2, wait=histogram(ago), run=histogram(3))
        row(ago, task="c.d", failed=1)
    before = {name: everything(name) for name in SPANS}
    rows = Rollup.objects.count()
    while compact(NOW):
        pass
    assert {name: everything(name) for name in SPANS} == before
    # 2 hours with every 7th minute, a day in steps of ten minutes, and the rest by the hour; twice.
    assert Rollup.objects.count() < 2 * (18 + 6 * 25 + 24) < rows


def test_late_rows_are_merged_into_the_folded_row() -> None:
    row(3 * 60, completed=1)
    row(3 * 60 + 1, completed=2)
    while compact(NOW):
        pass
    assert Rollup.objects.get().completed == 3
    row(3 * 60 + 2, completed=4)
    while compact(NOW):
        pass
    assert Rollup.objects.get().completed == 7


def test_a_call_folds_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redisqueue.metrics.rollups.ROWS_PER_STEP", 3)
    for ago in range(200, 210):
        row(ago, completed=1)
    assert compact(NOW) == 3
    while compact(NOW):
        pass
    assert sum(each.completed for each in Rollup.objects.all()) == 10


def test_all_minutes_of_a_task_are_folded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of tasks, a minute at a time would write every row again for each minute."""
    monkeypatch.setattr("django_redisqueue.metrics.rollups.ROWS_PER_STEP", 90)
    for n in range(20):
        for ago in range(175, 184):  # 9:31 to 9:39
            row(ago, task=f"t{n:02}", completed=1)
    with CaptureQueriesContext(connection) as queries:
        assert [compact(NOW) for _ in range(3)] == [90, 90, 0]
    assert [each.completed for each in Rollup.objects.all()] == [9] * 20
    assert not [one["sql"] for one in queries.captured_queries if one["sql"].startswith("UPDATE")]


def test_the_oldest_folded_hour_is_complete() -> None:
    week = 8 * 24 * 60
    row(week + 34, completed=1)  # at 12:00, of which eight days ago was 12:34
    row(week - 6, completed=2)
    while compact(NOW):
        pass
    assert Rollup.objects.get().completed == 3


def test_already_folded_rows_cost_one_query_per_step(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """None of its rows is read, and SQLite stays unlocked."""
    for n in range(20):
        row(34 + 3 * 60, task=f"t{n}")
    seen: list[datetime] = []
    monkeypatch.setattr(
        "django_redisqueue.metrics.rollups.floor",
        lambda instant, step: seen.append(instant) or floor(instant, step),  # type: ignore[func-returns-value]
    )
    with django_assert_num_queries(2):
        assert compact(NOW) == 0
    assert len(seen) <= 5
