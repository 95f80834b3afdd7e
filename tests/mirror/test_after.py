"""What follows a commit: Redis is told and the stream trimmed, signals sent, old rows let go."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror import housekeeping, trimming
from django_redisqueue.mirror.assembly import make_bridge
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.housekeeping import Housekeeping
from django_redisqueue.mirror.trimming import Trimmer
from django_redisqueue.mirror.writer import Cursor
from django_redisqueue.models import JobRecord, MirrorState
from django_redisqueue.signals import job_completed, job_failed
from django_redisqueue.store.events import show
from tests.worker.processes import eventually

from .rows import record
from .scene import Scene
from .theatre import Theatre


@pytest.fixture
def whole(scene: Scene, settings: Any) -> Scene:
    """A shard on Redis's own clock, and a bridge with all that belongs to it. The stream goes by
    a hundredth of its cap at a time."""
    scene.bridge.close()
    settings.REDISQUEUE = {**settings.REDISQUEUE, "EVENTS_CAP": 100 * STEP}
    scene.lab.store.settings = get_settings()
    scene.lab.store.now_ms = None
    scene.bridge = make_bridge(get_settings(), page=100)
    return scene


STEP = 200  # events


def length(scene: Scene) -> int:
    """In events."""
    return len(scene.lab.written())


def keep(bridge: Bridge, events: int) -> None:
    """Live readers are content with that many."""
    (trimmer,) = [one for one in bridge._followers if isinstance(one, Trimmer)]
    trimmer._keep = events


# -- Redis is told, and the stream trimmed


def test_the_last_10_000_events_stay_for_live_readers(whole: Scene) -> None:
    assert trimming.LIVE == 10_000
    whole.bridge = make_bridge(get_settings())
    whole.live(4000)
    whole.mirror()
    assert 10_000 <= length(whole) < 10_200 + STEP
    assert show(whole.lab.written()[-1].place) == MirrorState.objects.get().position


def test_the_stream_goes_behind_a_mirror_that_is_never_at_the_end(whole: Scene) -> None:
    keep(whole.bridge, 0)
    whole.live(100)
    whole.mirror()
    assert length(whole) <= 100 + STEP
    for n in range(5):
        whole.live(100, f"r{n}.")
        whole.bridge.run_once()
        whole.bridge.run_once()
    behind = 5 * 300 - 10 * 100
    assert behind < length(whole) <= behind + 150 + STEP
    whole.mirror()
    assert JobRecord.objects.count() == 600


def test_the_cursors_own_entry_stays(whole: Scene) -> None:
    keep(whole.bridge, 0)
    for n in range(4):
        whole.live(70, f"r{n}.")
        whole.mirror()
        position = MirrorState.objects.get().position
        assert position in [show(event.place) for event in whole.lab.written()]
        whole.bridge.close()
    assert (MirrorState.objects.get().gaps, MirrorState.objects.get().epoch) == (0, 0)


def test_a_finished_job_stays_until_it_is_mirrored(whole: Scene) -> None:
    whole.lab.end("a")
    completed = whole.lab.keys.queue("default").completed
    whole.lab.redis.zadd(completed, {"a": 1})  # long ago
    whole.mirror()
    whole.lab.end("b")
    whole.lab.redis.zadd(completed, {"b": _now(whole) - 20_000})
    whole.lab.redis.hset(whole.lab.keys.meta, "mirror_position", f"{_now(whole) - 60_000}-0")
    assert whole.lab.store.prune("default", "completed", 0, 0)[0] == 1  # a
    assert whole.lab.status("b") == "completed"
    whole.mirror()
    assert whole.lab.store.prune("default", "completed", 0, 0)[0] == 1
    assert JobRecord.objects.get(pk="b").status == "completed"


def _now(scene: Scene) -> int:
    return scene.lab.reads.now_ms()


# -- signals


def test_signals_follow_what_the_bridge_has_committed(whole: Scene) -> None:
    heard: list[tuple[str, str]] = []

    def receiver(record: JobRecord, **_: Any) -> None:
        heard.append((record.id, record.status))

    job_completed.connect(receiver)
    job_failed.connect(receiver)
    try:
        ids = whole.live(150)
        whole.mirror()
        assert sorted(heard) == sorted((one, _end(one)) for one in ids)
        whole.lab.store.requeue(["j7"])
        whole.live(0)
        whole.mirror()
        assert heard[150:] == [("j7", "failed")]
    finally:
        job_completed.disconnect(receiver)
        job_failed.disconnect(receiver)


def _end(job_id: str) -> str:
    return "failed" if job_id.endswith("7") else "completed"


TOLD = """
import os, signal
from django.core.management import call_command
from django_redisqueue.signals import job_completed
def receiver(record, **_):
    print("told", record.id, flush=True)
    {end}
job_completed.connect(receiver)
call_command("bridgeevents", "--once")
"""


def test_a_bridge_killed_between_commit_and_signals_tells_after_its_restart(
    theatre: Theatre,
) -> None:
    theatre.live(6)
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    code, said = theatre.ended(theatre.program(TOLD.format(end=kill)))
    assert (code, said.split()) == (-signal.SIGKILL, ["told", "j0"])
    assert theatre.rows() == 18  # committed
    code, said = theatre.ended(theatre.program(TOLD.format(end="")))
    assert code == 0, said
    told = [line.split()[1] for line in said.splitlines() if line.startswith("told")]
    assert told == [f"j{n}" for n in range(6)]


# -- a Redis that was emptied, with real processes


def test_a_worker_goes_on_without_its_mirror_until_redis_is_accepted(theatre: Theatre) -> None:
    theatre.worker("--processes", "1").wait_until_up(3)
    theatre.live(5)
    theatre.lab.add("waits", queue="idle")
    theatre.until_mirrored()
    theatre.lab.redis.flushall()
    theatre.live(5, "later")
    eventually(lambda: bool(MirrorState.objects.get().problem), why=theatre.stage.report)
    assert JobRecord.objects.count() == 6
    accepted = theatre.worker("--accept-redis", command="reapqueue")
    assert accepted.wait() == 0
    assert "the mirror follows" in accepted.output
    eventually(lambda: theatre.record("waits").reason == "lost", why=theatre.stage.report)
    theatre.until_at_the_end()
    assert JobRecord.objects.count() == 11
    eventually(lambda: not MirrorState.objects.get().unreconciled)
    assert MirrorState.objects.get().problem == ""


# -- old rows


def test_old_rows_go_while_the_bridge_runs(whole: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "INTERVAL", 0.0)
    whole.bridge = make_bridge(get_settings())
    then = datetime.now(UTC) - timedelta(days=100)
    record("old", "completed", enqueued_at=then, finished_at=then)
    whole.live(1)
    whole.mirror()
    assert not JobRecord.objects.filter(pk="old").exists()
    assert JobRecord.objects.count() == 1


@pytest.mark.django_db
def test_housekeeping_leaves_the_database_to_others_between_steps(
    monkeypatch: pytest.MonkeyPatch, mirrored: None
) -> None:
    monkeypatch.setattr(housekeeping, "INTERVAL", 0.0)
    calls: list[int] = []
    made = Housekeeping(get_settings())
    monkeypatch.setattr(housekeeping, "INTERVAL", 60.0)
    monkeypatch.setattr(housekeeping, "SHARE", 10_000)
    monkeypatch.setattr(made._retention, "run_once", lambda: calls.append(1) or True)  # type: ignore[func-returns-value]
    assert [made(Cursor()) for _ in range(50)] == [True] * 50
    assert len(calls) == 1
