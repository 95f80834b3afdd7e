"""The memory and pipes that a child shares with its supervisor."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

import pytest

from django_redisqueue.broker.replies import ClaimedJob
from django_redisqueue.worker.child_state import MAX_BATCH, ChildState

from .parts import claimed, outcome


def begin(state: ChildState, slot: int, job: ClaimedJob, started_ms: int, deadline_ms: int) -> None:
    """Offer a job, take it, and start it."""
    state.offer([job])
    token = state.take()
    assert token is not None
    state.begin(slot, token, started_ms, deadline_ms)


def race(rounds: int) -> list[tuple[int, int]]:
    """A child takes tokens one by one, and after some of them, each time a different number, this
    process takes the rest; yields (taken, stolen) per round."""
    state = ChildState(0, 1)
    begin, begin_end = os.pipe()
    ready, ready_end = os.pipe()
    result, result_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begin_end)
        with suppress(BaseException):
            while at := os.read(begin, 1):
                taken = 0
                while state.take():
                    taken += 1
                    if taken == at[0]:
                        os.write(ready_end, b"!")
                        if taken % 2:  # so that it loses some races even on a single core
                            time.sleep(1e-6)
                os.write(result_end, bytes([taken]))
        os._exit(0)
    os.close(begin)
    found = []
    for number in range(rounds):
        held = [(f"job_{number}_{n}", n) for n in range(64)]
        state.offer([claimed(*job) for job in held])
        os.write(begin_end, bytes([1 + number % 64]))
        os.read(ready, 1)
        stolen = state.take_unstarted()
        taken = os.read(result, 1)[0]
        assert stolen == held[64 - len(stolen) :]
        found.append((taken, len(stolen)))
    os.close(begin_end)
    os.waitpid(child, 0)
    return found


def test_every_token_is_taken_exactly_once() -> None:
    found = race(2000)
    assert {taken + stolen for taken, stolen in found} == {64}
    assert len({taken for taken, _ in found}) > 2, "they never raced"


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipes have one size here")
def test_a_whole_batch_fits_into_a_pipe_of_two_pages() -> None:
    state = ChildState(0, 1)
    fcntl.fcntl(state._token_end, fcntl.F_SETPIPE_SZ, 8192)
    # so that an error fails the test instead of hanging it
    os.set_blocking(state._token_end, False)
    held = [(f"job_{n:059}", 2**40 + n) for n in range(MAX_BATCH)]
    state.offer([claimed(*job) for job in held])
    assert state.has_unstarted()
    assert state.take_unstarted() == held
    assert not state.take()
    assert not state.has_unstarted()


def test_several_tokens_at_once_are_the_next_in_order() -> None:
    state = ChildState(0, 2)
    state.offer([claimed(f"job_{n}", n) for n in range(5)])
    first, second = state.take_several(2)
    for slot, token in enumerate([first, second]):
        state.begin(slot, token, 1000, 0)
    assert [job.id for job in state.running()] == ["job_0", "job_1"]
    assert state.take_unstarted() == [("job_2", 2), ("job_3", 3), ("job_4", 4)]
    assert state.take_several(2) == []


def test_the_table_of_running_jobs() -> None:
    state = ChildState(0, 3)
    assert state.running_sync() is None
    begin(state, 2, claimed("job_b" + "x" * 59, 4, 5), 1000, 0)
    begin(state, 0, claimed("job_a", 2, 3), 2000, 7000)
    assert [job.id for job in state.running()] == ["job_a", "job_b" + "x" * 59]
    front = state.running_sync()
    assert front is not None
    assert (front.lease, front.started_ms, front.deadline_ms) == (2, 2000, 7000)
    state.end(0)
    assert state.running_sync() is None
    assert len(state.running()) == 1


def test_a_record_read_while_it_is_being_written_has_no_deadline_yet() -> None:
    """The deadline is written first, so it may be the previous job's."""
    state = ChildState(0, 1)
    begin(state, 0, claimed("job_b", 4, 5), 9000, 7000)
    front = state.running_sync()
    assert front is not None
    assert (front.id, front.started_ms, front.deadline_ms) == ("job_b", 9000, 0)


def test_a_reset_empties_the_state() -> None:
    state = ChildState(0, 2)
    begin(state, 1, claimed("job_2"), 1, 1)
    state.offer([claimed("job_1")])
    state.log.record(outcome(1))
    state.concurrent_log.record(outcome(2))
    state.add_done(5)
    state.set_watched(True)
    state.send("stop")
    state.reset()
    assert not state.has_unstarted()
    assert (state.running(), state.outcomes(), state.read_messages()) == ([], [], [])
    assert (state.done, state.is_watched, state.ended_since()) == (0, False, 0)


def test_messages_to_a_child_that_never_reads_do_not_block_the_supervisor() -> None:
    state = ChildState(0, 1)
    for _ in range(10_000):
        state.send("cancel job_1_aaaaaaaaaa_0 1")
    assert set(state.read_messages()) >= {"cancel job_1_aaaaaaaaaa_0 1"}


def test_files_that_a_job_closes_during_the_check_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job runs alongside the thread that checks. An error would end the child before the
    outcomes of jobs that are about to end are recorded."""
    state = ChildState(0, 1)

    class Files:
        def poll(self, _: int) -> list[tuple[int, int]]:
            os.close(state._tokens)
            return []

    assert not state.has_lost_files()
    monkeypatch.setattr(state, "_files", Files())
    assert state.has_lost_files()
