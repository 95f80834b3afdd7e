from __future__ import annotations

import time
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand

from ...models import User
from ...seeding import make_data

USERS = 5_000  # with all that they have, about 140,000 rows


def number(text: str) -> int:
    """0 to 1,000,000."""
    if not text.isdecimal() or int(text) > 1_000_000:
        raise ArgumentTypeError(f"must be a whole number from 0 to 1,000,000, not {text!r}")
    return int(text)


class Command(BaseCommand):
    help = "Creates users, accounts and funds for the report, replacing existing ones."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--users", type=number, default=USERS, help=f"how many ({USERS:,})")
        parser.add_argument(
            "--seed", type=number, default=1, help="the same seed gives the same rows (1)"
        )
        parser.add_argument("--keep", action="store_true", help="do nothing if there are users")

    def handle(self, **options: Any) -> None:
        if options["keep"] and User.objects.exists():
            return
        started = time.monotonic()
        made = make_data(options["users"], options["seed"])
        listed = ", ".join(f"{rows:,} of {table}" for table, rows in made.items())
        seconds = time.monotonic() - started
        self.stdout.write(f"{sum(made.values()):,} rows in {seconds:.1f} s: {listed}")
