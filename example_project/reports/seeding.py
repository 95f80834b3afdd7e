"""Generates the bank's data: the same rows for the same seed, with a realistic distribution.

There are 10,000 prices, and 26 rows per user: about 140,000 rows for 5,000 users.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from itertools import accumulate, count, islice
from operator import mul
from random import Random

from django.db import models, transaction

from .models import Account, Booking, Fund, Price, Trade, User

# Referring tables come before the tables that they refer to.
TABLES: tuple[type[models.Model], ...] = (Booking, Account, Trade, Price, Fund, User)
BATCH = 2000  # users at a time
LAST_DAY = date(2026, 6, 30)
YEAR = 365  # days that bookings, trades and prices go back
DAYS = [LAST_DAY - timedelta(days=back) for back in reversed(range(YEAR))]
TRADING_DAYS = [day for day in DAYS if day.weekday() < 5]


def _words(text: str) -> list[str]:
    """Split a text into words; an underscore stands for a space in a word."""
    return [word.replace("_", " ") for word in text.split()]


FIRST = _words("""
    Ada Aisha Akira Amélie Anna Ben Carlos Chloé Daan Diego Elif Emma Erik Fatima Finn Giulia Hanna
    Hugo Ines Ivan Jakub Jana Jonas Katarzyna Lars Lea Leon Lucía Luca Maja Marie Mateo Mia Milan
    Noah Nora Olga Oskar Paula Pierre Sara Sofia Søren Theo Tomás Viktor Yara Zoë
""")
LAST = _words("""
    Andersson Bauer Bernard Bianchi Costa Dubois Fernández Fischer García Hansen Hoffmann Horváth
    Janssen Jensen Kaya Keller Kowalski Lindberg López Martin Meyer Moreau Müller Nielsen Novák
    Nowak O'Brien Okafor Peeters Petit Popescu Ricci Rossi Santos Schmidt Schneider Silva Šimić
    Tanaka Virtanen Visser Wagner Weber Yılmaz de_Vries van_den_Berg von_Ahn Öztürk
""")
STREETS = _words("""
    Bahnhofstraße Calle_Mayor Grote_Markt High_Street Rue_de_la_Gare Storgatan Via_Garibaldi
""")
COUNTRIES = _words("AT BE CZ DE DK ES FI FR IE IT NL PL PT RO SE")
FUND_HOUSES = _words("Alster Boreal Cassia Delft Elbe Fjord Garda Helvetia")
FUND_KINDS = _words("Bonds Europe_Equity Green_Energy Real_Estate World_Index")
INCOME = _words("Salary Transfer Refund Interest")
EXPENSES = _words("Rent Card_payment Insurance Cash Energy Savings_plan")


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
    """Generates rows in a fixed order from one random source, with the ids that relate them."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._user_ids, self._account_ids = count(1), count(1)
        self._prices: dict[int, list[int]] = {}  # by fund, a price for each trading day

    def funds(self) -> list[Fund]:
        kinds = (f"{house} {kind}" for house in FUND_HOUSES for kind in FUND_KINDS)
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
            first, last = pick(FIRST), pick(LAST)
            address = f"{first}.{last}.{user_id}@example.com".lower()
            yield User(
                pk=user_id,
                name=f"{first} {last}",
                email=address.translate({ord(" "): "-", ord("'"): None}),
                phone=f"+{below(30, 50)} {below(100, 1000)} {below(10**6, 10**7)}",
                address=f"{pick(STREETS)} {below(1, 200)}, {below(1000, 99999)}",
                country=pick(COUNTRIES),
                joined=self._day(10 * YEAR),
                active=self._random.random() > 0.04,
            )

    def accounts(self, user: User) -> Iterator[Account]:
        for _ in range(self._random.choices((0, 1, 2, 3), (5, 60, 25, 10))[0]):
            number = next(self._account_ids)
            yield Account(pk=number, user_id=user.pk, iban=iban(user.country, number))

    def bookings(self, account: Account) -> Iterator[Booking]:
        """A first deposit, then income and expenses; some accounts are overdrawn."""
        for number in range(self._random.choices((0, 6, 12, 18, 30), (5, 15, 35, 25, 20))[0]):
            income = number == 0 or self._random.random() < 0.4
            cents = round(self._random.lognormvariate(11.5, 1.0))  # 1,000 euros, more or less
            text = self._random.choice(INCOME if income else EXPENSES)
            signed = cents if income else -cents
            yield Booking(account_id=account.pk, day=self._day(), cents=signed, text=text)

    def trades(self, user: User) -> Iterator[Trade]:
        """Purchases of some funds, and later sales of some or all of these units."""
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
        """A price for each trading day, which changes by about one per cent a day."""
        steps = (self._random.gauss(1.0003, 0.012) for _ in TRADING_DAYS)
        start = self._random.randint(900, 30_000)
        return [max(round(start * factor), 1) for factor in accumulate(steps, mul)]

    def _day(self, within: int = YEAR) -> date:
        return LAST_DAY - timedelta(days=self._random.randrange(within))


def iban(country: str, number: int) -> str:
    """An IBAN with two check digits: letters count from A = 10, and the whole is 1 modulo 97."""
    place = "".join(str(int(letter, 36)) for letter in country)
    return f"{country}{98 - int(f'{number:018}{place}00') % 97:02}{number:018}"
