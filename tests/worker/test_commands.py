"""The commands: output, refused arguments, and the cost of an idle worker."""

from __future__ import annotations

import errno
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management.base import CommandError
from redis import Redis

from django_redisqueue.checks.local import make_error, make_warning
from django_redisqueue.conf import get_settings
from django_redisqueue.management.commands import reapqueue, runworker
from django_redisqueue.management.commands.runworker import Command
from django_redisqueue.worker import probe
from django_redisqueue.worker.child.forks import flush_output
from django_redisqueue.worker.probe import Health, check_heartbeat
from django_redisqueue.worker.reload import _Reloader
from tests.support.commands import ROOT
from tests.support.servers import RedisServer
from tests.support.shards import keys_of
from tests.support.stopwatch import Stopwatch

from . import tasks
from .harness import WorkerHarness
from .processes import PATIENCE, eventually


def test_the_banner_shows_no_password(
    fresh_server: Callable[..., RedisServer], harness: WorkerHarness
) -> None:
    server = fresh_server(tcp=True, requirepass="s3cret")
    harness.environment["REDISQUEUE_TEST_URL"] = server.url
    worker = harness.worker("--processes", "2", QUEUES={"default": {}, "low": {}}).wait_until_up(3)
    eventually(lambda: "Stop with Ctrl-C" in worker.output, why=harness.report)
    assert f"redis://:***@{server.address}/0" in worker.output
    assert "s3cret" not in worker.output
    assert "queues     default, low" in worker.output
    assert "processes  2 (and one for maintenance)" in worker.output
    worker.term()
    assert worker.wait() == 0
    assert "worker stopped" in worker.output
    assert "s3cret" not in worker.output


@pytest.mark.parametrize("stream", ["closed", "full"])
def test_a_service_keeps_working_if_its_output_cannot_be_written(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StringIO()
    monkeypatch.setattr(full, "write", Mock(side_effect=OSError(errno.ENOSPC, "no space left")))
    monkeypatch.setattr(full, "flush", Mock(side_effect=OSError(errno.ENOSPC, "no space left")))
    output = None if stream == "closed" else full  # Python uses None for a closed descriptor
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, output)
    Command().announce("django_redisqueue worker")
    Command().announce("trying again", is_error=True)
    flush_output()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--queues", "nope"], "unknown queue 'nope'; REDISQUEUE[\"QUEUES\"] has: default"),
        (["--queues", "a b"], "'a b'"),
        (["--queues", ","], "name at least one queue"),
        (["--processes", "0"], "must be a whole number from 1 to 1000, not '0'"),
        (["--processes", "two"], "must be a whole number from 1 to 1000, not 'two'"),
        (["--min-priority", "101"], "must be a whole number from -100 to 100, not '101'"),
        (["--grace", "-1"], "must be zero or more seconds, or a duration such as 90s, not '-1'"),
        (["--max-memory", "lots"], "must be a size such as 300M, not 'lots'"),
        (["--max-memory", "300"], "must be 1M or more, not '300'; a number without K, M or G is"),
        (["--name", "a.b"], "'a.b'"),
        (["--heartbeat-file", "/"], "/ is a directory: name a file in it"),
        (["--heartbeat-file", "/no/such/beat"], "create /no/such first"),
        (["--threads", "0"], "must be a whole number from 1 to 1000, not '0'"),
        (["--async-concurrency", "0"], "must be a whole number from 1 to 10000, not '0'"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], words: str) -> None:
    parser = Command().create_parser("manage.py", "runworker")
    with pytest.raises(CommandError) as caught:
        parser.parse_args(arguments)
    assert words in str(caught.value)


def test_a_refused_argument_ends_the_command(harness: WorkerHarness) -> None:
    worker = harness.worker("--queues", "nope")
    assert worker.wait(15) == 2
    assert "unknown queue 'nope'" in worker.output
    assert "Traceback" not in worker.output


