"""Unique keys in Redis: which job has a key, what a duplicate does, and how a key is freed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue.broker.policies import UniqueQueries
from django_redisqueue.broker.queries import Queries
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.policies import UniqueKey
from django_redisqueue.exceptions import RedisQueueError

from ..support.commands import Script
from ..support.servers import RedisServer
from .gathers import Query
from .harness import ERROR, PAYLOAD, T0, BrokerHarness, invariants, outcome
from .test_step import store
from .workflows import BrokerWorkflow

HOUR = 3_600_000
MODES = {
    "until_started": "until_started - -",
    "until_finished": "until_finished - -",
    "for": f"for {HOUR} -",
    "replace": "replace 10000 60000",
    "keep_last": "keep_last - -",
    "once": f"once {HOUR} body",
}
NEWER = '[["newer"],{}]'


def spec(mode: str, key: str = "k") -> str:
    return f"{key} {MODES[mode]}"


def put(broker: BrokerHarness, name: str, mode: str, *, key: str = "k", **options: Any) -> str:
    """Enqueue a job with a key; returns the id of the job that has it afterwards."""
    if mode == "replace":
        options.setdefault("when", "+10000")
    options.setdefault("payload", f'[["{name}"],{{}}]')
    job = NewJob(
        name, options.pop("queue", "default"), "app.task", unique=spec(mode, key), **options
    )
    (is_new,) = broker.store.enqueue([job])
    assert not (is_new and job.owner)
    checked(broker)
    return job.owner or name


def checked(broker: BrokerHarness) -> None:
    """A key's job exists and has not ended, or the key lasts for its own time."""
    dump = invariants(broker, tokens=False)
    prefix = f"{broker.keys.base}unique:"
    keys = {key.removeprefix(prefix): dump[key][1] for key in dump if key.startswith(prefix)}
    listed = {key for key, _ in dump.get(broker.keys.uniques, ["zset", []])[1]}
    lasting = {key for key, _ in dump.get(broker.keys.unique_lifetimes, ["zset", []])[1]}
    assert listed == keys.keys()
    for key, value in keys.items():
        if key not in lasting:
            job = broker.job(value)
            assert job["status"] not in ("completed", "failed", "cancelled")
            assert f"{key} " in job["unique"]


def owner(broker: BrokerHarness, key: str = "k") -> str:
    found = UniqueQueries(broker.connection).find(key)
    return found.job_id if found else ""


def start(broker: BrokerHarness, name: str) -> Any:
    broker.advance(10_000)
    broker.store.promote([])
    job = broker.take()
    assert job.id == name
    return job


@pytest.mark.parametrize("mode", MODES)
def test_a_second_job_with_the_key_is_the_first(broker: BrokerHarness, mode: str) -> None:
    assert put(broker, "a", mode) == "a"
    assert put(broker, "b", mode) == "a"
    assert put(broker, "c", mode, key="other") == "c"
    assert broker.status("b") is None
    assert broker.meta()["deduplicated_total"] == 1
    assert broker.meta()["enqueued_total"] == 2
    assert Queries(broker.connection).job("b").id == "a"
    assert broker.events("b") == []


@pytest.mark.parametrize("mode", MODES)
def test_resending_a_call_has_no_further_effect(broker: BrokerHarness, mode: str) -> None:
    """Even if the first job has ended in between."""
    put(broker, "a", mode)
    assert put(broker, "a", mode) == "a"
    assert put(broker, "b", mode) == "a"
    assert put(broker, "b", mode) == "a"
    broker.finish(outcome(start(broker, "a"), "completed", "1"))
    assert put(broker, "b", mode) == "a"
    assert broker.ids("queued") == broker.ids("scheduled") == []


PRODUCER = """
import os
from redis import Redis
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.core.job_data import NewJob

store = Commands(producer_connection())
redis = Redis.from_url(os.environ["REDISQUEUE_TEST_URL"])
redis.rpush("ready", 1)
redis.blpop(["go"])
for n in range(250):
    new = NewJob(f"%s{n}", "default", "t", "[[],{}]", unique="k %s")
    is_new = store.enqueue([new])[0]
    print(new.id if is_new else new.owner, int(is_new))
"""


