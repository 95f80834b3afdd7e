"""The base classes of commands, which change jobs, and of queries, which only read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ..conf import Settings, get_settings
from ..core.parsing import clock_ms
from ..core.statuses import Status
from ..exceptions import LeaseLost
from .connection import RedisConnection, ReplicaWait
from .keys import Keys
from .scripts import load

Item = TypeVar("Item")
BATCH = 100  # jobs a script call at the most: no script blocks Redis for long
MAX_CALL_BYTES = 1_000_000  # and about as many bytes


def slices(items: Sequence[Item], size: int = BATCH) -> Iterable[Sequence[Item]]:
    """Parts of as many items as one call takes."""
    return (items[at : at + size] for at in range(0, len(items), size))


def keys_at(connection: RedisConnection, settings: Settings) -> Keys:
    """The keys of the connection's shard."""
    return Keys(settings.prefix, connection.shard, is_on_cluster=connection.redis_url.is_cluster)


def replica_wait(keys: Keys, settings: Settings) -> ReplicaWait | None:
    """What ``WAIT_REPLICAS`` asks for."""
    replicas = settings.wait_replicas
    return ReplicaWait(replicas, keys.meta) if replicas else None


class CommandBase:
    """Calls scripts in the connection's shard: each gets the shard's key and the arguments that all
    scripts share."""

    def __init__(self, connection: RedisConnection, settings: Settings | None = None) -> None:
        self.connection = connection
        self.settings = settings or get_settings()
        self.keys = keys_at(connection, self.settings)
        self.now_ms: int | None = None
        self._meta = self.keys.meta
        self._channel = self.keys.status_channel
        self.wait = replica_wait(self.keys, self.settings)

    def _head(self, verb: str) -> tuple[Any, ...]:
        """Script, key and the arguments that all scripts share (context.lua)."""
        script, now = load(verb), "" if self.now_ms is None else self.now_ms
        return (
            script.sha, script.source, self._meta, *script.selector,
            now, self._channel, self.settings.events_cap,
        )  # fmt: skip

    def _run(self, verb: str, *args: Any) -> Any:
        return self.connection.script(*self._head(verb), *args)

    def _accept(self, call: tuple[Any, ...]) -> Any:
        """Run a script that accepts new work, and wait until ``WAIT_REPLICAS`` replicas have it.
        Raises NotReplicated."""
        if self.wait is None:
            return self.connection.script(*call)
        return self.connection.script_on_replicas(self.wait, *call)


class QueryBase:
    """Reads the connection's shard."""

    def __init__(self, connection: RedisConnection, settings: Settings | None = None) -> None:
        self.connection = connection
        self.keys = keys_at(connection, settings or get_settings())

    def _check_runs(self, job_id: str, status: str | None) -> None:
        """Raise LeaseLost for a job that runs, unless Redis knows that it may."""
        if status in (None, Status.WAITING, Status.COMPLETED):
            self.connection.look_again()  # perhaps this was the former master, cut off
            raise LeaseLost(
                f"Redis does not know that job {job_id} runs: a failover took that back, or "
                "somebody deleted the job"
            )

    def now_ms(self) -> int:
        """Redis's clock."""
        return clock_ms(self.connection.call("TIME"))

    def _each(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """A pipeline in which a key of the wrong type replies None and spoils no other reply."""
        return self.connection.pipeline(commands, lenient=True) if commands else []
