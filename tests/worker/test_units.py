"""The parts of a worker, each by itself: no processes but where processes are the point."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import Backoff, Retry
from django_redisqueue.conf import load
from django_redisqueue.exceptions import (
    InvalidArguments,
    JobAbandoned,
    JobCancelled,
    JobTimeout,
    RedisRefused,
    RedisUnavailable,
)
from django_redisqueue.jobs import Job
from django_redisqueue.options import TaskOptions
from django_redisqueue.store.replies import Verdict
from django_redisqueue.worker import verdicts
from django_redisqueue.worker.batch import FAR, MAX_BATCH, BatchSize, largest_batch
from django_redisqueue.worker.beacon import Beacon
from django_redisqueue.worker.context import JobContext
from django_redisqueue.worker.databases import Databases
from django_redisqueue.worker.executor import Resolver
from django_redisqueue.worker.identity import machine, parse_child, start_time, this_worker
from django_redisqueue.worker.idle import SuspectPatience
from django_redisqueue.worker.interrupts import Interrupts
from django_redisqueue.worker.probe import Health, look
from django_redisqueue.worker.reconnect import until_answered
from django_redisqueue.worker.seat import Seat

from .parts import claimed

SETTINGS = load({})


# -- how many jobs at once


def test_the_batch_grows_slowly_and_shrinks_at_once() -> None:
    batch = BatchSize(20)
    assert batch.jobs() == 1
    for _ in range(40):
        batch.learn(10, 0.0001, of=10)
    assert batch.jobs() == batch.limit
    batch.learn(1, 0.5, of=1)
    assert batch.jobs() == 1
    sizes = []
    for _ in range(40):
        batch.learn(10, 0.01, of=10)
        sizes.append(batch.jobs())
    assert sizes == sorted(sizes)
    assert 15 <= sizes[-1] <= 20  # jobs of 1 ms in a window of 20


@pytest.mark.parametrize(("ms", "jobs"), [(7, 3), (10.1, 2), (19.9, 2), (20.1, 1), (60_000, 1)])
def test_a_batch_is_what_will_start_within_the_window(ms: float, jobs: int) -> None:
    batch = BatchSize(20)
    for _ in range(40):
        batch.learn(10, 0.0001, of=10)
    batch.learn(1, ms / 1000, of=1)
    assert batch.jobs() == jobs


def test_a_window_of_zero_turns_batches_off() -> None:
    batch = BatchSize(0)
    batch.learn(10, 0.0001, of=10)
    assert batch.jobs() == 1


@pytest.mark.parametrize(("siblings", "jobs"), [(1, 64), (2, 36), (64, 36)])
def test_the_children_of_a_worker_share_what_a_near_redis_is_held_up_for(
    siblings: int, jobs: int
) -> None:
    assert largest_batch(lambda: None, siblings) == jobs
    assert largest_batch(lambda: time.sleep(2 * FAR), siblings) == MAX_BATCH


def test_a_busy_child_makes_more_and_more_room_for_a_suspect() -> None:
    """It waits for 30 s; then for the same time as it goes on, twice as long each time."""
    patience, pauses, now = SuspectPatience(), [], 1000.0
    while now < 1100:
        until = patience.paused_until(True, now)
        if until:
            pauses.append((now - 1000, until - now))
        now = max(until, now + 0.25)
    assert pauses == [(30, 1), (32, 2), (36, 4), (44, 8), (60, 16), (92, 32)]
    assert not patience.paused_until(False, now)  # it has run, or another child has it
    assert not patience.paused_until(True, now)
    assert not patience.paused_until(True, now + 29)
    assert patience.paused_until(True, now + 30) == now + 31


def test_a_batch_of_which_jobs_went_back_is_followed_by_smaller_ones() -> None:
    batch = BatchSize(20)
    for _ in range(40):
        batch.learn(10, 0.0001, of=10)
    batch.learn(3, 0.0001, of=batch.limit)
    sizes = [batch.jobs()]
    while sizes[-1] < batch.limit:
        batch.learn(sizes[-1], 0.0001, of=sizes[-1])
        sizes.append(batch.jobs())
    assert sizes == [3, 6, 12, 24, 36]


# -- what can become no call


def no_json(_: str) -> Any:
    return json.loads("")


SPOILT = [
    ({"payload": "[1"}, "Expecting"),
    ({"options": "[]"}, "its options are '[]', not a JSON object"),
    ({"options": "{"}, "Expecting"),
    ({"options": '{"timeout_ms":"x"}'}, 'no whole number: {"timeout_ms":"x"}'),
    ({"options": '{"timeout_ms":[1]}'}, "no whole number"),
    ({"options": '{"timeout_ms":1e300}'}, "no whole number"),
    ({"options": '{"timeout_ms":-1}'}, "no whole number"),
    ({"options": '{"max_attempts":null}'}, "no whole number"),
    ({"options": '{"takes_result":true}'}, "Expecting"),
]


@pytest.mark.parametrize(("fields", "words"), SPOILT)
def test_a_job_that_a_hand_has_spoilt_fails_and_ends_no_child(
    fields: dict[str, str], words: str
) -> None:
    job = claimed()._replace(task="tests.app.tasks.noop", **fields)
    ruling = Resolver(SETTINGS, lambda _: 0, no_json)(job)
    assert isinstance(ruling, verdicts.Ruling)
    assert (ruling.verdict, ruling.detail) == (Verdict.FAILED, "corrupt")
    message = json.loads(ruling.body)["message"]
    assert message.startswith("job job_1 cannot be read: ")
    assert words in message


# -- verdicts


def judge(error: BaseException, attempts: int = 0, **options: Any) -> verdicts.Ruling:
    known = TaskOptions(**{"max_attempts": 3, "backoff": Backoff(base=2, jitter=0), **options})
    return verdicts.judge(error, known, attempts, known.max_attempts, SETTINGS)


@pytest.mark.parametrize(
    ("error", "options", "attempts", "expected"),
    [
        (ValueError(), {}, 0, ("retrying", "2000")),
        (ValueError(), {}, 1, ("retrying", "4000")),
        (ValueError(), {}, 2, ("failed", "")),
        (ValueError(), {"max_attempts": 1}, 0, ("failed", "")),
        (ValueError(), {"retry_on": (OSError,)}, 0, ("failed", "")),
        (FileNotFoundError(), {"retry_on": (OSError,)}, 0, ("retrying", "2000")),
        (FileNotFoundError(), {"no_retry_on": (FileNotFoundError,)}, 0, ("failed", "")),
        (Retry(delay=7), {}, 0, ("retrying", "7000")),
        (Retry(delay=0), {}, 0, ("retrying", "0")),
        (Retry(), {}, 0, ("retrying", "2000")),
        (Retry(delay=7), {"retry_on": (OSError,)}, 0, ("retrying", "7000")),
        (Retry(delay=7), {}, 2, ("failed", "")),
        (Retry(delay=-1), {}, 0, ("failed", "")),
        (Retry(delay="soon"), {}, 0, ("failed", "")),
        (JobTimeout(), {}, 0, ("retrying", "2000")),
        (JobTimeout(), {}, 2, ("failed", "timeout")),
        (JobTimeout(), {"retry_on": (OSError,)}, 0, ("retrying", "2000")),
        (JobCancelled(), {}, 0, ("cancelled", "")),
        (JobAbandoned(), {}, 0, ("queued", "")),
        (SystemExit(1), {}, 0, ("failed", "")),
        (KeyboardInterrupt(), {}, 0, ("failed", "")),
    ],
)
def test_what_an_error_means(
    error: BaseException, options: dict[str, Any], attempts: int, expected: tuple[str, str]
) -> None:
    ruling = judge(error, attempts, **options)
    assert (ruling.verdict, ruling.detail) == expected


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
def test_an_error_whose_text_can_not_be_made(raised: type[BaseException]) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise raised

    error = json.loads(judge(Broken(), 2).body)
    assert error["message"] == f"<Broken whose text cannot be made: {raised.__name__}>"


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
def test_an_error_whose_traceback_can_not_be_made(raised: type[BaseException]) -> None:
    class Broken(SyntaxError):
        @property
        def text(self) -> str:
            raise raised

    try:
        raise Broken("no")
    except Broken as error:
        told = json.loads(judge(error, 2).body)
    assert told["type"].endswith("Broken")
    assert "raise Broken" in told["traceback"]
    assert told["traceback"].endswith(f"(the rest cannot be shown: {raised.__name__})\n")


def test_a_retry_of_somebodys_own_without_a_delay() -> None:
    class Later(Retry):
        def __init__(self) -> None:
            pass

    assert judge(Later()).detail == "2000"


def test_a_task_nobody_knows_is_put_off_for_a_bounded_time() -> None:
    rulings = [verdicts.unknown_task("a.b", delays, SETTINGS) for delays in range(13)]
    assert {ruling.verdict for ruling in rulings[:12]} == {Verdict.DELAYED}
    delays = [int(ruling.detail) for ruling in rulings[:12]]
    assert delays[:5] == [5000, 10_000, 20_000, 40_000, 60_000]
    assert 300_000 < sum(delays) < 900_000
    assert (rulings[12].verdict, rulings[12].detail) == (Verdict.FAILED, "unknown_task")


# -- who is who


def test_the_identity_of_a_process_tells_if_it_is_gone() -> None:
    me = this_worker("alpha")
    assert not me.is_gone
    child = me.child(3)
    assert child == f"alpha.{machine()}.{os.getpid()}.{start_time(os.getpid())}.3"
    assert parse_child(child) == me
    pid = os.fork()
    if pid == 0:
        signal.pause()
    other = parse_child(f"alpha.{machine()}.{pid}.{start_time(pid)}.1")
    assert other is not None
    assert not other.is_gone
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert other.is_gone  # a zombie has ended
    os.waitpid(pid, 0)
    assert other.is_gone


def test_a_pid_that_was_given_to_another_process_is_not_taken_for_the_old_one() -> None:
    reused = parse_child(f"alpha.{machine()}.{os.getpid()}.{start_time(os.getpid()) - 1}.1")
    assert reused is not None
    assert reused.is_gone


def test_nothing_is_known_of_processes_of_other_machines() -> None:
    elsewhere = parse_child("alpha.deadbeef.999999.1.1")
    assert elsewhere is not None
    assert not elsewhere.is_gone
    for strange in ("", "alpha", "a.b.c.d.e", "a.b.1.2.3.4"):
        assert parse_child(strange) is None


# -- interrupts


@pytest.fixture
def interrupts() -> Iterator[tuple[Interrupts, Seat]]:
    """Installed in this very process; what was there before comes back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    seat = Seat(0, 1)
    made = Interrupts(seat)
    made.install()
    yield made, seat
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def in_ms(ms: int) -> int:
    return time.monotonic_ns() // 1_000_000 + ms


