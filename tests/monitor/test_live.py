"""``queuemonitor`` live: on a terminal, on a pipe, and while Redis goes down and returns."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import termios
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.live import Live

from django_redisqueue import JobQueue, get_job
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.management.commands.queuemonitor import _until_interrupted
from django_redisqueue.monitor.loop import IDLE
from django_redisqueue.monitor.screen import ScreenView
from tests.app import tasks
from tests.support.round_trips import calls_of
from tests.support.servers import RedisServer
from tests.support.stopwatch import Stopwatch
from tests.worker.processes import eventually

from .processes import MonitorHarness

ALTERNATE, NORMAL, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
OWNED = "\x1b]0;owned\x07"


def a_job_with_a_nasty_note(harness: MonitorHarness) -> str:
    """Its progress note would set the terminal's title."""
    job = tasks.noop.enqueue(OWNED)
    claimed = harness.manual_worker.claim_one()
    progress = json.dumps({"done": 1, "total": 2, "note": OWNED})
    harness.manual_worker.store.progress(
        harness.manual_worker.claim_request.child, claimed.id, claimed.lease, progress
    )
    return job.id


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_screen_shows_what_happens_and_leaves_a_clean_terminal(
    harness: MonitorHarness, number: signal.Signals
) -> None:
    monitor = harness.monitor("--interval", "0.2", terminal=True)
    monitor.until_drawn("queuemonitor", "default", "no worker is alive: start one")
    harness.manual_worker.store.heartbeat([harness.manual_worker.claim_request.child])
    job_id = a_job_with_a_nasty_note(harness)
    monitor.until_drawn(job_id, r"1/2 \x1b]0;owned\x07", "tests.app.tasks.noop", "1 children")
    assert monitor.signal(number) == 0
    assert OWNED not in monitor.output
    assert ALTERNATE in monitor.output
    assert monitor.output.rindex(NORMAL) > monitor.output.rindex(ALTERNATE)
    assert monitor.output.rindex(CURSOR) > monitor.output.rindex("queuemonitor")
    assert "Traceback" not in monitor.output


def test_the_screen_shows_when_redis_goes_down_and_returns(harness: MonitorHarness) -> None:
    monitor = harness.monitor("--interval", "0.2", terminal=True)
    monitor.until_drawn("default")
    harness.server.kill()
    monitor.until_drawn("does not answer", "trying again", "default")
    harness.server.start()
    eventually(lambda: "trying again" not in monitor.last_screen, why=lambda: monitor.last_screen)
    ids: list[str] = []

    def one_is_drawn() -> bool:
        """The channel is only a hint: what happens before it is subscribed again is not shown."""
        ids.append(tasks.noop.enqueue().id)
        return any(job_id in monitor.last_screen for job_id in ids)

    eventually(one_is_drawn, every=0.3, why=lambda: monitor.last_screen)
    assert monitor.signal(signal.SIGTERM) == 0


def test_it_may_start_before_redis(harness: MonitorHarness) -> None:
    harness.server.kill()
    monitor = harness.monitor("--interval", "0.2", terminal=True)
    monitor.until_drawn("does not answer")
    harness.server.start()
    monitor.until_drawn("no worker")
    assert monitor.signal(signal.SIGINT) == 0


def test_rows_that_do_not_fit_are_counted(harness: MonitorHarness) -> None:
    harness.manual_worker.store.heartbeat([f"web.1234abcd.7.9.{n}" for n in range(60)])
    monitor = harness.monitor(terminal=True)
    monitor.until_drawn("60 children of workers alive", "more")
    assert monitor.last_screen.count("\n") < 30


def test_eighty_columns_are_enough(harness: MonitorHarness) -> None:
    harness.manual_worker.store.heartbeat([harness.manual_worker.claim_request.child])
    running = tasks.noop.enqueue()
    harness.manual_worker.claim_one()
    tasks.noop.enqueue_many([()] * 1234)
    monitor = harness.monitor("--interval", "0.2", terminal=True, size=(24, 80))
    monitor.until_drawn(running.id, "1,234", "oldest", "retry failed", "f: failures only")
    new = tasks.noop.enqueue()
    monitor.until_drawn(f"queued     {new.id} noop default")
    assert monitor.signal(signal.SIGTERM) == 0
    assert max(map(len, monitor.lines())) <= 80
    screen = "\n".join(monitor.lines())
    assert re.search(r"default +1,23[45] +1 +0 +0 +0 +\S+ +\S+ +\S+ m?s", screen), screen
    assert re.search(rf" noop +{running.id} +\S", screen), screen