def test_a_thousand_producers_race_for_one_key(
    broker: BrokerHarness, redis_server: RedisServer
) -> None:
    """In four processes, which start together."""
    where = {
        "REDISQUEUE_TEST_URL": redis_server.url,
        "REDISQUEUE_TEST_SETTINGS": json.dumps({"PREFIX": broker.store.settings.prefix}),
    }
    mode = MODES["until_finished"]
    racers = [Script(PRODUCER % (name, mode), **where) for name in "abcd"]
    for _ in racers:
        assert broker.redis.blpop(["ready"], 60), [racer.output for racer in racers]
    broker.redis.rpush("go", *"abcd")
    assert [racer.wait() for racer in racers] == [0] * 4, [racer.output for racer in racers]
    answers = [line.split() for racer in racers for line in racer.output.splitlines()]
    assert len(answers) == 1000
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(int(is_new) for _, is_new in answers) == 1
    assert len(broker.ids("queued")) == 1
    assert broker.meta()["deduplicated_total"] == 999


@pytest.mark.parametrize("mode", MODES)
def test_every_decision_is_one_script(broker: BrokerHarness, mode: str) -> None:
    """So a producer that is killed leaves all of it or nothing: there are not two steps."""
    [before] = broker.calls("evalsha")
    put(broker, "a", mode)
    put(broker, "b", mode)
    start(broker, "a")
    assert broker.calls("evalsha") == [before + 4]  # two of enqueue, promote and claim


@pytest.mark.parametrize("mode", MODES)
def test_duplicates_inside_one_call(broker: BrokerHarness, mode: str) -> None:
    jobs = [NewJob(f"j{n}", "default", "t", PAYLOAD, unique=spec(mode)) for n in range(100)]
    assert broker.store.enqueue(jobs) == [True] + [False] * 99
    assert {job.owner for job in jobs[1:]} == {"j0"}
    assert broker.meta()["deduplicated_total"] == 99
    checked(broker)


def test_until_started_ends_with_the_start(broker: BrokerHarness) -> None:
    put(broker, "a", "until_started")
    job = start(broker, "a")
    assert owner(broker) == ""
    assert put(broker, "b", "until_started") == "b"
    broker.finish(outcome(job, "retrying", ERROR))
    assert put(broker, "c", "until_started") == "b"
    broker.finish(outcome(broker.take(), "completed", "1"))
    assert owner(broker) == ""


def test_until_started_outlives_a_claim_that_started_nothing(broker: BrokerHarness) -> None:
    put(broker, "a", "until_started")
    job = start(broker, "a")
    broker.store.release("c1", [(job.id, job.lease)])
    assert put(broker, "b", "until_started") == "a"


@pytest.mark.parametrize("kind", ["retrying", "delayed", "queued"])
@pytest.mark.parametrize("mode", ["until_finished", "keep_last"])
def test_a_returning_job_keeps_its_key(broker: BrokerHarness, mode: str, kind: str) -> None:
    put(broker, "a", mode)
    broker.finish(outcome(start(broker, "a"), kind, ERROR))
    assert put(broker, "b", mode) == "a"
    assert owner(broker) == "a"


# -- how a key is freed


def complete(broker: BrokerHarness) -> None:
    broker.finish(outcome(start(broker, "a"), "completed", "1"))


def fail(broker: BrokerHarness) -> None:
    broker.finish(outcome(start(broker, "a"), "failed", ERROR))


def stop(broker: BrokerHarness) -> None:
    broker.finish(outcome(start(broker, "a"), "cancelled", ""))


def cancel(broker: BrokerHarness) -> None:
    assert broker.store.cancel(["a"]) == [1]


def cancel_while_it_runs_and_is_reaped(broker: BrokerHarness) -> None:
    start(broker, "a")
    broker.store.cancel(["a"])
    broker.store.reap("c1")