def test_the_command_has_a_second_name_and_logs_each_job_when_asked(harness: WorkerHarness) -> None:
    job = tasks.run.enqueue(harness.book, "job")
    worker = harness.worker(
        "--processes", "1", "--burst", "--verbosity", "2", command="redisqueue_worker"
    )
    assert worker.wait() == 0
    assert harness.runs() == {"job": 1}
    (line,) = [line for line in worker.output.splitlines() if f"id={job.id} " in line]
    assert re.search(r" INFO \d+ id=.* attempt=1 ms=\d+ outcome=completed$", line)


@pytest.mark.slow
@pytest.mark.one_server("looks at its server's clients and commands")
def test_an_idle_worker_makes_few_requests(harness: WorkerHarness) -> None:
    """Once a second, plus once for each shard."""
    harness.configure(LEASE=15, HEARTBEAT=4)
    harness.worker("--processes", "1").wait_until_up(2)
    harness.ended(tasks.run.enqueue(harness.book, "job"))
    assert harness.redis.zrange(keys_of().serving, 0, -1) == ["default"]
    shards = get_settings().shards
    most, seconds = 1 + shards, 7.0

    def rate() -> float:
        """Round trips: commands from clients, not those inside scripts."""
        sent, end = 0, time.monotonic() + seconds  # the measured interval
        with harness.redis.monitor() as monitor:
            while (left := end - time.monotonic()) > 0:
                if monitor.connection.can_read(timeout=left):
                    sent += monitor.next_command()["client_type"] != "lua"
        return sent / seconds

    with harness.redis.monitor() as monitor:  # a worker that has just started asks more often
        eventually(
            lambda: not monitor.connection.can_read(1.0 / shards) or not monitor.next_command(),
            every=0.001,  # each command of a script is one to read
        )
    rates = [rate()]
    while rates[-1] >= most and len(rates) < 3:
        rates.append(rate())
    assert rates[-1] < most, rates


def test_an_idle_worker_claims_a_new_job_at_once(harness: WorkerHarness) -> None:
    harness.worker("--processes", "2").wait_until_up(3)
    harness.ended(tasks.run.enqueue(harness.book, "first"))
    took = []
    for n in range(20):
        watch = Stopwatch()
        job = tasks.run.enqueue(harness.book, f"job{n}")
        job.wait(5)
        took.append(watch.seconds)
    assert sorted(took)[10] < 0.05, took


# -- reapqueue


def _abandon_a_job(harness: WorkerHarness) -> str:
    """The id of a job that a dead worker holds."""
    worker = harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.run_then_sleep.enqueue(harness.book, "slow", 60)
    eventually(lambda: harness.runs()["slow"])
    child = harness.redis.hget(keys_of().job(job.id), "child")
    worker.kill()
    eventually(lambda: float(harness.redis.zscore(keys_of().workers, child)) < _now(harness), 5)
    return job.id


def _now(harness: WorkerHarness) -> float:
    seconds, micros = harness.redis.time()
    return float(seconds) * 1000 + float(micros) / 1000


def test_reapqueue_does_what_its_dry_run_announces(harness: WorkerHarness) -> None:
    job_id = _abandon_a_job(harness)
    dry = harness.worker("--dry-run", command="reapqueue")
    assert dry.wait() == 0
    assert "lease has expired, holds 1 jobs" in dry.output
    assert f"{job_id} would go back to its queue" in dry.output
    assert "nothing was changed" in dry.output
    assert harness.stats()["processing"] == 1

    once = harness.worker("--once", command="reapqueue")
    assert once.wait() == 0
    # There were no heartbeats before, so it had to see Redis steady for a lease itself.
    assert "this Redis has been steady for less than one lease" in once.output
    assert f"{job_id}: recovered" in once.output
    assert "2 dead children reaped: 1 recovered, 0 released, 0 cancelled, 0 poison" in once.output
    assert harness.stats()["queued"] == 1

    again = harness.worker("--once", command="reapqueue")
    assert again.wait() == 0
    assert "0 dead children reaped" in again.output


