"""Timeouts and supervisor messages interrupt the right job, and idle waits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from django_redisqueue.exceptions import JobAbandoned, JobCancelled, JobTimeout
from django_redisqueue.worker.child.context import JobContext
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.interrupts import Interrupts

from .child.test_steps import Memory
from .parts import claimed


@contextmanager
def installed(state: ChildState) -> Iterator[Interrupts]:
    """Installed in this process; the former handlers are restored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    made = Interrupts(state)
    made.install()
    yield made
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def state() -> ChildState:
    return ChildState(0, 1)


@pytest.fixture
def made(state: ChildState) -> Iterator[Interrupts]:
    with installed(state) as made:
        yield made


def in_ms(ms: int) -> int:
    return time.monotonic_ns() // 1_000_000 + ms


def nap(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)


def test_a_timeout_is_for_its_job_only(made: Interrupts) -> None:
    made.arm(claimed("job_1"), None, in_ms(30))
    made.disarm()
    made.arm(claimed("job_2"), None, 0)  # the first job's alarm would come now
    nap(0.06)
    made.disarm()
    made.arm(claimed("job_3"), None, in_ms(30))
    made.disarm()
    made.arm(claimed("job_4"), None, in_ms(90))  # and now the third job's
    nap(0.06)
    with pytest.raises(JobTimeout):
        nap(0.1)
    nap(0.1)  # raised only once


def test_an_earlier_deadline_resets_the_alarm(made: Interrupts, state: ChildState) -> None:
    made.arm(claimed("job_1"), None, in_ms(60_000))
    made.disarm()
    made.arm(claimed("job_2"), None, in_ms(30))
    with pytest.raises(JobTimeout):
        nap(1)


def send(state: ChildState, message: str) -> None:
    """Send the message, and give the handler time to run."""
    state.send(message)
    os.kill(os.getpid(), signal.SIGUSR1)
    nap(0.02)


def test_a_cancel_is_for_its_lease_only(made: Interrupts, state: ChildState) -> None:
    others: list[tuple[str, str, int]] = []
    made.on_unmatched = lambda *message: others.append(message)
    context = JobContext(claimed(), lambda _: True, Memory())
    made.arm(claimed("job_1", lease=2), SimpleNamespace(context=context), 0)
    send(state, "cancel job_1 1")
    send(state, "cancel job_9 2")
    assert not context.cancelled
    assert others == [("cancel", "job_1", 1), ("cancel", "job_9", 2)]
    with pytest.raises(JobCancelled):
        send(state, "cancel job_1 2")
    assert context.cancelled
    made.arm(claimed("job_1", lease=3), None, 0)
    with pytest.raises(JobAbandoned):
        send(state, "abandon job_1 3")


def test_a_message_that_arrives_before_its_job_starts_waits_for_it(
    made: Interrupts, state: ChildState
) -> None:
    send(state, "cancel job_2 7")
    made.arm(claimed("job_1", lease=6), None, 0)  # another job first, which is not interrupted
    made.disarm()
    send(state, "cancel job_2 7")
    context = JobContext(claimed("job_2"), lambda _: True, Memory())
    with pytest.raises(JobCancelled):
        made.arm(claimed("job_2", lease=7), SimpleNamespace(context=context), 0)
    assert context.cancelled
    made.arm(claimed("job_2", lease=8), None, 0)  # delivered only once


def test_the_message_to_stop_ends_a_wait_but_no_job(made: Interrupts, state: ChildState) -> None:
    made.arm(claimed(), None, 0)
    send(state, "stop")
    assert made.stopping
    made.disarm()
    made.wait(lambda: pytest.fail("it waits after it was told to stop"))


def test_signals_blocked_by_a_job_are_delivered_again(made: Interrupts, state: ChildState) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        state.send("stop")
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert not made.stopping
        made.unblock()
        assert made.stopping
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_message_sent_before_the_handler_was_installed_is_found(state: ChildState) -> None:
    state.send("stop")
    with installed(state) as made:
        assert made.stopping


def test_a_shield_holds_interrupts_back(made: Interrupts) -> None:
    made.arm(claimed("job_1"), None, in_ms(100))
    passed = False

    def commit() -> None:
        nonlocal passed
        with made.shield():
            nap(0.15)
            passed = True
        nap(1)

    with pytest.raises(JobTimeout):
        commit()
    assert passed
    with made.shield():  # no job runs, so nothing is armed
        pass
    assert made.current is None


def test_a_shield_in_another_thread_does_not_shield_the_job(made: Interrupts) -> None:
    made.arm(job := claimed("job_1"), None, 0)
    found: list[object] = []

    def enqueue() -> None:
        with made.shield():
            found.append(made.current)

    thread = threading.Thread(target=enqueue)
    thread.start()
    thread.join()
    assert found == [job]


def test_a_cancel_waits_for_the_end_of_an_item(made: Interrupts, state: ChildState) -> None:
    context = JobContext(claimed("job_1"), lambda _: True, Memory())
    walk = context.iterate(range(2))
    assert next(walk) == 0
    made.arm(claimed("job_1"), SimpleNamespace(context=context), 0)
    state.send("cancel job_1 1")
    os.kill(os.getpid(), signal.SIGUSR1)
    nap(0.01)
    assert context.cancelled
    walk.close()  # type: ignore[attr-defined]
    state.send("cancel job_1 1")  # the supervisor repeats it
    with pytest.raises(JobCancelled):
        nap_after_signal()


def nap_after_signal() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    nap(1)
