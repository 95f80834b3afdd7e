"""The bridge loses nothing and applies nothing twice."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any
from unittest.mock import patch

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_redisqueue.mirror import bridge as bridge_module
from django_redisqueue.mirror import sessions
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.database_errors import explain_error
from django_redisqueue.mirror.writer import Cursor
from django_redisqueue.models import JobEvent, JobRecord, MirrorState, Rollup
from tests.broker.harness import ERROR
from tests.broker.workflows import BrokerWorkflow
from tests.support.stream import fields_of

from .mirrored_shard import MirroredShard, counts, refusing

NO_UNICODE = (
    b'{"jobId":"\xff","status":"queued","queue":"q","task":"t","workerId":"","attempt":0,'
    b'"seq":1,"timestamp":1700000000000}'
)
only_on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


def test_down_for_5000_events(shard: MirroredShard) -> None:
    shard.run_jobs(20, "before")
    shard.mirror()
    shard.run_jobs(1700, "meanwhile")
    assert JobRecord.objects.count() == 20
    shard.mirror()
    assert JobEvent.objects.count() == 3 * 1720
    shard.assert_complete()
    assert counts()["completed"] + counts()["failed"] == 1720


def test_an_older_event_changes_nothing(shard: MirroredShard) -> None:
    shard.broker.end("a")
    shard.mirror()
    before = JobRecord.objects.values().get()
    MirrorState.objects.update(position="0-0")
    JobEvent.objects.all().delete()
    Rollup.objects.all().delete()
    shard.bridge.close()
    shard.mirror()
    assert JobRecord.objects.values().get() == before
    assert shard.statuses("a") == ["queued", "processing", "completed"]
    assert counts() == dict.fromkeys(counts(), 0)


def test_a_newer_epoch_wins_over_a_higher_number(shard: MirroredShard) -> None:
    shard.broker.end("a", kind="failed", body=ERROR)
    shard.mirror()
    JobRecord.objects.update(seq=99)
    MirrorState.objects.update(epoch=1)
    shard.bridge.close()
    shard.broker.store.requeue(["a"])
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.epoch, record.seq) == ("queued", 1, 4)


def test_a_failed_commit_changes_nothing(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.run_jobs(30)
    shard.bridge.run_once()
    shard.run_jobs(30, "k")

    def fail(*_: Any) -> None:
        raise ArithmeticError

    with monkeypatch.context() as patch:
        patch.setattr("django_redisqueue.mirror.aggregates.RollupBatch.write", fail)
        with pytest.raises(ArithmeticError):
            shard.bridge.run_once()
    assert JobRecord.objects.count() == 30
    shard.mirror()
    shard.assert_complete()


def test_an_overtaken_bridge_writes_nothing(shard: MirroredShard) -> None:
    shard.run_jobs(10)
    slow, fast = Bridge(), Bridge()
    assert slow.run_once()
    shard.run_jobs(10, "k")
    shard.mirror(fast)
    applied = slow.applied
    assert slow.run_once()
    assert slow.applied == applied
    assert slow.run_once() is False
    shard.assert_complete()
    slow.connection.close()
    fast.connection.close()


@only_on_postgresql  # in memory SQLite has one connection; on a file: test_role.py
def test_two_bridges_at_once(shard: MirroredShard) -> None:
    shard.run_jobs(3000)
    bridges = [Bridge(page=100) for _ in range(2)]
    both_have_read, applied = threading.Barrier(2, timeout=60), list[int]()

    def run(bridge: Bridge) -> None:
        with patch.object(bridge.events, "wait_for_replicas", both_have_read.wait):
            bridge.run_once()  # both write the same page
        applied.append(bridge.applied)
        while bridge.run_once():
            pass
        bridge.close()
        connections.close_all()

    threads = [threading.Thread(target=run, args=(bridge,)) for bridge in bridges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(applied) == [0, 100]
    assert sum(bridge.applied for bridge in bridges) == 9000
    shard.assert_complete()


def test_an_entry_that_is_not_an_event_is_left_out_and_logged(
    shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    broker = shard.broker
    broker.redis.xadd(broker.keys.events, {":alike": "{", "x": ""})
    broker.redis.xadd(broker.keys.events, {"other": "thing"})
    broker.redis.xadd(broker.keys.events, {":alike": '{"status":"dancing"}', "x": ""})
    broker.add("a")
    shard.mirror()
    assert shard.record("a").status == "queued"
    assert caplog.text.count("is no event") == 3


def test_invalid_unicode_is_left_out_and_logged(
    shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    broker = shard.broker
    broker.add(*(f"a{n}" for n in range(20)))
    broker.redis.execute_command("XADD", broker.keys.events, "*", *fields_of(NO_UNICODE))
    broker.add(*(f"c{n}" for n in range(20)))
    shard.mirror()
    assert JobRecord.objects.count() == 40
    assert caplog.text.count("is no event: jobId is") == 1
    state = MirrorState.objects.get()
    assert (state.left_out, state.incomplete) == (1, 0)
    assert "jobId is" in state.fault


def test_only_an_event_that_the_database_refuses_is_left_out(
    shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    broker = shard.broker
    broker.add(*(f"a{n}" for n in range(20)))
    broker.add("refused")
    broker.add(*(f"c{n}" for n in range(20)))
    with refusing("refused"):
        shard.mirror()
    assert JobRecord.objects.count() == 40
    assert caplog.text.count("cannot be mirrored and is left out") == 1
    state = MirrorState.objects.get()
    assert (state.left_out, state.incomplete) == (1, 0)
    assert "the database refuses it" in state.fault
    assert state.fault_at is not None


def test_only_the_refused_events_of_an_entry_are_left_out(
    shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    broker = shard.broker
    workflow = BrokerWorkflow(broker, {0: ()})
    broker.add(*(f"a{n}" for n in range(10)), "refused", *(f"b{n}" for n in range(10)))
    workflow.push()
    texts = [event.text for event in broker.written("job") if event.data["jobId"][0] in "abr"]
    told = [event for event in broker.written() if event.field == "workflow"]
    broker.redis.delete(broker.keys.events)
    parts = [part for text in texts for part in fields_of(text)]
    write = ("XADD", broker.keys.events, "*", ":n", "0", *parts)
    broker.redis.execute_command(*write, ":workflow", told[0].text, ":name", "")
    broker.add("later")
    with refusing("refused"):
        shard.mirror()
    assert JobRecord.objects.count() == 21
    assert shard.workflow_statuses(workflow.id) == ["running"]
    assert JobEvent.objects.order_by("-id")[0].job_id == "later"
    assert [number % 1000 for number in JobEvent.objects.values_list("entry_no", flat=True)] == [
        *range(10), *range(11, 21), 0,
    ]  # fmt: skip
    assert caplog.text.count("cannot be mirrored and is left out") == 1
    shard.bridge.close()
    shard.mirror()
    assert JobEvent.objects.count() == 21


def test_an_entry_that_is_not_an_event_is_logged_once(
    shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    shard.broker.add("a")
    shard.broker.redis.xadd(shard.broker.keys.events, {"other": "thing"})
    for _ in range(3):
        shard.mirror()
    assert caplog.text.count("is no event") == 1


def test_the_mirror_resumes_in_the_middle_of_an_entry(shard: MirroredShard) -> None:
    """It stopped while writing an entry event by event."""
    shard.broker.add(*"abcde")
    place = shard.broker.written()[2].place
    MirrorState.objects.create(shard=0, position=f"{place[0]}-{place[1]}")
    shard.mirror()
    assert sorted(JobRecord.objects.values_list("pk", flat=True)) == ["d", "e"]


def test_hooks_are_called_after_each_commit(shard: MirroredShard) -> None:
    seen: list[tuple[Cursor, int]] = []

    def follow(cursor: Cursor) -> bool:
        assert not transaction.get_connection().in_atomic_block
        seen.append((cursor, JobEvent.objects.count()))
        return False

    shard.bridge = Bridge(hooks=[follow], page=10)
    shard.run_jobs(10)
    shard.mirror()
    assert [count for _, count in seen][:3] == [10, 20, 30]
    assert seen[-1][0].position > seen[0][0].position


def test_a_hook_with_more_to_do_is_called_again(shard: MirroredShard) -> None:
    answers = [True, True, False]
    shard.bridge = Bridge(hooks=[lambda _: answers.pop(0)])
    assert [shard.bridge.run_once() for _ in range(3)] == [True, True, False]
    assert answers == []


def test_a_hook_that_always_fails_does_not_stop_the_mirror(shard: MirroredShard) -> None:
    def fail(cursor: Cursor) -> bool:
        raise OperationalError("canceling statement due to statement timeout")

    shard.bridge = Bridge(hooks=[fail], page=10)
    shard.run_jobs(10)
    for pages in (1, 2, 3):
        with pytest.raises(OperationalError):
            shard.bridge.run_once()
        shard.bridge.close()  # as the role does after an error
        assert JobEvent.objects.count() == 10 * pages


def test_the_identity_is_checked_at_the_start_and_after_an_error(shard: MirroredShard) -> None:
    asked: list[Cursor] = []

    class Here:
        def check(self, cursor: Cursor) -> Cursor:
            asked.append(cursor)
            return cursor

    shard.bridge = Bridge(identity=Here())
    shard.run_jobs(10)
    shard.mirror()
    shard.run_jobs(10, "k")
    shard.mirror()
    assert len(asked) == 1
    shard.bridge.close()
    shard.mirror()
    assert len(asked) == 2
    assert bridge_module.format_position(asked[1].position) == MirrorState.objects.get().position


@only_on_postgresql
def test_a_wait_for_a_lock_of_a_migration_ends_before_the_watchdog_ends_the_process(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its connection would keep waiting, and each new process would add another."""
    monkeypatch.setattr(sessions, "LOCK_WAIT", 0.05)
    shard.run_jobs(1)
    other = connection.get_new_connection(connection.get_connection_params())
    with closing(other), other.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {JobRecord._meta.db_table}")
        with pytest.raises(OperationalError, match="lock timeout"):
            shard.bridge.run_once()
        shard.bridge.close()
    shard.mirror()
    shard.assert_complete()


@only_on_postgresql
def test_an_error_does_not_blame_a_database_whose_connection_was_cut(shard: MirroredShard) -> None:
    shard.run_jobs(1)
    shard.mirror()
    with connection.cursor() as cursor, pytest.raises(OperationalError) as raised:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    shard.bridge.close()
    message = explain_error("default", raised.value)
    assert message.startswith("a query on the database 'default' failed (")


@only_on_postgresql
@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("DISABLE_SERVER_SIDE_CURSORS", True, "0"),
        ("OPTIONS", {"options": "-c lock_timeout=7s"}, "7s"),
        ("OPTIONS", {}, "20s"),
    ],
)
def test_a_session_that_is_shared_or_has_a_lock_timeout_keeps_its_own(
    shard: MirroredShard,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    value: object,
    expected: str,
) -> None:
    monkeypatch.setitem(connection.settings_dict, option, value)
    connection.close()
    shard.mirror()
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == (expected,)
    connection.close()
