"""Closes the approvals of jobs that have ended without a decision: cancelled, failed, or gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.db import router

from ...broker.commands import Commands
from ...broker.uniques import UniqueQueries
from ...conf import Settings
from ...core.statuses import FINAL, ApprovalStatus
from ...models import Approval
from ...models.approvals import close_approvals
from ...models.presence import has_table
from ...models.shards import rows_of_shard

PAGE = 100  # approvals a pass


class ApprovalCloser:
    """Compares pending approvals of one shard's jobs with these in Redis, a page a pass. Without
    pending ones Redis is not asked."""

    def __init__(self, store: Commands, settings: Settings) -> None:
        self._queries = UniqueQueries(store.connection, settings)
        self._after = 0  # the primary key behind which the next pass goes on

    def run_once(self) -> bool:
        """True if there may be more to do now. Raises RedisQueueError or DatabaseError."""
        alias = router.db_for_write(Approval)
        if not has_table(Approval, alias):
            return False
        rows = Approval._base_manager.using(alias).filter(status=ApprovalStatus.PENDING)
        pending = rows_of_shard(rows, self._queries.connection.shard, "job_id")
        page = pending.filter(pk__gt=self._after).order_by("pk").values_list("pk", "job_id")[:PAGE]
        found = dict(page)
        self._after = max(found) if len(found) == PAGE else 0
        ended = self._ended(found.values())
        suspects = {pk: job_id for pk, job_id in found.items() if job_id in ended}
        if suspects:
            close_approvals(suspects, lambda: self._ended(suspects.values()))
        return bool(self._after)

    def _ended(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """How those of these jobs that have ended did."""
        found = self._queries.statuses(sorted(set(job_ids)))
        return {
            job_id: status or "gone"
            for job_id, status in found.items()
            if not status or status in FINAL
        }