def nap(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)


def test_a_timeout_is_for_its_job_only(interrupts: tuple[Interrupts, Seat]) -> None:
    made, _ = interrupts
    made.arm(claimed("job_1"), None, in_ms(30))
    made.disarm()
    made.arm(claimed("job_2"), None, 0)  # the alarm of the first one comes while this runs
    nap(0.06)
    made.disarm()
    made.arm(claimed("job_3"), None, in_ms(30))
    made.disarm()
    made.arm(claimed("job_4"), None, in_ms(90))  # and that of the third while this runs
    nap(0.06)
    with pytest.raises(JobTimeout):
        nap(0.1)
    nap(0.1)  # told once


def test_a_sooner_deadline_sets_the_alarm_anew(interrupts: tuple[Interrupts, Seat]) -> None:
    made, _ = interrupts
    made.arm(claimed("job_1"), None, in_ms(60_000))
    made.disarm()
    made.arm(claimed("job_2"), None, in_ms(30))
    with pytest.raises(JobTimeout):
        nap(1)


def order(seat: Seat, line: str) -> None:
    """Give the order, and a while for the handler to run."""
    seat.order(line)
    os.kill(os.getpid(), signal.SIGUSR1)
    nap(0.02)


def test_a_cancel_is_for_its_lease_only(interrupts: tuple[Interrupts, Seat]) -> None:
    made, seat = interrupts
    others: list[tuple[str, str, int]] = []
    made.on_other = lambda *order: others.append(order)
    context = JobContext(Job("job_1"), 1, lambda _: True)
    made.arm(claimed("job_1", lease=2), context, 0)
    order(seat, "cancel job_1 1")
    order(seat, "cancel job_9 2")
    assert not context.cancelled
    assert others == [("cancel", "job_1", 1), ("cancel", "job_9", 2)]
    with pytest.raises(JobCancelled):
        order(seat, "cancel job_1 2")
    assert context.cancelled
    made.arm(claimed("job_1", lease=3), None, 0)
    with pytest.raises(JobAbandoned):
        order(seat, "abandon job_1 3")