def test_a_dry_run_names_a_key_of_a_wrong_type(harness: WorkerHarness) -> None:
    key = keys_of().workers
    harness.redis.set(key, "mine")
    dry = harness.worker("--dry-run", command="reapqueue")
    assert dry.wait() != 0
    assert f"the key {key} holds a string where a zset belongs" in dry.output
    assert "Traceback" not in dry.output


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_reapqueue_runs_until_it_is_stopped(harness: WorkerHarness) -> None:
    job_id = _abandon_a_job(harness)
    reaper = harness.worker("--interval", "0.2", command="reapqueue")
    eventually(lambda: f"{job_id}: recovered" in reaper.output, why=harness.report)
    assert "every 0.2 s" in reaper.output
    harness.server.kill()
    eventually(lambda: "trying again" in reaper.output, why=harness.report)
    harness.server.start()
    reaper.term()
    assert reaper.wait() == 0


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def reap() -> None:
    command = reapqueue.Command(stdout=StringIO())
    command._shards = []
    command._run(60)


def watch_files() -> None:
    reloader = _Reloader()
    reloader.handle_signals()
    assert reloader.wait_for_change() is None


@pytest.mark.parametrize("run", [reap, watch_files])
def test_a_signal_to_stop_may_arrive_as_a_wait_begins(
    monkeypatch: pytest.MonkeyPatch, queue_settings: None, run: Callable[[], None]
) -> None:
    """Its handler must not wait for a lock that the wait has."""

    def signalled(wait: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*args: Any) -> Any:
            signal.raise_signal(signal.SIGTERM)
            return wait(*args)

        return begin

    def give_up(*_: object) -> None:
        raise AssertionError("the handler of the signal waits")

    monkeypatch.setattr(threading.Condition, "wait", signalled(threading.Condition.wait))
    monkeypatch.setattr(time, "sleep", signalled(time.sleep))
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def test_reapqueue_without_redis_is_an_error(harness: WorkerHarness) -> None:
    harness.server.kill()
    reaper = harness.worker("--once", command="reapqueue")
    assert reaper.wait() != 0
    assert "does not answer" in reaper.output
    assert "Traceback" not in reaper.output


# -- the probe


