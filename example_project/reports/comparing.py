"""The report made in two ways by the same worker, measured from the request to the ready file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from statistics import median

from .downloads import remove
from .join import write_csv
from .models import FileDownloadRecord
from .plain_join import plain_join
from .queries import query_accounts, query_funds, query_users
from .tasks import report_in_turn, request_report

TIMEOUT = 120  # seconds for one report
LOOK = 0.02  # seconds between two looks

Ask = Callable[[], FileDownloadRecord]


class ReportFailed(Exception):
    """A report was not ready in time, or failed."""


def in_turn() -> FileDownloadRecord:
    """Request it from one job. Raises RedisQueueError."""
    record = FileDownloadRecord.objects.create()
    report_in_turn.enqueue(record_id=str(record.pk))
    return record


@dataclass(slots=True)
class Way:
    """A way to make the report, and how long its rounds took."""

    title: str
    ask: Ask
    seconds: list[float] = field(default_factory=list)
    text: str = ""  # the CSV of the last round

    @property
    def median(self) -> float:
        return median(self.seconds)

    def run(self) -> float:
        """One round, in seconds. It leaves nothing behind. Raises RedisQueueError, ReportFailed."""
        record = self.ask()
        wait_for(record)
        with record.file.open() as file:
            self.text = file.read().decode()
        seconds = record.seconds
        remove(record)
        return seconds


def wait_for(record: FileDownloadRecord) -> None:
    """Wait until the report is ready; its record says when that was. Raises ReportFailed."""
    deadline = time.monotonic() + TIMEOUT
    while record.ended_at is None and time.monotonic() < deadline:
        time.sleep(LOOK)
        record.refresh_from_db()
    if record.status != FileDownloadRecord.Status.READY:
        raise ReportFailed(f"The report is {record.status} after {TIMEOUT} s. {record.problem}")


def compare(rounds: int) -> tuple[Way, Way]:
    """Alternate both ways, after one round that does not count. Raises RedisQueueError,
    ReportFailed.
    """
    ways = (Way("in turn", in_turn), Way("side by side", request_report))
    for number in range(rounds + 1):
        for way in ways:
            seconds = way.run()
            if number:
                way.seconds.append(seconds)
    return ways


def plain_sql() -> tuple[str, float]:
    """The CSV from one SQL statement in this process, and its seconds."""
    started = time.perf_counter()
    out = StringIO(newline="")
    write_csv(plain_join(), out)
    return out.getvalue(), time.perf_counter() - started


def queries() -> dict[str, float]:
    """The seconds of each query, in this process."""
    found = {}
    for query in (query_users, query_funds, query_accounts):
        started = time.perf_counter()
        query()
        found[query.__name__.removeprefix("query_")] = time.perf_counter() - started
    return found
