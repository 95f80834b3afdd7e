"""Leaders and other processes while nothing happens: heartbeats do what they would otherwise ask
Redis for."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.replies import LeadReply
from django_redisqueue.conf import get_settings
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.worker.child_state import KEEP_ALIVE, ChildState, RoleNote
from django_redisqueue.worker.maintenance import leader, maintenance
from django_redisqueue.worker.maintenance.leader import RoleHost
from django_redisqueue.worker.maintenance.maintenance import Maintenance
from tests.support.round_trips import calls_of
from tests.support.shards import keys_of, shard_of
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import WorkerProcess, eventually

pytestmark = pytest.mark.one_server("looks at its server's commands")

SHARDS = 4
BEATS = 6


class Role:
    """The maintenance of a shard in the test's process, which stands in for its supervisor."""

    def __init__(self, harness: WorkerHarness, child: str = "w.m.1.1.2") -> None:
        self.redis = harness.redis
        self.state = ChildState(0, 1)
        self.shard = shard_of()
        host = RoleHost(self.shard, state=self.state)
        self.maintenance = Maintenance(child, get_settings(), host)

    def note(self, note: RoleNote) -> None:
        self.state.note_role(self.shard, note)

    def scripts(self, passes: int = 3) -> int:
        """The number of scripts that this many passes run."""
        before = calls_of(self.redis, "evalsha")
        for _ in range(passes):
            self.maintenance.run_once()
        return calls_of(self.redis, "evalsha") - before


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance, "PRUNE", 0.0)
    monkeypatch.setattr(leader, "AWAKE", 0.0)
    monkeypatch.setattr(leader, "NOTE_CHECK", 0.05)
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)


@pytest.fixture
def role(harness: WorkerHarness) -> Role:
    """A leader at rest."""
    role = Role(harness)
    role.maintenance.run_once()
    assert role.scripts() > 3
    role.note(RoleNote.QUIET)
    role.maintenance.run_once()
    return role


def test_a_leader_at_rest_asks_redis_nothing(role: Role) -> None:
    assert role.scripts() == 0
    for note in (RoleNote.ACTIVE, RoleNote.ASK):
        role.note(note)
        assert role.scripts() > 3
    role.note(RoleNote.QUIET)
    role.maintenance.run_once()
    assert role.scripts() == 0


