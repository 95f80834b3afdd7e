"""Deletes the files of large results once nobody can read them any more.

The files go first, then what names them in Redis, so an interrupted pass leaves no file behind. A
child that was suspended between recording a name and writing the file, for as long as the job took
to end elsewhere and to leave Redis, leaves one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...broker.commands import Commands
from ...broker.gathers import GatherQueries
from ...broker.queries import Queries
from ...broker.scan import SCAN_START
from ...client.large_results import delete_result
from ...conf import Settings

logger = logging.getLogger("django_redisqueue")

GATHERS_A_PASS = 20


class ResultFileCleaner:
    """Deletes the files of gathers that are over, and of other jobs that Redis no longer has."""

    def __init__(self, store: Commands, settings: Settings) -> None:
        self._store = store
        self._gathers = GatherQueries(store.connection, settings)
        self._queries = Queries(store.connection, settings)
        self._cursor = SCAN_START

    def run_once(self) -> bool:
        """True if there may be more to do now. Raises RedisQueueError."""
        keys = self._gathers.closed(GATHERS_A_PASS)
        forgotten = [self._forget_gather(key) for key in keys]
        more_jobs = self._delete_abandoned()
        return more_jobs or (all(forgotten) and len(keys) == GATHERS_A_PASS)

    def _forget_gather(self, key: str) -> bool:
        gather_id, names = self._gathers.files(key)
        if not _deleted(names, f"the files of gather {key!r}"):
            return False
        self._store.delete_gather(key, gather_id)
        return True

    def _delete_abandoned(self) -> bool:
        """One step of the scan; True unless it was the last."""
        self._cursor, names = self._queries.abandoned_result_files(self._cursor)
        if names and _deleted(names, "the files of results"):
            self._store.forget_result_files(names)
        return self._cursor != SCAN_START


def _deleted(names: Sequence[str], what: str) -> bool:
    """Delete files; False, with a log entry, if the storage cannot."""
    try:
        for name in names:
            delete_result(name)
    except Exception as error:  # a file storage may raise anything; the next pass retries
        logger.error("%s cannot be deleted yet: %r", what, error)
        return False
    return True
