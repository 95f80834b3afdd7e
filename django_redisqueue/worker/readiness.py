"""A worker waits for the tables of this app before it claims its first job.

Deployments often start workers while ``migrate`` is still running.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Timer

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections, router

from ..broker.failures import RetryBackoff
from ..client.registry import get_task, task_names
from ..conf import APP, Settings
from ..exceptions import ConfigurationError
from ..mirror.database_errors import explain_outage, missing_migrations, missing_table

logger = logging.getLogger("django_redisqueue")

SILENCE = 10.0  # s without an answer until that is logged; a driver may wait for minutes


def needed_aliases(settings: Settings) -> list[str]:
    """The databases that must have this app's tables before a job may run.

    A separate database for the mirror is not one of them, because jobs need not wait for it.
    """
    wanted = {DEFAULT_DB_ALIAS} if settings.mirror or settings.outbox else set()
    wanted |= {
        task.options.using for task in map(get_task, task_names()) if task.options.exactly_once
    }
    return sorted(
        alias for alias in wanted if _has_engine(alias) and router.allow_migrate(alias, APP)
    )


def _has_engine(alias: str) -> bool:
    """False in a project without a database."""
    return bool(connections.settings[alias].get("ENGINE") != "django.db.backends.dummy")


def mirror_alias() -> str:
    """The database that the mirror is written to."""
    return router.db_for_write(apps.get_model(APP, "JobRecord"))


def check_mirror_database(settings: Settings) -> None:
    """Raise ConfigurationError if the mirror is on in a project without a database. A process that
    only enqueues does not need one."""
    alias = mirror_alias()
    if settings.mirror and not _has_engine(alias):
        raise ConfigurationError(
            f'REDISQUEUE["MIRROR"] is True, but DATABASES has no engine for {alias!r}, so the '
            "mirror has nowhere to write to. Set its ENGINE, or turn the mirror off: "
            'REDISQUEUE = {"MIRROR": False, ...}'
        )


def table_problem(alias: str, tables: Collection[str] = ()) -> str:
    """What the database lacks, with the remedy; "" if it is ready and has these tables."""
    try:
        return missing_migrations(alias) or missing_table(alias, tables)
    except (Error, ImproperlyConfigured) as error:
        return explain_outage(alias, error)


def wait_for_tables(settings: Settings) -> None:
    """Return when every needed database has its tables; log what is missing whenever it changes."""
    logged, backoff = "", RetryBackoff()
    with _logged_silence(settings):
        missing = " and ".join(_missing(settings))
    while missing:
        if missing != logged:
            #: A table is missing, or the database does not answer. Run migrate, or bring the
            #: database back; the worker then starts automatically.
            logger.warning("the worker takes no jobs yet: %s", missing)
        logged = missing
        backoff.pause()
        missing = " and ".join(_missing(settings))
    if logged:
        #: The worker was waiting for its tables or its database, and takes jobs from now on. No
        #: action is needed.
        logger.warning("the database is ready: the worker starts")


@contextmanager
def _logged_silence(settings: Settings) -> Iterator[None]:
    """Log it if the block, which asks the databases, takes longer than SILENCE."""

    def log() -> None:
        #: A database accepts no connection and refuses none, or it hangs, so the worker does not
        #: start. Look at that server, and at the firewall in front of it. A connect_timeout in the
        #: OPTIONS of DATABASES shortens the wait for an error.
        logger.warning(
            "the worker takes no jobs yet: no answer for %g s from the database %s",
            SILENCE, " or ".join(map(repr, needed_aliases(settings))),
        )  # fmt: skip

    timer = Timer(SILENCE, log)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _missing(settings: Settings) -> Iterator[str]:
    for alias in needed_aliases(settings):
        problem = table_problem(alias)
        if problem:
            connections[alias].close()  # the next check uses a new connection
            yield problem
