"""Checks that do not need Redis: of the settings, the installed apps and the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.management import find_commands
from django.db import Error as DatabaseError
from django.db import connections
from django.urls import URLResolver, get_resolver

from ..broker.cluster import parse_cluster_url
from ..broker.redis_url import RedisUrl, locations, options_of, redis_urls
from ..client.placement import check_placement
from ..client.registry import get_task, is_own, task_names
from ..client.schedules import code_schedules
from ..client.tasks import Task
from ..conf import APP, Settings, get_settings, is_in_test_run
from ..exceptions import ConfigurationError, InvalidOption, did_you_mean
from ..worker.readiness import mirror_alias, needed_aliases, table_problem

API_URLS = f"{APP}.api.urls"
LOCAL_NAMES = {"localhost", "127.0.0.1", "::1", "", None}
DatabaseAddress = tuple[str, int, int]  # host or socket path, port or 0, database


def check_settings(**_: Any) -> list[CheckMessage]:
    try:
        settings = get_settings()
    except ConfigurationError as error:
        return [make_error(1, f"{error}.", "docs/operations.md explains every setting.")]
    try:
        urls = redis_urls()
    except ConfigurationError as error:
        return [make_error(2, f"{error}.", 'For example {"URL": "redis://localhost:6379/0"}.')]
    return [
        *(message for url in urls for message in _shared_databases(settings, url)),
        *_misspelt_setting(),
        *_unknown_queues(settings),
        *_unknown_limits(),
        *_tasks_in_several_shards(settings),
        *(message for url in urls for message in _embedded_in_production(url)),
        *_other_runworkers(),
        *_naive_datetimes(settings),
        *_databases_without_autocommit(settings),
        *_schedules_with_errors(),
    ]


def make_error(number: int, message: str, hint: str) -> CheckMessage:
    return Error(message, hint=hint, id=f"django_redisqueue.E{number:03}")


def make_warning(number: int, message: str, hint: str) -> CheckMessage:
    return Warning(message, hint=hint, id=f"django_redisqueue.W{number:03}")


def _misspelt_setting() -> Iterator[CheckMessage]:
    if hasattr(django_settings, "REDISQUEUE"):
        return
    for name in dir(django_settings):
        if name.replace("_", "").removeprefix("DJANGO").rstrip("S") == "REDISQUEUE":
            yield make_warning(
                30,
                f"The settings module has {name}, but not REDISQUEUE, so all defaults apply.",
                "Rename it to REDISQUEUE.",
            )


def _shared_databases(settings: Settings, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    ours = _own_addresses(redis_url)
    # The cache that CONNECTION names exists for the queue, unless it is "default".
    own_alias = settings.connection.get("CACHE")
    for alias, cache in django_settings.CACHES.items():
        if alias == own_alias and alias != "default":
            continue
        theirs = {_database_address(url, options_of(cache)) for url in locations(cache)}
        if ours & theirs:
            yield make_error(
                3,
                f"The queue's Redis database ({redis_url.address}) is also used by "
                f"CACHES[{alias!r}], whose clear() deletes everything in it, including all jobs.",
                'Give the queue a database of its own, such as "redis://localhost:6379/1", or '
                "better a server of its own: a cache needs eviction, a queue must not have it.",
            )


def _own_addresses(redis_url: RedisUrl) -> set[DatabaseAddress | None]:
    """The queue's databases; for a cluster, those of the nodes in the URL."""
    if redis_url.is_cluster:
        seeds = parse_cluster_url(redis_url.text).seeds
        return {_database_address(f"redis://{host}:{port}", {}) for host, port in seeds} - {None}
    return {_database_address(redis_url.text, {})} - {None}


def _database_address(url: str, options: Mapping[str, Any]) -> DatabaseAddress | None:
    """What identifies a Redis database; None if the URL is not a plain address."""
    try:
        parts = urlsplit(url)
        queried = parse_qs(parts.query).get("db", [""])[0]  # takes precedence, as in redis-py
        default = options.get("db") or 0
        if parts.scheme == "unix":
            return unquote(parts.path), 0, int(queried or default)
        if parts.scheme not in ("redis", "rediss"):
            return None
        database = int(queried or parts.path.strip("/") or default)
        host = "localhost" if parts.hostname in LOCAL_NAMES else str(parts.hostname)
        return host, parts.port or 6379, database
    except ValueError:
        return None