def poison(broker: BrokerHarness) -> None:
    start(broker, "a")
    for _ in range(3):
        broker.store.reap("c1", ["a"])
        broker.claim()
    assert broker.job("a")["reason"] == "poison"


def clear(broker: BrokerHarness) -> None:
    for status in ("scheduled", "queued"):
        broker.store.clear("default", status)
    assert broker.status("a") == "cancelled"


def clear_finished(broker: BrokerHarness) -> None:
    complete(broker)
    broker.store.clear("default", "completed")


def delete(broker: BrokerHarness) -> None:
    fail(broker)
    broker.advance(20_000)
    assert broker.store.delete(["a"]) == [1]


def prune(broker: BrokerHarness) -> None:
    complete(broker)
    broker.advance(20_000)
    broker.store.trim(broker.redis.xrevrange(broker.keys.events, count=1)[0][0], 0)
    assert broker.store.prune("default", "completed", 0, 0)[0] == 1


def lose(broker: BrokerHarness) -> None:
    broker.redis.delete(broker.keys.job("a"))


def lose_while_it_runs(broker: BrokerHarness) -> None:
    start(broker, "a")
    lose(broker)


def release(broker: BrokerHarness) -> None:
    assert broker.store.release_unique("k") == "a"


ENDS: list[Callable[[BrokerHarness], None]] = [
    complete, fail, stop, cancel, cancel_while_it_runs_and_is_reaped, poison, clear,
    clear_finished, delete, prune, lose, lose_while_it_runs, release,
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mode", ["until_started", "until_finished", "replace", "keep_last"])
def test_no_key_outlives_its_job(
    broker: BrokerHarness, mode: str, end: Callable[[BrokerHarness], None]
) -> None:
    put(broker, "a", mode)
    end(broker)
    if end not in (lose, lose_while_it_runs):
        assert not broker.redis.exists(broker.keys.unique("k"))
        assert not broker.redis.exists(broker.keys.uniques)
    new = NewJob("b", "default", "app.task", PAYLOAD, unique=spec(mode))
    assert broker.store.enqueue([new]) == [True]
    assert owner(broker) == "b"


def test_the_end_of_its_workflow_frees_the_key(broker: BrokerHarness) -> None:
    """The job is cancelled or cleaned up with the workflow, or skipped because of its parent."""
    for end in ("cancel", "clean"):
        workflow = BrokerWorkflow(broker, {0: [], 1: [0]}, name=end)
        workflow.jobs[1] = workflow.jobs[1]._replace(unique=spec("until_finished"))
        workflow.push()
        assert owner(broker) == workflow.job(1)
        if end == "clean":
            workflow.run_one("failed")
        broker.store.control_workflow(workflow.id, end)
        workflow.advance()
        checked(broker)
        assert owner(broker) == ""
    broker.add("parent")
    put(broker, "a", "until_finished", after="skip parent")
    broker.finish(outcome(broker.take(), "failed", ERROR))
    assert (broker.status("a"), owner(broker)) == ("cancelled", "")


@pytest.mark.parametrize("end", [complete, fail, poison, delete, prune, clear_finished])
def test_a_lasting_key_outlives_its_job(
    broker: BrokerHarness, end: Callable[[BrokerHarness], None]
) -> None:
    put(broker, "a", "for")
    end(broker)
    assert put(broker, "b", "for") == "a"
    broker.store.now_ms = T0 + HOUR - 1
    assert put(broker, "c", "for") == "a"
    broker.advance(1)
    assert put(broker, "d", "for") == "d"


@pytest.mark.parametrize("end", [cancel, stop, clear])
def test_a_cancelled_job_frees_a_lasting_key(
    broker: BrokerHarness, end: Callable[[BrokerHarness], None]
) -> None:
    put(broker, "a", "for")
    end(broker)
    assert put(broker, "b", "for") == "b"


def test_lasting_keys_do_not_accumulate(broker: BrokerHarness) -> None:
    for n in range(10):
        put(broker, f"j{n}", "for", key=f"k{n}")
    broker.advance(HOUR)
    for n in range(5):
        put(broker, f"l{n}", "for", key=f"l{n}")
    assert broker.redis.zcard(broker.keys.uniques) == 5
    assert 0 < broker.redis.pttl(broker.keys.unique("l0")) <= HOUR


def test_the_end_of_an_older_owner_does_not_free_the_key(broker: BrokerHarness) -> None:
    put(broker, "a", "until_started")
    job = start(broker, "a")
    put(broker, "b", "until_started")
    broker.finish(outcome(job, "completed", "1"))
    assert owner(broker) == "b"


# -- newer arguments


def test_replace_waits_for_quiet_but_not_forever(broker: BrokerHarness) -> None:
    put(broker, "a", "replace")
    for n in range(1, 9):
        broker.advance(9_000)
        assert put(broker, f"b{n}", "replace") == "a"
        due = min(broker.now + 10_000, T0 + 60_000)
        if due > broker.now:
            assert broker.job("a")["due_ms"] == str(due)
            assert broker.redis.zscore(broker.keys.queue("default").scheduled, "a") == due
    assert broker.status("a") == "queued"
    job = broker.take()
    assert (job.id, job.payload) == ("a", '[["b8"],{}]')


def test_the_newer_arguments_are_an_event(broker: BrokerHarness) -> None:
    put(broker, "a", "replace")
    put(broker, "b", "replace", options='{"tags":{"x":"1"}}')
    told = broker.events("a")[-1]
    assert (told["status"], told["seq"], told["replaced"]) == ("scheduled", 2, True)
    assert told["options"] == {"tags": {"x": "1"}}
    assert broker.written("job")[-1].inline == {"args": '[["b"],{}]'}
    assert broker.job("a")["options"] == '{"tags":{"x":"1"}}'


def test_newer_arguments_bring_their_own_limits(broker: BrokerHarness) -> None:
    """This applies to a job that is not in its queue yet; a queued job stays in its lane."""
    put(broker, "a", "replace", lane="s|c:x: c:x=1")
    put(broker, "b", "replace", lane="s|c:y: c:y=1")
    assert broker.job("a")["lane"] == "s|c:y: c:y=1"
    broker.advance(10_000)
    broker.store.promote([])
    put(broker, "c", "replace", lane="s|c:z: c:z=1")
    assert broker.job("a")["lane"] == "s|c:y: c:y=1"
    assert broker.take().id == "a"


@pytest.mark.parametrize("mode", ["replace", "keep_last"])
@pytest.mark.parametrize("priority", [0, 5])
def test_a_job_in_its_queue_keeps_its_place(
    broker: BrokerHarness, mode: str, priority: int
) -> None:
    put(broker, "a", mode, priority=priority, when="")
    put(broker, "b", mode, priority=priority, when="")
    job = broker.take()
    assert (job.id, job.payload) == ("a", '[["b"],{}]')


def test_replace_while_it_runs_creates_a_successor(broker: BrokerHarness) -> None:
    put(broker, "a", "replace")
    job = start(broker, "a")
    assert put(broker, "b", "replace") == "b"
    assert owner(broker) == "b"
    assert put(broker, "c", "replace") == "b"
    broker.finish(outcome(job, "completed", "1"))
    assert owner(broker) == "b"
    assert start(broker, "b").payload == '[["c"],{}]'


@pytest.mark.parametrize("kind", ["retrying", "delayed", "queued"])
def test_a_job_with_a_successor_does_not_run_after_it(broker: BrokerHarness, kind: str) -> None:
    put(broker, "a", "replace")
    job = start(broker, "a")
    put(broker, "b", "replace")
    assert broker.finish(outcome(job, kind, ERROR)) == [3]
    assert (broker.status("a"), broker.job("a")["reason"]) == ("cancelled", "superseded")
    assert owner(broker) == "b"
    checked(broker)


def test_a_crash_does_not_restore_older_arguments(broker: BrokerHarness) -> None:
    put(broker, "a", "replace")
    start(broker, "a")
    put(broker, "b", "replace")
    broker.store.reap("c1", ["a"])
    assert (broker.status("a"), broker.job("a")["reason"]) == ("cancelled", "superseded")
    checked(broker)


@pytest.mark.parametrize("how", ["retrying", "queued", "crash"])
def test_older_arguments_do_not_return_after_the_successor_has_run(
    broker: BrokerHarness, how: str
) -> None:
    """It ran for a long time, or its worker was silent."""
    put(broker, "a", "replace")
    job = start(broker, "a")
    put(broker, "b", "replace")
    newer = start(broker, "b")
    put(broker, "c", "replace")
    broker.store.cancel(["c"])
    broker.finish(outcome(newer, "completed", "1"))
    if how == "crash":
        broker.store.reap("c1", ["a"])
    else:
        assert broker.finish(outcome(job, how, ERROR if how == "retrying" else "")) == [3]
    assert (broker.status("a"), broker.job("a")["reason"]) == ("cancelled", "superseded")
    checked(broker)


def test_a_job_requeued_by_hand_runs_like_any_other(broker: BrokerHarness) -> None:
    put(broker, "a", "replace")
    job = start(broker, "a")
    put(broker, "b", "replace")
    broker.finish(outcome(start(broker, "b"), "completed", "1"))
    broker.finish(outcome(job, "failed", ERROR))
    assert broker.store.requeue(["a"]) == [1]
    broker.finish(outcome(broker.take(), "retrying", ERROR))
    assert broker.status("a") == "retrying"


def test_without_a_successor_it_is_retried(broker: BrokerHarness) -> None:
    put(broker, "a", "replace")
    job = start(broker, "a")
    put(broker, "b", "replace")
    broker.store.cancel(["b"])
    broker.finish(outcome(job, "retrying", ERROR))
    assert broker.status("a") == "retrying"


def test_newer_arguments_for_a_failed_attempt_restart_the_job(broker: BrokerHarness) -> None:
    put(broker, "a", "replace")
    job = start(broker, "a")
    store(broker, job)
    broker.finish(outcome(job, "retrying", ERROR))
    assert put(broker, "b", "replace") == "a"
    found = broker.job("a")
    assert (found["status"], found["due_ms"]) == ("scheduled", str(broker.now + 10_000))
    assert not {"attempts", "error"} & found.keys()
    assert put(broker, "c", "replace", options='{"index":"task:app.task"}') == "a"
    assert start(broker, "a").attempts == 0


def test_keep_last_runs_one_and_keeps_one(broker: BrokerHarness) -> None:
    put(broker, "a", "keep_last")
    job = start(broker, "a")
    assert put(broker, "b", "keep_last") == "b"
    assert (broker.status("b"), owner(broker)) == ("waiting", "b")
    assert put(broker, "c", "keep_last") == "b"
    assert broker.taken() == []
    broker.finish(outcome(job, "retrying", ERROR))
    assert broker.status("b") == "waiting"
    broker.advance(1000)
    broker.store.promote([])
    broker.finish(outcome(broker.take(), "completed", "1"))
    assert (broker.status("b"), owner(broker)) == ("queued", "b")
    assert broker.take().payload == '[["c"],{}]'


@pytest.mark.parametrize("end", [fail, stop, poison, cancel_while_it_runs_and_is_reaped])
def test_keep_last_is_started_by_any_end(
    broker: BrokerHarness, end: Callable[[BrokerHarness], None]
) -> None:
    put(broker, "a", "keep_last")
    job = start(broker, "a")
    put(broker, "b", "keep_last")
    broker.store.release("c1", [(job.id, job.lease)])
    end(broker)
    checked(broker)
    assert broker.status("b") in ("queued", "processing")
    assert owner(broker) == "b"


def test_the_key_returns_to_the_running_job_when_the_last_is_cancelled(
    broker: BrokerHarness,
) -> None:
    put(broker, "a", "keep_last")
    job = start(broker, "a")
    put(broker, "b", "keep_last")
    broker.store.cancel(["b"])
    assert owner(broker) == "a"
    assert put(broker, "c", "keep_last") == "c"
    broker.finish(outcome(job, "completed", "1"))
    assert (broker.status("b"), broker.status("c")) == ("cancelled", "queued")


def test_the_last_does_not_wait_for_a_job_that_is_gone(broker: BrokerHarness) -> None:
    put(broker, "a", "keep_last")
    start(broker, "a")
    put(broker, "b", "keep_last")
    broker.redis.delete(broker.keys.job("a"))
    new = NewJob("c", "default", "app.task", NEWER, unique=spec("keep_last"))
    assert broker.store.enqueue([new]) == [False]
    job = broker.take("c2")
    assert (job.id, job.payload) == ("b", NEWER)


def test_bytes_of_finished_jobs(broker: BrokerHarness) -> None:
    """``invariants`` compares the sum; the key's text counts."""
    put(broker, "a", "until_finished", key="k" * 300)
    put(broker, "b", "until_finished", key="k")
    for job in broker.claim(jobs=2).jobs:
        broker.finish(outcome(job, "completed", "1"))
    invariants(broker)
    a, b = (int(broker.job(name)["bytes"]) for name in "ab")
    assert a - b >= 299


# -- verbs that must not decide about a key


def test_requeue_reacquires_the_key_if_it_is_free(broker: BrokerHarness) -> None:
    put(broker, "a", "until_finished")
    fail(broker)
    assert broker.store.requeue(["a"]) == [1]
    assert owner(broker) == "a"
    fail(broker)
    put(broker, "b", "until_finished")
    assert broker.store.requeue(["a"]) == [-4]
    assert broker.store.requeue_oldest("default", "failed", 10).done == 0
    assert UniqueQueries(broker.connection).conflict("a") == ("k", "b")
    checked(broker)


def test_promotion_and_retry_do_not_decide(broker: BrokerHarness) -> None:
    put(broker, "a", "until_started", when="+100")
    broker.store.release_unique("k")
    put(broker, "b", "until_started", when="+100")
    broker.advance(100)
    assert sorted(broker.taken(jobs=2)) == ["a", "b"]


# -- through workflows and gathers


def test_a_workflow_is_refused_before_anything_is_written(broker: BrokerHarness) -> None:
    put(broker, "a", "until_finished")
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [1]})
    workflow.jobs[1] = workflow.jobs[1]._replace(unique=spec("until_finished"))
    with broker.unchanged():
        assert workflow.push() == f"{workflow.job(1)} a k"
    complete(broker)
    assert (workflow.push(), workflow.push()) == (1, 0)
    assert put(broker, "b", "until_finished") == workflow.job(1)
    assert workflow.run_all() == [0, 1, 2]
    assert owner(broker) == ""


