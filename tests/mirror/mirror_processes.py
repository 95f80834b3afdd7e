"""Workers and bridges as processes, on a real Redis and a real database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection

from django_redisqueue.broker.entries import format_position
from django_redisqueue.models import JobEvent, MirrorState
from tests.broker.harness import BrokerHarness
from tests.support.cluster import ClusterNodes
from tests.support.commands import Script
from tests.support.postgres import PostgresServer
from tests.support.shards import all_keys
from tests.support.stream import last
from tests.worker.harness import WorkerHarness
from tests.worker.processes import PATIENCE, WorkerProcess, eventually

from .mirrored_shard import MirroredShard, differences, job_hashes


def sqlite_entry(path: Path) -> dict[str, Any]:
    """An entry of DATABASES as the documentation recommends it."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "TEST": {"NAME": str(path)},
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


class MirrorProcesses(MirroredShard):
    """Shards on Redis's clock, whose bridges are processes."""

    def __init__(
        self, harness: WorkerHarness, entry: dict[str, Any], postgres: PostgresServer | None = None
    ) -> None:
        harness.configure(MIRROR=True)
        harness.environment["REDISQUEUE_TEST_DATABASES"] = json.dumps({"default": entry})
        super().__init__(BrokerHarness(harness.servers))
        self.broker.store.now_ms = None
        self.harness = harness
        self.entry = entry
        self.postgres = postgres

    def worker(self, *arguments: str, **options: Any) -> WorkerProcess:
        return self.harness.worker(*arguments, **options)

    def bridge_process(self) -> WorkerProcess:
        """Start ``bridgeevents`` and wait until it mirrors."""
        process = self.harness.worker(command="bridgeevents")
        eventually(
            lambda: "mirroring" in process.output and self.is_heard(), why=lambda: process.output
        )
        return process

    def is_heard(self) -> bool:
        """Whether a bridge is sleeping on its subscription."""
        channel = self.broker.keys.status_channel
        if isinstance(self.harness.servers, ClusterNodes):
            return self.harness.servers.listeners(channel) > 0
        ((_, listeners),) = self.broker.redis.pubsub_numsub(channel)
        return int(listeners) > 0

    def once(self) -> Script:
        """Start ``bridgeevents --once``."""
        return self.script("from django.core.management import call_command\n"
                            "call_command('bridgeevents', '--once')")  # fmt: skip

    def script(self, text: str) -> Script:
        """Python in a process with this shard's settings."""
        return self.harness.script(text, "-W", "error")

    @staticmethod
    def ended(script: Script) -> tuple[int, str]:
        """Wait for the end of a script; returns its exit code and its output."""
        return script.wait(), script.output

    def until_mirrored(self, timeout: float = PATIENCE) -> None:
        """Wait until the bridge has read everything; then compare both sides."""
        self.until_at_the_end(timeout)
        self.assert_complete()

    def until_at_the_end(self, timeout: float = PATIENCE) -> None:
        """Wait until the cursor of each shard is at the end of its stream."""

        def at_the_end() -> bool:
            positions = dict(MirrorState.objects.values_list("shard", "position"))
            newest = {keys.shard: last(self.broker.redis, keys.events) for keys in all_keys()}
            return any(newest.values()) and all(
                event is None or positions.get(shard) == format_position(event.place)
                for shard, event in newest.items()
            )

        eventually(at_the_end, timeout, every=0.05, why=self.harness.report)

    def until_known(self, shards: int) -> None:
        """Wait until the mirror knows this many shards, and has looked for the jobs that existed
        before."""
        known = MirrorState.objects.exclude(incarnation="").filter(unreconciled=False)
        eventually(lambda: known.count() == shards, why=self.harness.report)

    def until_equal(self, timeout: float = PATIENCE, *, keeps_lost: bool = False) -> None:
        """Wait until every job in the mirror agrees with Redis. ``keeps_lost``: the mirror may also
        keep jobs that it read because a replica had them, although the promoted one did not."""

        def wrong() -> list[str]:
            found = differences(job_hashes(self.broker))
            return [one for one in found if not (keeps_lost and one.endswith("only in the mirror"))]

        eventually(
            lambda: not wrong(),
            timeout,
            every=0.2,
            why=lambda: f"{wrong()[:20]}\n{self.harness.report()}",
        )

    def rows(self) -> int:
        return JobEvent.objects.count()


def migrate(processes: MirrorProcesses, *target: str) -> None:
    """Run or reverse the migrations of the package."""
    code, said = processes.ended(
        processes.script(
            "from django.core.management import call_command\n"
            f"call_command('migrate', 'django_redisqueue', *{target!r}, verbosity=0)"
        )
    )
    assert code == 0, said


@contextmanager
def database_down(processes: MirrorProcesses) -> Iterator[None]:
    """Make PostgreSQL end all connections and refuse new ones."""
    server, name = processes.postgres, processes.entry["NAME"]
    assert server is not None
    server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    server.terminate(name)
    connection.close()
    yield
    server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
