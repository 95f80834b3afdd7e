"""Processes that mirror: workers and bridges of their own, on a real Redis and a real database."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection

from django_redisqueue.models import JobEvent, MirrorState
from django_redisqueue.store.events import show
from tests.commands import ROOT, environment
from tests.postgres import PostgresServer
from tests.store.lab import Lab
from tests.stream import last
from tests.worker.processes import PATIENCE, WorkerProcess, eventually
from tests.worker.stage import Stage

from .scene import Scene


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


class Theatre(Scene):
    """A scene whose bridges are processes; time is Redis's."""

    def __init__(
        self, stage: Stage, entry: dict[str, Any], postgres: PostgresServer | None = None
    ) -> None:
        stage.configure(MIRROR=True)
        stage.environment["REDISQUEUE_TEST_DATABASES"] = json.dumps({"default": entry})
        super().__init__(Lab(stage.server))
        self.lab.store.now_ms = None
        self.stage = stage
        self.entry = entry
        self.postgres = postgres

    def worker(self, *arguments: str, **options: Any) -> WorkerProcess:
        return self.stage.worker(*arguments, **options)

    def bridge_process(self) -> WorkerProcess:
        """``bridgeevents``, once it has begun to mirror."""
        process = self.stage.worker(command="bridgeevents")
        eventually(
            lambda: "mirroring" in process.output and self.is_heard(), why=lambda: process.output
        )
        return process

    def is_heard(self) -> bool:
        """True while a bridge sleeps on its subscription."""
        channel = self.lab.keys.status_channel
        ((_, listeners),) = self.lab.redis.pubsub_numsub(channel)
        return int(listeners) > 0

    def once(self) -> subprocess.Popen[str]:
        """``bridgeevents --once``, under way."""
        return self.program("from django.core.management import call_command\n"
                            "call_command('bridgeevents', '--once')")  # fmt: skip

    def program(self, text: str) -> subprocess.Popen[str]:
        """Python in a process with this scene's settings."""
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", f"import django; django.setup()\n{text}"],
            cwd=ROOT,
            env={
                **environment(),
                "REDISQUEUE_TEST_URL": self.stage.server.url,
                "REDISQUEUE_TEST_SETTINGS": json.dumps(self.stage.settings),
                **self.stage.environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @staticmethod
    def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for the end of a program: its exit code, and what it has said."""
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    def until_mirrored(self, timeout: float = PATIENCE) -> None:
        """Until the bridge has read everything; then it must be complete."""
        self.until_at_the_end(timeout)
        self.is_complete()

    def until_at_the_end(self, timeout: float = PATIENCE) -> None:
        """Until the cursor is at the end of the stream."""

        def at_the_end() -> bool:
            newest = last(self.lab.redis, self.lab.keys.events)
            state = MirrorState.objects.first()
            return bool(newest and state and state.position == show(newest.place))

        eventually(at_the_end, timeout, every=0.05, why=self.stage.report)

    def rows(self) -> int:
        return JobEvent.objects.count()


def migrate(theatre: Theatre, *target: str) -> None:
    """Run (or take back) the migrations of the package."""
    code, said = theatre.ended(
        theatre.program(
            "from django.core.management import call_command\n"
            f"call_command('migrate', 'django_redisqueue', *{target!r}, verbosity=0)"
        )
    )
    assert code == 0, said


@contextmanager
def database_away(theatre: Theatre) -> Iterator[None]:
    """PostgreSQL lets nobody in, and has ended the connections there were."""
    server, name = theatre.postgres, theatre.entry["NAME"]
    assert server is not None
    server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    server.terminate(name)
    connection.close()
    yield
    server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
