"""The outbox's relay: sends what the processes that enqueued it could not. Driven by maintenance.

While no outbox has a row, a pass costs one query an alias, and nothing of Redis.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import Error as DatabaseError
from django.db import connections, router
from django.db.models import QuerySet
from django.utils import timezone

from .. import outbox
from ..batches import batches
from ..exceptions import RedisFull, WrongKeyType
from ..jobdata import NewJob
from ..models import JobRecord, OutboxJob
from ..models.presence import is_present
from ..store.transitions import Transitions

logger = logging.getLogger("django_redisqueue")

YOUNG = timedelta(seconds=3)  # the process that has just committed is about to send it itself
ROWS = 500  # a pass and alias
AGAIN = 600.0  # s until what Redis refused is tried again
ORPHANED = timedelta(days=1)  # a row whose fellows have not committed by then never will be whole


@dataclass(slots=True)
class _Place:
    """Where the passes over one alias stand, and what was logged of it."""

    alias: str
    after: datetime | None = None  # rows up to here were looked at
    settled_after: datetime | None = None
    redis: str = ""  # the run of Redis that rows were compared with
    problem: str = ""
    refused: dict[str, str] = field(default_factory=dict)


class Relay:
    """One pass each time over all aliases that have an outbox."""

    def __init__(self, store: Transitions) -> None:
        self._store = store
        self._places: dict[str, _Place] = {}
        self._again_at = 0.0

    def run_once(self) -> bool:
        """Send what waits; True when there is more. Raises RedisQueueError."""
        again = time.monotonic() >= self._again_at
        if again:
            self._again_at = time.monotonic() + AGAIN
        more, redis = False, ""
        for alias in connections:
            place = self._places.setdefault(alias, _Place(alias))
            try:
                connections[alias].close_if_unusable_or_obsolete()
                if is_present(OutboxJob, alias) and _rows(alias).exists():
                    redis = redis or self._redis()
                    self._compare(place, redis)
                    more = self._pass(place, again) or more
            except (DatabaseError, RedisFull) as error:
                _say(place, f"{type(error).__name__}: {error}")
            else:
                _say(place, "")
        return more

    def _pass(self, place: _Place, again: bool) -> bool:
        rows = outbox.unsent(place.alias)
        if again:
            self._relay(place, list(rows.exclude(problem="")[:ROWS]))
        found = rows.filter(problem="", created_at__lt=timezone.now() - YOUNG)
        if place.after is not None:
            found = found.filter(created_at__gt=place.after)
        page = list(found[:ROWS])
        place.after = page[-1].created_at if len(page) == ROWS else None
        self._relay(place, page)
        self._settle(place)
        return place.after is not None

    def _redis(self) -> str:
        """Which run of which Redis this is."""
        meta = self._store.keys.meta
        known = self._store.link.call("HMGET", meta, "run_id", "incarnation")
        return ":".join(part or "" for part in known)

    def _compare(self, place: _Place, redis: str) -> None:
        """Another run of Redis may have lost its last second, or everything: what it is not known
        to have, and the mirror neither, is sent once more."""
        if redis != place.redis:
            rows = _rows(place.alias).exclude(relayed_at=None)
            rows.exclude(relayed_to=redis).update(relayed_at=None, relayed_to="")
            place.redis = redis

    # -- sending

    def _relay(self, place: _Place, rows: Sequence[OutboxJob]) -> None:
        whole = _after_their_parents(list(self._committed(place, rows)))
        # The fellows of a row on other aliases go with it.
        aliases = {place.alias, *_together(whole)}
        for batch in batches([outbox.to_new_job(row) for row in whole]):
            problems = self._send(batch)
            self._note(place, aliases, [job for job in batch if job.id not in problems])
            for job_id, problem in problems.items():
                self._refuse(place, job_id, problem)

    def _committed(self, place: _Place, rows: Sequence[OutboxJob]) -> Iterable[OutboxJob]:
        """Rows of which the fellows on other aliases are there, too."""
        ids = [row.id for row in rows]
        there = {alias: _ids(alias, ids) for alias in _together(rows) - {place.alias}}
        for row in rows:
            missing = [a for a in row.aliases.split(",") if a in there and row.id not in there[a]]
            if not missing:
                yield row
            elif timezone.now() - row.created_at > ORPHANED:
                logger.warning(
                    "outbox of database %r: job %s is dropped, for its transaction on %s has not "
                    "committed", place.alias, row.id, ", ".join(missing),
                )  # fmt: skip
                outbox.delete([row.id], place.alias)

    def _send(self, jobs: Sequence[NewJob]) -> dict[str, str]:
        """Send up to a batch; what Redis refuses of it, by id. Raises what concerns all of it.

        A job that was to wait for one that is nowhere any more is made, and ends as cancelled:
        nobody is there to be told that it can not be made.
        """
        try:
            self._store.enqueue(jobs, orphans=True)
        except WrongKeyType as error:
            if len(jobs) == 1:
                return {jobs[0].id: str(error)}
            problems: dict[str, str] = {}
            for job in jobs:
                problems |= self._send([job])
            return problems
        return {}

    def _note(self, place: _Place, aliases: Iterable[str], jobs: Sequence[NewJob]) -> None:
        """Redis has these."""
        waiting = [job.id for job in jobs if outbox.waits_for_mirror(job.audit)]
        done = [job.id for job in jobs if not outbox.waits_for_mirror(job.audit)]
        for alias in aliases:
            outbox.delete(done, alias)
            _update(alias, waiting, relayed_at=timezone.now(), relayed_to=place.redis, problem="")

    def _refuse(self, place: _Place, job_id: str, problem: str) -> None:
        if place.refused.get(job_id) != problem:
            logger.error(
                "outbox of database %r: job %s is refused: %s", place.alias, job_id, problem
            )
            place.refused[job_id] = problem
        _update(place.alias, [job_id], problem=problem)

    # -- letting go

    def _settle(self, place: _Place) -> None:
        """Rows whose jobs are mirrored, should the bridge have died before it said so."""
        sent = _rows(place.alias).exclude(relayed_at=None)
        if place.settled_after is not None:
            sent = sent.filter(relayed_at__gt=place.settled_after)
        page = list(sent.order_by("relayed_at").values_list("pk", "relayed_at")[:ROWS])
        place.settled_after = page[-1][1] if len(page) == ROWS else None
        ids = [job_id for job_id, _ in page]
        if ids and self._store.settings.mirror:
            alias = router.db_for_read(JobRecord)
            known = JobRecord._base_manager.using(alias).filter(pk__in=ids)
            ids = list(known.values_list("pk", flat=True)) if is_present(JobRecord, alias) else []
        outbox.delete(ids, place.alias)


def _after_their_parents(rows: Sequence[OutboxJob]) -> Sequence[OutboxJob]:
    """Those that wait for no job which is itself still to be sent: that one goes first."""
    parents = {parent for row in rows for parent in row.after.split()[1:]}
    to_come = outbox.unsent_among(sorted(parents))
    return [row for row in rows if to_come.isdisjoint(row.after.split())] if to_come else rows


def _rows(alias: str) -> QuerySet[OutboxJob]:
    return OutboxJob._base_manager.using(alias)


def _ids(alias: str, ids: Sequence[str]) -> set[str]:
    return set(_rows(alias).filter(pk__in=ids).values_list("pk", flat=True))


def _together(rows: Iterable[OutboxJob]) -> set[str]:
    """The other aliases that rows name, and that can be asked."""
    named = {alias for row in rows for alias in row.aliases.split(",") if alias}
    return {name for name in named if name in connections and is_present(OutboxJob, name)}


def _update(alias: str, ids: Sequence[str], **values: Any) -> None:
    if ids:
        _rows(alias).filter(pk__in=ids).update(**values)


def _say(place: _Place, problem: str) -> None:
    """Log what keeps an outbox from being read, once until it changes."""
    if problem and problem != place.problem:
        logger.error("outbox of database %r: %s; trying again", place.alias, problem)
    place.problem = problem
