"""One heartbeat: what it reports to the supervisor and the children, and what it recovers."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from redis import Redis

from django_redisqueue import JobQueue, get_job
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.replies import (
    ClaimedJob,
    HeartbeatReply,
    Outcome,
    OutcomeKind,
    RoleTerm,
)
from django_redisqueue.conf import Settings, get_settings
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.records import WorkerOrder
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.worker.child_state import ChildState, RoleNote
from django_redisqueue.worker.probe import HeartbeatFile
from django_redisqueue.worker.reaper import Reaper
from django_redisqueue.worker.supervisor import heartbeat
from django_redisqueue.worker.supervisor.child_handle import ChildHandle
from django_redisqueue.worker.supervisor.fork_server import Role
from django_redisqueue.worker.supervisor.heartbeat import (
    ExitReport,
    HeartbeatCallbacks,
    Heartbeats,
    HeartbeatThread,
    ReleaseUnstarted,
    ShardNotes,
)
from django_redisqueue.worker.supervisor.supervisor import Supervisor
from tests.support.shards import keys_of, shard_of
from tests.worker.parts import claimed

pytestmark = pytest.mark.usefixtures("queue_settings")


def _heartbeat(
    running: ClaimedJob | None = None,
    notify: Any = None,
    is_stopping: bool = False,
    on_order: Any = None,
    shard: int | None = None,
) -> HeartbeatThread:
    """The heartbeat of a worker with the child c1."""
    handle = ChildHandle(ChildState(0, 1), "jobs", child="c1")
    if running is not None:
        handle.state.offer([running])
        handle.state.begin(0, cast(bytes, handle.state.take()), 1, 0)
    callbacks = HeartbeatCallbacks("w.m.1.2", lambda: "{}", lambda: is_stopping, notify, on_order)
    shard = shard_of() if shard is None else shard
    return HeartbeatThread(
        get_settings(), ("default",), [handle], made([handle], get_settings()), callbacks, shard
    )


def test_a_lost_lease_is_reported_with_its_number() -> None:
    """The job may run again in a child of the same worker, under the next lease."""
    heard: list[Any] = []
    job_id = new_job_id(shard_of())
    heartbeat = _heartbeat(
        claimed(job_id, 7), lambda lost, flagged: heard.append((list(lost), list(flagged)))
    )
    assert heartbeat.beat()
    assert heard == [([(job_id, 7)], [])]


def test_queues_are_announced_until_the_worker_stops(redis: Redis) -> None:
    key = keys_of().serving
    assert _heartbeat(is_stopping=True).beat()
    assert redis.zcard(key) == 0
    assert _heartbeat().beat()
    assert redis.zrange(key, 0, -1) == [b"default"]


def test_every_heartbeat_brings_the_last_order(redis: Redis) -> None:
    heard: list[str] = []
    heartbeat = _heartbeat(on_order=heard.append, shard=0)  # which has the orders
    store = Commands(worker_connection(0))
    assert not store.order_worker("w.m.1.2", WorkerOrder.QUIET, 5), "it has not said anything yet"
    heartbeat.beat()
    assert store.order_worker("w.m.1.2", WorkerOrder.QUIET, 5)
    assert heartbeat.beat()
    assert heartbeat.beat()
    assert heard == ["5 quiet"] * 2


def test_one_heartbeat_recovers_a_whole_machine(redis: Redis) -> None:
    """However many children it had, none of them waits for another heartbeat."""
    keys = keys_of()
    store = Commands(worker_connection(shard_of()))
    children = [f"gone{n}" for n in range(66)]
    store.heartbeat(["c1"])
    redis.hincrby(keys.meta, "steady_ms", -2 * get_settings().lease_ms)  # no recent outage
    store.enqueue([NewJob(child, "default", "app.task", "[[],{}]") for child in children])
    for child in children:
        store.claim(ClaimRequest(child, ("default",)), 1, 1)
    # the leases of all children expired long ago
    redis.zadd(keys.workers, dict.fromkeys(children, 1))
    assert _heartbeat().beat()
    assert [name.decode() for name in redis.zrange(keys.workers, 0, -1)] == ["c1"]
    assert JobQueue("default").get_stats()["processing"] == 0
    assert JobQueue("default").get_stats()["queued"] == len(children)


REPLY = HeartbeatReply(
    interrupted=False, steady_ms=0, lapsed=0, lost=[], flagged=[], order="", activity="1"
)
TERM_MS = 15_000


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
    return clock


@pytest.fixture
def handles() -> list[ChildHandle]:
    return [
        ChildHandle(ChildState(0, 1), "jobs", child="w.1"),
        ChildHandle(ChildState(1, 1), "maintenance", child="w.2"),
    ]


def made(handles: list[ChildHandle], settings: Settings | None = None) -> ShardNotes:
    roles: dict[Role, tuple[str, int]] = {"maintenance": ("leader", TERM_MS)}
    settings = settings or replace(get_settings(), shards=2)
    return ShardNotes(handles, settings, roles, HeartbeatFile(None))


def test_a_shard_is_quiet_after_a_while_without_transitions(
    handles: list[ChildHandle], clock: Clock
) -> None:
    roles, state, settings = made(handles), handles[1].state, get_settings()
    shortest = heartbeat.QUIET_AFTER + (settings.lease_ms + settings.resend_window_ms) / 1000
    assert state.role_note(1) is RoleNote.ASK
    other = replace(REPLY, activity="2")
    for reply in (REPLY, other, replace(other, interrupted=True)):
        roles.note(1, reply)
        clock.now += shortest - 1
        roles.note(1, replace(reply, interrupted=False))
        assert state.role_note(1) is RoleNote.ACTIVE
        clock.now += 1
        roles.note(1, replace(reply, interrupted=False))
        assert state.role_note(1) is RoleNote.QUIET
    assert state.role_note(0) is RoleNote.ASK  # of another shard
    assert handles[0].state.role_note(1) is RoleNote.ASK  # this child has no leader role


@pytest.mark.parametrize("reply", [None, replace(REPLY, to_ask=["leader"])])
def test_the_child_itself_asks_when_the_role_may_be_vacant(
    handles: list[ChildHandle], clock: Clock, reply: HeartbeatReply | None
) -> None:
    roles, state = made(handles), handles[1].state
    roles.note(0, replace(REPLY, to_ask=["bridge"]))
    assert state.role_note(0) is RoleNote.ACTIVE
    roles.note(0, reply)
    assert state.role_note(0) is RoleNote.ASK
    clock.now += 1000
    roles.note(0, REPLY)
    assert state.role_note(0) is RoleNote.QUIET


def test_with_infrequent_heartbeats_the_child_itself_asks(
    handles: list[ChildHandle], clock: Clock
) -> None:
    seldom = replace(get_settings(), heartbeat_ms=TERM_MS // 3 + 1, lease_ms=2 * TERM_MS)
    roles = made(handles, seldom)
    roles.note(0, REPLY)
    assert handles[1].state.role_note(0) is RoleNote.ASK


def test_a_heartbeat_tells_which_children_sleep(handles: list[ChildHandle]) -> None:
    roles, state = made(handles), handles[1].state
    state.note_sleep(1, True)
    assert roles.terms(0) == [RoleTerm("leader", "w.2", TERM_MS, False)]
    assert roles.terms(1) == [RoleTerm("leader", "w.2", TERM_MS, True)]
    handles[1].vacate()
    assert roles.terms(1) == []
    handles[1].assign("w.3", 0.0)
    assert roles.terms(1) == [RoleTerm("leader", "w.3", TERM_MS, False)]


def _write_all(thread: HeartbeatThread) -> None:
    """Write everything submitted so far."""
    thread._requests.put(None)
    assert not thread._write_until(time.monotonic() + 60)


def test_a_processing_list_of_another_type_delays_only_its_child(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Its outcomes are kept until the key is gone, and then written."""
    thread, store = _heartbeat(), Commands(worker_connection(shard_of()))
    ids = [new_job_id(shard_of()) for _ in range(2)]
    store.enqueue([NewJob(job_id, "default", "app.task", "[[],{}]") for job_id in ids])
    jobs = {one: store.claim(ClaimRequest(one, ("default",)), 1, 1).jobs[0] for one in ("c1", "c2")}
    done = {
        child: [Outcome(job.id, job.lease, 0, OutcomeKind.COMPLETED, "null")]
        for child, job in jobs.items()
    }
    key = keys_of().child_processing("c1")
    redis.delete(key)
    redis.set(key, "theirs")
    thread.submit(ExitReport("c1", done["c1"], []))
    thread.submit(ReleaseUnstarted("c1", [(jobs["c1"].id, jobs["c1"].lease)], []))
    thread.submit(ExitReport("c2", done["c2"], []))
    _write_all(thread)
    assert [get_job(job.id).status for job in jobs.values()] == ["processing", "completed"]
    assert f"the key {key} holds a string" in caplog.text
    assert thread.beat()
    assert redis.zrange(keys_of().workers, 0, -1) == [b"c1"]
    redis.delete(key)
    for request in thread._deferred:
        thread.submit(request)
    _write_all(thread)
    assert get_job(jobs["c1"].id).status == "completed"


