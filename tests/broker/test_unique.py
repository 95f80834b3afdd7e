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
from .lab import ERROR, PAYLOAD, T0, Lab, invariants, outcome
from .workflows import LabWorkflow

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


def put(lab: Lab, name: str, mode: str, *, key: str = "k", **options: Any) -> str:
    """Enqueue a job with a key; returns the id of the job that has it afterwards."""
    if mode == "replace":
        options.setdefault("when", "+10000")
    options.setdefault("payload", f'[["{name}"],{{}}]')
    job = NewJob(
        name, options.pop("queue", "default"), "app.task", unique=spec(mode, key), **options
    )
    (is_new,) = lab.store.enqueue([job])
    assert not (is_new and job.owner)
    checked(lab)
    return job.owner or name


def checked(lab: Lab) -> None:
    """A key's job exists and has not ended, or the key lasts for its own time."""
    dump = invariants(lab, tokens=False)
    prefix = f"{lab.keys.base}unique:"
    keys = {key.removeprefix(prefix): dump[key][1] for key in dump if key.startswith(prefix)}
    listed = {key for key, _ in dump.get(lab.keys.uniques, ["zset", []])[1]}
    lasting = {key for key, _ in dump.get(lab.keys.unique_lifetimes, ["zset", []])[1]}
    assert listed == keys.keys()
    for key, value in keys.items():
        if key not in lasting:
            job = lab.job(value)
            assert job["status"] not in ("completed", "failed", "cancelled")
            assert f"{key} " in job["unique"]


def owner(lab: Lab, key: str = "k") -> str:
    found = UniqueQueries(lab.connection).find(key)
    return found.job_id if found else ""


def start(lab: Lab, name: str) -> Any:
    lab.advance(10_000)
    lab.store.promote([])
    job = lab.take()
    assert job.id == name
    return job


@pytest.mark.parametrize("mode", MODES)
def test_a_second_job_with_the_key_is_the_first(lab: Lab, mode: str) -> None:
    assert put(lab, "a", mode) == "a"
    assert put(lab, "b", mode) == "a"
    assert put(lab, "c", mode, key="other") == "c"
    assert lab.status("b") is None
    assert lab.meta()["deduplicated_total"] == 1
    assert lab.meta()["enqueued_total"] == 2
    assert Queries(lab.connection).job("b").id == "a"
    assert lab.events("b") == []


@pytest.mark.parametrize("mode", MODES)
def test_resending_a_call_has_no_further_effect(lab: Lab, mode: str) -> None:
    """Even if the first job has ended in between."""
    put(lab, "a", mode)
    assert put(lab, "a", mode) == "a"
    assert put(lab, "b", mode) == "a"
    assert put(lab, "b", mode) == "a"
    lab.finish(outcome(start(lab, "a"), "completed", "1"))
    assert put(lab, "b", mode) == "a"
    assert lab.ids("queued") == lab.ids("scheduled") == []


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


def test_a_thousand_producers_race_for_one_key(lab: Lab, redis_server: RedisServer) -> None:
    """In four processes, which start together."""
    where = {
        "REDISQUEUE_TEST_URL": redis_server.url,
        "REDISQUEUE_TEST_SETTINGS": json.dumps({"PREFIX": lab.store.settings.prefix}),
    }
    mode = MODES["until_finished"]
    racers = [Script(PRODUCER % (name, mode), **where) for name in "abcd"]
    for _ in racers:
        assert lab.redis.blpop(["ready"], 60), [racer.output for racer in racers]
    lab.redis.rpush("go", *"abcd")
    assert [racer.wait() for racer in racers] == [0] * 4, [racer.output for racer in racers]
    answers = [line.split() for racer in racers for line in racer.output.splitlines()]
    assert len(answers) == 1000
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(int(is_new) for _, is_new in answers) == 1
    assert len(lab.ids("queued")) == 1
    assert lab.meta()["deduplicated_total"] == 999


@pytest.mark.parametrize("mode", MODES)
def test_every_decision_is_one_script(lab: Lab, mode: str) -> None:
    """So a producer that is killed leaves all of it or nothing: there are not two steps."""
    before = lab.redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    put(lab, "a", mode)
    put(lab, "b", mode)
    start(lab, "a")
    calls = lab.redis.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert calls == 4  # two of enqueue, promote and claim


