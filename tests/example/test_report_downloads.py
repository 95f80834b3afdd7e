"""A report's file and its record: one complete file, whatever runs twice or dies in between."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile

from example_project.reports import downloads
from example_project.reports.downloads import deliver, fail
from example_project.reports.join import Line
from example_project.reports.models import FileDownloadRecord

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def media(settings: Any, tmp_path: Path) -> Path:
    settings.MEDIA_ROOT = tmp_path
    return tmp_path


@pytest.fixture
def record() -> FileDownloadRecord:
    return FileDownloadRecord.objects.create()


def lines(number: int, name: str = "Zoë") -> list[Line]:
    rest = [str(value) for value in range(len(Line._fields) - 2)]
    return [Line(user, name, *rest) for user in range(number)]  # type: ignore[arg-type]


def content(record: FileDownloadRecord) -> list[list[str]]:
    """The lines of its file, after checking that there is no other file."""
    record.refresh_from_db()
    (only,) = record.file.storage.listdir(record.folder)[1]
    assert record.file.name == f"{record.folder}/{only}"
    with record.file.open() as file:
        text = file.read().decode()
    return list(csv.reader(StringIO(text, newline="")))[1:]


def test_the_file_exists_and_the_record_says_so(record: FileDownloadRecord) -> None:
    assert deliver(record, lines(3)) == 3
    assert content(record) == [list(map(str, line)) for line in lines(3)]
    assert (record.status, record.rows, record.problem) == ("ready", 3, "")
    assert record.ended_at is not None
    assert record.ended_at >= record.requested_at


def test_a_second_run_changes_nothing(record: FileDownloadRecord) -> None:
    deliver(record, lines(3))
    before = (record.file.name, record.ended_at)
    again = FileDownloadRecord.objects.get(pk=record.pk)
    assert deliver(again, lines(5)) == 3
    assert (again.file.name, again.ended_at) == before
    assert len(content(record)) == 3


def test_of_two_simultaneous_runs_the_first_to_commit_counts(record: FileDownloadRecord) -> None:
    twin = FileDownloadRecord.objects.get(pk=record.pk)

    def slow() -> Iterator[Line]:
        yield from lines(2, "slow")
        deliver(twin, lines(3, "quick"))

    assert deliver(record, slow()) == 3
    assert {row[1] for row in content(record)} == {"quick"}


def test_remains_of_a_dead_run_are_deleted_when_the_report_is_ready(
    record: FileDownloadRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = record.file.storage.save(f"{record.folder}/half.csv", ContentFile("user,"))
    with monkeypatch.context() as patch:
        patch.setattr(downloads, "_sweep", lambda record: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # dies before it can clean up
            deliver(record, lines(3))
    assert record.file.storage.exists(half)
    again = FileDownloadRecord.objects.get(pk=record.pk)
    assert deliver(again, lines(3)) == 3
    assert len(content(record)) == 3


def test_the_files_of_other_records_stay(record: FileDownloadRecord) -> None:
    other = FileDownloadRecord.objects.create()
    deliver(other, lines(1))
    deliver(record, lines(2))
    assert (len(content(other)), len(content(record))) == (1, 2)


def test_a_run_that_raises_leaves_the_record_unchanged(record: FileDownloadRecord) -> None:
    def broken() -> Iterator[Line]:
        yield from lines(2)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        deliver(record, broken())
    record.refresh_from_db()
    assert (record.status, record.file.name) == ("requested", "")
    assert deliver(record, lines(2)) == 2


def test_failed_says_why_once_and_a_retry_may_still_deliver(record: FileDownloadRecord) -> None:
    fail(str(record.pk), "Not all answered.", ["funds"])
    fail(str(record.pk), "Something else.")
    record.refresh_from_db()
    assert (record.status, record.problem, record.missing) == (
        "failed",
        "Not all answered.",
        ["funds"],
    )
    deliver(record, lines(2))
    record.refresh_from_db()
    assert (record.status, record.problem, record.missing) == ("ready", "", [])
    fail(str(record.pk), "Too late.")
    assert len(content(record)) == 2
    assert record.status == "ready"
