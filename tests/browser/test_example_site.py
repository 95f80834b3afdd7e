"""The example's pages in a browser: a job and a report are followed to their end without
reloading."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import AbstractContextManager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import JobQueue
from example_project.reports.comparing import plain_join
from example_project.reports.join import Line
from example_project.reports.models import FileDownloadRecord
from tests.example.site import Site
from tests.mirror.mirror_processes import sqlite_entry
from tests.support.postgres import as_database
from tests.worker.processes import eventually

ABORTED = "net::ERR_FAILED"  # of a request that the test itself aborts


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"), "--address", "127.0.0.1:0", migrated=migrated)
    yield made
    made.close()


@pytest.fixture
def site(started: Site, django_db_blocker: Any) -> Iterator[Site]:
    """The site, which has no reports when the test begins."""
    yield started
    with django_db_blocker.unblock(), database_of(started):
        FileDownloadRecord.objects.all().delete()


def database_of(site: Site) -> AbstractContextManager[str]:
    return as_database("default", sqlite_entry(site.folder / "db.sqlite3"))


@pytest.fixture
def page(browser: Any, site: Site) -> Iterator[Any]:
    """A Playwright page on the site; any error on it fails the test."""
    context = browser.new_context(base_url=site.found(r"The site: +(\S+)"))
    context.set_default_timeout(20_000)
    made = context.new_page()
    complaints: list[str] = []
    made.on("console", lambda message: complaints.append(message.text))
    made.on("pageerror", lambda error: complaints.append(str(error)))
    site.wait_until_it_answers(site.found(r"The site: +(\S+)"))
    yield made
    context.close()
    assert [text for text in complaints if ABORTED not in text] == []


@pytest.mark.slow
def test_the_front_page_follows_its_job_live(page: Any) -> None:
    page.goto("/")
    page.select_option("#language", "de")
    with page.expect_navigation():
        page.click("button")
    page.evaluate("window.since = document.querySelector('[data-show=done]').textContent")
    page.wait_for_function("Number(document.querySelector('[data-show=done]').textContent) > 3")
    assert page.get_attribute("#job", "data-status") == "processing"
    page.wait_for_selector("#job[data-status=completed] tbody th")
    assert page.evaluate("window.since") is not None  # the same page all the time
    assert "%" in page.inner_text("caption")
    assert page.locator("tbody tr").count() > 10


@pytest.mark.slow
def test_a_report_becomes_ready_on_the_page_and_is_downloaded_whole(
    page: Any, site: Site, tmp_path: Path, django_db_blocker: Any
) -> None:
    page.goto("/")
    page.get_by_role("link", name="Reports").click()
    assert page.inner_text("#news") == "No report has been requested yet."
    with page.expect_navigation():
        page.get_by_role("button", name="Make a report").click()
    page.evaluate("window.marked = true")
    row = page.locator("tbody tr")
    page.wait_for_selector("tbody tr[data-status=ready]")
    assert page.evaluate("window.marked")  # the same page all the time
    with page.expect_download() as download:
        row.get_by_role("link", name="Download the report of").click()
    download.value.save_as(tmp_path / "report.csv")
    text = (tmp_path / "report.csv").read_text(encoding="utf-8")
    heading, *lines = csv.reader(StringIO(text, newline=""))
    assert heading == list(Line._fields)
    with django_db_blocker.unblock(), database_of(site):
        assert lines == [list(map(str, line)) for line in plain_join()]
    assert len(lines) > 30
    assert row.inner_text().startswith("20")
    assert f"{len(lines)} rows in " in row.inner_text()


@pytest.mark.slow
def test_the_reports_page_shows_the_change_and_an_outage(
    page: Any, site: Site, settings: Any
) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": f"embedded://{site.folder}/redis"}}
    queue = JobQueue("default")
    queue.pause()  # so that the report is not ready before the page is loaded
    page.goto("/reports/")
    held: list[Any] = []
    page.route("**/reports/states", lambda route: held.append(route))  # noqa: PLW0108
    with page.expect_navigation():
        page.get_by_role("button", name="Make a report").click()
    assert page.locator("tbody tr[data-status=requested]").count() == 1
    eventually(lambda: page.wait_for_timeout(10) or held)
    queue.resume()

    held[0].abort()
    page.unroute("**/reports/states")
    page.get_by_text("The site does not answer. Trying again.").wait_for()
    page.get_by_text("is ready.").wait_for()  # in the region that screen readers read out
    assert page.locator("[role=status]").inner_text().startswith("The report of ")
    for width in (1360, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
