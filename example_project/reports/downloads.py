"""The file of a report and its record: complete and ready, or absent.

A job may run again after a crash, and for a moment even at the same time as its own first run.
Each run therefore writes a file with its own name, and the run that changes the record to ready is
the one whose file counts. Only then are the other files in the record's folder deleted, because
until then any of them may be that file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from secrets import token_hex
from tempfile import TemporaryFile

from django.core.files import File
from django.utils import timezone

from .join import Line, write_csv
from .models import FileDownloadRecord

Status = FileDownloadRecord.Status


def deliver(record: FileDownloadRecord, lines: Iterable[Line]) -> int:
    """Write the report's file unless there is one, mark its record as ready, and return how many
    rows the report has.

    A failed record also becomes ready, because its job was retried by hand.
    """
    if record.status != Status.READY:
        name, rows = _write(record, lines)
        not_ready = FileDownloadRecord.objects.filter(pk=record.pk).exclude(status=Status.READY)
        not_ready.update(
            status=Status.READY,
            file=name,
            rows=rows,
            missing=[],
            problem="",
            ended_at=timezone.now(),
        )
    record.refresh_from_db()
    _sweep(record)
    return record.rows or 0


def fail(record_id: str, problem: str, missing: Sequence[str] = ()) -> None:
    """Record why there is no report. Does nothing if there is one, or if a reason has already been
    recorded.
    """
    open_ = FileDownloadRecord.objects.filter(pk=record_id, status=Status.REQUESTED)
    open_.update(
        status=Status.FAILED, problem=problem, missing=list(missing), ended_at=timezone.now()
    )


def remove(record: FileDownloadRecord) -> None:
    """Delete a record with its files."""
    record.file = ""
    _sweep(record)
    record.delete()


def _write(record: FileDownloadRecord, lines: Iterable[Line]) -> tuple[str, int]:
    """Write a new file, and return its name and how many lines it has besides the heading."""
    with TemporaryFile() as whole, TextIOWrapper(whole, "utf-8", newline="") as text:
        rows = write_csv(lines, text)
        text.flush()
        whole.seek(0)
        name = f"{record.folder}/{token_hex(8)}.csv"
        return record.file.storage.save(name, File(whole)), rows


def _sweep(record: FileDownloadRecord) -> None:
    """Delete the files of runs that died, or were not the first to finish."""
    storage = record.file.storage
    for name in storage.listdir(record.folder)[1]:
        path = f"{record.folder}/{name}"
        if path != record.file.name:
            storage.delete(path)