def _tasks() -> Iterable[Task]:
    """Each task once, even if it has several names."""
    return {id(task): task for task in map(get_task, task_names())}.values()


def _unknown_queues(settings: Settings) -> Iterator[CheckMessage]:
    for task in _tasks():
        if task.queue_name not in settings.queues and not is_own(task.name):
            yield make_warning(
                4,
                f"The task {task.name} is for the queue {task.queue_name!r}, which is not in "
                f'REDISQUEUE["QUEUES"]{did_you_mean(task.queue_name, settings.queues)}.',
                "Add the queue there; until then, enqueuing the task raises UnknownQueue.",
            )


def _unknown_limits() -> Iterator[CheckMessage]:
    for task in _tasks():
        try:
            if task.lane_rule is not None:
                task.lane_rule.check_named_limits()
        except InvalidOption as error:
            yield make_warning(
                28,
                f"The task {task.name} uses a named limit: {error}.",
                "Add the limit there, or correct the task; until then, enqueuing the task raises "
                "InvalidOption.",
            )


def _tasks_in_several_shards(settings: Settings) -> Iterator[CheckMessage]:
    for task in _tasks() if settings.shards > 1 else ():
        try:
            check_placement(task.lane_rule, task.uniqueness)
        except InvalidOption as error:
            yield make_error(26, f"{error}.", "Until then, enqueuing the task raises this error.")


def _embedded_in_production(redis_url: RedisUrl) -> Iterator[CheckMessage]:
    is_development = django_settings.DEBUG or is_in_test_run()
    if redis_url.text.startswith("embedded://") and not is_development:
        yield make_warning(
            6,
            "The queue runs on an embedded Redis (embedded://) while DEBUG is off.",
            "It is meant for trying out, development and tests; in production, run a supervised "
            'redis-server, and name it in REDISQUEUE["CONNECTION"].',
        )


def _other_runworkers() -> Iterator[CheckMessage]:
    for config in apps.get_app_configs():
        if config.name == __name__.partition(".")[0]:
            continue
        if "runworker" in find_commands(str(Path(config.path) / "management")):
            yield make_warning(
                7,
                f"The app {config.name} also has a command runworker, and only one of the two can "
                "have the name.",
                "Start the queue's worker by its other name: manage.py redisqueue_worker.",
            )


def _naive_datetimes(settings: Settings) -> Iterator[CheckMessage]:
    """All datetimes of this package are aware; without USE_TZ, SQLite and MySQL refuse them."""
    on = {"MIRROR": settings.mirror, "OUTBOX": settings.outbox}
    names = [name for name, is_on in on.items() if is_on]
    if names and not django_settings.USE_TZ:
        off = ", ".join(f'"{name}": False' for name in names)
        yield make_error(
            8,
            f"USE_TZ is False, but REDISQUEUE has {' and '.join(names)} on. The database then "
            "refuses their aware datetimes, and workers fail again and again.",
            f"Set USE_TZ = True, or turn them off: REDISQUEUE = {{{off}, ...}}.",
        )


def _databases_without_autocommit(settings: Settings) -> Iterator[CheckMessage]:
    """There, ``atomic()`` does not commit: what the mirror and exactly_once jobs write is lost."""
    for alias in sorted(
        {*needed_aliases(settings), *([mirror_alias()] if settings.mirror else ())}
    ):
        if not connections.settings[alias].get("AUTOCOMMIT", True):
            yield make_error(
                32,
                f"DATABASES[{alias!r}] has AUTOCOMMIT off, so atomic() does not commit, and the "
                "rows of the mirror, of receipts and of exactly_once jobs are lost.",
                "Remove AUTOCOMMIT, and use transaction.atomic(); or call set_autocommit(False) in "
                "your own code, around what needs it.",
            )


