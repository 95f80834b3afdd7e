"""Runs on the fast path complete without reading their hash, until something else needs it."""

from __future__ import annotations

import json

import pytest

from django_redisqueue.broker.replies import FinishCode, Outcome, id_in
from django_redisqueue.core.job_data import NewJob

from .harness import ERROR, PAYLOAD, BrokerHarness, invariants, outcome


def seqs(broker: BrokerHarness, job_id: str) -> list[int]:
    events = [event for event in broker.events() if event["jobId"] == job_id]
    return [event["seq"] for event in events]


def test_the_entry_of_a_first_run_has_everything_its_end_needs(broker: BrokerHarness) -> None:
    broker.add("a", queue="low")
    broker.claim(queues=("low",), call=7)
    assert broker.entries() == [f"7:a {467 + len(PAYLOAD)}+ low app.task"]


def test_entries_of_one_batch_differ_by_the_lengths_of_their_payloads(
    broker: BrokerHarness,
) -> None:
    longer = '[["more"],{}]'
    broker.add("a")
    broker.add("b", payload=longer)
    broker.claim(jobs=2, call=7)
    sizes = [int(entry.split()[1].rstrip("+")) for entry in broker.entries()]
    assert sizes[1] - sizes[0] == len(longer) - len(PAYLOAD)


