"""Finds the owner of each key that is left when nothing runs any more. A key without an owner would
stay forever, and so would whatever it stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from django_redisqueue.broker.keys import Key, Keys
from tests.support.history import FINAL

from .evidence import Keyspace

# Keys that exist once per shard and contain nothing once everything has ended.
EMPTY_AT_REST = {
    "pending_writes", "slots", "waiting_limits", "waiting_chunks", "changed_limits",
    "continuations", "result_files", "closed_gathers",
}  # fmt: skip
ONE_OF_EACH = {
    getattr(Keys(), name).removeprefix(Keys().base)
    for name, value in vars(Keys).items()
    if isinstance(value, Key) and name not in EMPTY_AT_REST
}
# Of each queue.
OF_A_QUEUE = {*FINAL, "wake", "meta", "passes", "pauses", "pause_history", "deleted"}


def is_permanent(name: str) -> bool:
    """Whether a key (without its prefix) exists for as long as its queue or schedule does."""
    queue, _, what = name.removeprefix("q:").partition(":")
    is_of_a_queue = bool(queue) and name.startswith("q:") and what in OF_A_QUEUE
    return name in ONE_OF_EACH or is_of_a_queue or name.startswith("schedule:")


class Owners:
    """Finds the ``orphans`` of one keyspace."""

    def __init__(self, keyspace: Keyspace, expiring: set[str], keys: Keys) -> None:
        self._keyspace = keyspace
        self._expiring = expiring
        self._keys = keys
        self._members = {
            name: {member for member, _ in self._zset(name)}
            for name in ("workflows", "gathers", "schedules", "uniques", "workers")
        }
        self._queues = keyspace.get(keys.queues, ("set", set()))[1]
        # The pattern of a key's name without its prefix, and whether the key has an owner, given
        # the matched groups.
        self._rules: list[tuple[str, Callable[..., bool]]] = [
            (r"job:([^:]+)", self._owns_job),
            (r"job:([^:]+):(?:then|followers)", lambda job: self._keys.job(job) in keyspace),
            (r"q:([^:]+):(\w+)", lambda queue, what: queue in self._queues and what in OF_A_QUEUE),
            (r"workflow:([^:]+)", lambda name: name in self._members["workflows"]),
            (r"gather:([^:]+)(?::plan)?", lambda name: name in self._members["gathers"]),
            (r"schedule:(.+)", lambda name: name in self._members["schedules"]),
            (r"unique:(.+)", lambda name: name in self._members["uniques"]),
            # A live worker reaps this child once its lease has expired.
            (r"child:([^:]+):resent", lambda child: child in self._members["workers"]),
            (r"steps:([^:]+)", lambda job: self._status(job) in ("failed", "cancelled")),
        ]

    def orphans(self) -> Iterator[str]:
        """The keys without an owner, each with its type."""
        base = self._keys.base
        for key, (kind, _) in self._keyspace.items():
            if key in self._expiring:
                continue
            if not key.startswith(base) or not self._is_owned(key.removeprefix(base)):
                yield f"{key} ({kind})"

    def _is_owned(self, name: str) -> bool:
        if name in ONE_OF_EACH:
            return True
        for pattern, owned in self._rules:
            found = re.fullmatch(pattern, name)
            if found:
                return owned(*found.groups())
        return False

    def _owns_job(self, job_id: str) -> bool:
        """A finished job is in the list of its queue and status, from which it will be pruned."""
        job = self._job(job_id)
        status = "deleted" if "deleted" in job else job.get("status", "")
        if status not in OF_A_QUEUE:
            return False
        listed = getattr(self._keys.queue(job.get("queue", "default")), status)
        return job_id in self._listed(listed)

    def _listed(self, key: str) -> set[str]:
        found = self._members.get(key)
        if found is None:
            found = {member for member, _ in self._keyspace.get(key, ("zset", []))[1]}
            self._members[key] = found
        return found

    def _zset(self, name: str) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = self._keyspace.get(
            getattr(self._keys, name), ("zset", [])
        )[1]
        return found

    def _job(self, job_id: str) -> dict[str, str]:
        found: dict[str, str] = self._keyspace.get(self._keys.job(job_id), ("hash", {}))[1]
        return found

    def _status(self, job_id: str) -> str:
        return self._job(job_id).get("status", "")
