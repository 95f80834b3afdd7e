"""The process that mirrors events into the database, behind a leader lease.

It applies pages of the event stream until it has caught up, then waits for a message on the status
channels. Messages only wake it: the events that it applies always come from the stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import Error as DatabaseError

from ...broker.commands import Commands
from ...broker.connection import RedisConnection, blocking_connection
from ...broker.failures import Outage
from ...broker.replies import LeadReply
from ...conf import Settings
from ...exceptions import RedisQueueError
from ...mirror.bridge import make_bridge
from ...mirror.database_errors import explain_error
from ..identity import shard_label
from .leader import STANDALONE, LeaderRole, RoleHost

logger = logging.getLogger("django_redisqueue")

ROLE = "bridge"
LEASE_MS = 14_000
RENEW = 9.0  # s
RETRY = 5.0  # s between two attempts of others, so a dead bridge is replaced within 20 s
GATHER = 0.05  # s during which events accumulate after the last page
READ_INTERVAL = 30.0  # s between two reads of the stream without a message
# s that a page may take in the database before the watchdog considers it stuck. While the database
# is down, Django's connection pool waits for 30 s before it raises an error.
BUSY = 45.0
LAST = 3.0  # s at the end, to mirror the outcomes of the last jobs


class BridgeRole(LeaderRole):
    """Mirrors events while it leads. Events that it has not mirrored wait in Redis."""

    errors = (RedisQueueError, DatabaseError)

    def __init__(
        self, who: str, settings: Settings, host: RoleHost = STANDALONE, last: float = 0.0
    ) -> None:
        """Before it gives up the role, it catches up for ``last`` seconds."""
        self._bridge = make_bridge(settings, shard=host.shard, keep_alive=host.keep_alive)
        self._log_name = shard_label("mirror", host.shard, settings)
        self._last = last
        commands = Commands(self._bridge.connection, settings)
        super().__init__(who, commands, ROLE, host, lease_ms=LEASE_MS, renew=RENEW, retry=RETRY)
        keys = commands.keys
        self._subscription = _Subscription(host.shard, keys.status_channel, keys.workflow_channel)
        self._outage: Outage | None = None

    def run(self, is_over: Callable[[], bool]) -> None:
        self.start(is_over)
        try:
            if self._last:
                self.catch_up(time.monotonic() + self._last)
        except self.errors as error:
            problem = str(error).partition("\n")[0]  # PostgreSQL adds the statement, or a row
            #: A worker that stopped could not mirror the last events. The next worker or
            #: bridgeevents will. No action is needed.
            logger.warning("%s: %s; what is not mirrored waits in Redis", self._log_name, problem)
        self.stop()

    def stop(self) -> None:
        super().stop()
        self._close()

    def work(self) -> None:
        """Apply a page, or wait until there may be one."""
        self._host.keep_alive(BUSY)
        if self._subscription.is_due and self._bridge.run_once():
            # Unsubscribe while catching up: Redis disconnects subscribers that read too slowly.
            self._subscription.close()
            if self._bridge.is_caught_up:
                self.idle(time.sleep, GATHER)
        elif not self._subscription.is_open:
            self._subscription.open()  # then read once more, for events that arrived in between
        else:
            self.idle(self._subscription.listen, self.until_renewal())

    def renewed(self, reply: LeadReply) -> None:
        if not reply:
            self._close()  # its copy of the cursor will be out of date

    def failed(self, error: Exception) -> None:
        self._close()
        if isinstance(error, RedisQueueError):
            problem = str(error)
        else:
            self._host.keep_alive(BUSY)
            problem = explain_error(self.alias, error)
        self._outage = self._outage or Outage()
        if self._outage.is_news(error, problem):
            #: The mirror cannot write, because the database or Redis does not answer, or its tables
            #: are missing. Events wait in Redis, up to EVENTS_CAP. Bring the database back, or
            #: migrate.
            logger.error("%s: %s; trying again until it succeeds", self._log_name, problem)

    def recovered(self, tries: int) -> None:
        #: The mirror works again. No action is needed.
        logger.warning("%s: continues after %d tries", self._log_name, tries)
        self._outage = None

    def catch_up(self, until: float = float("inf")) -> int:
        """Apply events, whoever leads, until none are left or ``until`` (monotonic); returns how
        many.

        The cursor in the database ensures that no event is applied twice.
        """
        before = self._bridge.applied
        while self._bridge.run_once() and time.monotonic() < until:
            self._host.keep_alive(BUSY)
        return self._bridge.applied - before

    @property
    def alias(self) -> str:
        """The database that it writes to."""
        return self._bridge.writer.alias

    def _close(self) -> None:
        self._subscription.close()
        self._bridge.close()


class _Subscription:
    """Tells when to read the stream: after a message, and now and then without one."""

    def __init__(self, shard: int, *channels: str) -> None:
        self._shard = shard
        self._channels = channels
        self._connection: RedisConnection | None = None
        self._read_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def is_due(self) -> bool:
        """False if it has listened since the last read and received nothing."""
        return time.monotonic() >= self._read_at

    def open(self) -> None:
        self._connection = blocking_connection(self._shard)
        self._connection.subscribe(*self._channels)
        self._read_at = 0.0

    def listen(self, seconds: float) -> bool:
        """Block for a message or until the next read is due. True if it is time to read."""
        assert self._connection is not None
        now = time.monotonic()
        if now >= self._read_at:
            if self._read_at:  # it was silent, and a proxy may cut connections that are idle
                self._connection.probe()
            self._read_at = now + READ_INTERVAL  # the last read found nothing
        heard = self._connection.message(min(seconds, self._read_at - now))
        if heard:
            self._read_at = 0.0
        return self.is_due

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._read_at = None, 0.0
