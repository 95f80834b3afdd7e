"""Workers on two servers, one of which hangs: it accepts connections and answers nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, Timer
from typing import NamedTuple

import pytest

from django_redisqueue.broker import connection, wake
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.replies import Outcome, OutcomeKind
from django_redisqueue.broker.shards import AllShards, agree_on_shards
from django_redisqueue.broker.wake import WakeWait
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.worker.child import claims
from django_redisqueue.worker.child.claims import Claims, Reports
from django_redisqueue.worker.child.idle import IdleWait
from django_redisqueue.worker.child.in_flight import InFlight
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.interrupts import Interrupts
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer, redis_url
from tests.support.stopwatch import Stopwatch

from . import tasks
from .child.test_steps import Memory
from .harness import WorkerHarness
from .processes import eventually
from .test_shards import Shards, names

pytestmark = pytest.mark.one_server("there are two")
REQUEST = ClaimRequest("c1", ("default",))


def two_servers(harness: WorkerHarness, url: str) -> Shards:
    """Shards 0 and 2 are on the harness's server, 1 and 3 on the server at the other URL."""
    harness.configure(SHARDS=4, CONNECTION={"URL": [harness.server.url, url]}, LEASE=6, HEARTBEAT=2)
    return Shards(harness)


@contextmanager
def hangs(server: RedisServer) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


