"""emit: the events of one call are one entry in the stream, which is capped by the number of
events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.entries import parse_entry
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import WrongKeyType

from ..support.servers import RedisServer
from ..support.stream import entries
from .lab import Lab, long_id, outcome
from .workflows import LabWorkflow

CAP, STEP = 1000, 10
NODE = 100  # entries that Redis frees together, if they are small
ONE = '[["x"],{}]'
NUMBERS = count()


def stream(lab: Lab) -> list[tuple[int, int]]:
    """For each entry: the number of events written before it, and the number in it."""
    found = entries(lab.redis, lab.keys.events)
    assert all(parts[0] == ":n" for _, parts in found)
    return [(int(parts[1]), len(parse_entry(parts))) for _, parts in found]


def written(lab: Lab) -> int:
    return int(lab.redis.hget(lab.keys.meta, "events") or 0)


def test_the_events_of_a_call_are_one_entry_in_order(lab: Lab) -> None:
    lab.add("a", "b", "c", payload=ONE)
    jobs = lab.claim(jobs=2).jobs
    lab.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(job) for job in jobs], 1)
    assert stream(lab) == [(0, 3), (3, 2), (5, 3)]
    assert written(lab) == 8
    ((_, first), _, (_, last)) = entries(lab.redis, lab.keys.events)
    assert first[2::2] == [":alike", "a b c"]
    assert first[5::2] == [ONE]
    assert last[2::2] == [":alike", "a b", ":alike", "c"]
    assert [json.loads(last[at])["status"] for at in (3, 7)] == ["completed", "processing"]
    assert last[5::4] == ['"ok"', ""]


def test_the_event_of_a_workflow_is_between_those_of_its_jobs(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: (), 1: ()})
    assert workflow.push() == 1
    assert [event.field for event in lab.written()] == ["job", "job", "workflow"]
    assert [event.beside for event in lab.written("workflow")] == [{"name": ""}]
    assert stream(lab) == [(0, 3)]


def test_a_script_without_events_writes_no_entry(lab: Lab) -> None:
    assert lab.store.cancel(["never"]) == [-1]
    lab.add("quiet", audit="none")
    assert stream(lab) == []
    assert written(lab) == 0


def test_an_entry_has_at_most_100_events(lab: Lab) -> None:
    lab.add(*[f"j{n}" for n in range(100)])
    lab.add(*[f"k{n}" for n in range(100)])
    jobs = lab.claim(jobs=100).jobs
    lab.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(job) for job in jobs], 100)
    assert stream(lab) == [(100 * at, 100) for at in range(5)]


def test_an_entry_has_at_most_64_kb(lab: Lab) -> None:
    text = "x" * 1000
    lab.store.enqueue(
        [NewJob(f"j{n}", "default", "app.task", f'[["{n}{text}"],{{}}]') for n in range(100)]
    )
    (first, second) = [events for _, events in stream(lab)]
    assert first + second == 100
    sizes = [sum(map(len, parts)) for _, parts in entries(lab.redis, lab.keys.events)]
    assert 65_000 < sizes[0] < 70_000


def test_a_resent_call_adds_no_event(lab: Lab) -> None:
    claim_request = ClaimRequest("c1", ("default",))
    lab.add("a", "b")
    (job,) = lab.claim(jobs=1).jobs
    lab.store.finish(claim_request, 9, [outcome(job)], 1)
    before = lab.written()
    lab.add("a", "b")
    lab.store.finish(claim_request, 9, [outcome(job)], 1, resent=True)
    assert lab.written() == before
    assert written(lab) == len(before)


# -- the cap


def fill(lab: Lab, events: int, batch: int) -> None:
    """Write this many events."""
    for at in range(0, events, batch):
        lab.add(*[long_id(next(NUMBERS)) for _ in range(min(batch, events - at))])


@pytest.fixture
def capped(lab: Lab) -> Lab:
    lab.store.settings = replace(lab.store.settings, events_cap=CAP)
    return lab


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_the_cap_holds_in_events(capped: Lab, batch: int) -> None:
    for _ in range(5):
        fill(capped, 700, batch)
        length = len(capped.events())
        assert min(CAP, written(capped)) <= length < CAP + STEP + NODE + batch
        assert stream(capped)[0][0] == written(capped) - length
        trim_index = capped.redis.lrange(capped.keys.trim_index, 0, -1)
        assert len(trim_index) <= CAP / STEP + 2


def test_the_trim_index_names_entries_and_the_events_before_them(capped: Lab) -> None:
    fill(capped, 300, 7)
    known = {name: parts[1] for name, parts in entries(capped.redis, capped.keys.events)}
    trim_index = capped.redis.lrange(capped.keys.trim_index, 0, -1)
    assert len(trim_index) == 300 // STEP
    for item in trim_index:
        name, before = item.split()
        assert known[name] == before


def lose(what: str) -> Callable[[Lab], object]:
    return lambda lab: lab.redis.delete(getattr(lab.keys, what))


@pytest.mark.parametrize("what", ["meta", "trim_index", "events"])
@pytest.mark.parametrize("batch", [1, 100])
def test_the_stream_stays_bounded_whatever_is_deleted_by_hand(
    capped: Lab, what: str, batch: int
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


def test_a_lost_counter_resets_the_trim_index(capped: Lab) -> None:
    fill(capped, 1500, 100)
    capped.redis.delete(capped.keys.meta)
    fill(capped, 100, 100)
    assert written(capped) == 100
    (entry, _) = entries(capped.redis, capped.keys.events)[-1]
    assert capped.redis.lrange(capped.keys.trim_index, 0, -1) == [f"{entry} 0"]


def test_a_lowered_cap_is_reached_gradually(lab: Lab) -> None:
    lab.store.settings = replace(lab.store.settings, events_cap=100 * CAP)
    fill(lab, 5000, 10)
    assert len(lab.events()) == 5000
    lab.store.settings = replace(lab.store.settings, events_cap=CAP)
    fill(lab, 1200, 10)
    assert CAP <= len(lab.events()) < CAP + STEP + NODE + 1000  # an item from before


# -- law 1


@pytest.mark.parametrize("name", ["events", "meta", "trim_index"])
@pytest.mark.parametrize("act", ["add", "take", "progress", "cancel", "delete", "promote"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    lab: Lab, name: str, act: str
) -> None:
    lab.add("a", "b", "c")
    job = lab.take()
    key = getattr(lab.keys, name)
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    acts: dict[str, Callable[[], object]] = {
        "add": lambda: lab.add("d", "e"),  # a single job does not write to the trim index
        "take": lambda: lab.claim(jobs=2),
        "progress": lambda: lab.store.progress("c1", job.id, job.lease, "{}"),
        "cancel": lambda: lab.store.cancel(["b"]),
        "delete": lambda: lab.store.delete(["b"]),
        "promote": lambda: lab.store.promote(["default"]),
    }
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        acts[act]()
    assert lab.dump() == before


def test_a_user_without_the_right_to_publish_loses_no_job(
    lab: Lab, redis_server: RedisServer
) -> None:
    lab.redis.execute_command(
        "ACL SETUSER", "silent", "on", ">word", "~*", "+@all", "resetchannels"
    )
    silent = Lab(redis_server, redis_server.url.replace("://", "://silent:word@"))
    try:
        for name in "abc":  # the first job of a queue is created on the slow path
            assert silent.add(name) == [True]
        assert silent.add("d", "e") == [True, True]
        assert silent.store.watch("a") == "queued"
        jobs = silent.claim(jobs=5).jobs
        assert silent.store.cancel([jobs[-1].id]) == [2]
        assert silent.finish(*map(outcome, jobs)) == [1] * 5
        assert lab.ids("completed") == [job.id for job in reversed(jobs)]
    finally:
        silent.close()
        lab.redis.acl_deluser("silent")
