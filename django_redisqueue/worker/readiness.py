"""What a worker waits for before it takes its first job: the tables of this app (a deployment often
starts workers while ``migrate`` still runs)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections, router

from ..conf import APP, Settings
from ..mirror.health import lacks
from ..registry import get_task, task_names
from .reconnect import pause

logger = logging.getLogger("django_redisqueue")


def needed_aliases(settings: Settings) -> list[str]:
    """The databases that must have this app's tables before a job may run. The mirror's own, if it
    has one, is not among them: its bridge waits for it, and the jobs need not."""
    wanted = {DEFAULT_DB_ALIAS} if settings.mirror or settings.outbox else set()
    wanted |= {
        task.options.using for task in map(get_task, task_names()) if task.options.exactly_once
    }
    return sorted(filter(_may_have_tables, wanted))


def _may_have_tables(alias: str) -> bool:
    """A project without a database has nothing to wait for; a check says that the mirror wants
    one."""
    engine = connections.settings[alias].get("ENGINE")
    return engine != "django.db.backends.dummy" and bool(router.allow_migrate(alias, APP))


def lacking(alias: str) -> str:
    """What the database lacks, and the remedy; '' when it is ready."""
    try:
        return lacks(alias)
    except (Error, ImproperlyConfigured) as error:
        return f"the database {alias!r} does not answer ({error})"


def wait_for_tables(settings: Settings) -> None:
    """Until every needed database has them. Says what it waits for, once until it changes."""
    said, tries = "", 0
    while missing := " and ".join(_missing(settings)):
        if missing != said:
            logger.warning("the worker takes no jobs yet: %s", missing)
        said = missing
        pause(tries)
        tries += 1
    if said:
        logger.warning("the database is ready: the worker begins")


def _missing(settings: Settings) -> Iterator[str]:
    for alias in needed_aliases(settings):
        words = lacking(alias)
        if words:
            connections[alias].close()  # the next look is by a new connection
            yield words
