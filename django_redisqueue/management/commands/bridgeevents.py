"""``manage.py bridgeevents``: keeps the mirror up to date, without running jobs."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DatabaseError
from django.db import router

from ...broker.connection import worker_connection
from ...broker.redis_url import redis_address
from ...broker.shards import all_shards
from ...conf import Settings, get_settings
from ...mirror.database_errors import explain_error
from ...models import JobRecord
from ...worker.identity import this_worker
from ...worker.maintenance.bridge import BridgeRole
from ...worker.maintenance.leader import RoleHost, run_in_shards
from ...worker.readiness import check_mirror_database
from ..base import QueueCommand, stoppable_waits


class Command(QueueCommand):
    help = (
        "Writes the events of jobs to the database. Workers do this too; however many processes "
        "run it, each event is applied once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="mirror the events so far, then exit"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        if not settings.mirror:
            raise CommandError(
                'REDISQUEUE["MIRROR"] is False, so Redis does not keep events until they are '
                "mirrored; set it to True, also for the workers"
            )
        check_mirror_database(settings)
        if options["once"]:
            begun = time.monotonic()
            found = all_shards(lambda one: self._catch_up(one.shard), worker_connection().at)
            events = sum(found.by_shard.values())
            self.stdout.write(f"{events} events mirrored in {time.monotonic() - begun:.1f} s")
            found.complete()
        else:
            self._run(settings)

    def _make(self, host: RoleHost) -> BridgeRole:
        return BridgeRole(this_worker().child(1), get_settings(), host)

    def _catch_up(self, shard: int) -> int:
        role = self._make(RoleHost(shard))
        try:
            return role.catch_up()
        except DatabaseError as error:
            raise CommandError(explain_error(role.alias, error)) from error
        finally:
            role.stop()

    def _run(self, settings: Settings) -> None:
        waits = stoppable_waits()
        self.announce(
            f"mirroring {redis_address()} into the database {router.db_for_write(JobRecord)!r}; "
            "stop with Ctrl-C"
        )
        run_in_shards(settings.shards, self._make, waits)
        self.announce("stopped; further events wait in Redis")