@pytest.mark.parametrize("mode", MODES)
def test_duplicates_inside_one_call(lab: Lab, mode: str) -> None:
    jobs = [NewJob(f"j{n}", "default", "t", PAYLOAD, unique=spec(mode)) for n in range(100)]
    assert lab.store.enqueue(jobs) == [True] + [False] * 99
    assert {job.owner for job in jobs[1:]} == {"j0"}
    assert lab.meta()["deduplicated_total"] == 99
    checked(lab)


def test_until_started_ends_with_the_start(lab: Lab) -> None:
    put(lab, "a", "until_started")
    job = start(lab, "a")
    assert put(lab, "b", "until_started") == "b"
    lab.finish(outcome(job, "retrying", ERROR))
    assert put(lab, "c", "until_started") == "b"
    lab.finish(outcome(lab.take(), "completed", "1"))
    assert owner(lab) == ""


def test_until_started_outlives_a_claim_that_started_nothing(lab: Lab) -> None:
    put(lab, "a", "until_started")
    job = start(lab, "a")
    lab.store.release("c1", [(job.id, job.lease)])
    assert put(lab, "b", "until_started") == "a"


@pytest.mark.parametrize("verdict", ["retrying", "delayed", "queued"])
@pytest.mark.parametrize("mode", ["until_finished", "keep_last"])
def test_a_returning_job_keeps_its_key(lab: Lab, mode: str, verdict: str) -> None:
    put(lab, "a", mode)
    lab.finish(outcome(start(lab, "a"), verdict, ERROR))
    assert put(lab, "b", mode) == "a"
    assert owner(lab) == "a"


# -- how a key is freed


def complete(lab: Lab) -> None:
    lab.finish(outcome(start(lab, "a"), "completed", "1"))


def fail(lab: Lab) -> None:
    lab.finish(outcome(start(lab, "a"), "failed", ERROR))


def stop(lab: Lab) -> None:
    lab.finish(outcome(start(lab, "a"), "cancelled", ""))


def cancel(lab: Lab) -> None:
    assert lab.store.cancel(["a"]) == [1]


def cancel_while_it_runs_and_is_reaped(lab: Lab) -> None:
    start(lab, "a")
    lab.store.cancel(["a"])
    lab.store.reap("c1")


def poison(lab: Lab) -> None:
    start(lab, "a")
    for _ in range(3):
        lab.store.reap("c1", ["a"])
        lab.claim()
    assert lab.job("a")["reason"] == "poison"


def clear(lab: Lab) -> None:
    for status in ("scheduled", "queued"):
        lab.store.clear("default", status)
    assert lab.status("a") == "cancelled"


def clear_finished(lab: Lab) -> None:
    complete(lab)
    lab.store.clear("default", "completed")


def delete(lab: Lab) -> None:
    fail(lab)
    lab.advance(20_000)
    assert lab.store.delete(["a"]) == [1]


def prune(lab: Lab) -> None:
    complete(lab)
    lab.advance(20_000)
    lab.store.trim(lab.redis.xrevrange(lab.keys.events, count=1)[0][0], 0)
    assert lab.store.prune("default", "completed", 0, 0)[0] == 1


def lose(lab: Lab) -> None:
    lab.redis.delete(lab.keys.job("a"))


def lose_while_it_runs(lab: Lab) -> None:
    start(lab, "a")
    lose(lab)


def release(lab: Lab) -> None:
    assert lab.store.release_unique("k") == "a"


