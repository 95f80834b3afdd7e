"""The bridge loses nothing and applies nothing twice."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections, transaction

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror import bridge as bridge_module
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.writer import Cursor
from django_redisqueue.models import JobEvent, JobRecord, MirrorState, Rollup
from tests.store.flows import Flow
from tests.store.lab import ERROR
from tests.stream import fields_of

from .scene import Scene, counts, refusing

NO_UNICODE = (
    b'{"jobId":"\xff","status":"queued","queue":"q","task":"t","workerId":"","attempt":0,'
    b'"seq":1,"timestamp":1700000000000}'
)
only_on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


def test_down_for_5000_events(scene: Scene) -> None:
    scene.live(20, "before")
    scene.mirror()
    scene.live(1700, "meanwhile")
    assert JobRecord.objects.count() == 20
    scene.mirror()
    assert JobEvent.objects.count() == 3 * 1720
    scene.is_complete()
    assert counts()["completed"] + counts()["failed"] == 1720


def test_an_older_event_changes_nothing(scene: Scene) -> None:
    scene.lab.end("a")
    scene.mirror()
    before = JobRecord.objects.values().get()
    MirrorState.objects.update(position="0-0")
    JobEvent.objects.all().delete()
    Rollup.objects.all().delete()
    scene.bridge.close()
    scene.mirror()
    assert JobRecord.objects.values().get() == before
    assert scene.story("a") == ["queued", "processing", "completed"]
    assert counts() == dict.fromkeys(counts(), 0)


def test_a_newer_epoch_wins_over_a_higher_number(scene: Scene) -> None:
    scene.lab.end("a", verdict="failed", body=ERROR)
    scene.mirror()
    JobRecord.objects.update(seq=99)
    MirrorState.objects.update(epoch=1)
    scene.bridge.close()
    scene.lab.store.requeue(["a"])
    scene.mirror()
    record = scene.record("a")
    assert (record.status, record.epoch, record.seq) == ("queued", 1, 4)


def test_a_failed_commit_changes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live(30)
    scene.bridge.run_once()
    scene.live(30, "k")

    def fail(*_: Any) -> None:
        raise ArithmeticError

    with monkeypatch.context() as patch:
        patch.setattr("django_redisqueue.mirror.tally.Tally.write", fail)
        with pytest.raises(ArithmeticError):
            scene.bridge.run_once()
    assert JobRecord.objects.count() == 30
    scene.mirror()
    scene.is_complete()


def test_a_bridge_that_was_overtaken_writes_nothing(scene: Scene) -> None:
    scene.live(10)
    slow, fast = Bridge(get_settings()), Bridge(get_settings())
    assert slow.run_once()
    scene.live(10, "k")
    scene.mirror(fast)
    applied = slow.applied
    assert slow.run_once()
    assert slow.applied == applied
    assert slow.run_once() is False
    scene.is_complete()
    slow.link.close()
    fast.link.close()


@only_on_postgresql  # SQLite in memory has one connection; two processes on a file: test_role.py
def test_two_bridges_at_once(scene: Scene) -> None:
    scene.live(3000)
    bridges = [Bridge(get_settings(), page=100) for _ in range(2)]
    start = threading.Barrier(2)

    def run(bridge: Bridge) -> None:
        start.wait()
        while bridge.run_once():
            pass
        bridge.close()
        connections.close_all()

    threads = [threading.Thread(target=run, args=(bridge,)) for bridge in bridges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(bridge.applied for bridge in bridges) == 9000
    assert all(bridge.applied for bridge in bridges)
    scene.is_complete()


def test_what_is_no_event_is_left_out_and_named(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    lab = scene.lab
    lab.redis.xadd(lab.keys.events, {":alike": "{", "x": ""})
    lab.redis.xadd(lab.keys.events, {"other": "thing"})
    lab.redis.xadd(lab.keys.events, {":alike": '{"status":"dancing"}', "x": ""})
    lab.add("a")
    scene.mirror()
    assert scene.record("a").status == "queued"
    assert caplog.text.count("is no event") == 3


def test_what_is_not_unicode_is_left_out_and_named(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    lab = scene.lab
    lab.add(*(f"a{n}" for n in range(20)))
    lab.redis.execute_command("XADD", lab.keys.events, "*", *fields_of(NO_UNICODE))
    lab.add(*(f"c{n}" for n in range(20)))
    scene.mirror()
    assert JobRecord.objects.count() == 40
    assert caplog.text.count("is no event: jobId is") == 1
    state = MirrorState.objects.get()
    assert (state.left_out, state.incomplete) == (1, 0)
    assert "jobId is" in state.fault


def test_an_event_that_the_database_refuses_is_left_out_alone(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    lab = scene.lab
    lab.add(*(f"a{n}" for n in range(20)))
    lab.add("refused")
    lab.add(*(f"c{n}" for n in range(20)))
    with refusing("refused"):
        scene.mirror()
    assert JobRecord.objects.count() == 40
    assert caplog.text.count("cannot be mirrored and is left out") == 1
    state = MirrorState.objects.get()
    assert (state.left_out, state.incomplete) == (1, 0)
    assert "the database refuses it" in state.fault
    assert state.fault_at is not None


def test_of_an_entry_only_what_the_database_refuses_is_left_out(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    lab = scene.lab
    flow = Flow(lab, {0: ()})
    lab.add(*(f"a{n}" for n in range(10)), "refused", *(f"b{n}" for n in range(10)))
    flow.push()
    texts = [event.text for event in lab.written("job") if event.told["jobId"][0] in "abr"]
    told = [event for event in lab.written() if event.field == "workflow"]
    lab.redis.delete(lab.keys.events)
    parts = [part for text in texts for part in fields_of(text)]
    write = ("XADD", lab.keys.events, "*", ":n", "0", *parts)
    lab.redis.execute_command(*write, ":workflow", told[0].text, ":name", "")
    lab.add("later")
    with refusing("refused"):
        scene.mirror()
    assert JobRecord.objects.count() == 21
    assert scene.flow_story(flow.id) == ["running"]
    assert JobEvent.objects.order_by("-id")[0].job_id == "later"
    assert [number % 1000 for number in JobEvent.objects.values_list("entry_no", flat=True)] == [
        *range(10), *range(11, 21), 0,
    ]  # fmt: skip
    assert caplog.text.count("cannot be mirrored and is left out") == 1
    scene.bridge.close()
    scene.mirror()
    assert JobEvent.objects.count() == 21


def test_an_entry_that_is_no_event_is_named_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.lab.add("a")
    scene.lab.redis.xadd(scene.lab.keys.events, {"other": "thing"})
    for _ in range(3):
        scene.mirror()
    assert caplog.text.count("is no event") == 1


def test_the_mirror_resumes_in_the_middle_of_an_entry(scene: Scene) -> None:
    """Which happens when it ends while it writes one event by event."""
    scene.lab.add(*"abcde")
    place = scene.lab.written()[2].place
    MirrorState.objects.create(shard=0, position=f"{place[0]}-{place[1]}")
    scene.mirror()
    assert sorted(JobRecord.objects.values_list("pk", flat=True)) == ["d", "e"]


def test_followers_see_each_commit_behind_it(scene: Scene) -> None:
    seen: list[tuple[Cursor, int]] = []

    def follow(cursor: Cursor) -> bool:
        assert not transaction.get_connection().in_atomic_block
        seen.append((cursor, JobEvent.objects.count()))
        return False

    scene.bridge = Bridge(get_settings(), followers=[follow], page=10)
    scene.live(10)
    scene.mirror()
    assert [count for _, count in seen][:4] == [0, 10, 20, 30]
    assert seen[0][0] == Cursor()
    assert seen[-1][0].position > seen[1][0].position


def test_a_follower_with_more_to_do_is_asked_again(scene: Scene) -> None:
    answers = [True, True, False]
    scene.bridge = Bridge(get_settings(), followers=[lambda _: answers.pop(0)])
    assert scene.bridge.run_once() is True
    assert scene.bridge.run_once() is False
    assert answers == []


def test_the_source_is_asked_at_the_start_and_after_an_error(scene: Scene) -> None:
    asked: list[Cursor] = []

    class Here:
        def check(self, cursor: Cursor) -> Cursor:
            asked.append(cursor)
            return cursor

    scene.bridge = Bridge(get_settings(), source=Here())
    scene.live(10)
    scene.mirror()
    scene.live(10, "k")
    scene.mirror()
    assert len(asked) == 1
    scene.bridge.close()
    scene.mirror()
    assert len(asked) == 2
    assert bridge_module.show(asked[1].position) == MirrorState.objects.get().position
