"""``makereportdata``, and that the report on its rows equals the result of plain SQL."""

from __future__ import annotations

import csv
import json
from datetime import date
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from example_project.reports import seeding
from example_project.reports.comparing import plain_join
from example_project.reports.join import Line, euros, join, write_csv
from example_project.reports.models import Account, Booking, Fund, Price, Trade, User
from example_project.reports.queries import (
    AccountRow,
    FundRow,
    UserRow,
    query_accounts,
    query_funds,
    query_users,
)
from tests.support.commands import output_of
from tests.support.postgres import PostgresServer


def make(**options: Any) -> str:
    return output_of("makereportdata", **options)


def everything() -> list[list[tuple[Any, ...]]]:
    """All rows of all tables, without the ids that the database assigns."""
    from_column = {Booking: 1, Trade: 1, Price: 1}
    return [
        [row[from_column.get(table, 0) :] for row in table.objects.order_by("pk").values_list()]  # type: ignore[attr-defined]
        for table in seeding.TABLES
    ]


def joined() -> list[Line]:
    return list(join(query_users(), query_funds(), query_accounts()))


# --- the data -------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_same_seed_replaces_the_rows_with_the_same_ones() -> None:
    told = make(users=200, seed=7)
    first = everything()
    assert f"{sum(map(len, first)):,} rows in " in told
    assert f"{Booking.objects.count():,} of booking" in told
    make(users=200, seed=8)
    assert everything() != first
    make(users=200, seed=7)
    assert everything() == first


@pytest.mark.django_db
def test_a_realistic_spread() -> None:
    make(users=500)
    assert User.objects.count() == 500
    assert 0 < User.objects.filter(active=False).count() < 50
    for without in ("accounts", "trades"):
        assert User.objects.filter(**{f"{without}__isnull": True}).exists(), without
    assert Booking.objects.filter(cents__lt=0).exists()
    assert Trade.objects.filter(units__lt=0).exists()
    assert all(row.funds >= 0 <= row.value for row in query_funds()), "nobody sells what is not his"
    assert any(row.lowest < 0 for row in query_accounts())
    assert Price.objects.count() == Fund.objects.count() * len(seeding.TRADING_DAYS)


@pytest.mark.django_db
def test_ibans_have_their_check_digits() -> None:
    make(users=50)
    # a well-known example
    assert seeding.iban("DE", 370400440532013000) == "DE89370400440532013000"
    for account in Account.objects.all():
        turned = account.iban[4:] + account.iban[:4]
        assert int("".join(str(int(letter, 36)) for letter in turned)) % 97 == 1


@pytest.mark.django_db
def test_keep_leaves_existing_rows() -> None:
    make(users=20)
    assert make(users=30, keep=True) == ""
    assert User.objects.count() == 20
    make(users=0)
    assert not User.objects.exists()
    assert joined() == list(plain_join()) == []


@pytest.mark.parametrize("bad", ["-1", "1000001", "many", "1.5"])
def test_a_bad_number_is_named(bad: str) -> None:
    with pytest.raises(CommandError, match="whole number from 0 to 1,000,000, not "):
        call_command("makereportdata", f"--users={bad}")


# --- the report -----------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_join_agrees_with_plain_sql(seed: int) -> None:
    make(users=400, seed=seed)
    lines = joined()
    assert len(lines) == User.objects.filter(active=True).count()
    assert lines == list(plain_join())


def test_the_join_agrees_with_plain_sql_on_postgresql(on_postgres: PostgresServer) -> None:
    make(users=400)
    assert joined() == list(plain_join())


def person(number: int, **fields: Any) -> User:
    return User.objects.create(
        pk=number,
        name=f"Person {number}",
        email=f"{number}@example.com",
        phone="1",
        address="Here, 1",
        country="AT",
        joined=date(2020, 2, 29),
        **fields,
    )


@pytest.mark.django_db
def test_by_hand() -> None:
    ada, ben = person(1), person(2)
    person(3, active=False).accounts.create(iban="C")
    fund, other = Fund.objects.create(isin="F"), Fund.objects.create(isin="G")
    for day, cents in enumerate((100, 110, 90, 95), start=1):
        Price.objects.create(fund=fund, day=date(2026, 1, day), cents=cents)
        Price.objects.create(fund=other, day=date(2026, 1, day), cents=10)
    first, second = ada.accounts.create(iban="A"), ada.accounts.create(iban="B")
    # In order of the day: +500, -700 on the other account, +900.
    first.bookings.create(day=date(2026, 1, 1), cents=500)
    first.bookings.create(day=date(2026, 1, 3), cents=900)
    second.bookings.create(day=date(2026, 1, 2), cents=-700)
    # 10 units during the fall of 20 cents, 4 of which are sold before the rise of 5.
    ada.trades.create(fund=fund, day=date(2026, 1, 2), units=10, cents=1100)
    ada.trades.create(fund=fund, day=date(2026, 1, 3), units=-4, cents=-360)
    ada.trades.create(fund=other, day=date(2026, 1, 1), units=3, cents=30)
    ada.trades.create(fund=other, day=date(2026, 1, 4), units=-3, cents=-30)
    ben.trades.create(fund=fund, day=date(2026, 1, 4), units=1, cents=95)
    assert query_accounts() == [AccountRow(1, 2, 700, -200), AccountRow(3, 1, 0, 0)]
    assert query_funds() == [
        FundRow(1, funds=1, invested=740, value=570, worst_day=-200),
        FundRow(2, funds=1, invested=95, value=95, worst_day=0),
    ]
    common = ("1", "Here, 1", "AT", "2020-02-29")
    assert joined() == [
        Line(
            1, "Person 1", "1@example.com", *common,
            2, "7.00", "-2.00", 1, "7.40", "5.70", "-1.70", "-2.00", "12.70",
        ),
        Line(
            2, "Person 2", "2@example.com", *common,
            0, "0.00", "0.00", 1, "0.95", "0.95", "0.00", "0.00", "0.95",
        ),
    ]  # fmt: skip
    assert joined() == list(plain_join())


@pytest.mark.django_db
def test_rows_survive_a_round_trip_through_json() -> None:
    make(users=50)
    for kind, rows in (
        (UserRow, query_users()),
        (FundRow, query_funds()),
        (AccountRow, query_accounts()),
    ):
        assert [kind(*row) for row in json.loads(json.dumps(rows))] == rows


@pytest.mark.parametrize(
    ("cents", "text"), [(0, "0.00"), (5, "0.05"), (-5, "-0.05"), (-123456, "-1234.56")]
)
def test_euros(cents: int, text: str) -> None:
    assert euros(cents) == text


def test_csv_survives_a_round_trip() -> None:
    out = StringIO(newline="")
    line = Line(
        1,
        'Zoë "Z"\nO\'Brien',
        "z@example.com",
        "+1",
        "Here, 1",
        *map(str, range(len(Line._fields) - 5)),
    )  # type: ignore[arg-type]
    assert write_csv(iter([line, line]), out) == 2
    heading, *lines = csv.reader(StringIO(out.getvalue(), newline=""))
    assert tuple(heading) == Line._fields
    assert lines == [[str(value) for value in line]] * 2
