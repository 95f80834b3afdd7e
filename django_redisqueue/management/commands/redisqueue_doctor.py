"""``manage.py redisqueue_doctor``: what is wrong with this installation, and how to fix it."""

from __future__ import annotations

import json
import platform
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Any

import django
from django.core import checks
from django.core.checks import CheckMessage
from django.core.management.base import CommandError
from django.db import Error as DatabaseError
from django.db import connections, router

from ...broker import sums
from ...broker.connection import RedisConnection, worker_connection
from ...broker.overview import ServerOverview
from ...broker.redis_url import get_redis_url
from ...broker.shards import AllShards
from ...checks import check_database, check_network, check_settings, check_urls
from ...conf import get_settings
from ...core import formatting
from ...exceptions import ConfigurationError, RedisQueueError
from ...health.findings import FindingId, Level
from ...health.report import read_health
from ...models import JobRecord
from ..base import QueueCommand

LIBRARIES = ("django-redisqueue", "redis", "hiredis", "django-redis")
# System checks report the same.
CHECKED = {FindingId.REDIS_AWAY, FindingId.REDIS_EVICTS, FindingId.UNKNOWN_QUEUE,
           FindingId.MIRROR_STOPPED}  # fmt: skip


class Area(StrEnum):
    SETTINGS = "settings"
    REDIS = "redis"
    DATABASE = "database"
    QUEUES = "queues"  # also workers, limits, schedules, mirror and outbox


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``id`` is that of the check or of the finding."""

    area: Area
    level: Level
    id: str
    message: str
    remedy: str


def examine() -> tuple[dict[str, str], list[Problem]]:
    """What is installed and connected, by name, and all problems, worst first. If settings are
    wrong, only what is installed, and those problems."""
    facts = {
        "Python": f"{platform.python_version()}, {platform.system()}",
        "Django": django.get_version(),
        **{name: version(name) for name in LIBRARIES},
    }
    problems = list(_checked(Area.SETTINGS, [*check_settings(), *check_urls()]))
    try:
        settings, connection = get_settings(), worker_connection()
    except ConfigurationError:
        return facts, problems
    try:
        shards = AllShards(connection.at)
        facts |= {"Redis": _servers(shards), "Workers": _workers(shards)}
        if settings.mirror:
            facts["Database"] = _database()
        facts["Queues"] = ", ".join(sorted(settings.queues))
        problems += _checked(Area.REDIS, check_network())
        problems += _checked(Area.DATABASE, check_database())
        problems += _findings(connection, {problem.area for problem in problems})
    finally:
        connection.close_all()
    return facts, sorted(problems, key=lambda problem: problem.level.rank)


def _checked(area: Area, messages: Sequence[CheckMessage]) -> Iterator[Problem]:
    for message in messages:
        if not message.is_silenced():
            level = Level.ERROR if message.level >= checks.ERROR else Level.WARNING
            yield Problem(area, level, message.id or "", message.msg, message.hint or "")


def _findings(connection: RedisConnection, areas: set[Area]) -> Iterator[Problem]:
    """Findings of the health report that the checks have not already reported."""
    for finding in read_health(connection).problems:
        is_said = finding.id is FindingId.DATABASE and Area.DATABASE in areas
        if finding.id not in CHECKED and not is_said:
            yield Problem(
                Area.QUEUES, finding.level, finding.id.value, finding.text, finding.remedy
            )


def _servers(shards: AllShards) -> str:
    try:
        servers = sums.servers(shards)
    except RedisQueueError:  # all failed and are missing
        servers = []
    found = [f"{get_redis_url(one.shards[0]).address}: {_server(one)}" for one in servers]
    away = {get_redis_url(shard).address for shard in shards.missing}
    return "; ".join([*found, *(f"{address}: no answer" for address in sorted(away))])


def _server(server: ServerOverview) -> str:
    memory = formatting.size(server.memory)
    limit = f" of {formatting.size(server.limit)}" if server.limit else ""
    return f"{server.name} {server.version}, {memory}{limit} of memory used"


def _workers(shards: AllShards) -> str:
    try:
        alive = sums.leases(shards).alive
    except RedisQueueError:
        return "not known"
    return f"{formatting.number(alive)} child{'' if alive == 1 else 'ren'} alive"


def _database() -> str:
    alias = router.db_for_write(JobRecord)
    connection = connections[alias]
    try:
        numbers = ".".join(map(str, connection.get_database_version()))
    except DatabaseError:
        return f"{alias}: {connection.display_name}, no answer"
    return f"{alias}: {connection.display_name} {numbers}"


class Command(QueueCommand):
    help = "Reports what is wrong with this installation, and how to fix it (docs/checks.md)."
    requires_system_checks = ()  # the settings may be what is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument(
            "--fail-level", choices=["ERROR", "WARNING"], default="ERROR",
            help="exit with status 1 for problems of this level or worse (default: ERROR)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        facts, problems = examine()
        if options["json"]:
            document = {"installation": facts, "problems": [asdict(each) for each in problems]}
            self.stdout.write(json.dumps(document, indent=2))
        else:
            self._show(facts, problems)
        levels = {Level.ERROR, Level[options["fail_level"]]}
        if any(problem.level in levels for problem in problems):
            raise CommandError(_total(problems))

    def _show(self, facts: dict[str, str], problems: Sequence[Problem]) -> None:
        width = max(map(len, facts))
        for name, text in facts.items():
            self.write(f"{name.ljust(width)}  {text}")
        for problem in problems:
            style = self.style.ERROR if problem.level is Level.ERROR else self.style.WARNING
            self.stdout.write("")
            self.stdout.write(style(f"{problem.level.upper()} in {problem.area} ({problem.id})"))
            self.write(f"  {problem.message}")
            if problem.remedy:
                self.write(f"  Remedy: {problem.remedy}")
        self.stdout.write("")
        self.stdout.write(_total(problems) if problems else self.style.SUCCESS("No problems."))


def _total(problems: Sequence[Problem]) -> str:
    """``1 error, 2 warnings``"""
    counts = Counter(problem.level for problem in problems)
    named = [(level, counts[level]) for level in (Level.ERROR, Level.WARNING) if counts[level]]
    return ", ".join(f"{n} {level}{'s' if n > 1 else ''}" for level, n in named)
