"""The supervisor's eyes on one seat, by a clock that stands: nothing waits behind a slow job."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue.conf import load
from django_redisqueue.store.replies import Claimed, Outcome
from django_redisqueue.worker.attendant import HandBack
from django_redisqueue.worker.posts import Post
from django_redisqueue.worker.seat import Seat
from django_redisqueue.worker.watch import REST, WATCH_FOR, Watch
from django_redisqueue.worker.zygote import Role

from .parts import claimed, outcome

WINDOW_MS = 20


class Scene:
    """A child that is played by the test, and its supervisor's watch."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.seat = Seat(0, 2)
        self.post = Post(self.seat, "jobs", child="c1", pid=1, watched_until=float("inf"))
        self.handed_back: list[HandBack] = []
        attendant: Any = type("Posted", (), {"post": self.handed_back.append})
        self.watch = Watch([self.post], attendant, load({"BATCH_WINDOW_MS": WINDOW_MS}), 0)

    def begin(self, job: Claimed) -> None:
        token = self.seat.take()
        assert token is not None
        self.seat.begin(0, token, self.now_ms, 0)

    def end(self, ended: Outcome) -> None:
        self.seat.log.record(ended)
        self.seat.end(0)

    def look_at(self, now_ms: int) -> list[HandBack]:
        """What the watch hands back when it looks now."""
        self.now_ms = now_ms
        self.handed_back.clear()
        self.watch.look()
        return self.handed_back


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    clock: Callable[[], int] = lambda: made.now_ms  # noqa: E731
    for module in ("seat", "outcomes", "watch"):
        monkeypatch.setattr(f"django_redisqueue.worker.{module}.mono_ms", clock)
    return made


SHORT, SLOW, LAST = (claimed(f"job_{n}", n) for n in (1, 2, 3))


def test_an_outcome_waits_for_a_window_and_no_longer(scene: Scene) -> None:
    """However late in the batch the slow job began."""
    scene.seat.offer([SHORT, SLOW])
    scene.begin(SHORT)
    scene.now_ms = 1005
    scene.end(outcome(1))
    scene.now_ms = 1018
    scene.begin(SLOW)
    assert scene.look_at(1024) == []
    assert scene.watch.interval == 0.001
    assert scene.look_at(1025) == [HandBack("c1", [], [outcome(1)])]
    assert scene.look_at(1060) == []  # once a slow job


def test_a_job_starts_within_a_window_or_goes_back(scene: Scene) -> None:
    scene.seat.offer([SLOW, LAST])
    scene.begin(SLOW)
    assert scene.look_at(1010) == []
    assert scene.watch.interval == 0.010
    assert scene.look_at(1020) == [HandBack("c1", [("job_3", 3)], [])]


def test_what_an_async_job_has_returned_waits_behind_no_sync_one(scene: Scene) -> None:
    """A job that holds the GIL holds up the thread that reports for the event loop."""
    scene.seat.offer([SLOW])
    scene.begin(SLOW)
    scene.now_ms = 1003
    scene.seat.lane_log.record(outcome(1))
    assert scene.look_at(1022) == []
    assert scene.look_at(1023) == [HandBack("c1", [], [outcome(1)])]


def test_what_is_left_of_an_async_log_has_waited_since_the_last_report(scene: Scene) -> None:
    reported = scene.seat.lane_log.record(outcome(1))
    scene.seat.lane_log.record(outcome(2))
    scene.now_ms = 1900
    scene.seat.lane_log.forget(reported)
    assert scene.seat.ended_since() == 1900


def test_a_batch_that_begins_as_the_watch_goes_to_sleep_is_seen(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child did not ring, for it looked at the flag just before."""
    scene.post.watched_until = WATCH_FOR  # long ago
    watch = scene.seat.watch

    def begin_just_before(watched: bool) -> None:
        if not watched:
            scene.seat.offer([SHORT, SLOW])
            scene.begin(SHORT)
            scene.end(outcome(1))
            scene.begin(SLOW)
        watch(watched)

    monkeypatch.setattr(scene.seat, "watch", begin_just_before)
    assert scene.look_at(1000) == []
    assert scene.seat.is_watched
    assert scene.watch.interval <= WINDOW_MS / 1000
    assert scene.look_at(1020) == [HandBack("c1", [], [outcome(1)])]


def test_a_seat_where_nothing_happens_has_to_ring_again(scene: Scene) -> None:
    scene.seat.watch(True)
    scene.post.watched_until = WATCH_FOR  # long ago
    assert scene.look_at(1000) == []
    assert not scene.seat.is_watched
    assert scene.look_at(1001) == []
    assert scene.watch.interval == REST


# -- the watchdog


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The pids and signals that the supervisor would send."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


KILL = (1, signal.SIGKILL)


@pytest.mark.parametrize("role", ["jobs", "maintenance", "bridge"])
def test_a_child_without_a_sign_of_life_is_replaced_and_its_jobs_are_not_blamed(
    scene: Scene, killed: list[tuple[int, int]], caplog: pytest.LogCaptureFixture, role: Role
) -> None:
    scene.post.role = role
    scene.seat.keep_alive(20)
    scene.look_at(21_000)  # to the millisecond as promised
    scene.look_at(21_001)
    scene.look_at(23_001)
    assert killed == []
    scene.look_at(23_002)
    scene.look_at(23_003)
    assert killed == [KILL]
    assert scene.post.is_killed
    assert f"child c1 ({role}) is stopped or stuck" in caplog.text


def test_a_sign_of_life_while_it_is_looked_at_is_enough(
    scene: Scene, killed: list[tuple[int, int]]
) -> None:
    """As when the whole worker was stopped: the supervisor may be the first to go on."""
    scene.seat.keep_alive(20)
    scene.look_at(90_000)
    scene.now_ms = 91_000
    scene.seat.keep_alive(20)
    scene.look_at(93_000)
    scene.look_at(111_001)
    scene.look_at(113_001)
    assert killed == []
    scene.look_at(113_002)
    assert killed == [KILL]


def test_a_child_that_runs_a_job_is_left_to_its_timeout(
    scene: Scene, killed: list[tuple[int, int]]
) -> None:
    scene.seat.offer([SLOW])
    scene.seat.keep_alive(20)
    scene.begin(SLOW)
    for now_ms in (30_000, 60_000, 90_000):
        scene.look_at(now_ms)
    assert killed == []


def test_a_child_that_has_promised_nothing_is_not_watched(
    scene: Scene, killed: list[tuple[int, int]]
) -> None:
    scene.seat.keep_alive(20)
    scene.seat.keep_alive(0)
    for now_ms in (30_000, 60_000, 90_000):
        scene.look_at(now_ms)
    assert killed == []