def test_it_promotes_once_a_minute_and_does_everything_every_ten(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    role.maintenance._pass_at -= maintenance.WAIT_SECONDS
    assert role.scripts() == 1  # promote
    role.maintenance._pass_at -= maintenance.WAIT_SECONDS
    monkeypatch.setattr(role.maintenance, "_longest_rest", 0.0)
    assert role.scripts() > 1


def test_it_is_awake_after_a_takeover_and_an_error(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "AWAKE", 60.0)
    over = iter([False, True])
    with monkeypatch.context() as broken:
        broken.setattr(role.maintenance, "work", lambda: Commands(worker_connection(99)))
        broken.setattr(role.maintenance, "errors", (Exception,))
        broken.setattr(role.maintenance, "failed", lambda _: None)
        role.maintenance.start(lambda: next(over))
    assert role.scripts() > 3


def test_a_job_that_becomes_due_wakes_it(harness: WorkerHarness, role: Role) -> None:
    job = tasks.run.using(run_after=timedelta(seconds=0.3)).enqueue(harness.book, "later")
    due = time.monotonic() + 0.3

    def is_queued() -> bool:
        role.maintenance.run_once()
        job.refresh()
        return job.status == "queued"

    eventually(is_queued)
    assert time.monotonic() >= due - 0.05
    assert role.state.role_note(role.shard) is RoleNote.QUIET


def test_a_queue_that_was_blocked_continues_soon(harness: WorkerHarness, role: Role) -> None:
    key = keys_of().queue("default").retrying
    harness.redis.set(key, "theirs")
    role.maintenance._pass_at = 0.0
    assert role.scripts(8) >= 3
    harness.redis.delete(key)
    eventually(lambda: role.scripts() == 0)


def test_maintenance_that_does_not_lead_asks_when_a_heartbeat_tells_it_to(
    harness: WorkerHarness, role: Role
) -> None:
    other = Role(harness, "other.m.1.1.2")
    other.maintenance.run_once()  # at first it asks in any case
    for note in (RoleNote.QUIET, RoleNote.ACTIVE):
        other.note(note)
        assert other.scripts() == 0
    role.maintenance.stop()
    other.note(RoleNote.ASK)
    assert other.scripts() > 0
    assert harness.redis.hget(keys_of().meta, "leader") == "other.m.1.1.2"


def test_a_replaced_leader_takes_no_token(harness: WorkerHarness, role: Role) -> None:
    meta, timer = keys_of().meta, keys_of().timer
    eventually(lambda: harness.redis.info("clients")["blocked_clients"] == 1)
    harness.redis.hset(meta, "leader", "other.m.1.1.2")
    role.note(RoleNote.ASK)
    role.maintenance.run_once()
    eventually(lambda: harness.redis.info("clients")["blocked_clients"] == 0)
    harness.redis.lpush(timer, 1)
    role.maintenance.run_once()
    assert harness.redis.llen(timer) == 1


def test_a_leader_only_sleeps_while_it_waits(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat must not renew the term of a leader that hangs in its work."""
    seen = []

    def look(*_: object) -> bool:
        seen.append(role.state.sleeps(role.shard))
        return False

    monkeypatch.setattr(role.maintenance, "_wait_for_token", look)
    role.maintenance.run_once()
    monkeypatch.setattr(role.maintenance, "work", look)
    role.maintenance.run_once()
    assert seen == [True, False]


# Real workers


def resting_worker(harness: WorkerHarness) -> WorkerProcess:
    harness.alter("quick_rest")
    return harness.worker("--processes", "1").wait_until_up(2)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, SHARDS])
def test_idle_shards_only_cost_their_heartbeats(harness: WorkerHarness, shards: int) -> None:
    """Some work remains every few seconds: children renew their waits, and schedules are
    announced."""
    harness.configure(SHARDS=shards)
    worker = resting_worker(harness)
    eventually(lambda: harness.scripts_beside(BEATS * shards) <= shards, 60, why=harness.report)
    tasks.run.enqueue(harness.book, "job")
    eventually(lambda: harness.scripts_beside(3 * shards) > 10, 5, why=harness.report)
    eventually(lambda: harness.scripts_beside(BEATS * shards) <= shards, 60, why=harness.report)
    worker.term()
    assert worker.wait() == 0, worker.output


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_a_resting_leader_that_fails_is_replaced(harness: WorkerHarness, fate: str) -> None:
    first = resting_worker(harness)
    leader_key = keys_of().meta, "leader"
    led = eventually(lambda: harness.redis.hget(*leader_key))
    second = resting_worker(harness)
    eventually(lambda: harness.scripts_beside(2 * BEATS) <= 2, 60, why=harness.report)
    assert harness.redis.hget(*leader_key) == led
    first.end() if fate == "killed" else first.stop()
    eventually(lambda: f".{second.pid}." in (harness.redis.hget(*leader_key) or ""))
    if fate == "stopped":
        first.cont()
        eventually(lambda: harness.scripts_beside(2 * BEATS) <= 2, 60, why=harness.report)
        assert f".{second.pid}." in (harness.redis.hget(*leader_key) or "")
    job = tasks.run.using(run_after=timedelta(seconds=0.1)).enqueue(harness.book, "later")
    eventually(lambda: harness.runs()["later"], why=harness.report)
    job.refresh()
    assert job.status in ("processing", "completed")


def test_the_end_of_an_outage_is_noted_before_the_next_long_wait(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass waits for up to a minute, which used to be counted as part of the outage."""
    calls, maintenance = list[object](), role.maintenance
    errors = [RedisUnavailable("away")]

    def wait(seconds: float) -> bool:
        calls.append(seconds > leader.RECOVERY_WAIT)
        return False

    def lead(*_: object) -> LeadReply:
        if errors:
            raise errors.pop()
        return LeadReply.YES

    monkeypatch.setattr(maintenance, "_renew", 60.0)
    monkeypatch.setattr(leader, "RECOVERY_WAIT", 0.01)
    monkeypatch.setattr(leader, "STEADY", 0.0)
    monkeypatch.setattr(maintenance, "_wait_for_token", wait)
    monkeypatch.setattr(maintenance, "recovered", lambda tries: calls.append("recovered"))
    monkeypatch.setattr(maintenance._commands, "lead", lead)
    role.note(RoleNote.ASK)
    maintenance._renew_at = 0.0
    maintenance.start(lambda: len(calls) == 3)
    assert calls == [False, "recovered", True]


def fail_passes(
    role: Role, monkeypatch: pytest.MonkeyPatch, numbers: set[int]
) -> tuple[list[bool], list[int]]:
    """Replace the passes: those with these numbers fail. Returns one item per pass, and one for
    each outage that was logged as over."""
    passes, recovered = list[bool](), list[int]()

    def run_once() -> None:
        passes.append(True)
        if len(passes) in numbers:
            raise RedisUnavailable("away")

    monkeypatch.setattr(role.maintenance, "run_once", run_once)
    monkeypatch.setattr(role.maintenance, "recovered", recovered.append)
    return passes, recovered


def test_passes_between_errors_do_not_end_an_outage(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may not run one command, which not every pass needs: each error was logged."""
    passes, recovered = fail_passes(role, monkeypatch, {1, 3})
    monkeypatch.setattr(leader, "STEADY", 60.0)
    role.maintenance.start(lambda: len(passes) == 5)
    assert recovered == []
    monkeypatch.setattr(leader, "STEADY", 0.0)
    role.maintenance.start(lambda: len(passes) == 7)
    assert recovered == [2]


def test_a_pass_ended_by_an_order_to_stop_does_not_end_an_outage(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log said that Redis answered again while it was still hanging."""
    passes, recovered = fail_passes(role, monkeypatch, {1})
    monkeypatch.setattr(leader, "STEADY", 0.0)
    role.maintenance.start(lambda: len(passes) == 2)
    assert not recovered


def test_maintenance_gives_signs_of_life_while_redis_is_down(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passes used to fail before they gave a sign of life, so the watchdog replaced its process
    every 20 seconds."""
    signs, passes = list[float](), iter(range(4))
    host = replace(
        role.maintenance._host, wait=lambda block, _: block(0.0), keep_alive=signs.append
    )
    monkeypatch.setattr(role.maintenance, "_host", host)
    monkeypatch.setattr(maintenance, "log_outage", Mock())
    away = Mock(side_effect=RedisUnavailable("away"))
    monkeypatch.setattr(Commands, "announce_schedules", away)
    role.maintenance._announcement.due = 0.0
    role.maintenance.start(lambda: next(passes, None) is None)
    assert away.call_count == 4
    assert signs == [KEEP_ALIVE] * 4
