"""The log of outcomes is a queue: accepted records are removed from its front."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from django_redisqueue.broker.replies import Outcome, OutcomeKind
from django_redisqueue.worker.child_state import _END, LOG_BYTES, ChildState, OutcomeLog
from tests.support.stopwatch import Stopwatch

from .parts import forked, outcome
from .processes import PATIENCE


def test_outcomes_are_read_as_they_were_recorded() -> None:
    log = ChildState(0, 1).concurrent_log
    awkward = Outcome(
        "job_1", 3, 9, OutcomeKind.FAILED, '{"a":\n "b c\\n\\u0000\u00e4"}', "timeout"
    )
    empty = Outcome("job_2", 1, 9, OutcomeKind.QUEUED)
    log.record(awkward)
    log.record(empty)
    assert log.read() == [awkward, empty]
    log.clear()
    assert log.is_empty
    assert log.read() == []
    log.record(outcome(3))
    assert log.read() == [outcome(3)]


def test_an_outcome_that_does_not_fit_is_left_out_and_leaves_its_neighbours_intact() -> None:
    state = ChildState(0, 1)
    first, second = state.log, state.concurrent_log
    second.record(outcome(7))
    first.record(outcome(1))
    first.record(outcome(2, LOG_BYTES))
    first.record(outcome(3))
    assert first.read() == [outcome(1), outcome(3)]
    assert second.read() == [outcome(7)]


def test_a_log_that_is_cleared_while_it_is_read_is_never_misread() -> None:
    """The reader sees each record whole or not at all, whenever it looks."""
    state = ChildState(0, 1)

    def record_and_clear() -> None:
        n = 0
        while os.getppid() != 1:
            for _ in range(5):
                n += 1
                state.log.record(outcome(n, n % 300))
            state.log.clear()

    with forked(record_and_clear):
        seen, watch = 0, Stopwatch()
        while watch.elapsed < 1.0 or (seen <= 100 and not watch.is_over(PATIENCE)):
            for found in state.log.read():
                number = int(found.id.removeprefix("job_"))
                assert found == outcome(number, number % 300)
                seen += 1
        assert seen > 100


def test_accepting_an_outcome_leaves_the_rest_in_the_log() -> None:
    log = ChildState(0, 1).concurrent_log
    ends = [log.record(outcome(n)) for n in range(3)]
    log.discard_before(ends[0])
    assert log.read() == [outcome(1), outcome(2)]
    log.discard_before(ends[2])
    assert (log.read(), log.is_empty) == ([], True)


def test_the_child_is_told_what_the_supervisor_reports() -> None:
    state = ChildState(0, 1)
    log = state.concurrent_log
    ends = [log.record(outcome(n)) for n in range(2)]
    assert not log.was_taken
    assert state.take_outcomes() == [outcome(0), outcome(1)]
    log.record(outcome(2))
    log.discard_before(ends[0])
    assert log.was_taken
    log.keep_only([outcome(1)])
    assert log.was_taken
    end = log.record(outcome(3))
    log.record(outcome(4))
    log.discard_before(end)
    assert not log.was_taken
    state.take_outcomes()
    log.clear()
    log.record(outcome(5))
    assert not log.was_taken


def test_a_log_that_is_never_empty_works_forever() -> None:
    """Records of any size wrap around its memory, without touching the memory next to it."""
    state = ChildState(0, 1)
    log, neighbour = state.concurrent_log, state.log
    neighbour.record(outcome(7))
    held: deque[tuple[Outcome, int]] = deque()
    for n in range(300):
        new = outcome(n, LOG_BYTES // 7 + n * 997 % 50_000)
        held.append((new, log.record(new)))
        if len(held) > 5:
            log.discard_before(held.popleft()[1])
        if n % 5 == 0:
            assert log.read() == [each for each, _ in held]
    assert neighbour.read() == [outcome(7)]


def test_an_outcome_that_does_not_fit_is_left_out_and_the_others_are_kept() -> None:
    log = ChildState(0, 1).concurrent_log
    first = log.record(outcome(1, LOG_BYTES // 2))
    assert log.record(outcome(2, LOG_BYTES // 2)) == first
    assert log.read() == [outcome(1, LOG_BYTES // 2)]
    log.discard_before(first)
    log.record(outcome(3, LOG_BYTES // 2))
    assert log.read() == [outcome(3, LOG_BYTES // 2)]


def test_outcomes_that_cannot_be_moved_stay() -> None:
    """Such as those for a shard that does not answer, while others are reported: if the child is
    replaced meanwhile, its supervisor finds them here."""
    log = ChildState(0, 1).log
    kept = [outcome(n, LOG_BYTES // 20) for n in range(9)]
    for one in kept:
        log.record(one)
    log.record(outcome(10, LOG_BYTES // 9))
    log.keep_only(kept)
    assert log.read()[:9] == kept
    log.keep_only(kept[1:])
    assert log.read() == kept[1:]


def test_a_reset_empties_a_log_that_has_wrapped_around() -> None:
    state = ChildState(0, 1)
    for n in range(9):
        state.concurrent_log.discard_before(state.concurrent_log.record(outcome(n, LOG_BYTES // 4)))
    state.concurrent_log.record(outcome(9))
    state.reset()
    assert state.outcomes() == []
    state.concurrent_log.record(outcome(10))
    assert state.outcomes() == [outcome(10)]


def test_the_next_child_finds_an_empty_log() -> None:
    """Its supervisor, which has recorded nothing itself, has cleared it."""
    state = ChildState(0, 1)

    def in_child(record: Callable[[OutcomeLog], object]) -> list[Outcome]:
        pid = os.fork()
        if pid == 0:
            record(state.log)
            os._exit(0)
        os.waitpid(pid, 0)
        return state.outcomes()

    def record_two(log: OutcomeLog) -> None:
        log.discard_before(log.record(outcome(1, 1000)))
        log.record(outcome(2))

    assert in_child(record_two) == [outcome(2)]
    state.reset()
    assert (state.outcomes(), state.ended_since()) == ([], 0)
    assert in_child(lambda log: log.record(outcome(3))) == [outcome(3)]

    def die_in_clear(log: OutcomeLog) -> None:
        log.discard_before(log.record(outcome(4)))
        log._header[_END] = 0  # its first step

    in_child(die_in_clear)
    state.reset()
    assert in_child(lambda log: log.record(outcome(5))) == [outcome(5)]


def churn(log: OutcomeLog, kept: int) -> None:
    """Record forever. All but the last ``kept`` are accepted at once, and sometimes all."""
    held: deque[int] = deque()
    n = 0
    while os.getppid() != 1:
        n += 1
        held.append(log.record(outcome(n, n % 7 * 40_000)))
        if len(held) > kept:
            log.discard_before(held.popleft())
        if n % 1000 == 0:
            log.clear()
            held.clear()


def test_a_reader_at_any_moment_finds_whole_records_without_a_gap() -> None:
    log = ChildState(0, 1).concurrent_log
    with forked(lambda: churn(log, 10)):
        seen, last, watch = 0, 0, Stopwatch()
        while watch.elapsed < 1.0 or (seen <= 100 and not watch.is_over(PATIENCE)):
            numbers = []
            for found in log.read():
                n = int(found.id.removeprefix("job_"))
                assert found == outcome(n, n % 7 * 40_000)
                numbers.append(n)
            if numbers:
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                assert numbers[-1] >= last
                last = numbers[-1]
            seen += len(numbers)
        assert seen > 100


def record_forever(log: OutcomeLog) -> None:
    """At every moment, three or four records are not accepted."""
    kept = deque(log.record(outcome(n)) for n in range(3))
    for n in range(3, 10**9):
        kept.append(log.record(outcome(n, 5_000)))
        log.discard_before(kept.popleft())


def test_a_child_killed_at_any_moment_leaves_everything_that_was_not_accepted() -> None:
    for _ in range(20):
        log = ChildState(0, 1).concurrent_log
        with forked(partial(record_forever, log)):
            while not log.read():
                time.sleep(0.001)
            time.sleep(0.01)
        numbers = [found.lease for found in log.read()]
        assert len(numbers) in (3, 4)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