def _schedules_with_errors() -> Iterator[CheckMessage]:
    for one in code_schedules():
        if one.error:
            yield make_error(
                23,
                f"The schedule {one.name!r} does not run: {one.error}.",
                'Correct its entry in REDISQUEUE["SCHEDULES"], or its task.',
            )


def check_urls(**_: Any) -> list[CheckMessage]:
    """The API's own paths begin with a slash, so that ``/jobs`` is one of them."""
    try:
        prefixes = list(_api_prefixes(get_resolver()))
    except Exception:  # an error in the project's own code; Django's check of URLs raises it
        return []
    return [
        make_warning(
            29,
            f"The HTTP API is included under {prefix!r}. Because of the slash at the end, the "
            f"API's paths have two slashes, such as {prefix}/stats.",
            f'Leave the slash out: path("{prefix.rstrip("/")}", include("{API_URLS}")).',
        )
        for prefix in prefixes
        if prefix.endswith("/")
    ]


def _api_prefixes(resolver: URLResolver, before: str = "") -> Iterator[str]:
    for one in resolver.url_patterns:
        if isinstance(one, URLResolver):
            prefix = f"{before}{one.pattern}"
            if getattr(one.urlconf_module, "__name__", None) == API_URLS:
                yield prefix
            else:
                yield from _api_prefixes(one, prefix)


def check_database(**_: Any) -> list[CheckMessage]:
    """A deploy check, so ``migrate`` runs without it. ``check_settings`` reports wrong settings."""
    try:
        settings = get_settings()
    except ConfigurationError:
        return []
    messages = list(_tables(settings))
    if settings.mirror and not messages:
        try:
            messages += [*_mirror(), *_sqlite()]
        except DatabaseError:  # the database went down since its tables were found
            connections[mirror_alias()].close()
            messages += _tables(settings)
    return messages


def _tables(settings: Settings) -> Iterator[CheckMessage]:
    tables = _needed_tables(settings)
    for alias in sorted({*needed_aliases(settings), *tables}):
        problem = table_problem(alias, tables[alias])
        if problem:
            yield make_error(
                20,
                f"{problem[0].upper()}{problem[1:]}.",
                "Start the database or migrate it; until then workers take no jobs, and the mirror "
                'is stopped. Without mirror and outbox (REDISQUEUE["MIRROR"] and ["OUTBOX"] '
                "False) the tables are not needed.",
            )


def _needed_tables(settings: Settings) -> defaultdict[str, set[str]]:
    """By alias. Missing tables of the outbox are reported when jobs are enqueued."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    if settings.mirror:
        found[mirror_alias()].add(_table("JobRecord"))
    for task in _tasks():
        if task.options.exactly_once:
            found[task.options.using].add(_table("Receipt"))
    return found


def _table(model: str) -> str:
    return str(apps.get_model(APP, model)._meta.db_table)


def _mirror() -> Iterator[CheckMessage]:
    states = apps.get_model(APP, "MirrorState")._default_manager
    problems = states.exclude(problem="").values_list("problem", flat=True)
    for problem in sorted(set(problems)):
        yield make_error(
            21,
            f"The mirror has stopped: {problem}",
            "If this is the right Redis and you give up what it lost, accept it: "
            "manage.py reapqueue --accept-redis.",
        )


def _sqlite() -> Iterator[CheckMessage]:
    """The mirror writes a lot; with SQLite's defaults, other writers wait for it or fail."""
    alias = mirror_alias()
    connection = connections[alias]
    name = str(connection.settings_dict["NAME"])
    if connection.vendor != "sqlite" or ":memory:" in name or "mode=memory" in name:
        return
    lacks = []
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchone()[0].lower() != "wal":
            lacks.append('"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"')
    options = connection.settings_dict["OPTIONS"]
    if str(options.get("transaction_mode", "")).upper() != "IMMEDIATE":
        lacks.append('"transaction_mode": "IMMEDIATE"')
    if lacks:
        yield make_warning(
            22,
            f"The SQLite database {alias!r}, which the mirror writes to, is set up for a single "
            'writer: others will see "database is locked".',
            f'Add to its OPTIONS: {", ".join(lacks)}; and "timeout": 20.',
        )
