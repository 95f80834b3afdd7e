"""The page on which reports are requested, with a test client."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.models import JobRecord
from django_redisqueue.signals import job_failed
from django_redisqueue.testing import InMemoryQueue, capture_jobs
from example_project.reports import tasks, views
from example_project.reports.downloads import deliver, fail
from example_project.reports.models import FileDownloadRecord
from tests.support.commands import output_of

from .test_report_data import joined, person

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.example.urls"),
]


@pytest.fixture(autouse=True)
def jobs() -> Iterator[InMemoryQueue]:
    with capture_jobs() as jobs:
        yield jobs


@pytest.fixture
def client(settings: Any, tmp_path: Path) -> Client:
    settings.MEDIA_ROOT = tmp_path
    person(1)
    return Client()


@pytest.fixture
def data(client: Client) -> None:
    """Thirty users, with everything that a report is made of."""
    output_of("makereportdata", users=30)


def states(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/reports/states").json()["records"]
    return found


@pytest.mark.usefixtures("data")
def test_a_report_is_requested_created_and_downloaded(client: Client, jobs: InMemoryQueue) -> None:
    assert client.post("/reports/", follow=True).redirect_chain == [("/reports/", 302)]
    (state,) = states(client)
    assert (state["status"], state["ended"], state["url"]) == ("requested", False, "")
    assert state["note"] == "0 of 3 sources answered"
    page = client.get("/reports/").content.decode()
    assert 'data-url="/reports/states"' in page
    assert f'data-record="{state["id"]}" data-status="requested"' in page
    jobs.drain()
    (state,) = states(client)
    assert (state["status"], state["ended"]) == ("ready", True)
    lines = joined()
    assert re.fullmatch(rf"{len(lines)} rows in \d+\.\d\d s", state["note"])
    page = client.get("/reports/").content.decode()
    assert "data-url" not in page
    assert f'href="{state["url"]}"' in page
    response = client.get(state["url"])
    assert response["Content-Type"] == "text/csv"
    assert re.match(r'attachment; filename="report [\d -]+\.csv"', response["Content-Disposition"])
    heading, *rows = csv.reader(StringIO(response.getvalue().decode(), newline=""))
    assert heading[:2] == ["user", "name"]
    assert rows == [list(map(str, line)) for line in lines]


def test_a_form_without_its_token_is_refused(client: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.post("/reports/").status_code == 403
    page = strict.get("/reports/").content.decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert token is not None
    assert strict.post("/reports/", {"csrfmiddlewaretoken": token[1]}).status_code == 302
    assert [state["status"] for state in states(client)] == ["requested"]


def test_without_users_it_says_what_to_do(client: Client) -> None:
    output_of("makereportdata", users=0)
    page = client.get("/reports/").content.decode()
    assert "manage.py makereportdata" in page
    assert "<button" not in page
    response = client.post("/reports/")
    assert response.status_code == 409
    assert "There are no users to report on." in response.content.decode()
    assert not FileDownloadRecord.objects.exists()


def test_an_error_of_redis_is_shown_and_leaves_no_record(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RedisUnavailable("Redis is not there")

    monkeypatch.setattr(views, "request_report", refuse)
    response = client.post("/reports/")
    assert response.status_code == 503
    assert "Redis is not there" in response.content.decode()


def test_a_source_that_fails_for_good_is_named(
    client: Client, jobs: InMemoryQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ConnectionError("the source is away")

    monkeypatch.setattr(tasks, "query_funds", broken)
    client.post("/reports/")
    jobs.drain()
    (state,) = states(client)
    assert (state["status"], state["url"]) == ("failed", "")
    assert "Not all sources answered." in state["note"]
    assert "funds" in state["note"].partition("Missing: ")[2]


def test_without_redis_the_page_shows_what_the_database_knows(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(key: str) -> None:
        raise RedisUnavailable("Redis is not there")

    client.post("/reports/")
    monkeypatch.setattr(views, "get_gather", away)
    assert [(state["status"], state["note"]) for state in states(client)] == [("requested", "")]


def test_a_report_lost_by_the_queue_ends(client: Client) -> None:
    waits, lost, late = (FileDownloadRecord.objects.create() for _ in range(3))
    before = timezone.now() - views.LOST_AFTER - timedelta(seconds=1)
    FileDownloadRecord.objects.exclude(pk=waits.pk).update(requested_at=before)
    found = {state["id"]: state for state in states(client)}
    assert (found[str(waits.pk)]["status"], found[str(waits.pk)]["note"]) == ("requested", "")
    for record in (lost, late):
        state = found[str(record.pk)]
        assert (state["status"], state["ended"]) == ("failed", True)
        assert state["note"] == "The queue lost this report. Please request another one."
    deliver(late, joined())  # it had not been lost, but Redis was away for long
    assert {state["id"]: state["status"] for state in states(client)}[str(late.pk)] == "ready"


def test_a_report_in_progress_is_not_declared_lost_however_long_it_takes(client: Client) -> None:
    client.post("/reports/")
    FileDownloadRecord.objects.update(requested_at=timezone.now() - timedelta(days=1))
    (state,) = states(client)
    assert (state["status"], state["note"]) == ("requested", "0 of 3 sources answered")


def test_a_merge_that_failed_for_good_is_reported_unless_the_report_is_ready(
    client: Client,
) -> None:
    record, other = (FileDownloadRecord.objects.create() for _ in range(2))
    deliver(other, joined())
    for one in (record, other):
        job = JobRecord(
            task=tasks.merge_report.name,
            payload=json.dumps([[], {"record_id": str(one.pk)}]),
            error=json.dumps({"type": "OSError", "message": "no space", "traceback": ""}),
        )
        job_failed.send(JobRecord, record=job, event=None)
    notes = {state["id"]: (state["status"], state["note"]) for state in states(client)}
    assert notes[str(record.pk)] == ("failed", "Its job failed: OSError: no space")
    assert notes[str(other.pk)][0] == "ready"


def test_a_failed_report_says_why(client: Client) -> None:
    record = FileDownloadRecord.objects.create()
    fail(str(record.pk), "Not all of its sources answered.", ["funds", "<b>"])
    (state,) = states(client)
    assert state["note"] == "Not all of its sources answered. Missing: funds, <b>."
    assert (state["status"], state["ended"], state["url"]) == ("failed", True, "")
    page = client.get("/reports/").content.decode()
    assert "Missing: funds, &lt;b&gt;." in page
    assert 'data-status="failed"' in page


def test_only_finished_reports_can_be_downloaded(client: Client) -> None:
    record = FileDownloadRecord.objects.create()
    assert client.get(f"/reports/{record.pk}.csv").status_code == 404
    assert client.get(f"/reports/{uuid4()}.csv").status_code == 404
    assert client.get("/reports/../secret.csv").status_code == 404
    deliver(record, joined())
    record.file.storage.delete(record.file.name)
    assert client.get(f"/reports/{record.pk}.csv").status_code == 404


def test_the_page_shows_the_newest_ones_without_more_queries_for_more(
    client: Client, django_assert_num_queries: Any
) -> None:
    made = [FileDownloadRecord.objects.create() for _ in range(views.SHOWN + 5)]
    with django_assert_num_queries(1):
        found = states(client)
    assert [state["id"] for state in found] == [str(one.pk) for one in made[:4:-1]]


def test_the_page_has_labels_and_nothing_inline(client: Client) -> None:
    FileDownloadRecord.objects.create()
    page = client.get("/reports/").content.decode()
    assert '<html lang="en">' in page
    assert 'role="status"' in page
    assert "<caption>" in page
    assert page.count('scope="col"') == 4
    assert re.findall(r"<script(?! src)", page) == []
    assert not re.search(r"<style| style=| on\w+=", page)
