"""The pages of tasks: all of them with their figures, and one with its charts and failures."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_redisqueue.dashboard import tasks_page
from django_redisqueue.dashboard.tasks_page import line
from django_redisqueue.models import JobRecord, Rollup
from tests.app import tasks

from .site import Site, address, rows

NOOP = tasks.noop.name


def rollup(minutes_ago: float, task: str = NOOP, queue: str = "default", **values: Any) -> None:
    at = timezone.now() - timedelta(minutes=minutes_ago)
    Rollup.objects.create(minute=at, queue=queue, task=task, **values)


def test_a_task_has_its_figures_of_all_queues(site: Site) -> None:
    rollup(5, enqueued=1200, completed=9, failed=2, retried=3, wait="[0,0,4]", run="[0,9]")
    rollup(9, queue="low", completed=1)
    rollup(70, completed=100)  # too long ago
    (row,) = rows(site.get("tasks", q="app.tasks.noop"))
    assert re.fullmatch(rf"{NOOP} 1,200 10 2 3 [23] ms [23] ms [12] ms [12] ms", row)
    assert "<polyline points=" in site.get("tasks", q="app.tasks.noop")
    (row,) = rows(site.get("tasks", q="app.tasks.noop", span="24h"))
    assert row.startswith(f"{NOOP} 1,200 110 2 3")


def test_tasks_are_sorted_filtered_and_paged(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including tasks that only other processes know."""
    monkeypatch.setattr(tasks_page, "SIZES", dict.fromkeys(tasks_page.SIZES, 2))
    for n in range(5):
        rollup(5, f"zz.{n}", failed=n)
    rollup(5, "<b>/?&", failed=9)
    assert [row.split()[0] for row in rows(site.get("tasks", q="ZZ."))] == ["zz.0", "zz.1"]
    assert [row.split()[0] for row in rows(site.get("tasks", q="zz.", page=3))] == ["zz.4"]
    assert [row.split()[0] for row in rows(site.get("tasks", sort="failed"))] == ["<b>/?&", "zz.4"]
    assert "Page 1 of 3" in site.text("tasks", q="zz.")
    assert rows(site.get("tasks", q="nothing")) == []
    assert rows(site.get("tasks", page=999))[-1].startswith("zz.4")  # of the last page
    assert len(rows(site.get("tasks", sort="<", span="x", page="-1"))) == 2
    assert "Task <b>/?&" in site.text("task", name="<b>/?&")


def test_the_page_of_a_task(site: Site) -> None:
    now = timezone.now()
    rollup(5, enqueued=7, completed=6, failed=1)
    rollup(5, "other", enqueued=100)
    error = '{"type":"OSError","message":"no route","traceback":""}'
    for n, status in enumerate(("failed", "completed")):
        JobRecord.objects.create(
            id=f"job_{n}", task=NOOP, queue="default", status=status, payload='[["x"],{}]',
            error=error if status == "failed" else "", enqueued_at=now, finished_at=now,
        )  # fmt: skip
    words = site.text("task", name=NOOP)
    assert "Last 1 hour: 7 jobs enqueued, 6 completed, 1 failed" in site.get("task", name=NOOP)
    assert "OSError: no route" in words
    assert "job_0" in words
    assert "job_1" not in words
    assert "queue_name default" in words
    assert "max_attempts 1" in words
    assert re.search(r"span=7d[^>]*>7 days", site.get("task", name=NOOP))
    assert "The task is not registered in this process" in site.text("task", name="app.gone")
    site.get("task", code=404)


def test_the_page_of_a_task_leads_to_its_records(site: Site) -> None:
    page = site.get("task", name="a b")
    records = address("jobrecord_changelist")
    assert f'<a href="{records}?task=a+b">All records</a>' in page
    assert f'<a href="{records}?task=a+b&amp;status=failed">All failed</a>' in page


def test_options_that_differ_from_their_defaults_are_shown(site: Site) -> None:
    words = site.text("task", name=tasks.retry_later.name)
    assert "max_attempts 3" in words
    assert "takes_context yes" in words
    assert "exactly_once" not in words


def test_without_redis_the_mirror_still_knows_the_tasks(
    site: Site, settings: Any, queue_settings: Any
) -> None:
    rollup(5, completed=6)
    nowhere = {"URL": "unix:///nonexistent/redis.sock"}
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": nowhere, "MIRROR": True}
    assert rows(site.get("tasks", q="app.tasks.noop"))[0].startswith(f"{NOOP} 0 6")
    assert "6 completed" in site.get("task", name=NOOP)
    settings.REDISQUEUE = {**queue_settings, "MIRROR": False}
    assert "The mirror is off, so there are no new figures." in site.text("tasks")


def test_a_row_omits_unknown_values() -> None:
    assert line([]) == line([0, 0, None]) == ""
    assert line([0, 4, None, 2]) == "0.0,23.0 40.0,1.0 120.0,12.0"
