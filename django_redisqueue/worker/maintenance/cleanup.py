"""Cleans up after jobs that have ended: approvals without a decision, files of large results."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from django.db import router

from ...broker.commands import Commands
from ...broker.gathers import GatherQueries
from ...broker.queries import Queries
from ...broker.scan import SCAN_START
from ...broker.uniques import UniqueQueries
from ...client.large_results import delete_result
from ...conf import Settings
from ...core.statuses import FINAL, ApprovalStatus
from ...models import Approval
from ...models.approvals import close_approvals
from ...models.tables import has_table, rows_of_shard

logger = logging.getLogger("django_redisqueue")

APPROVALS_PER_PASS = 100
GATHERS_PER_PASS = 20


class ApprovalCloser:
    """Closes pending approvals of a shard's jobs that were cancelled, have failed, or are gone, a
    page per pass. Asks Redis only while there are pending approvals."""

    def __init__(self, store: Commands, settings: Settings) -> None:
        self._queries = UniqueQueries(store.connection, settings)
        self._after = 0  # the next pass starts behind this primary key

    def run_once(self) -> bool:
        """True if there may be more to do now. Raises RedisQueueError or DatabaseError."""
        alias = router.db_for_write(Approval)
        if not has_table(Approval, alias):
            return False
        pending = rows_of_shard(
            Approval._base_manager.using(alias).filter(status=ApprovalStatus.PENDING),
            self._queries.connection.shard, "job_id",
        )  # fmt: skip
        found = pending.filter(pk__gt=self._after).order_by("pk").values_list("pk", "job_id")
        rows = dict(found[:APPROVALS_PER_PASS])
        self._after = max(rows) if len(rows) == APPROVALS_PER_PASS else 0
        ended = self._ended(rows.values())
        suspects = {pk: job_id for pk, job_id in rows.items() if job_id in ended}
        if suspects:
            close_approvals(suspects, lambda: self._ended(suspects.values()))
        return bool(self._after)

    def _ended(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """The final statuses of those jobs that have ended; "gone" for unknown ones."""
        found = self._queries.statuses(sorted(set(job_ids)))
        return {
            job_id: status or "gone"
            for job_id, status in found.items()
            if not status or status in FINAL
        }


class ResultFileCleaner:
    """Deletes the files of gathers that are over, and of other jobs that Redis no longer has.

    The files go first, then their names in Redis, so an interrupted pass leaves no file behind.
    """

    def __init__(self, store: Commands, settings: Settings) -> None:
        self._store = store
        self._gathers = GatherQueries(store.connection, settings)
        self._queries = Queries(store.connection, settings)
        self._cursor = SCAN_START

    def run_once(self) -> bool:
        """True if there may be more to do now. Raises RedisQueueError."""
        keys = self._gathers.closed(GATHERS_PER_PASS)
        forgotten = [self._forget_gather(key) for key in keys]
        more_jobs = self._delete_abandoned()
        return more_jobs or (all(forgotten) and len(keys) == GATHERS_PER_PASS)

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
        #: Django's storage refuses to delete files of large results. They are tried again each
        #: minute; look at the storage and its permissions.
        logger.error("%s cannot be deleted yet: %r", what, error)
        return False
    return True
