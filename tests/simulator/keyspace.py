"""What a history reads from Redis, in one round trip per step."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

from ..broker.harness import KEYSPACE, BrokerHarness, shaped
from ..support.servers import RedisServer

MAX_RECOVERIES = 2  # so that some jobs reach it
Dump = dict[str, Any]  # key -> its type and value
Saved = list[tuple[bytes, bytes]]  # keys with their dumped values

SHA = hashlib.sha1(KEYSPACE.encode(), usedforsecurity=False).hexdigest()


class SimulatedBroker(BrokerHarness):
    """A shard in which nothing depends on the real clock, for many histories."""

    def __init__(self, server: RedisServer, shard: int = 0) -> None:
        super().__init__(server, shard=shard)
        self.raw = server.client()
        self._ends = self.redis.pubsub(ignore_subscribe_messages=True)
        self._ends.psubscribe(self.keys.done("*"))
        self.store.settings = replace(
            self.store.settings, mirror=False, max_recoveries=MAX_RECOVERIES
        )

    def close(self) -> None:
        self._ends.close()
        super().close()
        self.raw.close()

    def dump_all(self) -> Dump:
        """The keys of all shards. They lose their TTLs: Redis would expire them by the real clock,
        so that two dumps on a slow machine could differ."""
        found = self.connection.script(SHA, KEYSPACE, self.keys.meta, "persist")
        return {key: (kind, shaped(kind, value)) for key, kind, value in sorted(found)}

    def dump(self) -> Dump:
        """The keys of this shard."""
        base, dump = self.keys.base, self.dump_all()
        return {key: found for key, found in dump.items() if key.startswith(base)}

    def heard(self) -> Counter[tuple[str, str]]:
        """The ends that were published since the last call: ids with their status."""
        self.redis.publish(self.keys.done(""), "asked")
        found: Counter[tuple[str, str]] = Counter()
        while True:
            message = self._ends.get_message(timeout=10)
            if message is not None and message["data"] == "asked":
                return found
            if message is not None:
                found[message["channel"].removeprefix(self.keys.done("")), message["data"]] += 1

    def save(self) -> Saved:
        keys = self._keys()
        with self.raw.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key)
            return list(zip(keys, pipe.execute(), strict=True))

    def restore(self, saved: Saved) -> None:
        """Restore the shard to what it was."""
        with self.raw.pipeline() as pipe:
            for key in self._keys():
                pipe.delete(key)
            for key, value in saved:
                pipe.restore(key, 0, value)
            pipe.execute()

    def _keys(self) -> list[bytes]:
        found: Any = self.raw.keys(f"{self.keys.base}*")
        return found
