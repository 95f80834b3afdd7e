"""``manage.py uniquekeys``: which jobs have unique keys; frees one by hand."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...client.unique import PAGE, release_unique_key, unique_keys
from ...core.clock import instant
from ...core.unique import UniqueKey
from ..base import QueueCommand


class Command(QueueCommand):
    help = "Lists unique keys with the jobs that have them, the oldest first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--start", type=int, default=0, help="skip so many keys")
        parser.add_argument(
            "--count", type=int, default=PAGE, help=f"list so many keys, at most {PAGE}"
        )
        parser.add_argument(
            "--release", metavar="KEY", help="free this key; the job that has it goes on"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["release"]:
            self._release(options["release"])
            return
        for found in unique_keys(max(0, options["start"]), max(1, options["count"])):
            self.write(_line(found))

    def _release(self, key: str) -> None:
        job_id = release_unique_key(key)
        if not job_id:
            raise CommandError(f"no job has the unique key {key}")
        self.write(f"{key} is free; job {job_id} had it")


def _line(found: UniqueKey) -> str:
    since = f"since {instant(found.taken_ms):%Y-%m-%d %H:%M:%S}"
    until = f", until {instant(found.until_ms):%Y-%m-%d %H:%M:%S}" if found.until_ms else ""
    return f"{found.key}  {found.job_id} ({found.status or 'gone'})  {since}{until} UTC"
