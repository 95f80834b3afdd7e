"""``manage.py redisqueue_shards``: the contents and the number of the shards."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError

from ...broker.base import slices
from ...broker.commands import Commands
from ...broker.connection import RedisConnection, worker_connection
from ...broker.queries import Queries
from ...broker.schedules import ScheduleQueries
from ...broker.shards import UNSURE, AllShards, Answers, all_shards, read_numbers, record_number
from ...conf import get_settings
from ...core.ids import MAX_SHARDS, slot, tag
from ...core.schedules import Source
from ...core.statuses import FINAL
from ...monitor.views import Table
from ...worker.maintenance.schedules import ScheduleDeployment
from ..base import QueueCommand

HEADINGS = ("shard", "tag", "slot", "of", "unfinished", "finished", "schedules", "children", "at")


@dataclass(frozen=True, slots=True)
class _State:
    number: str | None  # of shards, as recorded in this one
    unfinished: int
    finished: int
    schedules: int
    children: int
    address: str


def _read(connection: RedisConnection) -> _State:
    queries = Queries(connection)
    stats = queries.stats(queries.former_queues(()))
    counts = [(status in FINAL, jobs) for queue in stats.values() for status, jobs in queue.items()]
    (number,) = read_numbers(AllShards(connection.at, [connection.shard])).by_shard.values()
    return _State(
        number,
        unfinished=sum(jobs for is_final, jobs in counts if not is_final),
        finished=sum(jobs for is_final, jobs in counts if is_final),
        schedules=ScheduleQueries(connection).count(),
        children=len(queries.workers()),
        address=connection.redis_url.address,
    )


class Command(QueueCommand):
    help = "Shows the contents of each shard, and records a new number of shards (docs/scale.md)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        text = 'record REDISQUEUE["SHARDS"] as the number of shards, so that workers start'
        parser.add_argument("--set", action="store_true", help=text)

    def handle(self, *args: Any, **options: Any) -> None:
        connection = worker_connection()
        try:
            states = all_shards(_read, connection.at, shards=range(_known_shards(connection)))
            if options["set"]:
                self._set(connection, states)
            else:
                self._show(states)
        finally:
            connection.close_all()

    def _show(self, states: Answers[_State]) -> None:
        rows = []
        for n, state in states.by_shard.items():
            counts = (state.unfinished, state.finished, state.schedules, state.children)
            numbers = (n, tag(n), slot(tag(n)), state.number or "-", *counts)
            rows.append((*map(str, numbers), state.address))
        for line in Table(HEADINGS, rows, range(0)).lines():
            self.write(line)
        if states.missing:
            raise CommandError(states.problem)

    def _set(self, connection: RedisConnection, states: Answers[_State]) -> None:
        shards, found = get_settings().shards, states.complete()
        for n, state in enumerate(found[shards:], shards):
            if state.unfinished:
                raise CommandError(
                    f"shard {n} has {state.unfinished} unfinished jobs, and workers with SHARDS "
                    f"{shards} would not serve it. Set SHARDS {shards} for producers first, and "
                    f"keep workers with SHARDS {len(found)} running until it has none"
                )
        for n in range(shards, len(found)):
            _remove_schedules(Commands(connection.at(n)))
        record_number(AllShards(connection.at), str(shards))
        before = sorted({state.number.rstrip(UNSURE) for state in found if state.number})
        self.write(f"SHARDS is now {shards}; it was {' and '.join(before) or 'not recorded'}")


def _remove_schedules(commands: Commands) -> None:
    """Remove the schedules of a shard, as newer code without schedules would: workers with fewer
    shards define them elsewhere."""
    ScheduleDeployment(commands, []).run_once()
    of_admin = ScheduleQueries(commands.connection).of_source(Source.ADMIN)
    for names in slices(of_admin):
        commands.remove_schedules("", names)


def _known_shards(connection: RedisConnection) -> int:
    """SHARDS, or more if the data has more."""
    shards = get_settings().shards
    numbers = read_numbers(AllShards(connection.at)).by_shard.values()
    recorded = [number.rstrip(UNSURE) for number in numbers if number]
    return min(MAX_SHARDS, max([shards, *map(int, filter(str.isdigit, recorded))]))
