"""How many jobs a child claims at once, waiting for work, and making room for suspect jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.wake import WakeWait
from django_redisqueue.conf import get_settings
from django_redisqueue.worker.child.claims import FAR_ROUND_TRIP, BatchSize, Claims, largest_batch
from django_redisqueue.worker.child.idle import IdleWait, SuspectPauses
from django_redisqueue.worker.child.in_flight import InFlight
from django_redisqueue.worker.child.loop import Child
from django_redisqueue.worker.child_state import MAX_BATCH, ChildState
from django_redisqueue.worker.interrupts import Interrupts
from django_redisqueue.worker.options import WorkerOptions
from tests.support.round_trips import calls_of
from tests.support.shards import keys_of
from tests.worker import tasks
from tests.worker.child.test_steps import Memory
from tests.worker.harness import WorkerHarness
from tests.worker.parts import outcome
from tests.worker.processes import eventually


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


@pytest.mark.parametrize(("siblings", "jobs"), [(1, 64), (2, 48), (3, 36), (64, 36)])
def test_with_a_near_redis_more_children_make_smaller_batches(siblings: int, jobs: int) -> None:
    assert largest_batch(lambda: None, siblings) == jobs
    assert largest_batch(lambda: time.sleep(2 * FAR_ROUND_TRIP), siblings) == MAX_BATCH


def test_a_batch_from_which_jobs_were_released_is_followed_by_smaller_ones() -> None:
    batch = BatchSize(20)
    for _ in range(40):
        batch.learn(10, 0.0001, of=10)
    batch.learn(3, 0.0001, of=batch.limit)
    sizes = [batch.jobs()]
    while sizes[-1] < batch.limit:
        batch.learn(sizes[-1], 0.0001, of=sizes[-1])
        sizes.append(batch.jobs())
    assert sizes == [3, 6, 12, 24, 36]


CLAIM_REQUEST = ClaimRequest("c1", ("default",))


@pytest.fixture
def claims(harness: WorkerHarness) -> Iterator[Claims]:
    found = Claims(CLAIM_REQUEST, ChildState(0, 1), get_settings(), lambda: False)
    assert not found.claim(1).jobs  # a child waits after an empty claim
    yield found
    for one in found.shards:
        one.commands.connection.close()


@pytest.fixture
def idle(claims: Claims) -> IdleWait:
    state = ChildState(0, 1)
    in_flight = InFlight(state, lambda *_: True, lambda _: [], Memory())
    return IdleWait(claims, Interrupts(state), in_flight)


def test_a_child_that_stops_returns_a_wake_token_that_it_may_have_popped(
    harness: WorkerHarness, idle: IdleWait
) -> None:
    tasks.run.enqueue(harness.book, "waiting")
    wake = keys_of().queue("default").wake
    assert harness.redis.delete(wake) == 1  # popped by the wait that was interrupted
    idle.close()
    assert harness.redis.llen(wake) == 1
    assert harness.stats()["queued"] == 1


@pytest.mark.one_shard("several shards are waited for first, and then asked")
@pytest.mark.one_server("it asks the server for its clients")
def test_the_claim_follows_the_wake_up_in_the_same_round_trip(
    harness: WorkerHarness, claims: Claims, idle: IdleWait
) -> None:
    """The claim is in Redis before there is a job, and gets it at once."""
    job = None

    def enqueue() -> None:
        nonlocal job
        eventually(lambda: harness.redis.info("clients")["blocked_clients"] == 1)
        job = tasks.run.enqueue(harness.book, "waiting")
        assert job.status == "processing"

    with ThreadPoolExecutor(1) as pool:
        enqueued = pool.submit(enqueue)
        idle.wait(1)
        enqueued.result()
    before = calls_of(harness.redis, "evalsha")
    assert [one.id for one in claims.claim(1).jobs] == [job and job.id]
    assert calls_of(harness.redis, "evalsha") == before


@pytest.mark.one_shard("several shards are waited for first, and then asked")
def test_a_child_that_stops_releases_jobs_that_its_wait_claimed(
    harness: WorkerHarness, claims: Claims, idle: IdleWait
) -> None:
    jobs = [tasks.run.enqueue(harness.book, "waiting") for _ in range(2)]
    idle.wait(1)
    assert harness.stats() == {**harness.stats(), "queued": 1, "processing": 1}
    claims.current._reply = None  # the interrupt arrived before the reply
    idle.close()
    claims.flush(wait=True)
    assert harness.stats() == {**harness.stats(), "queued": 2, "processing": 0}
    assert harness.redis.lindex(keys_of().queue("default").queued, -1) == jobs[0].id
    assert harness.redis.llen(keys_of().queue("default").wake) == 1
    assert claims.unreported == 0


@pytest.mark.one_shard("several shards are waited for first, and then asked")
def test_a_child_without_room_releases_jobs_that_its_wait_claimed(harness: WorkerHarness) -> None:
    """Since the wait began, jobs in flight may have opened all files, or blocked the event loop."""
    options = WorkerOptions(queues=("default",))
    state = ChildState(0, options.slots)
    child = Child("c1", state, options, get_settings(), lambda: None)
    assert not child._claims.claim(1).jobs
    tasks.run.enqueue(harness.book, "waiting")
    child._idle.wait(1)
    assert harness.stats()["processing"] == 1
    child._wait_for_room()
    assert harness.stats() == {**harness.stats(), "queued": 1, "processing": 0}
    assert child._claims.claim(1).jobs
    child._claims.current.commands.connection.close()
    child._claims.current.close_wait()


@pytest.mark.one_shard("several shards are waited for first, and then asked")
def test_a_wait_with_a_script_that_redis_has_forgotten_claims_nothing_or_all(
    harness: WorkerHarness, claims: Claims, idle: IdleWait
) -> None:
    job = tasks.run.enqueue(harness.book, "waiting")
    harness.redis.script_flush()
    idle.wait(1)
    assert [one.id for one in claims.claim(1).jobs] == [job.id]


@pytest.mark.parametrize("shards", [1, 4])
def test_a_child_with_several_shards_waits_long_unless_it_has_something_to_report(
    harness: WorkerHarness, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.configure(SHARDS=shards)
    state, waited = ChildState(0, 1), list[float]()
    claims = Claims(CLAIM_REQUEST, state, get_settings(), lambda: False)
    in_flight = InFlight(state, lambda *_: True, lambda _: [], Memory())
    idle = IdleWait(claims, Interrupts(state), in_flight)
    monkeypatch.setattr(WakeWait, "wait", lambda *given: waited.append(given[2]) or [])
    monkeypatch.setattr(claims.current, "wait", lambda _, seconds, __: waited.append(seconds))
    idle.wait(1)
    claims.shards[0].outcomes.append(outcome(0))
    idle.wait(1)
    claims.shards[0].outcomes.clear()
    monkeypatch.setattr(InFlight, "count", 1)
    idle.wait(1)
    assert [round(seconds) for seconds in waited] == [5 if shards == 1 else 15, 5, 5]


def test_a_long_wait_shows_that_the_child_lives(harness: WorkerHarness) -> None:
    """It ends if a different set of shards answers, so that a shard that has returned is waited for
    again."""
    harness.configure(SHARDS=4)
    state = ChildState(0, 1)
    claims = Claims(CLAIM_REQUEST, state, get_settings(), lambda: False)
    before = claims.available()
    assert state.alive_until_ms == 0
    assert claims.are_available(before)
    assert state.alive_until_ms > 0
    state.note_shard(2, answers=False)
    assert not claims.are_available(before)


def test_a_busy_child_makes_more_and_more_room_for_a_suspect() -> None:
    """The first pause, of 1 s, comes after 30 s. Then the child claims for as long as it paused,
    and each pause is twice as long as the one before."""
    suspects, pauses, now = SuspectPauses(), [], 1000.0
    while now < 1100:
        until = suspects.paused_until(True, now)
        if until:
            pauses.append((now - 1000, until - now))
        now = max(until, now + 0.25)
    assert pauses == [(30, 1), (32, 2), (36, 4), (44, 8), (60, 16), (92, 32)]
    assert not suspects.paused_until(False, now)  # it has run, or another child has it
    assert not suspects.paused_until(True, now)
    assert not suspects.paused_until(True, now + 29)
    assert suspects.paused_until(True, now + 30) == now + 31