def test_an_order_that_comes_before_its_job_begins_waits_for_it(
    interrupts: tuple[Interrupts, Seat],
) -> None:
    made, seat = interrupts
    order(seat, "cancel job_2 7")
    made.arm(claimed("job_1", lease=6), None, 0)  # another one first: it is not hit
    made.disarm()
    order(seat, "cancel job_2 7")
    context = JobContext(Job("job_2"), 1, lambda _: True)
    with pytest.raises(JobCancelled):
        made.arm(claimed("job_2", lease=7), context, 0)
    assert context.cancelled
    made.arm(claimed("job_2", lease=8), None, 0)  # and it is given once


def test_an_order_to_stop_ends_a_wait_and_no_job(interrupts: tuple[Interrupts, Seat]) -> None:
    made, seat = interrupts
    made.arm(claimed(), None, 0)
    order(seat, "stop")
    assert made.stopping
    made.disarm()
    made.wait(lambda: pytest.fail("it waits after it was told to stop"))


def test_an_order_from_before_there_was_a_handler_is_found() -> None:
    seat = Seat(0, 1)
    seat.order("stop")
    made = Interrupts(seat)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    made.install()
    for number, handler in before.items():
        signal.signal(number, handler)
    assert made.stopping


# -- what a task sees


def test_progress_is_cheap_and_its_last_report_is_never_left_out() -> None:
    reports: list[str] = []
    context = JobContext(Job("job_1"), 1, lambda text: reports.append(text) is None)
    for done in range(1, 1001):
        context.progress(done, 1000)
    assert len(reports) <= 3
    assert json.loads(reports[-1]) == {"done": 1000, "total": 1000, "note": ""}