def test_a_worker_starts_while_a_server_hangs(
    harness: WorkerHarness, fresh_server: Callable[..., RedisServer]
) -> None:
    """It contacts that server once, and runs the other server's jobs."""
    other = fresh_server()
    shards = two_servers(harness, other.url)
    agree_on_shards(AllShards(worker_connection().at))
    theirs = {shard: shards.enqueue(shard, f"in{shard}") for shard in (1, 3)}
    with hangs(other):
        ours = {shard: shards.enqueue(shard, f"in{shard}") for shard in (0, 2)}
        worker = harness.worker("--processes", "2")
        eventually(lambda: len(harness.runs()) == 2, 15, why=harness.report)
        shards.until(ours)
    shards.until(theirs)
    worker.term()
    assert worker.wait() == 0, worker.output
    assert set(harness.runs().values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("is_busy", [True, False])
def test_jobs_of_the_other_server_continue(
    harness: WorkerHarness, fresh_server: Callable[..., RedisServer], is_busy: bool
) -> None:
    other = fresh_server()
    shards = two_servers(harness, other.url)
    harness.worker("--processes", "1").wait_until_up(2)
    shards.until({shard: shards.enqueue(shard, f"warm{shard}") for shard in range(4)})
    theirs = {1: shards.enqueue(1, *names(1, 50), task=tasks.run_then_sleep, more=(0.05,))}
    if is_busy:
        eventually(lambda: harness.runs()["s1n0"], why=harness.report)
    else:
        shards.until(theirs)
    with hangs(other):
        for n in range(10):
            shards.until({n % 2 * 2: shards.enqueue(n % 2 * 2, f"round{n}")})
    shards.until(theirs)
    assert set(harness.runs().values()) == {1}


class Child(NamedTuple):
    """The parts of a child's main loop, and the proxy in front of shards 1 and 3."""

    proxy: Proxy
    state: ChildState
    claims: Claims


@pytest.fixture
def child(
    harness: WorkerHarness, fresh_proxy: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Child]:
    monkeypatch.setattr(connection, "CHILD_TIMEOUT", 0.3)
    monkeypatch.setattr(claims, "HUNG", 0.2)
    other = harness.server
    proxy = fresh_proxy(other.address)
    two_servers(harness, redis_url(proxy.address))
    state = ChildState(0, 1)
    found = Claims(REQUEST, state, get_settings(), lambda: False)
    assert not found.claim(1).jobs
    yield Child(proxy, state, found)
    found.shards[0].commands.connection.close_all()


def test_claims_contact_a_hanging_server_once(child: Child) -> None:
    """Even if it has several shards, it is not contacted again until it has answered a
    heartbeat."""
    for shard in (1, 3):
        child.claims.go_to(shard)
        child.claims.claim(1)
    before = child.proxy.accepted
    child.proxy.black_hole()
    for _ in range(3):
        for shard in range(4):
            child.claims.go_to(shard)
            child.claims.claim(1)
    assert child.proxy.accepted == before
    assert sorted(child.claims.available()) == [0, 2]
    child.proxy.black_hole(False)
    child.state.note_shard(1, answers=True)
    child.claims.go_to(1)
    child.claims.claim(1)
    assert child.proxy.accepted == before + 1


def test_reports_contact_a_hanging_server_once(child: Child) -> None:
    reports = Reports(REQUEST, child.state, get_settings())
    outcomes = [
        Outcome(new_job_id(shard), 1, 1, OutcomeKind.COMPLETED, "null") for shard in range(4)
    ]
    assert reports.send(outcomes) == [True] * 4  # refused: Redis does not know these jobs
    # no call was sent again: claims after a resent call would cost more
    for one in child.claims.shards:
        assert not one.commands.connection.call("EXISTS", one.commands.keys.resent(REQUEST.child))
    before = child.proxy.accepted
    child.proxy.black_hole()
    for _ in range(3):
        assert reports.send(outcomes) == [True, False, True, False]
    assert child.proxy.accepted == before
    child.proxy.black_hole(False)
    for shard in (1, 3):
        child.state.note_shard(shard, answers=True)
    assert reports.send(outcomes) == [True] * 4


def test_a_child_that_stops_reports_to_the_other_servers_first(child: Child) -> None:
    """It waits for the hanging server until it is killed."""
    outcomes = [
        Outcome(new_job_id(shard), 1, 1, OutcomeKind.COMPLETED, "null") for shard in range(4)
    ]
    child.claims.note_silent(1)
    child.proxy.black_hole()
    child.claims.add(outcomes)
    flush = Thread(target=lambda: child.claims.flush(wait=True))
    flush.start()
    eventually(lambda: not child.claims.shards[2].outcomes)
    assert child.claims.unreported == 2
    child.proxy.black_hole(False)
    flush.join()
    assert child.claims.unreported == 0


def test_an_idle_child_tries_to_reach_a_hanging_server_once(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "CONNECT_TIMEOUT", 0.3)
    monkeypatch.setattr(wake, "HUNG", 0.1)
    commands = [one.commands for one in child.claims.shards]
    wait = WakeWait(commands, REQUEST.child, child.claims.note_silent)
    child.proxy.black_hole()
    assert wait.wait([(shard, "default") for shard in range(4)], 0.1) == []
    assert sorted(child.claims.available()) == [0, 2]
    wait.close()


def test_an_idle_child_notices_soon_that_a_server_is_back(child: Child) -> None:
    for shard in (1, 3):
        child.state.note_shard(shard, answers=False)
    in_flight = InFlight(child.state, lambda *_: True, lambda _: [], Memory())
    idle = IdleWait(child.claims, Interrupts(child.state), in_flight)
    timer = Timer(0.3, child.state.note_shard, [1], {"answers": True})
    timer.start()
    watch = Stopwatch()
    idle.wait(1)
    assert watch.seconds < 4
    timer.join()
    idle.close()


def test_a_child_that_starts_skips_a_hanging_server(child: Child) -> None:
    """Its home shard may be on that server."""
    for shard in (1, 3):
        child.state.note_shard(shard, answers=False)
    before = child.proxy.accepted
    for n in range(8):
        request = ClaimRequest(f"c{n}", ("default",))
        started = Claims(request, child.state, get_settings(), lambda: False)
        started.current.commands.connection.call("PING")
        assert not started.claim(1).jobs
        started.current.commands.connection.close_all()
    assert child.proxy.accepted == before


def test_the_next_child_of_a_slot_also_leaves_a_hanging_server_to_the_heartbeats(
    child: Child,
) -> None:
    child.claims.note_silent(1)
    child.state.reset()
    assert [child.state.answers(shard) for shard in range(4)] == [True, False, True, False]
    assert Commands(worker_connection(1)).connection.call("PING") == "PONG"
    child.state.note_shard(1, answers=True)
    assert child.state.answers(1)