def test_its_completion_reads_no_hash(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    jobs = broker.claim(jobs=3).jobs
    broker.redis.config_resetstat()
    assert broker.finish(*map(outcome, jobs)) == [FinishCode.ACCEPTED] * 3
    assert broker.calls("hmget", "hget", "hstrlen") == [0, 0, 0]
    assert broker.calls("hset") == [3]
    assert broker.entries() == []
    assert seqs(broker, "b") == [1, 2, 3]
    invariants(broker)


def test_jobs_that_are_not_due_do_not_keep_a_claim_from_the_fast_path(
    broker: BrokerHarness,
) -> None:
    broker.end("retrying", kind="retrying", body=ERROR)
    broker.add("later", when="+60000")
    broker.add("a", "b", "c")
    broker.redis.config_resetstat()
    assert broker.taken(jobs=2) == ["a", "b"]
    assert broker.calls("zrangebyscore") == [0]  # with which the slow path begins
    broker.advance(1000)
    assert broker.taken(jobs=2) == ["c", "retrying"]
    invariants(broker)


def _second_run(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.finish(outcome(broker.take(), "queued"))


def _scheduled(broker: BrokerHarness) -> None:
    broker.add("a", when="+5")
    broker.advance(5)


def _thinned(broker: BrokerHarness) -> None:
    broker.add("a", audit="final")


def _awaited(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.store.watch("a")


def _indexed(broker: BrokerHarness) -> None:
    broker.add("a", options='{"index":"task:t"}')


@pytest.mark.parametrize(
    "make", [_second_run, _scheduled, _thinned, _awaited, _indexed],
    ids=lambda make: make.__name__.strip("_"),
)  # fmt: skip
def test_a_run_with_an_option_or_earlier_runs_takes_the_slow_path(
    broker: BrokerHarness, make: object
) -> None:
    make(broker)  # type: ignore[operator]
    job = broker.take()
    assert broker.entries() == [f"{job.call}:a"]
    assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
    invariants(broker)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (1, 2, 3, 0), (3, 1)])
def test_both_paths_in_one_call_in_any_order(broker: BrokerHarness, order: tuple[int, ...]) -> None:
    _scheduled(broker)
    broker.add("b")
    broker.store.enqueue([NewJob("c", "default", "other.task", payload=PAYLOAD)])
    broker.add("d", queue="low")
    jobs = broker.claim(queues=("default", "low"), jobs=4).jobs
    assert sorted(job.id for job in jobs) == ["a", "b", "c", "d"]
    jobs.sort(key=lambda job: job.id)
    assert broker.finish(*[outcome(jobs[n]) for n in order]) == [FinishCode.ACCEPTED] * len(order)
    ended = {jobs[n].id for n in order}
    assert {id_in(entry) for entry in broker.entries()} == {"a", "b", "c", "d"} - ended
    for n in order:
        last = broker.events(jobs[n].id)[-1]
        assert (last["status"], last["task"]) == ("completed", jobs[n].task)
        assert (last["queue"], last["seq"]) == (jobs[n].queue, 4 if n == 0 else 3)
    invariants(broker)


def test_each_job_of_a_batch_gets_its_own_values(broker: BrokerHarness) -> None:
    made = [
        ("a", "app.task", "[[1],{}]", '{"max_attempts":2}'),
        ("b", "app.task", "[[22],{}]", '{"max_attempts":3}'),
        ("c", "app.task", "[[22],{}]", ""),
        ("d", "app.other", "[[22],{}]", ""),
        ("e", "app.task", "[[1],{}]", '{"max_attempts":2}'),
    ]
    broker.store.enqueue([NewJob(name, "default", *others) for name, *others in made])
    jobs = broker.claim(jobs=5).jobs
    assert [(job.id, job.task, job.payload, job.options) for job in jobs] == made
    assert broker.entries() == [
        f"{jobs[0].call}:{name} {444 + 23 * bool(options) + len(payload + options)}+ default {task}"
        for name, task, payload, options in made
    ]
    assert broker.finish(*map(outcome, jobs)) == [FinishCode.ACCEPTED] * 5
    for name, task, payload, options in made:
        assert broker.events(name)[-1]["task"] == task
        texts = payload + options + '"ok"'
        assert int(broker.job(name)["bytes"]) == 444 + 23 * bool(options) + len(texts)
    invariants(broker)


def test_a_job_with_an_unusable_task_name_takes_the_slow_path(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.redis.hset(broker.keys.job("a"), "task", "two words")
    broker.redis.hdel(broker.keys.job("b"), "task")
    jobs = broker.claim(jobs=2).jobs
    assert [(job.queue, job.task) for job in jobs] == [("default", "two words"), ("default", "")]
    assert broker.entries() == [f"{job.call}:{job.id}" for job in jobs]


def test_progress_counts_towards_the_seq_of_the_end(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    a, b = broker.claim(jobs=2).jobs
    assert broker.store.progress("c1", "b", b.lease, "{}")
    assert broker.store.progress("c1", "b", b.lease, "{}")
    assert broker.entries() == [f"{a.call}:a {444 + len(PAYLOAD)}+ default app.task", f"{b.call}:b"]
    assert broker.finish(outcome(a), outcome(b)) == [FinishCode.ACCEPTED] * 2
    assert (seqs(broker, "a"), seqs(broker, "b")) == ([1, 2, 3], [1, 2, 3, 4, 5])
    invariants(broker)


def test_a_caller_that_begins_to_wait_during_the_run_is_told(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    told = broker.redis.pubsub(ignore_subscribe_messages=True)
    told.subscribe(f"{broker.keys.base}done:a")
    told.get_message(timeout=5)
    assert broker.store.watch("a") == "processing"
    broker.finish(outcome(job))
    message = told.get_message(timeout=5)
    assert message
    assert message["data"] == "completed"


def test_a_job_that_becomes_a_follower_during_the_run_is_notified(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    broker.store.enqueue([NewJob("b", "default", "app.task", PAYLOAD, after="wait a")])
    assert broker.status("b") == "waiting"
    broker.finish(outcome(job))
    assert broker.status("b") == "queued"
    invariants(broker)


def test_a_hash_deleted_by_hand_is_a_lost_lease_and_is_not_recreated(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    jobs = broker.claim(jobs=2).jobs
    broker.redis.delete(broker.keys.job("a"))
    assert broker.finish(*map(outcome, jobs)) == [FinishCode.LEASE_LOST, FinishCode.ACCEPTED]
    assert not broker.redis.exists(broker.keys.job("a"))
    assert (broker.held(), broker.ids("processing"), broker.ids("completed")) == ([], [], ["b"])
    assert seqs(broker, "a") == [1, 2]
    invariants(broker)


def test_a_hash_replaced_by_hand_is_left_alone(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    broker.redis.set(broker.keys.job("a"), "mine")
    assert broker.finish(outcome(job)) == [FinishCode.LEASE_LOST]
    assert broker.redis.get(broker.keys.job("a")) == "mine"
    assert broker.held() == []


def test_a_list_deleted_by_hand_costs_no_result(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    broker.redis.delete(broker.keys.child_processing("c1"))
    assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
    invariants(broker)


def test_an_entry_written_by_another_program_is_not_trusted(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    broker.redis.lset(broker.keys.child_processing("c1"), 0, f"{job.call}:a ? default app.task")
    assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
    invariants(broker)


@pytest.mark.parametrize("order", ["bac", "cab", "c", "ca", "aab", "abcc"])
def test_outcomes_may_come_in_any_order(broker: BrokerHarness, order: str) -> None:
    broker.add("a", "b", "c")
    jobs = {job.id: job for job in broker.claim(jobs=3).jobs}
    codes = broker.finish(*(outcome(jobs[name]) for name in order))
    firsts = [name not in order[:at] for at, name in enumerate(order)]
    assert codes == [FinishCode.ACCEPTED if first else FinishCode.REPEATED for first in firsts]
    assert [name.partition(":")[2] for name in broker.held()] == sorted({*"abc"} - {*order})
    invariants(broker)


@pytest.mark.parametrize("at", range(4))
def test_another_outcome_may_come_between(broker: BrokerHarness, at: int) -> None:
    broker.add(*"abcd")
    jobs = broker.claim(jobs=4).jobs
    kinds = ["retrying" if at == place else "completed" for place in range(4)]
    assert broker.finish(*map(outcome, jobs, kinds)) == [FinishCode.ACCEPTED] * 4
    assert [broker.status(job.id) for job in jobs] == kinds
    invariants(broker)


def test_the_first_of_two_outcomes_counts(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    assert broker.finish(outcome(job), outcome(job, "failed")) == [1, FinishCode.REPEATED]
    assert broker.status("a") == "completed"
    invariants(broker)


def test_an_entry_of_an_earlier_job_with_the_same_id_is_not_used(broker: BrokerHarness) -> None:
    broker.add("a")
    stale = broker.take()
    broker.finish(outcome(stale))
    broker.advance(20_000)
    assert broker.store.delete(["a"]) == [1]
    broker.add("a")
    job = broker.take()
    assert job.lease == stale.lease
    assert broker.finish(Outcome("a", 1, stale.call, "completed", "1")) == [FinishCode.ACCEPTED]
    assert broker.held() == []  # its list is right in any case
    invariants(broker)


def test_its_bytes_are_what_retention_counts(broker: BrokerHarness) -> None:
    broker.add("a", payload=json.dumps([["x" * 1000], {}]))
    broker.finish(outcome(broker.take(), body='"' + "y" * 500 + '"'))
    assert broker.meta()["finished_bytes"] == int(broker.job("a")["bytes"]) > 1500
    invariants(broker)