def run_probe(*arguments: str) -> tuple[int, str]:
    """Exit code and output of the probe, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "django_redisqueue.worker.probe", *arguments],
        cwd=ROOT,
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def until_probed(file: Path, health: Health) -> str:
    """Wait until the probe reports this health, with a heartbeat that may be at most a second old;
    returns its output."""

    def words() -> str:
        found, said = check_heartbeat(file, 1)
        return said if found == health else ""

    return eventually(words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: file"),
        (["file", "--maximum", "3"], "unrecognized arguments: --maximum 3"),
        (["file", "--max-age"], "--max-age: expected one argument"),
        (["file", "--max-age", "soon"], "--max-age: must be seconds, more than 0, not 'soon'"),
        (["file", "--max-age", "0"], "must be seconds, more than 0, not '0'"),
        (["file", "--max-age", "-1"], "must be seconds, more than 0, not '-1'"),
        (["file", "--max-age", "nan"], "must be seconds, more than 0, not 'nan'"),
        (["file", "--max-age", "inf"], "must be seconds, more than 0, not 'inf'"),
    ],
)
def test_wrong_usage_of_the_probe_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str],
    words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["probe", *arguments])
    with pytest.raises(SystemExit) as left:
        probe.main()
    said = capsys.readouterr().err
    assert left.value.code == 64
    assert words in said
    assert said.startswith("usage: python -m django_redisqueue.worker.probe [-h] [--max-age")


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_the_probe_tells_alive_cut_off_and_dead_apart(harness: WorkerHarness) -> None:
    file = harness.folder / "heartbeat"
    code, words = run_probe(str(file))
    assert (code, "no worker has started" in words) == (1, True)
    worker = harness.worker("--processes", "1", "--heartbeat-file", str(file)).wait_until_up(2)
    # A job that holds the GIL for longer than a heartbeat may be old does not make the worker look
    # dead.
    harness.running(tasks.run_then_block.enqueue(harness.book, "long", 20))
    eventually(file.exists)
    first = json.loads(file.read_text())["beat"]
    eventually(lambda: json.loads(file.read_text())["beat"] > first + 1.2)
    assert until_probed(file, Health.ALIVE).startswith("alive (pid")
    code, words = run_probe(str(file))
    assert (code, words.startswith("alive (pid")) == (0, True), words

    harness.server.kill()
    assert "alive, but Redis has not answered for" in until_probed(file, Health.CUT_OFF)
    harness.server.start()
    until_probed(file, Health.ALIVE)

    worker.kill()
    assert "no heartbeat for" in until_probed(file, Health.DEAD)
    code, words = run_probe(str(file), "--max-age", "1")
    assert (code, "no heartbeat for" in words) == (1, True), words
    file.write_text("{")
    code, words = run_probe(str(file))
    assert (code, "is not a heartbeat file" in words) == (1, True)
    file.write_text(json.dumps({"pid": worker.pid, "beat": time.time(), "redis": 0}))
    code, words = run_probe(str(file))
    assert (code, "Redis has not answered yet" in words) == (2, True)


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_the_probe_finds_a_worker_alive_that_waits_to_start(
    harness: WorkerHarness, tmp_path: Path
) -> None:
    """A service manager that restarted it would only make it wait longer."""
    file = tmp_path / "heartbeat"
    harness.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path / "has no database")
    harness.server.kill()
    worker = harness.worker("--processes", "1", "--heartbeat-file", str(file), MIRROR=True)
    assert "Redis has not answered yet" in until_probed(file, Health.CUT_OFF)
    harness.server.start()
    until_probed(file, Health.ALIVE)
    first = json.loads(file.read_text())["beat"]
    eventually(lambda: json.loads(file.read_text())["beat"] > first)
    assert "the worker takes no jobs yet" in worker.output
    worker.interrupt_group()
    assert worker.wait() == 130
    assert not file.exists()


def test_an_orderly_end_removes_the_heartbeat_file(harness: WorkerHarness) -> None:
    file = harness.folder / "heartbeat"
    worker = harness.worker("--processes", "1", "--heartbeat-file", str(file)).wait_until_up(2)
    eventually(file.exists)
    worker.term()
    worker.wait()
    assert not file.exists()


@pytest.mark.one_server("looks at its server's clients and commands")
def test_a_worker_needs_few_connections(harness: WorkerHarness) -> None:
    harness.worker("--processes", "2").wait_until_up(3)
    tasks.run.enqueue_many([(harness.book, f"job{n}") for n in range(50)])
    harness.until_done(50)
    client: Redis = harness.redis
    # Two per child and three for this test; per shard, three for maintenance and two for the
    # supervisor.
    assert len(client.client_list()) <= 2 * 2 + 3 + (3 + 2) * get_settings().shards


@pytest.mark.parametrize(
    ("debug", "silenced", "shown"),
    [
        (False, [], ["E010", "W014"]),
        (True, [], ["E010"]),
        (False, ["django_redisqueue.W014"], ["E010"]),
        (True, ["django_redisqueue.E010"], []),
    ],
)
def test_which_checks_a_worker_logs_at_its_start(
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    debug: bool,
    silenced: list[str],
    shown: list[str],
) -> None:
    """Advice for production is of no use to someone who is trying the package out."""
    settings.DEBUG, settings.SILENCED_SYSTEM_CHECKS = debug, silenced
    found = [make_error(10, "It does not answer.", "Start it."), make_warning(14, "It is old.", "")]
    caplog.set_level(logging.INFO, "django_redisqueue")
    runworker._log_checks(found)
    assert [check for check in ("E010", "W014") if check in caplog.text] == shown