def test_a_small_screen_shows_the_most_important_lines(
    harness: MonitorHarness, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["default", *(f"queue-{n:02}" for n in range(20))]
    queues: dict[str, Any] = {"QUEUES": {name: {"ALERT_WAIT": 0.001} for name in names}}
    settings.REDISQUEUE = {**settings.REDISQUEUE, **queues}
    monkeypatch.setenv("REDISQUEUE_TEST_SETTINGS", json.dumps(queues))
    for name in names:
        tasks.noop.using(queue_name=name).enqueue()
    harness.manual_worker.store.heartbeat(
        [f"a-worker-with-a-long-name.1234abcd.7.9.{n}" for n in range(60)]
    )
    monitor = harness.monitor("--interval", "0.2", terminal=True, size=(24, 80))
    monitor.until_drawn("p: pause or resume", "ERROR", "default", "more", "children of workers")
    assert names[-1] not in monitor.last_screen
    monitor.press("\x1b[B" * len(names))
    monitor.until_drawn(names[-1])
    job = tasks.noop.enqueue()
    monitor.until_drawn(job.id, "ERROR", names[-1], "a-worker-with-a-long-name")
    for frame in monitor.output.split("\x1b[H")[1:]:
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines), default=0) <= 80
    assert monitor.signal(signal.SIGTERM) == 0


def test_a_signal_waits_until_the_screen_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def refresh(_: Live) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        drawn.append("whole")

    view = ScreenView(io.StringIO(), "redis", ["default"], None)
    monkeypatch.setattr(Live, "refresh", refresh)
    with _until_interrupted():
        view.show_outage("away")
        drawn.append("and went on")
    assert drawn == ["whole"]