def test_a_dead_child_whose_processing_list_cannot_be_read_is_named(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    key = keys_of().child_processing("c1")
    redis.set(key, "theirs")
    Reaper(Commands(worker_connection(shard_of()))).reap_dead("c1", [])
    assert f"child c1 is gone, and {key} is not its list of jobs" in caplog.text


def test_slow_heartbeats_leave_time_for_reports(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, written = _heartbeat(), list[Any]()
    report = ExitReport("c1", [], [])

    def beat() -> bool:
        assert clock.now < 1300
        clock.now += 60
        return True

    monkeypatch.setattr(thread, "beat", beat)
    monkeypatch.setattr(thread, "_take_over", lambda: None)
    monkeypatch.setattr(thread, "_write", written.append)
    thread.submit(report)
    thread.finish()
    thread._loop()
    assert written == [report]


def test_a_dead_child_counts_once_as_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its report is not repeated only because its role could not be given up."""
    thread = _heartbeat()
    away = Mock(side_effect=RedisUnavailable("away"))
    monkeypatch.setattr(thread._commands, "lead", away)
    thread.submit(ExitReport("c1", [], []))
    _write_all(thread)
    assert (away.call_count, thread._recoveries_done) == (1, 1)


def test_an_error_in_the_thread_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    signals: list[int] = []
    monkeypatch.setattr(heartbeat.os, "kill", lambda _, number: signals.append(number))
    callbacks = HeartbeatCallbacks("w.m.1.2", broken, lambda: False, Mock(), Mock())
    settings = get_settings()
    heartbeats = Heartbeats(
        [
            HeartbeatThread(settings, ("default",), [], made([]), callbacks, shard)
            for shard in range(settings.shards)
        ]
    )
    supervisor = Supervisor.__new__(Supervisor)
    supervisor._fork_server, supervisor._heartbeats = cast(Any, Mock()), heartbeats
    heartbeats.start()
    assert supervisor._end() == 1
    assert set(signals) == {signal.SIGTERM}
    assert "KeyError('lost')" in caplog.records[-1].message
    assert "Redis" not in caplog.text


def broken() -> str:
    raise KeyError("lost")
