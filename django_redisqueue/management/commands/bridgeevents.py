"""``manage.py bridgeevents``: keeps the mirror up to date, without running jobs."""

from __future__ import annotations

import signal
import time
from argparse import ArgumentParser
from types import FrameType
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from ...broker.redis_url import get_redis_url
from ...conf import get_settings
from ...exceptions import RedisQueueError
from ...mirror.database_errors import explain_error
from ...worker.identity import this_worker
from ...worker.interrupts import StoppableWaits
from ...worker.maintenance.bridge import BridgeRole
from ..base import QueueCommand


class Command(QueueCommand):
    help = (
        "Writes what happens to jobs into the database. Workers do this too; however many "
        "processes run it, each event is applied once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="mirror the events so far, then end"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        if not settings.mirror:
            raise CommandError(
                'REDISQUEUE["MIRROR"] is False, so Redis does not keep events until they are '
                "mirrored; set it to True, for the workers too"
            )
        self._waits = StoppableWaits()
        role = BridgeRole(this_worker().child(1), settings, wait=self._waits.wait)
        if options["once"]:
            self._once(role)
        else:
            self._run(role)

    def _once(self, role: BridgeRole) -> None:
        begun = time.monotonic()
        try:
            events = role.catch_up()
        except RedisQueueError as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(explain_error(role.alias, error)) from error
        finally:
            role.stop()
        self.stdout.write(f"{events} events mirrored in {time.monotonic() - begun:.1f} s")

    def _run(self, role: BridgeRole) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.stdout.write(
            f"mirroring {get_redis_url().address} into the database {role.alias!r}; "
            "stop with Ctrl-C"
        )
        self.stdout.flush()
        role.start(lambda: self._waits.stopping)
        role.stop()
        self.stdout.write("stopped; later events wait in Redis")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._waits.stopping = True
        self._waits.end_wait()