NO_NUMBERS = ["half", None, True, -1, -0.5, 2**63 + 1, float("nan"), float("inf"), Decimal(1)]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_progress_of_what_is_no_number_is_refused_and_not_reported(value: Any) -> None:
    context = JobContext(Job("job_1"), 1, lambda _: pytest.fail("reported"))
    words = re.escape(f"must be a number from 0 to 2**63, not {value!r}")
    with pytest.raises(InvalidArguments, match=f"progress: done {words}"):
        context.progress(value, 1)
    with pytest.raises(InvalidArguments, match=f"progress: total {words}"):
        context.progress(1, value)


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (None, "progress: note must be a text, not None"),
        (b"half", "progress: note must be a text, not b'half'"),
        ("\ud800", "progress: note has a lone surrogate, which is not Unicode text"),
    ],
)
def test_a_note_that_is_no_text_is_refused_and_not_reported(note: Any, words: str) -> None:
    context = JobContext(Job("job_1"), 1, lambda _: pytest.fail("reported"))
    with pytest.raises(InvalidArguments) as caught:
        context.progress(1, 2, note)
    assert str(caught.value) == words


@pytest.mark.parametrize(("done", "total"), [(0, 0), (3, 2), (0.5, 2**63)])
def test_unusual_progress_is_reported(done: float, total: float) -> None:
    reports: list[str] = []
    JobContext(Job("job_1"), 1, lambda text: reports.append(text) is None).progress(done, total)
    assert [json.loads(text) for text in reports] == [{"done": done, "total": total, "note": ""}]


@pytest.mark.parametrize("left_out", [0, 1, 10_000])
def test_a_note_that_is_too_long_is_cut_and_shows_it(left_out: int) -> None:
    reports: list[str] = []
    context = JobContext(Job("job_1"), 1, lambda text: reports.append(text) is None)
    context.progress(1, 1, "x" * (1000 + left_out))
    assert json.loads(reports[0])["note"] == ("x" * 999 + "…" if left_out else "x" * 1000)


def test_progress_of_a_job_that_another_worker_has_ends_this_run() -> None:
    context = JobContext(Job("job_1"), 1, lambda _: False)
    with pytest.raises(JobAbandoned):
        context.progress(1, 1)


