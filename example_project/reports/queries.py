"""The report's three sources, as plain functions whose rows are small as JSON.

Rows are ordered by user. A row that has been through JSON is a list; ``UserRow(*row)`` restores its
names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import date
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from django.db.models import Count

from .models import Account, Booking, Price, Trade, User


class UserRow(NamedTuple):
    user: int
    name: str
    email: str
    phone: str
    address: str
    country: str
    joined: str  # ISO 8601


class FundRow(NamedTuple):
    user: int
    funds: int  # how many of them the user holds units of
    invested: int  # cents paid, minus the proceeds of sales
    value: int  # cents, at the latest prices
    worst_day: int  # cents: the largest loss by prices on one day, 0 or negative


class AccountRow(NamedTuple):
    user: int
    accounts: int
    balance: int  # cents, in all of them together
    lowest: int  # cents: the minimum of this balance, after any booking


def query_users() -> list[UserRow]:
    """The active users."""
    found = User.objects.filter(active=True).order_by("pk")
    rows = found.values_list("pk", "name", "email", "phone", "address", "country", "joined")
    return [UserRow(*row, joined.isoformat()) for *row, joined in rows.iterator()]


def query_funds() -> list[FundRow]:
    """The holdings of everyone who has ever traded, and their daily performance."""
    market = Market()
    trades = Trade.objects.order_by("user_id", "pk").values_list(
        "user_id", "fund_id", "day", "units", "cents"
    )
    return [
        market.follow(user, [Bought(*trade) for _, *trade in traded])
        for user, traded in groupby(trades.iterator(), itemgetter(0))
    ]


def query_accounts() -> list[AccountRow]:
    """The balance of everyone with an account, and its minimum."""
    bookings = Booking.objects.order_by("account__user_id", "day", "pk")
    moves = groupby(bookings.values_list("account__user_id", "cents").iterator(), itemgetter(0))
    balances = {user: _follow(cents for _, cents in moved) for user, moved in moves}
    held = Account.objects.values_list("user_id").annotate(Count("pk")).order_by("user_id")
    return [AccountRow(user, number, *balances.get(user, (0, 0))) for user, number in held]


def _follow(moves: Iterable[int]) -> tuple[int, int]:
    """The balance after all of these moves, and the lowest balance in between."""
    balances = list(accumulate(moves))
    return balances[-1], min(balances)


class Bought(NamedTuple):
    """A trade; a sale has negative units and cents."""

    fund: int
    day: date
    units: int
    cents: int


class Market:
    """The prices of all funds, read once."""

    def __init__(self) -> None:
        prices = Price.objects.order_by("fund_id", "day").values_list("fund_id", "day", "cents")
        self._days: list[date] = []
        self._last: dict[int, int] = {}
        self._changes: dict[int, list[int]] = {}  # by fund: from one trading day to the next
        for fund, rows in groupby(prices.iterator(), itemgetter(0)):
            _, self._days, cents = map(list, zip(*rows, strict=True))
            self._last[fund] = cents[-1]
            self._changes[fund] = [after - before for before, after in pairwise(cents)]

    def follow(self, user: int, trades: list[Bought]) -> FundRow:
        """The result of these trades."""
        held: dict[int, int] = {}
        gains = [0] * max(len(self._days) - 1, 0)
        for trade in trades:
            held[trade.fund] = held.get(trade.fund, 0) + trade.units
            changes = self._changes[trade.fund]
            # What was bought on a day gains by the change to the next trading day, and so on.
            for day in range(max(bisect_right(self._days, trade.day) - 1, 0), len(changes)):
                gains[day] += trade.units * changes[day]
        return FundRow(
            user=user,
            funds=sum(units > 0 for units in held.values()),
            invested=sum(trade.cents for trade in trades),
            value=sum(units * self._last[fund] for fund, units in held.items()),
            worst_day=min([0, *gains]),
        )