def test_the_callback_of_a_workflow_may_be_a_duplicate(broker: BrokerHarness) -> None:
    put(broker, "a", "keep_last")
    job = start(broker, "a")
    for name in "xy":
        workflow = BrokerWorkflow(
            broker, {0: []}, name=name, complete_task="app.task", complete_unique=spec("keep_last"),
            complete_payload=f'[["{name}"],{{}}]',
        )  # fmt: skip
        workflow.push()
        workflow.run_one()
        checked(broker)
    assert Queries(broker.connection).job("flow_y_0.complete0").id == "flow_x_0.complete0"
    assert broker.meta()["deduplicated_total"] == 1
    broker.finish(outcome(job, "completed", "1"))
    assert broker.take().payload == '[["y"],{}]'


def test_the_continuation_of_a_gather_may_be_a_duplicate(broker: BrokerHarness) -> None:
    put(broker, "a", "until_started", when="+1000")
    query = Query(broker, "a", unique=spec("until_started"))
    query.start()
    query.finish(query.take())
    assert Queries(broker.connection).job(query.job("then")).id == "a"
    checked(broker)
    broker.advance(10_000_000)
    for _ in broker.advancing():
        pass
    assert not broker.redis.exists(broker.keys.gather_plan(query.key))


# -- keys of HTTP requests


