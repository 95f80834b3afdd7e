"""What a worker needs before it starts: enough open files for its children, and its tables."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.core.cache import caches
from django.core.cache.backends.base import BaseCache

from django_redisqueue.worker import service
from tests.app import tasks as app_tasks
from tests.support.commands import migrate
from tests.support.stopwatch import Stopwatch

from . import tasks
from .harness import WorkerHarness
from .processes import PATIENCE, eventually, holds_for


def limited(how: str) -> list[str]:
    """Starts a program with a limit on open files."""
    return ["sh", "-c", f'ulimit {how}; exec "$@"', "sh"]


@pytest.mark.parametrize(("shards", "needed", "fit"), [(1, 1236, 247), (64, 1362, 215)])
def test_too_many_processes_for_the_limit_of_open_files_are_refused_at_once(
    harness: WorkerHarness, shards: int, needed: int, fit: int
) -> None:
    """Without files for heartbeats, shards would take the jobs from their children."""
    harness.configure(SHARDS=shards)
    worker = harness.worker("--processes", "300", prefix=limited("-n 1024"), MIRROR=False)
    assert worker.wait() == 1
    assert worker.output == (
        f"CommandError: --processes 300 needs {needed} open files, but this process may have 1024: "
        f"raise that (ulimit -n {needed}, or LimitNOFILE={needed} in its systemd unit), or lower "
        f"--processes to {fit}\n"
    )
    assert harness.redis.keys() == []
    few = harness.worker("--processes", "5", prefix=limited("-n 30"), MIRROR=False)
    assert few.wait() == 1
    assert few.output.endswith("in its systemd unit), or lower --processes\n")


def test_the_suggested_number_of_processes_fits(harness: WorkerHarness) -> None:
    harness.configure(SHARDS=1)  # each further shard needs two more files
    prefix = limited("-n 72")
    worker = harness.worker("--processes", "10", prefix=prefix, MIRROR=False)
    assert worker.wait() == 1
    assert worker.output.endswith("or lower --processes to 9\n")
    job = tasks.limit_of_files.enqueue()
    harness.worker("--processes", "9", prefix=prefix, MIRROR=False)
    assert harness.ended(job).result == 72


def test_a_worker_that_was_started_without_standard_streams(harness: WorkerHarness) -> None:
    """Its pipes and connections must not have their numbers, because jobs write to these."""
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    worker = harness.worker("--processes", "1", prefix=closed, MIRROR=False)
    job = tasks.write_to_standard_streams.enqueue()
    assert harness.ended(job).status == "completed"
    assert harness.ended(app_tasks.noop.enqueue()).status == "completed"
    worker.term()
    assert worker.wait() == 0


class CacheClient(BaseCache):
    """The client of a cache that is used before children are forked."""

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self.is_closed = False

    def close(self, **kwargs: Any) -> None:
        self.is_closed = True


def test_children_inherit_no_socket_of_a_cache(settings: Any) -> None:
    """They would otherwise read each other's replies."""
    settings.CACHES = {
        name: {"BACKEND": f"{__name__}.CacheClient"} for name in ("default", "unused")
    }
    before: Any = caches["default"]
    service._forget_caches()
    assert before.is_closed
    assert caches.all(initialized_only=True) == []
    assert caches["default"] is not before


def test_jobs_do_not_inherit_the_raised_limit_of_open_files(harness: WorkerHarness) -> None:
    """The supervisor has 84 pipe ends for 21 children."""
    harness.configure(SHARDS=1)
    job = tasks.limit_of_files.enqueue()
    worker = harness.worker("--processes", "20", prefix=limited("-S -n 64"), MIRROR=False)
    worker.wait_until_up(21)
    assert harness.ended(job).result == 64
    assert psutil.Process(worker.pid).rlimit(psutil.RLIMIT_NOFILE)[0] == 116
    eventually(lambda: max(_open_files(child) for child in worker.children) < 32)
    worker.term()
    assert worker.wait() == 0


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize("needs", [{"MIRROR": True}, {"MIRROR": False, "OUTBOX": True}])
def test_a_worker_waits_for_its_tables(
    harness: WorkerHarness, tmp_path: Path, needs: dict[str, bool]
) -> None:
    harness.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path)
    job = app_tasks.noop.enqueue()
    worker = harness.worker("--processes", "1", **needs)
    eventually(
        lambda: "takes no jobs yet: the database 'default' lacks migrations" in worker.output,
        why=harness.report,
    )
    assert "run: manage.py migrate" in worker.output
    holds_for(lambda: harness.stats()["queued"] == 1, 1.0)
    migrate(REDISQUEUE_TEST_FOLDER=str(tmp_path))
    harness.ended(job)
    assert "the database is ready: the worker starts" in worker.output
    logged = re.findall("takes no jobs yet: .*", worker.output)
    assert len(logged) == len(set(logged))  # more than one if the worker checks while migrate runs
    worker.term()
    assert worker.wait() == 0


def test_a_worker_that_needs_no_tables_does_not_check_for_them(
    harness: WorkerHarness, tmp_path: Path
) -> None:
    harness.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path / "missing")
    job = app_tasks.noop.enqueue()
    watch = Stopwatch()
    harness.worker("--processes", "1", MIRROR=False)
    harness.ended(job)
    assert watch.seconds < 10


def test_ctrl_c_ends_the_wait_without_a_traceback(harness: WorkerHarness, tmp_path: Path) -> None:
    harness.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path)
    worker = harness.worker("--processes", "1", MIRROR=True)
    eventually(lambda: "takes no jobs yet" in worker.output, why=harness.report)
    worker.interrupt_group()
    assert worker.wait() == 130
    assert "stopped before it took a job" in worker.output
    assert "Traceback" not in worker.output


def test_a_worker_waits_for_its_database(harness: WorkerHarness, tmp_path: Path) -> None:
    folder = tmp_path / "mounted later"
    harness.environment["REDISQUEUE_TEST_FOLDER"] = str(folder)
    job = app_tasks.noop.enqueue()
    worker = harness.worker("--processes", "1", MIRROR=True)
    eventually(lambda: "'default' does not answer (unable" in worker.output, why=harness.report)
    folder.mkdir()
    migrate(REDISQUEUE_TEST_FOLDER=str(folder))
    harness.ended(job)


def test_a_worker_whose_database_hangs_says_so_and_is_alive_for_the_probe(
    harness: WorkerHarness, tmp_path: Path
) -> None:
    """The database accepts connections and says nothing, so one check may take minutes."""
    pytest.importorskip("psycopg")
    harness.alter("quick_start")
    file = tmp_path / "heartbeat"

    def beat() -> dict[str, float]:
        found: dict[str, float] = json.loads(file.read_text())
        return found

    with socket.create_server(("127.0.0.1", 0)) as database:
        database.settimeout(PATIENCE)
        entry = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "shop"}
        entry |= {"HOST": "127.0.0.1", "PORT": str(database.getsockname()[1])}
        harness.environment["REDISQUEUE_TEST_DATABASES"] = json.dumps({"default": entry})
        worker = harness.worker("--processes", "1", "--heartbeat-file", str(file), MIRROR=True)
        try:
            connection, _ = database.accept()
        except TimeoutError:
            pytest.fail(worker.output)
        with connection:
            since = beat()["beat"]
            eventually(lambda: beat()["beat"] > since and beat()["redis"], why=harness.report)
            hangs = "takes no jobs yet: no answer for 0.1 s from the database 'default'"
            eventually(lambda: hangs in worker.output, why=harness.report)
