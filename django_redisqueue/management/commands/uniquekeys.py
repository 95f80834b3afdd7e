"""``manage.py uniquekeys``: lists unique keys with their jobs, and frees one."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...client.limits import PAGE, release_unique_key, unique_keys
from ...core.clock import instant
from ...core.policies import UniqueKey
from ..base import QueueCommand, integer


class Command(QueueCommand):
    help = "Lists unique keys with the jobs that hold them, oldest first, or frees one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--start", type=integer(0, 10**9), default=0, help="skip this many keys (default: 0)"
        )
        parser.add_argument(
            "--count", type=integer(1, PAGE), default=PAGE,
            help=f"list at most this many keys, 1 to {PAGE} (default: {PAGE})",
        )  # fmt: skip
        parser.add_argument(
            "--release", metavar="KEY", help="free this key; the job that holds it is not changed"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["release"]:
            self._release(options["release"])
            return
        keys = unique_keys(options["start"], options["count"])
        for found in keys:
            self.write(_line(found))
        if not keys:
            text = "No more unique keys." if options["start"] else "No job holds a unique key."
            self.stderr.write(text, self.style.NOTICE)

    def _release(self, key: str) -> None:
        job_id = release_unique_key(key)
        if not job_id:
            raise CommandError(f"no job holds the unique key {key}")
        self.write(f"{key} is free; job {job_id} held it")


def _line(found: UniqueKey) -> str:
    since = f"since {instant(found.taken_ms):%Y-%m-%d %H:%M:%S}"
    until = f", until {instant(found.until_ms):%Y-%m-%d %H:%M:%S}" if found.until_ms else ""
    return f"{found.key}  {found.job_id} ({found.status or 'gone'})  {since}{until} UTC"