def test_another_body_with_the_same_key_is_refused(broker: BrokerHarness) -> None:
    put(broker, "a", "once")
    new = NewJob("b", "default", "t", PAYLOAD, unique=f"k once {HOUR} another")
    assert broker.store.enqueue([new]) == [False]
    assert (new.owner, new.differs) == ("a", True)


def test_two_keys_of_one_job(broker: BrokerHarness) -> None:
    """The request's key leads to the job that the task's key led to, even when that has ended."""
    put(broker, "a", "until_finished")
    both = f"{spec('once', 'request')} {spec('until_finished')}"
    new = NewJob("b", "default", "t", PAYLOAD, unique=both)
    assert broker.store.enqueue([new]) == [False]
    complete(broker)
    broker.advance(60_000)
    broker.redis.delete(broker.keys.job("b"))  # for a while only, its id leads to the other job
    again = NewJob("c", "default", "t", PAYLOAD, unique=both)
    assert broker.store.enqueue([again]) == [False]
    assert again.owner == "a"


# -- reading, invalid data


def test_a_page_of_keys(broker: BrokerHarness) -> None:
    queries = UniqueQueries(broker.connection)
    assert (queries.page(), queries.count(), queries.find("k0")) == ([], 0, None)
    put(broker, "a", "until_finished", key="k0")
    broker.advance(5)
    put(broker, "b", "once", key="k1")
    put(broker, "c", "keep_last", key="k2")
    lose(broker)
    broker.redis.zadd(broker.keys.unique_lifetimes, {"k1": 9e15})
    assert queries.page() == [
        UniqueKey("k0", "a", "", "", T0),
        UniqueKey("k1", "b", "queued", "app.task", T0 + 5, 9 * 10**15),
        UniqueKey("k2", "c", "queued", "app.task", T0 + 5),
    ]
    assert [found.key for found in queries.page(1, 1)] == ["k1"]
    assert queries.count() == 3


