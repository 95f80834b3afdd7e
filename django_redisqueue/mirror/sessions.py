"""Database sessions of the bridge and of maintenance, which no request begins or ends: their waits
for locks are limited, and connections that are lost or too old are replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import Error as DatabaseError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver

# Seconds after which the database ends a wait for a lock. The watchdog would end the process after
# 45 s, but its connection would keep waiting, and each new process would add one while a migration
# has the lock.
LOCK_WAIT = 20
SET_LOCK_WAIT = {
    "postgresql": (
        "SELECT set_config('lock_timeout', %(s)s || 's', false) "
        "WHERE current_setting('lock_timeout') = '0'"
    ),
    "mysql": (  # by default a year (on MariaDB a day) for tables, and 50 s for rows
        "SET lock_wait_timeout = CAST(LEAST(@@lock_wait_timeout, %(s)s) AS SIGNED), "
        "innodb_lock_wait_timeout = CAST(LEAST(@@innodb_lock_wait_timeout, %(s)s) AS SIGNED)"
    ),
}
_thread = threading.local()  # ``limits``: whether it is in ``limited_lock_waits``


def limit_lock_waits(alias: str) -> None:
    """Set LOCK_WAIT for the session, unless it has a limit or is shared (by a pooler)."""
    connection = connections[alias]
    statement = SET_LOCK_WAIT.get(connection.vendor)
    if statement and not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        with connection.cursor() as cursor:
            cursor.execute(statement, {"s": LOCK_WAIT})


@contextmanager
def limited_lock_waits() -> Iterator[None]:
    """Set LOCK_WAIT for every connection that this thread opens in the block."""
    before = getattr(_thread, "limits", False)
    _thread.limits = True
    try:
        yield
    finally:
        _thread.limits = before


@receiver(connection_created)
def _limit(connection: BaseDatabaseWrapper, **_: object) -> None:
    if getattr(_thread, "limits", False):
        limit_lock_waits(connection.alias)


def close_unfit_connections(own: str, others: bool = False) -> None:
    """Close this thread's connections that have failed and do not answer; with ``others`` also
    those to other aliases than ``own`` that are too old, as Django does between requests."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred or (others and connection.alias != own):
            with suppress(DatabaseError):  # it is then forgotten as well
                connection.close_if_unusable_or_obsolete()
