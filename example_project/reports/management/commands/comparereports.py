from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catalogues.demo.display import Display, choose_display
from catalogues.demo.worker import running_worker
from django.core.management import call_command
from django.core.management.base import CommandError

from django_redisqueue import JobQueue
from django_redisqueue.management.base import QueueCommand

from ...comparing import ReportFailed, compare, plain_sql, queries
from .makereportdata import USERS, number

PROCESSES = 3  # one for each listener
HEADINGS = ("three queries", "median", "best", "worst", "rounds")


class Command(QueueCommand):
    help = "Creates the report from three queries, in turn and side by side, and compares both."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rounds", type=number, default=5, help="of each way (5)")
        parser.add_argument(
            "--users", type=number, default=USERS, help=f"created if there are none ({USERS:,})"
        )
        parser.add_argument("--plain", action="store_true", help="lines of plain text")

    def handle(self, **options: Any) -> None:
        display = choose_display(self.stdout, plain=options["plain"])
        try:
            JobQueue("default").get_stats()  # the first call to Redis starts the embedded server
            call_command("migrate", verbosity=0, interactive=False)
            call_command("makereportdata", users=options["users"], keep=True, stdout=self.stdout)
            with running_worker(PROCESSES):
                compare_and_tell(display, max(options["rounds"], 1))
        except ReportFailed as error:
            raise CommandError(str(error)) from error


def compare_and_tell(display: Display, rounds: int) -> None:
    """Print both times. Raises CommandError if the reports are not the same."""
    ways = compare(rounds)
    expected, seconds = plain_sql()
    for way in ways:
        if way.text != expected:
            raise CommandError(f"The report created {way.title} differs from that of plain SQL.")
    rows = [
        (way.title, *(f"{one:.3f} s" for one in (way.median, min(way.seconds), max(way.seconds))))
        for way in ways
    ]
    display.table(
        "From the request to the ready file", HEADINGS, [(*row, f"{rounds}") for row in rows]
    )
    alone = ", ".join(f"{name} {one:.3f} s" for name, one in queries().items())
    turn, side = ways
    display.say(f"Side by side: {turn.median / side.median:.2f} times as fast as in turn.")
    display.say(f"The queries alone: {alone}. A report cannot be faster than the slowest.")
    lines = expected.count("\n") - 1
    display.say(
        f"Both files have the {lines:,} rows that one SQL statement returns ({seconds:.3f} s)."
    )
