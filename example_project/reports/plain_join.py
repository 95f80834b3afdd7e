"""The same report by one SQL statement, as the reference for measurements and tests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from django.db import connection

from .join import Line, euros

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
    """A cursor gives text on SQLite, a date on PostgreSQL."""
    return day if isinstance(day, str) else day.isoformat()