ENDS: list[Callable[[Lab], None]] = [
    complete, fail, stop, cancel, cancel_while_it_runs_and_is_reaped, poison, clear,
    clear_finished, delete, prune, lose, lose_while_it_runs, release,
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mode", ["until_started", "until_finished", "replace", "keep_last"])
def test_no_key_outlives_its_job(lab: Lab, mode: str, end: Callable[[Lab], None]) -> None:
    put(lab, "a", mode)
    end(lab)
    if end not in (lose, lose_while_it_runs):
        assert not lab.redis.exists(lab.keys.unique("k"))
        assert not lab.redis.exists(lab.keys.uniques)
    new = NewJob("b", "default", "app.task", PAYLOAD, unique=spec(mode))
    assert lab.store.enqueue([new]) == [True]
    assert owner(lab) == "b"


def test_the_end_of_its_workflow_frees_the_key(lab: Lab) -> None:
    """The job is cancelled or cleaned up with the workflow, or skipped because of its parent."""
    for end in ("cancel", "clean"):
        workflow = LabWorkflow(lab, {0: [], 1: [0]}, name=end)
        workflow.jobs[1] = workflow.jobs[1]._replace(unique=spec("until_finished"))
        workflow.push()
        assert owner(lab) == workflow.job(1)
        if end == "clean":
            workflow.run_one("failed")
        lab.store.control_workflow(workflow.id, end)
        workflow.advance()
        checked(lab)
        assert owner(lab) == ""
    lab.add("parent")
    put(lab, "a", "until_finished", after="skip parent")
    lab.finish(outcome(lab.take(), "failed", ERROR))
    assert (lab.status("a"), owner(lab)) == ("cancelled", "")


@pytest.mark.parametrize("end", [complete, fail, poison, delete, prune, clear_finished])
def test_a_lasting_key_outlives_its_job(lab: Lab, end: Callable[[Lab], None]) -> None:
    put(lab, "a", "for")
    end(lab)
    assert put(lab, "b", "for") == "a"
    lab.store.now_ms = T0 + HOUR - 1
    assert put(lab, "c", "for") == "a"
    lab.advance(1)
    assert put(lab, "d", "for") == "d"


@pytest.mark.parametrize("end", [cancel, stop, clear])
def test_a_cancelled_job_frees_a_lasting_key(lab: Lab, end: Callable[[Lab], None]) -> None:
    put(lab, "a", "for")
    end(lab)
    assert put(lab, "b", "for") == "b"


def test_lasting_keys_do_not_accumulate(lab: Lab) -> None:
    for n in range(10):
        put(lab, f"j{n}", "for", key=f"k{n}")
    lab.advance(HOUR)
    for n in range(5):
        put(lab, f"l{n}", "for", key=f"l{n}")
    assert lab.redis.zcard(lab.keys.uniques) == 5
    assert 0 < lab.redis.pttl(lab.keys.unique("l0")) <= HOUR


def test_the_end_of_an_older_owner_does_not_free_the_key(lab: Lab) -> None:
    put(lab, "a", "until_started")
    job = start(lab, "a")
    put(lab, "b", "until_started")
    lab.finish(outcome(job, "completed", "1"))
    assert owner(lab) == "b"


# -- newer arguments


def test_replace_waits_for_quiet_but_not_forever(lab: Lab) -> None:
    put(lab, "a", "replace")
    for n in range(1, 9):
        lab.advance(9_000)
        assert put(lab, f"b{n}", "replace") == "a"
        due = min(lab.now + 10_000, T0 + 60_000)
        if due > lab.now:
            assert lab.job("a")["due_ms"] == str(due)
            assert lab.redis.zscore(lab.keys.queue("default").scheduled, "a") == due
    assert lab.status("a") == "queued"
    job = lab.take()
    assert (job.id, job.payload) == ("a", '[["b8"],{}]')


def test_the_newer_arguments_are_an_event(lab: Lab) -> None:
    put(lab, "a", "replace")
    put(lab, "b", "replace", options='{"tags":{"x":"1"}}')
    told = lab.events("a")[-1]
    assert (told["status"], told["seq"], told["replaced"]) == ("scheduled", 2, True)
    assert told["options"] == {"tags": {"x": "1"}}
    assert lab.written("job")[-1].beside == {"args": '[["b"],{}]'}
    assert lab.job("a")["options"] == '{"tags":{"x":"1"}}'


def test_newer_arguments_bring_their_own_limits(lab: Lab) -> None:
    """This applies to a job that is not in its queue yet; a queued job stays in its lane."""
    put(lab, "a", "replace", lane="s|c:x: c:x=1")
    put(lab, "b", "replace", lane="s|c:y: c:y=1")
    assert lab.job("a")["lane"] == "s|c:y: c:y=1"
    lab.advance(10_000)
    lab.store.promote([])
    put(lab, "c", "replace", lane="s|c:z: c:z=1")
    assert lab.job("a")["lane"] == "s|c:y: c:y=1"
    assert lab.take().id == "a"


@pytest.mark.parametrize("mode", ["replace", "keep_last"])
@pytest.mark.parametrize("priority", [0, 5])
def test_a_job_in_its_queue_keeps_its_place(lab: Lab, mode: str, priority: int) -> None:
    put(lab, "a", mode, priority=priority, when="")
    put(lab, "b", mode, priority=priority, when="")
    job = lab.take()
    assert (job.id, job.payload) == ("a", '[["b"],{}]')


def test_replace_while_it_runs_creates_a_successor(lab: Lab) -> None:
    put(lab, "a", "replace")
    job = start(lab, "a")
    assert put(lab, "b", "replace") == "b"
    assert owner(lab) == "b"
    assert put(lab, "c", "replace") == "b"
    lab.finish(outcome(job, "completed", "1"))
    assert owner(lab) == "b"
    assert start(lab, "b").payload == '[["c"],{}]'


@pytest.mark.parametrize("verdict", ["retrying", "delayed", "queued"])
def test_a_job_with_a_successor_does_not_run_after_it(lab: Lab, verdict: str) -> None:
    put(lab, "a", "replace")
    job = start(lab, "a")
    put(lab, "b", "replace")
    assert lab.finish(outcome(job, verdict, ERROR)) == [3]
    assert (lab.status("a"), lab.job("a")["reason"]) == ("cancelled", "superseded")
    assert owner(lab) == "b"
    checked(lab)


def test_a_crash_does_not_restore_older_arguments(lab: Lab) -> None:
    put(lab, "a", "replace")
    start(lab, "a")
    put(lab, "b", "replace")
    lab.store.reap("c1", ["a"])
    assert (lab.status("a"), lab.job("a")["reason"]) == ("cancelled", "superseded")
    checked(lab)


@pytest.mark.parametrize("how", ["retrying", "queued", "crash"])
def test_older_arguments_do_not_return_after_the_successor_has_run(lab: Lab, how: str) -> None:
    """It ran for a long time, or its worker was silent."""
    put(lab, "a", "replace")
    job = start(lab, "a")
    put(lab, "b", "replace")
    newer = start(lab, "b")
    put(lab, "c", "replace")
    lab.store.cancel(["c"])
    lab.finish(outcome(newer, "completed", "1"))
    if how == "crash":
        lab.store.reap("c1", ["a"])
    else:
        assert lab.finish(outcome(job, how, ERROR if how == "retrying" else "")) == [3]
    assert (lab.status("a"), lab.job("a")["reason"]) == ("cancelled", "superseded")
    checked(lab)


def test_a_job_requeued_by_hand_runs_like_any_other(lab: Lab) -> None:
    put(lab, "a", "replace")
    job = start(lab, "a")
    put(lab, "b", "replace")
    lab.finish(outcome(start(lab, "b"), "completed", "1"))
    lab.finish(outcome(job, "failed", ERROR))
    assert lab.store.requeue(["a"]) == [1]
    lab.finish(outcome(lab.take(), "retrying", ERROR))
    assert lab.status("a") == "retrying"


def test_without_a_successor_it_is_retried(lab: Lab) -> None:
    put(lab, "a", "replace")
    job = start(lab, "a")
    put(lab, "b", "replace")
    lab.store.cancel(["b"])
    lab.finish(outcome(job, "retrying", ERROR))
    assert lab.status("a") == "retrying"


def test_newer_arguments_for_a_failed_attempt_restart_the_job(lab: Lab) -> None:
    put(lab, "a", "replace")
    lab.finish(outcome(start(lab, "a"), "retrying", ERROR))
    assert put(lab, "b", "replace") == "a"
    found = lab.job("a")
    assert (found["status"], found["due_ms"]) == ("scheduled", str(lab.now + 10_000))
    assert not {"attempts", "error"} & found.keys()
    assert start(lab, "a").attempts == 0


def test_keep_last_runs_one_and_keeps_one(lab: Lab) -> None:
    put(lab, "a", "keep_last")
    job = start(lab, "a")
    assert put(lab, "b", "keep_last") == "b"
    assert (lab.status("b"), owner(lab)) == ("waiting", "b")
    assert put(lab, "c", "keep_last") == "b"
    assert lab.taken() == []
    lab.finish(outcome(job, "retrying", ERROR))
    assert lab.status("b") == "waiting"
    lab.advance(1000)
    lab.store.promote([])
    lab.finish(outcome(lab.take(), "completed", "1"))
    assert (lab.status("b"), owner(lab)) == ("queued", "b")
    assert lab.take().payload == '[["c"],{}]'


@pytest.mark.parametrize("end", [fail, stop, poison, cancel_while_it_runs_and_is_reaped])
def test_keep_last_is_started_by_any_end(lab: Lab, end: Callable[[Lab], None]) -> None:
    put(lab, "a", "keep_last")
    job = start(lab, "a")
    put(lab, "b", "keep_last")
    lab.store.release("c1", [(job.id, job.lease)])
    end(lab)
    checked(lab)
    assert lab.status("b") in ("queued", "processing")
    assert owner(lab) == "b"


def test_the_key_returns_to_the_running_job_when_the_last_is_cancelled(lab: Lab) -> None:
    put(lab, "a", "keep_last")
    job = start(lab, "a")
    put(lab, "b", "keep_last")
    lab.store.cancel(["b"])
    assert owner(lab) == "a"
    assert put(lab, "c", "keep_last") == "c"
    lab.finish(outcome(job, "completed", "1"))
    assert (lab.status("b"), lab.status("c")) == ("cancelled", "queued")


def test_the_last_does_not_wait_for_a_job_that_is_gone(lab: Lab) -> None:
    put(lab, "a", "keep_last")
    start(lab, "a")
    put(lab, "b", "keep_last")
    lab.redis.delete(lab.keys.job("a"))
    new = NewJob("c", "default", "app.task", NEWER, unique=spec("keep_last"))
    assert lab.store.enqueue([new]) == [False]
    job = lab.take("c2")
    assert (job.id, job.payload) == ("b", NEWER)


def test_bytes_of_finished_jobs(lab: Lab) -> None:
    """``invariants`` compares the sum; the key's text counts."""
    put(lab, "a", "until_finished", key="k" * 300)
    put(lab, "b", "until_finished", key="k")
    for job in lab.claim(jobs=2).jobs:
        lab.finish(outcome(job, "completed", "1"))
    invariants(lab)
    a, b = (int(lab.job(name)["bytes"]) for name in "ab")
    assert a - b >= 299


# -- verbs that must not decide about a key


def test_requeue_reacquires_the_key_if_it_is_free(lab: Lab) -> None:
    put(lab, "a", "until_finished")
    fail(lab)
    assert lab.store.requeue(["a"]) == [1]
    assert owner(lab) == "a"
    fail(lab)
    put(lab, "b", "until_finished")
    assert lab.store.requeue(["a"]) == [-4]
    assert lab.store.requeue_oldest("default", "failed", 10).done == 0
    assert UniqueQueries(lab.connection).conflict("a") == ("k", "b")
    checked(lab)


def test_promotion_and_retry_do_not_decide(lab: Lab) -> None:
    put(lab, "a", "until_started", when="+100")
    lab.store.release_unique("k")
    put(lab, "b", "until_started", when="+100")
    lab.advance(100)
    assert sorted(lab.taken(jobs=2)) == ["a", "b"]


# -- through workflows and gathers


def test_a_workflow_is_refused_before_anything_is_written(lab: Lab) -> None:
    put(lab, "a", "until_finished")
    workflow = LabWorkflow(lab, {0: [], 1: [0], 2: [1]})
    workflow.jobs[1] = workflow.jobs[1]._replace(unique=spec("until_finished"))
    before = lab.dump()
    assert workflow.push() == f"{workflow.job(1)} a k"
    assert lab.dump() == before
    complete(lab)
    assert (workflow.push(), workflow.push()) == (1, 0)
    assert put(lab, "b", "until_finished") == workflow.job(1)
    assert workflow.run_all() == [0, 1, 2]
    assert owner(lab) == ""


def test_the_callback_of_a_workflow_may_be_a_duplicate(lab: Lab) -> None:
    put(lab, "a", "keep_last")
    job = start(lab, "a")
    for name in "xy":
        workflow = LabWorkflow(
            lab, {0: []}, name=name, complete_task="app.task", complete_unique=spec("keep_last"),
            complete_payload=f'[["{name}"],{{}}]',
        )  # fmt: skip
        workflow.push()
        workflow.run_one()
        checked(lab)
    assert Queries(lab.connection).job("flow_y_0.complete0").id == "flow_x_0.complete0"
    assert lab.meta()["deduplicated_total"] == 1
    lab.finish(outcome(job, "completed", "1"))
    assert lab.take().payload == '[["y"],{}]'


def test_the_continuation_of_a_gather_may_be_a_duplicate(lab: Lab) -> None:
    put(lab, "a", "until_started", when="+1000")
    query = Query(lab, "a", unique=spec("until_started"))
    query.start()
    query.finish(query.take())
    assert Queries(lab.connection).job(query.job("then")).id == "a"
    checked(lab)
    lab.advance(10_000_000)
    for _ in lab.advancing():
        pass
    assert not lab.redis.exists(lab.keys.gather_plan(query.key))


# -- keys of HTTP requests


def test_another_body_with_the_same_key_is_refused(lab: Lab) -> None:
    put(lab, "a", "once")
    new = NewJob("b", "default", "t", PAYLOAD, unique=f"k once {HOUR} another")
    assert lab.store.enqueue([new]) == [False]
    assert (new.owner, new.differs) == ("a", True)


def test_two_keys_of_one_job(lab: Lab) -> None:
    """The request's key leads to the job that the task's key led to, even when that has ended."""
    put(lab, "a", "until_finished")
    both = f"{spec('once', 'request')} {spec('until_finished')}"
    new = NewJob("b", "default", "t", PAYLOAD, unique=both)
    assert lab.store.enqueue([new]) == [False]
    complete(lab)
    lab.advance(60_000)
    lab.redis.delete(lab.keys.job("b"))  # for a while only, its id leads to the other job
    again = NewJob("c", "default", "t", PAYLOAD, unique=both)
    assert lab.store.enqueue([again]) == [False]
    assert again.owner == "a"


# -- reading, invalid data


def test_a_page_of_keys(lab: Lab) -> None:
    queries = UniqueQueries(lab.connection)
    assert (queries.page(), queries.count(), queries.find("k0")) == ([], 0, None)
    put(lab, "a", "until_finished", key="k0")
    lab.advance(5)
    put(lab, "b", "once", key="k1")
    put(lab, "c", "keep_last", key="k2")
    lose(lab)
    lab.redis.zadd(lab.keys.unique_lifetimes, {"k1": 9e15})
    assert queries.page() == [
        UniqueKey("k0", "a", "", "", T0),
        UniqueKey("k1", "b", "queued", "app.task", T0 + 5, 9 * 10**15),
        UniqueKey("k2", "c", "queued", "app.task", T0 + 5),
    ]
    assert [found.key for found in queries.page(1, 1)] == ["k1"]
    assert queries.count() == 3


@pytest.mark.parametrize("name", ["unique", "uniques", "unique_lifetimes"])
def test_a_key_of_the_wrong_type_is_named_before_anything_is_written(lab: Lab, name: str) -> None:
    key = lab.keys.unique("k") if name == "unique" else getattr(lab.keys, name)
    lab.redis.hset(key, "x", "1")
    before = lab.dump()
    new = NewJob("a", "default", "t", PAYLOAD, unique=spec("until_finished"))
    with pytest.raises(RedisQueueError, match=re.escape(f"the key {key} holds a hash where a")):
        lab.store.enqueue([new])
    assert lab.dump() == before


@pytest.mark.parametrize("name", ["unique", "uniques", "unique_lifetimes"])
def test_a_key_of_the_wrong_type_does_not_stop_the_end_of_a_job(lab: Lab, name: str) -> None:
    put(lab, "a", "for")
    put(lab, "b", "keep_last", key="k2")
    for key in (lab.keys.unique("k2"),) if name == "unique" else (getattr(lab.keys, name),):
        lab.redis.delete(key)
        lab.redis.hset(key, "x", "1")
    for job in lab.claim(jobs=2).jobs:
        assert lab.finish(outcome(job, "completed", "1")) == [1]


@pytest.mark.parametrize("mode", ["until_finished", "keep_last"])
def test_a_full_redis_frees_keys_and_releases_the_last(lab: Lab, mode: str) -> None:
    put(lab, "a", mode)
    job = lab.take()
    put(lab, "b", mode)
    with lab.full():
        assert lab.finish(outcome(job, "completed", "1")) == [1]
        with pytest.raises(RedisQueueError, match="maxmemory"):
            put(lab, "c", mode)
    assert owner(lab) == ("b" if mode == "keep_last" else "")
    checked(lab)
