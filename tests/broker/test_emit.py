"""emit: the events of one call are one entry in the stream, which is capped by the number of
events."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.entries import parse_entry
from django_redisqueue.core.job_data import NewJob

from ..support.servers import RedisServer
from ..support.stream import entries
from .harness import BrokerHarness, long_id, outcome
from .workflows import BrokerWorkflow

CAP, STEP = 1000, 10
NODE = 100  # entries that Redis frees together, if they are small
ONE = '[["x"],{}]'
NUMBERS = count()


def stream(broker: BrokerHarness) -> list[tuple[int, int]]:
    """For each entry: the number of events written before it, and the number in it."""
    found = entries(broker.redis, broker.keys.events)
    assert all(parts[0] == ":n" for _, parts in found)
    return [(int(parts[1]), len(parse_entry(parts))) for _, parts in found]


def written(broker: BrokerHarness) -> int:
    return int(broker.redis.hget(broker.keys.meta, "events") or 0)


def test_the_events_of_a_call_are_one_entry_in_order(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", payload=ONE)
    jobs = broker.claim(jobs=2).jobs
    broker.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(job) for job in jobs], 1)
    assert stream(broker) == [(0, 3), (3, 2), (5, 3)]
    assert written(broker) == 8
    ((_, first), _, (_, last)) = entries(broker.redis, broker.keys.events)
    assert first[2::2] == [":alike", "a b c"]
    assert first[5::2] == [ONE]
    assert last[2::2] == [":alike", "a b", ":alike", "c"]
    assert [json.loads(last[at])["status"] for at in (3, 7)] == ["completed", "processing"]
    assert last[5::4] == ['"ok"', ""]


def test_the_event_of_a_workflow_is_between_those_of_its_jobs(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: (), 1: ()})
    assert workflow.push() == 1
    assert [event.field for event in broker.written()] == ["job", "job", "workflow"]
    assert [event.inline for event in broker.written("workflow")] == [{"name": ""}]
    assert stream(broker) == [(0, 3)]


def test_a_script_without_events_writes_no_entry(broker: BrokerHarness) -> None:
    assert broker.store.cancel(["never"]) == [-1]
    broker.add("quiet", audit="none")
    assert stream(broker) == []
    assert written(broker) == 0


def test_an_entry_has_at_most_100_events(broker: BrokerHarness) -> None:
    broker.add(*[f"j{n}" for n in range(100)])
    broker.add(*[f"k{n}" for n in range(100)])
    jobs = broker.claim(jobs=100).jobs
    broker.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(job) for job in jobs], 100)
    assert stream(broker) == [(100 * at, 100) for at in range(5)]


def test_an_entry_has_at_most_64_kb(broker: BrokerHarness) -> None:
    text = "x" * 1000
    broker.store.enqueue(
        [NewJob(f"j{n}", "default", "app.task", f'[["{n}{text}"],{{}}]') for n in range(100)]
    )
    (first, second) = [events for _, events in stream(broker)]
    assert first + second == 100
    sizes = [sum(map(len, parts)) for _, parts in entries(broker.redis, broker.keys.events)]
    assert 65_000 < sizes[0] < 70_000


def test_a_resent_call_adds_no_event(broker: BrokerHarness) -> None:
    claim_request = ClaimRequest("c1", ("default",))
    broker.add("a", "b")
    (job,) = broker.claim(jobs=1).jobs
    broker.store.finish(claim_request, 9, [outcome(job)], 1)
    before = broker.written()
    broker.add("a", "b")
    broker.store.finish(claim_request, 9, [outcome(job)], 1, resent=True)
    assert broker.written() == before
    assert written(broker) == len(before)


# -- the cap


def fill(broker: BrokerHarness, events: int, batch: int) -> None:
    """Write this many events."""
    for at in range(0, events, batch):
        broker.add(*[long_id(next(NUMBERS)) for _ in range(min(batch, events - at))])


@pytest.fixture
def capped(broker: BrokerHarness) -> BrokerHarness:
    broker.store.settings = replace(broker.store.settings, events_cap=CAP)
    return broker


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_the_cap_holds_in_events(capped: BrokerHarness, batch: int) -> None:
    for _ in range(5):
        fill(capped, 700, batch)
        length = len(capped.events())
        assert min(CAP, written(capped)) <= length < CAP + STEP + NODE + batch
        assert stream(capped)[0][0] == written(capped) - length
        trim_index = capped.redis.lrange(capped.keys.trim_index, 0, -1)
        assert len(trim_index) <= CAP / STEP + 2


def test_the_trim_index_names_entries_and_the_events_before_them(capped: BrokerHarness) -> None:
    fill(capped, 300, 7)
    known = {name: parts[1] for name, parts in entries(capped.redis, capped.keys.events)}
    trim_index = capped.redis.lrange(capped.keys.trim_index, 0, -1)
    assert len(trim_index) == 300 // STEP
    for item in trim_index:
        name, before = item.split()
        assert known[name] == before


def lose(what: str) -> Callable[[BrokerHarness], object]:
    return lambda broker: broker.redis.delete(getattr(broker.keys, what))


@pytest.mark.parametrize("what", ["meta", "trim_index", "events"])
@pytest.mark.parametrize("batch", [1, 100])
def test_the_stream_stays_bounded_whatever_is_deleted_by_hand(
    capped: BrokerHarness, what: str, batch: int
) -> None:
    fill(capped, 1500, batch)
    lose(what)(capped)
    most = 0
    for _ in range(12):
        fill(capped, 300, batch)
        most = max(most, len(capped.events()))
    assert most < 2 * CAP + STEP + NODE + 2 * batch
    assert CAP <= len(capped.events()) < CAP + STEP + NODE + batch
    assert capped.redis.llen(capped.keys.trim_index) <= CAP / STEP + 2


def test_a_lost_counter_resets_the_trim_index(capped: BrokerHarness) -> None:
    fill(capped, 1500, 100)
    capped.redis.delete(capped.keys.meta)
    fill(capped, 100, 100)
    assert written(capped) == 100
    (entry, _) = entries(capped.redis, capped.keys.events)[-1]
    assert capped.redis.lrange(capped.keys.trim_index, 0, -1) == [f"{entry} 0"]


def test_a_lowered_cap_is_reached_gradually(broker: BrokerHarness) -> None:
    broker.store.settings = replace(broker.store.settings, events_cap=100 * CAP)
    fill(broker, 5000, 10)
    assert len(broker.events()) == 5000
    broker.store.settings = replace(broker.store.settings, events_cap=CAP)
    fill(broker, 1200, 10)
    assert CAP <= len(broker.events()) < CAP + STEP + NODE + 1000  # an item from before


# -- law 1


@pytest.mark.parametrize("name", ["events", "meta", "trim_index"])
@pytest.mark.parametrize("act", ["add", "take", "progress", "cancel", "delete", "promote"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str, act: str
) -> None:
    broker.add("a", "b", "c")
    job = broker.take()
    acts: dict[str, Callable[[], object]] = {
        "add": lambda: broker.add("d", "e"),  # a single job does not write to the trim index
        "take": lambda: broker.claim(jobs=2),
        "progress": lambda: broker.store.progress("c1", job.id, job.lease, "{}"),
        "cancel": lambda: broker.store.cancel(["b"]),
        "delete": lambda: broker.store.delete(["b"]),
        "promote": lambda: broker.store.promote(["default"]),
    }
    with broker.refused_over(getattr(broker.keys, name)):
        acts[act]()


def test_a_user_without_the_right_to_publish_loses_no_job(
    broker: BrokerHarness, redis_server: RedisServer
) -> None:
    broker.redis.execute_command(
        "ACL SETUSER", "silent", "on", ">word", "~*", "+@all", "resetchannels"
    )
    silent = BrokerHarness(redis_server, redis_server.url.replace("://", "://silent:word@"))
    try:
        for name in "abc":  # the first job of a queue is created on the slow path
            assert silent.add(name) == [True]
        assert silent.add("d", "e") == [True, True]
        assert silent.store.watch("a") == "queued"
        jobs = silent.claim(jobs=5).jobs
        assert silent.store.cancel([jobs[-1].id]) == [2]
        assert silent.finish(*map(outcome, jobs)) == [1] * 5
        assert broker.ids("completed") == [job.id for job in reversed(jobs)]
    finally:
        silent.close()
        broker.redis.acl_deluser("silent")


def test_every_event_is_published_if_anyone_listens(broker: BrokerHarness) -> None:
    with broker.redis.pubsub() as pubsub:
        pubsub.subscribe(broker.keys.status_channel)
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        broker.add("a", "b", priority=1)
        broker.store.cancel(["a", "b"])
        found = [json.loads(pubsub.get_message(timeout=5)["data"]) for _ in range(4)]
    told = [(event["jobId"], event["status"]) for event in found]
    assert told == [("a", "queued"), ("b", "queued"), ("a", "cancelled"), ("b", "cancelled")]


def test_a_script_notices_once_that_nobody_listens(broker: BrokerHarness) -> None:
    broker.redis.config_resetstat()
    broker.add(*map(str, range(50)), priority=1)
    assert broker.calls("publish") == [1]
