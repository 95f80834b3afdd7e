"""Joins the three sources by user, and writes the lines as CSV. Pure functions."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TextIO

from .queries import AccountRow, FundRow, UserRow


class Line(NamedTuple):
    """One user in the report. Amounts are in euros with two decimal places: ``-12.30``."""

    user: int
    name: str
    email: str
    phone: str
    address: str
    country: str
    joined: str
    accounts: int
    balance: str
    lowest: str
    funds: int
    invested: str
    value: str
    gain: str
    worst_day: str
    wealth: str


def join(
    users: Iterable[UserRow], funds: Iterable[FundRow], accounts: Iterable[AccountRow]
) -> Iterator[Line]:
    """One line per user in ``users``, in their order.

    A user without rows in the other sources gets zeros; rows of unknown users are left out.
    """
    funds_of = {row.user: row for row in funds}
    accounts_of = {row.user: row for row in accounts}
    for user in users:
        held = funds_of.get(user.user) or FundRow(user.user, 0, 0, 0, 0)
        account = accounts_of.get(user.user) or AccountRow(user.user, 0, 0, 0)
        yield Line(
            *user,
            accounts=account.accounts,
            balance=euros(account.balance),
            lowest=euros(account.lowest),
            funds=held.funds,
            invested=euros(held.invested),
            value=euros(held.value),
            gain=euros(held.value - held.invested),
            worst_day=euros(held.worst_day),
            wealth=euros(account.balance + held.value),
        )


def write_csv(lines: Iterable[Sequence[object]], out: TextIO) -> int:
    """Write a heading and the lines, and return how many lines there were."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Line._fields)
    number = 0
    for line in lines:
        writer.writerow(line)
        number += 1
    return number


def euros(cents: int) -> str:
    sign = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    return f"{sign}{whole}.{rest:02}"
