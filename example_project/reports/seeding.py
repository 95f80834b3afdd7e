"""Generates the bank's data: the same rows for the same seed, realistic in kind and spread.

10,000 prices, and 26 rows per user: 5,000 users make some 140,000 rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from itertools import accumulate, count, islice
from operator import mul
from random import Random

from django.db import models, transaction

from . import names
from .models import Account, Booking, Fund, Price, Trade, User

# Referring tables come before the tables they refer to.
TABLES: tuple[type[models.Model], ...] = (Booking, Account, Trade, Price, Fund, User)
BATCH = 2000  # users at a time
LAST_DAY = date(2026, 6, 30)
YEAR = 365  # days that bookings, trades and prices go back
DAYS = [LAST_DAY - timedelta(days=back) for back in reversed(range(YEAR))]
TRADING_DAYS = [day for day in DAYS if day.weekday() < 5]


@transaction.atomic
def make_data(users: int, seed: int) -> dict[str, int]:
    """Replace the existing data, and return how many rows each table has, by its name."""
    for table in TABLES:
        table._default_manager.all().delete()
    bank = Bank(seed)
    Fund.objects.bulk_create(bank.funds())
    _create(Price, bank.prices())
    people = bank.users(users)
    while batch := list(islice(people, BATCH)):
        User.objects.bulk_create(batch)
        accounts = [account for user in batch for account in bank.accounts(user)]
        Account.objects.bulk_create(accounts)
        _create(Booking, (row for account in accounts for row in bank.bookings(account)))
        _create(Trade, (row for user in batch for row in bank.trades(user)))
    return {table._meta.model_name or "": table._default_manager.count() for table in TABLES}


def _create(table: type[models.Model], rows: Iterable[models.Model]) -> None:
    table._default_manager.bulk_create(rows, batch_size=BATCH)


class Bank:
    """Generates rows in one order from one random source; they refer to each other by these ids."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._user_ids, self._account_ids = count(1), count(1)
        self._prices: dict[int, list[int]] = {}  # by fund, a price for each trading day

    def funds(self) -> list[Fund]:
        kinds = (f"{house} {kind}" for house in names.FUND_HOUSES for kind in names.FUND_KINDS)
        funds = [Fund(pk=pk, isin=f"LU{pk:010}", name=name) for pk, name in enumerate(kinds, 1)]
        self._prices = {fund.pk: self._walk() for fund in funds}
        return funds

    def prices(self) -> Iterator[Price]:
        for fund, walk in self._prices.items():
            for day, cents in zip(TRADING_DAYS, walk, strict=True):
                yield Price(fund_id=fund, day=day, cents=cents)

    def users(self, number: int) -> Iterator[User]:
        pick, below = self._random.choice, self._random.randrange
        for user_id in islice(self._user_ids, number):
            first, last = pick(names.FIRST), pick(names.LAST)
            address = f"{first}.{last}.{user_id}@example.com".lower()
            yield User(
                pk=user_id,
                name=f"{first} {last}",
                email=address.translate({ord(" "): "-", ord("'"): None}),
                phone=f"+{below(30, 50)} {below(100, 1000)} {below(10**6, 10**7)}",
                address=f"{pick(names.STREETS)} {below(1, 200)}, {below(1000, 99999)}",
                country=pick(names.COUNTRIES),
                joined=self._day(10 * YEAR),
                active=self._random.random() > 0.04,
            )

    def accounts(self, user: User) -> Iterator[Account]:
        for _ in range(self._random.choices((0, 1, 2, 3), (5, 60, 25, 10))[0]):
            number = next(self._account_ids)
            yield Account(pk=number, user_id=user.pk, iban=iban(user.country, number))

    def bookings(self, account: Account) -> Iterator[Booking]:
        """A first deposit, then more or less; some accounts go below zero."""
        for number in range(self._random.choices((0, 6, 12, 18, 30), (5, 15, 35, 25, 20))[0]):
            income = number == 0 or self._random.random() < 0.4
            cents = round(self._random.lognormvariate(11.5, 1.0))  # 1,000 euros, more or less
            text = self._random.choice(names.INCOME if income else names.EXPENSES)
            signed = cents if income else -cents
            yield Booking(account_id=account.pk, day=self._day(), cents=signed, text=text)

    def trades(self, user: User) -> Iterator[Trade]:
        """Buys units of some funds, and later sells some or all of them."""
        held = self._random.choices((0, 1, 2, 4, 8), (30, 30, 20, 15, 5))[0]
        for fund in self._random.sample(range(1, len(self._prices) + 1), held):
            units = self._random.randint(1, 200)
            bought = self._day()
            yield self._trade(user, fund, bought, units)
            if self._random.random() < 0.35:
                sold = units if self._random.random() < 0.4 else self._random.randint(1, units)
                later = bought + timedelta(days=self._random.randint(0, (LAST_DAY - bought).days))
                yield self._trade(user, fund, later, -sold)

    def _trade(self, user: User, fund: int, day: date, units: int) -> Trade:
        price = self._prices[fund][max(bisect_right(TRADING_DAYS, day) - 1, 0)]
        return Trade(user_id=user.pk, fund_id=fund, day=day, units=units, cents=units * price)

    def _walk(self) -> list[int]:
        """A price per trading day, changing by about a per cent a day."""
        steps = (self._random.gauss(1.0003, 0.012) for _ in TRADING_DAYS)
        start = self._random.randint(900, 30_000)
        return [max(round(start * factor), 1) for factor in accumulate(steps, mul)]

    def _day(self, within: int = YEAR) -> date:
        return LAST_DAY - timedelta(days=self._random.randrange(within))


def iban(country: str, number: int) -> str:
    """With its two check digits: letters count from A = 10, and the whole is 1 modulo 97."""
    place = "".join(str(int(letter, 36)) for letter in country)
    return f"{country}{98 - int(f'{number:018}{place}00') % 97:02}{number:018}"