def test_keys_show_failures_pause_queues_and_retry(
    harness: MonitorHarness, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues: dict[str, Any] = {"QUEUES": {"default": {}, "low": {}}}
    settings.REDISQUEUE = {**settings.REDISQUEUE, **queues}
    monkeypatch.setenv("REDISQUEUE_TEST_SETTINGS", json.dumps(queues))
    monitor = harness.monitor("--interval", "0.2", terminal=True)
    monitor.until_drawn("p: pause or resume", "low")
    good, bad = tasks.noop.enqueue_many([()] * 2)
    assert (harness.manual_worker.complete_one(), harness.manual_worker.fail_one()) == (
        good.id,
        bad.id,
    )
    monitor.until_drawn(good.id, "failed      default")
    monitor.press("f")
    monitor.until_drawn("Failed attempts only", bad.id)
    assert good.id not in monitor.last_screen
    monitor.press("p")
    monitor.until_drawn("default paused", "default (paused)")
    monitor.press("p\x1b[Bp")  # and the next queue
    monitor.until_drawn("low paused", "low (paused)")
    assert [JobQueue(name).is_paused for name in ("default", "low")] == [False, True]
    monitor.press("kr")
    monitor.until_drawn("Retry all failed jobs of default? y/n")
    monitor.press("n")
    monitor.until_drawn("p: pause or resume")
    assert bad.status == "failed"
    monitor.press("ry")
    monitor.until_drawn("1 job of default retried")
    assert get_job(bad.id).status == "queued"
    assert monitor.signal(signal.SIGINT) == 0
    assert monitor.terminal_modes()[3] & (termios.ECHO | termios.ICANON)


def test_a_pipe_gets_plain_lines(harness: MonitorHarness) -> None:
    monitor = harness.monitor("--interval", "0.2")
    monitor.until("queue default: 0 queued", "workers: no worker")
    job_id = a_job_with_a_nasty_note(harness)
    monitor.until(f"{job_id}  attempt 1", "queue default: 0 queued, 1 processing")
    harness.server.kill()
    monitor.until("does not answer (", "; trying again")
    harness.server.start()
    monitor.until("Redis answers again; events in between were not received")
    assert monitor.output.count("; trying again") <= 3  # reported once, not at every attempt
    assert monitor.signal(signal.SIGTERM) == 0
    assert "\x1b" not in monitor.output
    assert "Traceback" not in monitor.output


def test_a_terminal_without_rich_gets_plain_lines_and_the_reason(harness: MonitorHarness) -> None:
    monitor = harness.monitor(terminal=True, rich=False)
    monitor.until("pip install 'django-redisqueue[monitor]'", "queue default: 0 queued")
    job = tasks.noop.enqueue()
    monitor.until(f"tests.app.tasks.noop  {job.id}")
    assert monitor.signal(signal.SIGINT) == 0
    assert "\x1b" not in monitor.output


def test_json_lines(harness: MonitorHarness) -> None:
    monitor = harness.monitor("--json", "--interval", "0.2", terminal=True)
    eventually(monitor.documents)
    job_id = a_job_with_a_nasty_note(harness)
    harness.redis.publish("job_status", "no event \x1b[2J")
    eventually(
        lambda: {"event", "unreadable"} <= {one["type"] for one in monitor.documents()},
        why=lambda: monitor.output,
    )
    events = [one["event"] for one in monitor.documents() if one["type"] == "event"]
    assert [event["status"] for event in events] == ["queued", "processing", "processing"]
    assert {event["jobId"] for event in events} == {job_id}
    assert events[-1]["progress"]["note"] == OWNED

    def counted() -> bool:
        last = [one for one in monitor.documents() if one["type"] == "refresh"][-1]
        return bool(last["queues"][0]["counts"]["processing"] == 1)

    eventually(counted)
    harness.server.kill()
    monitor.until('"type": "trouble"')
    harness.server.start()
    monitor.until('"type": "back"')
    assert monitor.signal(signal.SIGINT) == 0
    assert "\x1b" not in monitor.output


def test_events_of_all_shards_continue_while_a_server_is_down(
    harness: MonitorHarness,
    fresh_server: Callable[..., RedisServer],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = fresh_server()
    two = {"SHARDS": 2, "CONNECTION": {"URL": [harness.server.url, other.url]}}
    settings.REDISQUEUE = two
    monkeypatch.setenv("REDISQUEUE_TEST_SETTINGS", json.dumps(two))

    def enqueue(shard: int) -> str:
        job = NewJob(new_job_id(shard), "default", "app.task", "[[],{}]")
        Commands(producer_connection(shard)).enqueue([job])
        return job.id

    monitor = harness.monitor("--interval", "0.2")
    monitor.until("queue default: 0 queued")
    monitor.until(enqueue(0), enqueue(1), "queue default: 2 queued")
    other.kill()
    monitor.until("does not answer (", "ERROR: Shard 1 does not answer")
    monitor.until(enqueue(0), "queue default: 2 queued")
    other.start()
    monitor.until("Redis answers again")
    monitor.until(enqueue(1))
    assert monitor.signal(signal.SIGTERM) == 0


def test_only_the_requested_queues(harness: MonitorHarness) -> None:
    monitor = harness.monitor("--json", "--interval", "0.2")
    eventually(monitor.documents)
    other = {"jobId": "job_1_a_0", "status": "queued", "queue": "other", "task": "a"}
    harness.redis.publish("job_status", json.dumps(other))
    job = tasks.noop.enqueue()
    monitor.until(job.id)
    assert "job_1_a_0" not in monitor.output


def test_a_reader_that_goes_away_ends_it_quietly(harness: MonitorHarness) -> None:
    with harness.shell("queuemonitor --json | head -n 1") as shell:

        def ended() -> bool:
            tasks.noop.enqueue()
            return shell.poll() is not None

        eventually(ended, every=0.05)
        out, errors = shell.communicate()
    assert (shell.returncode, len(out.splitlines()), errors) == (0, 1, "")


@pytest.mark.slow
@pytest.mark.one_shard  # its reads are counted
def test_an_idle_monitor_makes_few_requests_and_a_busy_one_stays_within_its_limit(
    harness: MonitorHarness,
) -> None:
    def looks() -> int:
        """Each read counts the living children, and the stopped schedules."""
        return calls_of(harness.redis, "zcount") // 2

    monitor = harness.monitor("--json", "--interval", "0.5")
    eventually(monitor.documents)
    watch, before = Stopwatch(), looks()
    time.sleep(2.0)  # this test measures exactly this time
    assert looks() - before <= 1 + watch.elapsed // IDLE

    def has_looked_again() -> bool:
        tasks.noop.enqueue()
        return looks() - before >= 5

    watch, before = Stopwatch(), looks()
    eventually(has_looked_again, every=0.001)
    assert watch.elapsed > 3.5 * 0.5  # the first of five reads may have been late
