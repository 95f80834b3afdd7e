"""Creates the report in two ways with the same worker, and measures each from the request to the
ready file; and creates it by one SQL statement as the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from io import StringIO
from statistics import median

from django.db import connection

from .downloads import remove
from .join import Line, euros, write_csv
from .models import FileDownloadRecord
from .queries import query_accounts, query_funds, query_users
from .tasks import report_in_turn, request_report

TIMEOUT = 120  # seconds for one report
POLL_SECONDS = 0.02

SQL = """
WITH running AS (
    SELECT account.user_id, booking.cents, SUM(booking.cents) OVER (
        PARTITION BY account.user_id ORDER BY booking.day, booking.id
    ) AS balance
    FROM reports_booking booking JOIN reports_account account ON account.id = booking.account_id
), balances AS (
    SELECT user_id, SUM(cents) AS balance, MIN(balance) AS lowest FROM running GROUP BY user_id
), held AS (
    SELECT user_id, COUNT(*) AS accounts FROM reports_account GROUP BY user_id
), positions AS (
    SELECT user_id, fund_id, SUM(units) AS units, SUM(cents) AS cents
    FROM reports_trade GROUP BY user_id, fund_id
), changes AS (
    SELECT fund_id, day, LAG(day) OVER one_fund AS before, cents,
        cents - LAG(cents) OVER one_fund AS change, ROW_NUMBER() OVER latest AS back
    FROM reports_price
    WINDOW one_fund AS (PARTITION BY fund_id ORDER BY day),
        latest AS (PARTITION BY fund_id ORDER BY day DESC)
), holdings AS (
    SELECT positions.user_id, SUM(CASE WHEN positions.units > 0 THEN 1 ELSE 0 END) AS funds,
        SUM(positions.cents) AS invested, SUM(positions.units * changes.cents) AS value
    FROM positions JOIN changes ON changes.fund_id = positions.fund_id AND changes.back = 1
    GROUP BY positions.user_id
), gains AS (
    SELECT trade.user_id, changes.day, SUM(trade.units * changes.change) AS gain
    FROM reports_trade trade
    JOIN changes ON changes.fund_id = trade.fund_id AND changes.day > trade.day
        AND changes.before IS NOT NULL
    GROUP BY trade.user_id, changes.day
), worst AS (
    SELECT user_id, MIN(gain) AS gain FROM gains WHERE gain < 0 GROUP BY user_id
)
SELECT person.id, person.name, person.email, person.phone, person.address, person.country,
    person.joined,
    COALESCE(held.accounts, 0), COALESCE(balances.balance, 0), COALESCE(balances.lowest, 0),
    COALESCE(holdings.funds, 0), COALESCE(holdings.invested, 0), COALESCE(holdings.value, 0),
    COALESCE(worst.gain, 0)
FROM reports_user person
    LEFT JOIN held ON held.user_id = person.id
    LEFT JOIN balances ON balances.user_id = person.id
    LEFT JOIN holdings ON holdings.user_id = person.id
    LEFT JOIN worst ON worst.user_id = person.id
WHERE person.active ORDER BY person.id
"""
Ask = Callable[[], FileDownloadRecord]


class ReportFailed(Exception):
    """A report failed, or was not ready in time."""


def in_turn() -> FileDownloadRecord:
    """Request the report from a single job. Raises RedisQueueError."""
    record = FileDownloadRecord.objects.create()
    report_in_turn.enqueue(record_id=str(record.pk))
    return record


@dataclass(slots=True)
class Way:
    """A way to create the report, and how long its rounds took."""

    title: str
    ask: Ask
    seconds: list[float] = field(default_factory=list)
    text: str = ""  # the CSV of the last round

    @property
    def median(self) -> float:
        return median(self.seconds)

    def run(self) -> float:
        """Run one round and return its seconds. It leaves nothing behind. Raises RedisQueueError,
        ReportFailed."""
        record = self.ask()
        wait_for(record)
        with record.file.open() as file:
            self.text = file.read().decode()
        seconds = record.seconds
        remove(record)
        return seconds


def wait_for(record: FileDownloadRecord) -> None:
    """Wait until the report is ready; the record has the time. Raises ReportFailed."""
    deadline = time.monotonic() + TIMEOUT
    while record.ended_at is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        record.refresh_from_db()
    if record.status != FileDownloadRecord.Status.READY:
        raise ReportFailed(f"The report is {record.status} after {TIMEOUT} s. {record.problem}")


def compare(rounds: int) -> tuple[Way, Way]:
    """Alternate between both ways, after one round that does not count. Raises RedisQueueError,
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
    """The CSV from one SQL statement in this process, and how many seconds it took."""
    started = time.perf_counter()
    out = StringIO(newline="")
    write_csv(plain_join(), out)
    return out.getvalue(), time.perf_counter() - started


def plain_join() -> Iterator[Line]:
    """Every line of the report, from SQLite or PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute(SQL)
        for *who, joined, accounts, balance, lowest, funds, invested, value, worst in cursor:
            held = (invested, value, value - invested, worst, balance + value)
            yield Line(
                *who, _iso(joined),
                accounts, euros(int(balance)), euros(int(lowest)),
                funds, *(euros(int(cents)) for cents in held),
            )  # fmt: skip


def _iso(day: date | str) -> str:
    """A cursor returns text on SQLite, and a date on PostgreSQL."""
    return day if isinstance(day, str) else day.isoformat()


def queries() -> dict[str, float]:
    """How many seconds each query takes in this process."""
    found = {}
    for query in (query_users, query_funds, query_accounts):
        started = time.perf_counter()
        query()
        found[query.__name__.removeprefix("query_")] = time.perf_counter() - started
    return found