@pytest.mark.parametrize("name", ["unique", "uniques", "unique_lifetimes"])
def test_a_key_of_the_wrong_type_is_named_before_anything_is_written(
    broker: BrokerHarness, name: str
) -> None:
    key = broker.keys.unique("k") if name == "unique" else getattr(broker.keys, name)
    broker.redis.hset(key, "x", "1")
    with broker.unchanged():
        new = NewJob("a", "default", "t", PAYLOAD, unique=spec("until_finished"))
        with pytest.raises(RedisQueueError, match=re.escape(f"the key {key} holds a hash where a")):
            broker.store.enqueue([new])


@pytest.mark.parametrize("name", ["unique", "uniques", "unique_lifetimes"])
def test_a_key_of_the_wrong_type_does_not_stop_the_end_of_a_job(
    broker: BrokerHarness, name: str
) -> None:
    put(broker, "a", "for")
    put(broker, "b", "keep_last", key="k2")
    for key in (broker.keys.unique("k2"),) if name == "unique" else (getattr(broker.keys, name),):
        broker.redis.delete(key)
        broker.redis.hset(key, "x", "1")
    for job in broker.claim(jobs=2).jobs:
        assert broker.finish(outcome(job, "completed", "1")) == [1]


@pytest.mark.parametrize("mode", ["until_finished", "keep_last"])
def test_a_full_redis_frees_keys_and_releases_the_last(broker: BrokerHarness, mode: str) -> None:
    put(broker, "a", mode)
    job = broker.take()
    put(broker, "b", mode)
    with broker.full():
        assert broker.finish(outcome(job, "completed", "1")) == [1]
        with pytest.raises(RedisQueueError, match="maxmemory"):
            put(broker, "c", mode)
    assert owner(broker) == ("b" if mode == "keep_last" else "")
    checked(broker)
