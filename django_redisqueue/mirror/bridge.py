"""The bridge: copies the event stream into the database, page by page.

The work after a commit (signals, trimming the stream, retention) is done by commit hooks.
``RedisIdentity`` checks at the start, after every error, and when the cursor's entry is gone from
the stream, whether this Redis is the one that was mirrored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from django.db import Error, connections

from ..broker.commands import Commands
from ..broker.connection import worker_connection
from ..broker.entries import START, Position, entry_id, format_position
from ..broker.events import PAGE, EntryLost, EventFault, StreamPage
from ..conf import Settings
from .database_errors import CONTENT_ERRORS, UNCERTAIN_REFUSALS, ErrorCause, error_cause
from .reconcile import Reconciler
from .redis_identity import RedisIdentity
from .retention import Cleanup
from .sessions import close_unfit_connections, limit_lock_waits, limited_lock_waits
from .signal_delivery import JOB_SOURCE, WORKFLOW_SOURCE, KeepAlive, SignalDelivery
from .writer import BatchTooLarge, Cursor, CursorMoved, MirrorWriter

logger = logging.getLogger("django_redisqueue")

HOOK_INTERVAL = 25.0  # s after which hooks are called without a commit
KEEP_EVENTS = 10_000  # that stay in the stream for live readers, although the mirror has read them
REFUSALS = 2  # of a single event, before it is left out, if the error blames its values

#: Called after each commit, at the end of the stream after a start, and now and then without a
#: commit. Returns True when it has more to do.
CommitHook = Callable[[Cursor], bool]


def make_bridge(
    settings: Settings,
    *,
    shard: int = 0,
    page: int = PAGE,
    keep_alive: KeepAlive = lambda seconds: None,
) -> Bridge:
    """The bridge of one shard with all its hooks, the most urgent first."""
    writer = MirrorWriter(worker_connection(shard), settings)
    commands = Commands(writer.events.connection, settings)
    reconciler = Reconciler(writer)
    return Bridge(
        writer,
        identity=RedisIdentity(writer),
        hooks=[
            partial(trim_stream, commands, is_due=reconciler.is_due),
            SignalDelivery(JOB_SOURCE, shard, keep_alive=keep_alive),
            SignalDelivery(WORKFLOW_SOURCE, shard, keep_alive=keep_alive),
            reconciler,
            *([Cleanup(settings)] if shard == 0 else []),  # of all shards' rows
        ],
        page=page,
    )


class Bridge:
    """The mirror of one shard. ``run_once`` applies one page; the caller retries and waits."""

    def __init__(
        self,
        writer: MirrorWriter | None = None,
        *,
        identity: RedisIdentity | None = None,
        hooks: Sequence[CommitHook] = (),
        page: int = PAGE,
    ) -> None:
        self.writer = writer or MirrorWriter(worker_connection())
        self.events = self.writer.events
        self.connection = self.events.connection
        self._identity = identity
        self._hooks = hooks
        self._page = self._size = page  # events; fewer after a page that was refused
        self._refused: tuple[Position, int] | None = None  # a single event, and how often
        self._cursor: Cursor | None = None
        self._hooks_at = 0.0
        self.is_caught_up = True  # nothing followed the last page
        self.applied = 0  # events of the stream

    def close(self) -> None:
        """Close both connections and forget the cursor, after an error or when another bridge may
        have been active."""
        self._cursor = None
        self.connection.close()
        connections[self.writer.alias].close()

    @limited_lock_waits()
    def run_once(self) -> bool:
        """Apply the next page of events; False if there is nothing more to do. Raises
        RedisQueueError or django.db.Error if nothing was applied: ``close`` and try again."""
        cursor = self._cursor
        if cursor is None or cursor.position == START:  # no entry would be missing after a loss
            cursor = self._begin()
        try:
            page = self.events.read(cursor.position, self._size)
        except EntryLost:
            if self._identity is None:
                raise
            self._cursor = None  # the next call checks the identity
            return True
        self.is_caught_up = page.is_end
        if page.last == cursor.position:
            return time.monotonic() >= self._hooks_at and self._call_hooks()
        try:
            self._cursor = self._write(page, cursor)
        except CursorMoved:
            self._cursor = None
            return True
        if self._cursor.position != page.last:
            page = page.until(self._cursor.position)
            self.is_caught_up = False
        self.applied += page.seen
        self._call_hooks()
        return True

    def _begin(self) -> Cursor:
        """Hooks wait for the first page, so the mirror continues even if one fails repeatedly."""
        limit_lock_waits(self.writer.alias)
        cursor = self.writer.cursor()
        self._cursor = self._identity.check(cursor) if self._identity else cursor
        self._hooks_at = 0.0
        return self._cursor

    def _call_hooks(self) -> bool:
        assert self._cursor is not None
        close_unfit_connections(self.writer.alias, others=True)
        more = [hook(self._cursor) for hook in self._hooks]
        self._hooks_at = 0.0 if any(more) else time.monotonic() + HOOK_INTERVAL
        return any(more)

    def _write(self, page: StreamPage, cursor: Cursor) -> Cursor:
        """Write a page, or its first part if a transaction cannot hold all of it."""
        if self._size < self._page:
            page = page.first(self._size)
        try:
            cursor = self.writer.write(page.events, cursor, page.last, page.workflows, page.faults)
        except BatchTooLarge as error:
            self._size = error.fits
            return self._write(page.until(page.events[error.fits - 1].position), cursor)
        except (*CONTENT_ERRORS, Error) as error:
            return self._after_refusal(page, cursor, error)
        self._size, self._refused = min(self._page, self._size * 2), None
        return cursor

    def _after_refusal(self, page: StreamPage, cursor: Cursor, error: Exception) -> Cursor:
        """Halve the page until the event at fault is alone, and leave it out once the database has
        refused it often enough. While the database itself is at fault, nothing is left out."""
        count = len(page.events) + len(page.workflows)
        self._size = max(1, count // 2)
        cause = error_cause(error, self.writer.alias)
        if count != 1 or cause is ErrorCause.DATABASE:
            if cause is ErrorCause.CONTENT and count:
                return cursor
            raise error
        if cause is ErrorCause.UNCERTAIN and not self.writer.is_writable(cursor):
            raise error
        previous = self._refused
        refusals = previous[1] + 1 if previous and previous[0] == page.last else 1
        self._refused = page.last, refusals
        if refusals < (REFUSALS if cause is ErrorCause.CONTENT else UNCERTAIN_REFUSALS):
            if cause is ErrorCause.CONTENT:
                return cursor
            raise error
        place = format_position(page.last)
        #: The database refuses the row of this event, so the job's record lacks this change. The
        #: text says why; the job itself is unharmed.
        logger.error("event %s cannot be mirrored and is left out: %r", place, error)
        fault = EventFault(page.last, f"the database refuses it: {error!r}", is_left_out=True)
        return self.writer.write([], cursor, page.last, faults=[*page.faults, fault])


def trim_stream(
    commands: Commands, cursor: Cursor, *, is_due: Callable[[Cursor], bool] = lambda _: False
) -> bool:
    """A commit hook: store the mirror's position in Redis and trim the stream behind it.

    Pruning waits for this position: a finished job stays in Redis until the mirror has read its
    last event, or until a reconcile that ``is_due`` has found it. A step trims more than a page;
    True if there may be more.
    """
    if cursor.position == START:
        return False
    if is_due(cursor):
        return True
    return commands.trim(entry_id(cursor.position), KEEP_EVENTS) > 0
