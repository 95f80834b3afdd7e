"""The seat: what a child shares with its supervisor, without either of them."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

import pytest

from django_redisqueue.store.replies import Claimed
from django_redisqueue.worker.batch import MAX_BATCH
from django_redisqueue.worker.seat import Seat

from .parts import claimed, outcome


def begin(seat: Seat, slot: int, job: Claimed, started_ms: int, deadline_ms: int) -> None:
    """The job is offered, taken and begun."""
    seat.offer([job])
    token = seat.take()
    assert token is not None
    seat.begin(slot, token, started_ms, deadline_ms)


def race(rounds: int) -> list[tuple[int, int]]:
    """A child takes tokens one by one while this process steals them: (taken, stolen) a round."""
    seat = Seat(0, 1)
    begin, begin_end = os.pipe()
    result, result_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begin_end)
        with suppress(BaseException):
            while os.read(begin, 1):
                taken = 0
                while seat.take():
                    taken += 1
                os.write(result_end, bytes([taken]))
        os._exit(0)
    os.close(begin)
    found = []
    for number in range(rounds):
        held = [(f"job_{number}_{n}", n) for n in range(64)]
        seat.offer([claimed(*job) for job in held])
        os.write(begin_end, b"!")
        steal_at = time.perf_counter_ns() + 500 * (number % 400)  # another moment each time
        while time.perf_counter_ns() < steal_at:
            pass
        stolen = seat.steal()
        taken = os.read(result, 1)[0]
        assert stolen == held[64 - len(stolen) :]
        found.append((taken, len(stolen)))
    os.close(begin_end)
    os.waitpid(child, 0)
    return found


def test_every_token_is_taken_exactly_once() -> None:
    found: list[tuple[int, int]] = []
    for _ in range(20):  # a busy machine may run one behind the other for a while
        found += race(1000)
        if len({taken for taken, _ in found}) > 2:
            break
    assert {taken + stolen for taken, stolen in found} == {64}
    assert len({taken for taken, _ in found}) > 2, "they never raced"


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipes have one size here")
def test_a_whole_batch_fits_into_a_pipe_of_two_pages() -> None:
    seat = Seat(0, 1)
    fcntl.fcntl(seat._token_end, fcntl.F_SETPIPE_SZ, 8192)
    os.set_blocking(seat._token_end, False)  # so that a mistake fails and does not hang
    held = [(f"job_{n:059}", 2**40 + n) for n in range(MAX_BATCH)]
    seat.offer([claimed(*job) for job in held])
    assert seat.has_unstarted()
    assert seat.steal() == held
    assert not seat.take()
    assert not seat.has_unstarted()


def test_the_table_of_running_jobs() -> None:
    seat = Seat(0, 3)
    assert seat.in_front() is None
    begin(seat, 2, claimed("job_b" + "x" * 59, 4, 5), 1000, 0)
    begin(seat, 0, claimed("job_a", 2, 3), 2000, 7000)
    assert [job.id for job in seat.running()] == ["job_a", "job_b" + "x" * 59]
    front = seat.in_front()
    assert front is not None
    assert (front.lease, front.started_ms, front.deadline_ms) == (2, 2000, 7000)
    seat.end(0)
    assert seat.in_front() is None
    assert len(seat.running()) == 1


def test_a_record_that_is_read_while_it_is_written_has_no_deadline_yet() -> None:
    """The deadline is written first, so it may be that of the job before."""
    seat = Seat(0, 1)
    begin(seat, 0, claimed("job_b", 4, 5), 9000, 7000)
    front = seat.in_front()
    assert front is not None
    assert (front.id, front.started_ms, front.deadline_ms) == ("job_b", 9000, 0)


def test_a_seat_is_as_new_after_a_reset() -> None:
    seat = Seat(0, 2)
    begin(seat, 1, claimed("job_2"), 1, 1)
    seat.offer([claimed("job_1")])
    seat.log.record(outcome(1))
    seat.lane_log.record(outcome(2))
    seat.add_done(5)
    seat.watch(True)
    seat.order("stop")
    seat.reset()
    assert not seat.has_unstarted()
    assert (seat.running(), seat.outcomes(), seat.read_orders()) == ([], [], [])
    assert (seat.done, seat.is_watched, seat.ended_since()) == (0, False, 0)


def test_orders_to_a_child_that_never_reads_do_not_hold_up_the_supervisor() -> None:
    seat = Seat(0, 1)
    for _ in range(10_000):
        seat.order("cancel job_1_aaaaaaaaaa_0 1")
    assert set(seat.read_orders()) >= {"cancel job_1_aaaaaaaaaa_0 1"}