def test_progress_without_redis_does_not_end_the_run() -> None:
    def away(_: str) -> bool:
        raise RedisUnavailable("gone")

    JobContext(Job("job_1"), 1, away).progress(1, 1)


# -- databases


class FakeConnection:
    """As much of a connection as is looked at."""

    def __init__(self, usable: bool = True) -> None:
        self.connection: object | None = object()
        self.usable = usable
        self.in_atomic_block = False
        self.calls: list[str] = []

    def is_usable(self) -> bool:
        return self.usable

    def close(self) -> None:
        self.calls.append(f"close {'inside' if self.in_atomic_block else 'outside'}")
        self.connection = None

    def close_if_unusable_or_obsolete(self) -> None:
        self.calls.append("check")


def test_connections_are_checked_before_and_after_a_job() -> None:
    databases = Databases()
    good, gone, inside = FakeConnection(), FakeConnection(usable=False), FakeConnection()
    for connection in (good, gone, inside, good):
        databases._remember(connection)  # type: ignore[arg-type]
    databases.before()
    assert (good.calls, gone.calls) == ([], ["close outside"])
    inside.in_atomic_block = True
    databases.after()
    assert good.calls == ["check"]
    assert inside.calls[0] == "close outside"  # else Django keeps what it has closed
    assert databases.opened == [good]


# -- the heartbeat file


def test_the_probe_reads_what_the_beacon_writes(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    beacon = Beacon(str(file))
    assert look(file, 5)[0] is Health.DEAD
    beacon.beat(False)
    assert look(file, 5)[0] is Health.CUT_OFF
    beacon.beat(True)
    assert look(file, 5)[0] is Health.ALIVE
    beat = json.loads(file.read_text())
    file.write_text(json.dumps({**beat, "beat": beat["beat"] - 60, "redis": beat["beat"] - 60}))
    assert look(file, 5)[0] is Health.DEAD
    assert look(file, 120)[0] is Health.ALIVE
    beacon.remove()
    assert list(tmp_path.iterdir()) == []
    Beacon(None).beat(True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a heartbeat file: JSONDecodeError"),
        ("[1]", "is not a heartbeat file: TypeError"),
        ('{"beat": 1, "redis": 1}', "is not a heartbeat file: KeyError: 'pid'"),
        ('{"pid": 1, "beat": "now", "redis": 1}', "is not a heartbeat file: ValueError"),
        ('{"pid": 1, "beat": %s, "redis": 1}' % 10**400, "heartbeat file: OverflowError"),
        ('{"pid": 1, "beat": NaN, "redis": NaN}', "no heartbeat for nan s (pid 1)"),
    ],
    ids=["empty", "list", "no pid", "text", "huge", "nan"],
)
def test_what_is_no_heartbeat_is_no_sign_of_life(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "heartbeat"
    file.write_text(text)
    health, said = look(file, 5)
    assert health is Health.DEAD
    assert words in said
    assert look(tmp_path, 5)[1] == f"{tmp_path} is not a heartbeat file: IsADirectoryError: " + (
        f"[Errno 21] Is a directory: {str(tmp_path)!r}"
    )


# -- trying again


def test_a_call_is_sent_again_until_it_is_answered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redisqueue.worker.reconnect.pause", lambda tries: None)
    asked: list[bool] = []

    def ask(resent: bool) -> str:
        asked.append(resent)
        if len(asked) < 6:
            raise (RedisUnavailable("gone"), RedisRefused("may not"))[len(asked) % 2]
        return "answer"

    with caplog.at_level(logging.WARNING, "django_redisqueue"):
        assert until_answered(ask, who="child") == "answer"
        assert until_answered(lambda _: "at once", who="child") == "at once"
    assert asked == [False, True, True, True, True, True]
    assert [record.getMessage() for record in caplog.records] == [
        "child: may not; trying again until it answers",
        "child: gone; trying again until it answers",
        "child: Redis answers again after 0.0 s",
    ]


def test_a_call_may_be_given_up() -> None:
    def ask(resent: bool) -> None:
        raise RedisUnavailable("gone")

    give_up: Callable[[], bool] = lambda: True  # noqa: E731
    with pytest.raises(RedisUnavailable):
        until_answered(ask, who="child", give_up=give_up)
