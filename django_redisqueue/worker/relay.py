"""The outbox's relay: sends what the processes that enqueued it could not, sends again what Redis
has lost, and deletes the rows of what is safe. Driven by maintenance.

Every look at a row asks Redis whether it has accepted it (store/durability.py). A Redis that went
back in time, was flushed, or was followed by an older copy, does not know it any more: it is sent
again, unless the mirror knows that its job has ended. While no outbox has a row, a pass costs one
query an alias, and nothing of Redis.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import Error as DatabaseError
from django.db import connections, router
from django.db.models import QuerySet
from django.utils import timezone

from .. import outbox
from ..batches import batches
from ..exceptions import RedisFull, WorkflowError, WrongKeyType
from ..jobdata import NewJob
from ..models import JobRecord, OutboxJob, WorkflowRecord
from ..models.presence import is_present
from ..states import FINAL, JobReason
from ..store.durability import Durability
from ..store.transitions import Transitions
from ..workflows.graph import send_all

logger = logging.getLogger("django_redisqueue")

YOUNG = timedelta(seconds=5)  # the process that has just committed is about to send it itself
ROWS = 4_000  # that a pass looks at, an alias: to ask whether Redis is durable may take a second
AGAIN = 600.0  # s until what Redis refused is tried again
ORPHANED = timedelta(days=1)  # a row whose fellows have not committed by then never will be whole
FORGOTTEN_MS = 3_600_000  # an id that Redis has had for so long, and that has no row, goes


class _Row(NamedTuple):
    """What is read of a row to begin with: its arguments may be large."""

    id: str
    audit: str
    aliases: str
    created_at: datetime


@dataclass(slots=True)
class _Place:
    """Where the passes over one alias stand, and what was logged of it."""

    alias: str
    after: datetime | None = None  # unsent rows up to here were looked at
    sent_after: str = ""  # and of those that were sent, up to this id
    problem: str = ""
    refused: dict[str, str] = field(default_factory=dict)


class Relay:
    """One pass each time over these aliases, or over all, that have an outbox."""

    def __init__(self, store: Transitions, aliases: Sequence[str] = ()) -> None:
        self._store = store
        self._aliases = aliases
        self._durability = Durability(
            store.link, store.settings, replicas=store.settings.wait_replicas
        )
        self._places: dict[str, _Place] = {}
        self._again_at = 0.0

    def run_once(self) -> bool:
        """Send what waits, and delete what is safe; True when there is more to do. Raises
        RedisQueueError."""
        again = time.monotonic() >= self._again_at
        if again:
            self._again_at = time.monotonic() + AGAIN
        more = False
        for alias in self._aliases or connections:
            place = self._places.setdefault(alias, _Place(alias))
            try:
                connections[alias].close_if_unusable_or_obsolete()
                if is_present(OutboxJob, alias) and _rows(alias).exists():
                    more = self._pass(place, again) or more
            except (DatabaseError, RedisFull) as error:
                _say(place, f"{type(error).__name__}: {error}")
            else:
                _say(place, "")
        return more

    def _pass(self, place: _Place, again: bool) -> bool:
        rows = outbox.unsent(place.alias)
        if again:
            self._look_at(place, _briefs(rows.exclude(problem="")))
        found = rows.filter(problem="", created_at__lt=timezone.now() - YOUNG)
        if place.after is not None:
            found = found.filter(created_at__gt=place.after)
        page = _briefs(found)
        place.after = page[-1].created_at if len(page) == ROWS else None
        self._look_at(place, page)
        return self._look_at_sent(place) or place.after is not None

    def _look_at_sent(self, place: _Place) -> bool:
        """A page of the rows that Redis was seen to have, by id; True when there are more."""
        sent = _rows(place.alias).exclude(relayed_at=None).filter(pk__gt=place.sent_after)
        page = _briefs(sent.order_by("pk"))
        self._look_at(place, page)
        place.sent_after = page[-1].id if len(page) == ROWS else ""
        return bool(place.sent_after)

    def _look_at(self, place: _Place, page: Sequence[_Row]) -> None:
        """Delete the rows that are safe, and send what Redis does not have."""
        if not page:
            return
        known = self._known_to_mirror(page)
        is_told = {row.id for row in page if row.id in known or not _is_mirrored(row)}
        accepted = self._durability.accepted([row.id for row in page], wait=bool(is_told))
        safe = [row for row in page if row.id in is_told and accepted.get(row.id)]
        safe += [row for row in page if row.id not in accepted and known.get(row.id)]
        self._let_go(place, safe)
        _note_sent(place.alias, [row.id for row in page if row.id in accepted])
        gone = {row.id for row in safe}
        lacking = [row.id for row in page if row.id not in accepted and row.id not in gone]
        for some in outbox.slices(lacking):
            self._relay(place, list(_rows(place.alias).filter(pk__in=some).order_by("created_at")))

    def _known_to_mirror(self, page: Sequence[_Row]) -> Mapping[str, bool]:
        """The rows of which the mirror has heard; True for one that it knows to have ended, other
        than by being lost."""
        alias = router.db_for_read(JobRecord)
        if not self._store.settings.mirror or not is_present(JobRecord, alias):
            return {}
        ids, known = [row.id for row in page], {}
        for model, some in (
            (JobRecord, [row_id for row_id in ids if not outbox.is_workflow(row_id)]),
            (WorkflowRecord, [row_id for row_id in ids if outbox.is_workflow(row_id)]),
        ):
            for part in outbox.slices(some):
                found = model._base_manager.using(alias).filter(pk__in=part)
                for row_id, status, reason in found.values_list("pk", "status", "reason"):
                    known[row_id] = status in FINAL and reason != JobReason.LOST
        return known

    def _let_go(self, place: _Place, rows: Sequence[_Row]) -> None:
        """First the rows, with their fellows on other aliases, and then what Redis remembers of
        them: else a row that is left would be sent again."""
        ids = [row.id for row in rows]
        for alias in {place.alias, *_together(rows)} if ids else ():
            outbox.delete(ids, alias)
        self._durability.forget(ids)

    def forget_ids(self) -> bool:
        """Forget ids whose rows are gone, but whoever deleted those has died before it said so.
        Looks at the outboxes of all aliases. False: there is no hurry."""
        ids = self._durability.older_than(FORGOTTEN_MS, ROWS)
        try:
            stored = outbox.stored_among(ids)
        except DatabaseError:
            return False  # it was logged, and who has no database to look into knows nothing
        self._durability.forget([job_id for job_id in ids if job_id not in stored])
        return False

    # -- sending

    def _relay(self, place: _Place, rows: Sequence[OutboxJob]) -> None:
        whole = self._after_their_parents(list(self._committed(place, rows)))
        # The fellows of a row on other aliases go with it.
        aliases = {place.alias, *_together(whole)}
        for row in [row for row in whole if outbox.is_workflow(row.id)]:
            self._push(place, aliases, row)
        whole = [row for row in whole if not outbox.is_workflow(row.id)]
        for batch in batches([outbox.to_new_job(row) for row in whole]):
            problems = self._send(batch)
            sent = [job.id for job in batch if job.id not in problems]
            for alias in aliases:
                _note_sent(alias, sent)
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
        nobody is there to be told that it cannot be made.
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

    def _push(self, place: _Place, aliases: Iterable[str], row: OutboxJob) -> None:
        """Send a workflow, or what is left to send of one whose producer died in the midst."""
        try:
            deque(send_all(self._store.link, [outbox.to_push(row)]), maxlen=0)
        except (WorkflowError, WrongKeyType) as error:
            self._refuse(place, row.id, str(error))
            return
        for alias in aliases:
            _note_sent(alias, [row.id])

    def _refuse(self, place: _Place, job_id: str, problem: str) -> None:
        if place.refused.get(job_id) != problem:
            logger.error(
                "outbox of database %r: job %s is refused: %s", place.alias, job_id, problem
            )
            place.refused[job_id] = problem
        _rows(place.alias).filter(pk=job_id).update(relayed_at=None, problem=problem)

    def _after_their_parents(self, rows: Sequence[OutboxJob]) -> Sequence[OutboxJob]:
        """Those that wait for no job which is itself still to be sent: that one goes first."""
        parents = {row.id: {outbox.row_id_of(one) for one in row.after.split()[1:]} for row in rows}
        stored = sorted(outbox.stored_among(set().union(*parents.values())))
        to_come = set(stored) - self._durability.accepted(stored, wait=False).keys()
        return [row for row in rows if to_come.isdisjoint(parents[row.id])]


def _briefs(rows: QuerySet[OutboxJob]) -> list[_Row]:
    return [_Row(*values) for values in rows.values_list(*_Row._fields)[:ROWS]]


def _is_mirrored(row: _Row) -> bool:
    return outbox.waits_for_mirror(row.audit)


def _rows(alias: str) -> QuerySet[OutboxJob]:
    return OutboxJob._base_manager.using(alias)


def _ids(alias: str, ids: Sequence[str]) -> set[str]:
    return set(_rows(alias).filter(pk__in=ids).values_list("pk", flat=True))


def _together(rows: Iterable[OutboxJob | _Row]) -> set[str]:
    """The other aliases that rows name, and that can be asked."""
    named = {alias for row in rows for alias in row.aliases.split(",") if alias}
    return {name for name in named if name in connections and is_present(OutboxJob, name)}


def _note_sent(alias: str, ids: Sequence[str]) -> None:
    for some in outbox.slices(ids):
        found = _rows(alias).filter(pk__in=some, relayed_at=None)
        found.update(relayed_at=timezone.now(), problem="")


def _say(place: _Place, problem: str) -> None:
    """Log what keeps an outbox from being read, once until it changes."""
    if problem and problem != place.problem:
        logger.error("outbox of database %r: %s; trying again", place.alias, problem)
    place.problem = problem
