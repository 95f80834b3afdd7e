"""Runs on the fast path complete without reading their hash, until something else needs it."""

from __future__ import annotations

import json

import pytest

from django_redisqueue.broker.replies import FinishCode, Outcome, id_in
from django_redisqueue.core.job_data import NewJob

from .lab import ERROR, PAYLOAD, Lab, invariants, outcome


def entries(lab: Lab, child: str = "c1") -> list[str]:
    return lab.redis.lrange(lab.keys.child_processing(child), 0, -1)  # type: ignore[return-value]


def calls(lab: Lab, command: str) -> int:
    return int(lab.redis.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def seqs(lab: Lab, job_id: str) -> list[int]:
    events = [event for event in lab.events() if event["jobId"] == job_id]
    return [event["seq"] for event in events]


def test_the_entry_of_a_first_run_has_everything_its_end_needs(lab: Lab) -> None:
    lab.add("a", queue="low")
    lab.claim(queues=("low",), call=7)
    assert entries(lab) == [f"7:a {467 + len(PAYLOAD)}+ low app.task"]


def test_its_completion_reads_no_hash(lab: Lab) -> None:
    lab.add("a", "b", "c")
    jobs = lab.claim(jobs=3).jobs
    lab.redis.config_resetstat()
    assert lab.finish(*map(outcome, jobs)) == [FinishCode.ACCEPTED] * 3
    assert [calls(lab, name) for name in ("hmget", "hget", "hstrlen")] == [0, 0, 0]
    assert calls(lab, "hset") == 3
    assert entries(lab) == []
    assert seqs(lab, "b") == [1, 2, 3]
    invariants(lab)


def test_jobs_that_are_not_due_do_not_keep_a_claim_from_the_fast_path(lab: Lab) -> None:
    lab.end("retrying", verdict="retrying", body=ERROR)
    lab.add("later", when="+60000")
    lab.add("a", "b", "c")
    lab.redis.config_resetstat()
    assert lab.taken(jobs=2) == ["a", "b"]
    assert calls(lab, "zrangebyscore") == 0  # with which the slow path begins
    lab.advance(1000)
    assert lab.taken(jobs=2) == ["c", "retrying"]
    invariants(lab)


def _second_run(lab: Lab) -> None:
    lab.add("a")
    lab.finish(outcome(lab.take(), "queued"))


def _scheduled(lab: Lab) -> None:
    lab.add("a", when="+5")
    lab.advance(5)


def _thinned(lab: Lab) -> None:
    lab.add("a", audit="final")


def _awaited(lab: Lab) -> None:
    lab.add("a")
    lab.store.watch("a")


def _indexed(lab: Lab) -> None:
    lab.add("a", options='{"index":"task:t"}')


@pytest.mark.parametrize(
    "make", [_second_run, _scheduled, _thinned, _awaited, _indexed],
    ids=lambda make: make.__name__.strip("_"),
)  # fmt: skip
def test_a_run_with_an_option_or_earlier_runs_takes_the_slow_path(lab: Lab, make: object) -> None:
    make(lab)  # type: ignore[operator]
    job = lab.take()
    assert entries(lab) == [f"{job.call}:a"]
    assert lab.finish(outcome(job)) == [FinishCode.ACCEPTED]
    invariants(lab)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (1, 2, 3, 0), (3, 1)])
def test_both_paths_in_one_call_in_any_order(lab: Lab, order: tuple[int, ...]) -> None:
    _scheduled(lab)
    lab.add("b")
    lab.store.enqueue([NewJob("c", "default", "other.task", payload=PAYLOAD)])
    lab.add("d", queue="low")
    jobs = lab.claim(queues=("default", "low"), jobs=4).jobs
    assert sorted(job.id for job in jobs) == ["a", "b", "c", "d"]
    jobs.sort(key=lambda job: job.id)
    assert lab.finish(*[outcome(jobs[n]) for n in order]) == [FinishCode.ACCEPTED] * len(order)
    ended = {jobs[n].id for n in order}
    assert {id_in(entry) for entry in entries(lab)} == {"a", "b", "c", "d"} - ended
    for n in order:
        last = lab.events(jobs[n].id)[-1]
        assert (last["status"], last["task"]) == ("completed", jobs[n].task)
        assert (last["queue"], last["seq"]) == (jobs[n].queue, 4 if n == 0 else 3)
    invariants(lab)


def test_each_job_of_a_batch_gets_its_own_values(lab: Lab) -> None:
    made = [
        ("a", "app.task", "[[1],{}]", '{"max_attempts":2}'),
        ("b", "app.task", "[[22],{}]", '{"max_attempts":3}'),
        ("c", "app.task", "[[22],{}]", ""),
        ("d", "app.other", "[[22],{}]", ""),
        ("e", "app.task", "[[1],{}]", '{"max_attempts":2}'),
    ]
    lab.store.enqueue([NewJob(name, "default", *others) for name, *others in made])
    jobs = lab.claim(jobs=5).jobs
    assert [(job.id, job.task, job.payload, job.options) for job in jobs] == made
    assert entries(lab) == [
        f"{jobs[0].call}:{name} {444 + 23 * bool(options) + len(payload + options)}+ default {task}"
        for name, task, payload, options in made
    ]
    assert lab.finish(*map(outcome, jobs)) == [FinishCode.ACCEPTED] * 5
    for name, task, payload, options in made:
        assert lab.events(name)[-1]["task"] == task
        texts = payload + options + '"ok"'
        assert int(lab.job(name)["bytes"]) == 444 + 23 * bool(options) + len(texts)
    invariants(lab)


def test_a_job_with_an_unusable_task_name_takes_the_slow_path(lab: Lab) -> None:
    lab.add("a", "b")
    lab.redis.hset(lab.keys.job("a"), "task", "two words")
    lab.redis.hdel(lab.keys.job("b"), "task")
    jobs = lab.claim(jobs=2).jobs
    assert [(job.queue, job.task) for job in jobs] == [("default", "two words"), ("default", "")]
    assert entries(lab) == [f"{job.call}:{job.id}" for job in jobs]


def test_progress_counts_towards_the_seq_of_the_end(lab: Lab) -> None:
    lab.add("a", "b")
    a, b = lab.claim(jobs=2).jobs
    assert lab.store.progress("c1", "b", b.lease, "{}")
    assert lab.store.progress("c1", "b", b.lease, "{}")
    assert entries(lab) == [f"{a.call}:a {444 + len(PAYLOAD)}+ default app.task", f"{b.call}:b"]
    assert lab.finish(outcome(a), outcome(b)) == [FinishCode.ACCEPTED] * 2
    assert (seqs(lab, "a"), seqs(lab, "b")) == ([1, 2, 3], [1, 2, 3, 4, 5])
    invariants(lab)


def test_a_caller_that_begins_to_wait_during_the_run_is_told(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    told = lab.redis.pubsub(ignore_subscribe_messages=True)
    told.subscribe(f"{lab.keys.base}done:a")
    told.get_message(timeout=5)
    assert lab.store.watch("a") == "processing"
    lab.finish(outcome(job))
    message = told.get_message(timeout=5)
    assert message
    assert message["data"] == "completed"


def test_a_job_that_becomes_a_follower_during_the_run_is_notified(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.store.enqueue([NewJob("b", "default", "app.task", PAYLOAD, after="wait a")])
    assert lab.status("b") == "waiting"
    lab.finish(outcome(job))
    assert lab.status("b") == "queued"
    invariants(lab)


def test_a_hash_deleted_by_hand_is_a_lost_lease_and_is_not_recreated(lab: Lab) -> None:
    lab.add("a", "b")
    jobs = lab.claim(jobs=2).jobs
    lab.redis.delete(lab.keys.job("a"))
    assert lab.finish(*map(outcome, jobs)) == [FinishCode.LEASE_LOST, FinishCode.ACCEPTED]
    assert not lab.redis.exists(lab.keys.job("a"))
    assert (lab.held(), lab.ids("processing"), lab.ids("completed")) == ([], [], ["b"])
    assert seqs(lab, "a") == [1, 2]
    invariants(lab)


def test_a_hash_replaced_by_hand_is_left_alone(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.redis.delete(lab.keys.job("a"))
    lab.redis.set(lab.keys.job("a"), "mine")
    assert lab.finish(outcome(job)) == [FinishCode.LEASE_LOST]
    assert lab.redis.get(lab.keys.job("a")) == "mine"
    assert lab.held() == []


def test_a_list_deleted_by_hand_costs_no_result(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.redis.delete(lab.keys.child_processing("c1"))
    assert lab.finish(outcome(job)) == [FinishCode.ACCEPTED]
    invariants(lab)


def test_an_entry_written_by_another_program_is_not_trusted(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.redis.lset(lab.keys.child_processing("c1"), 0, f"{job.call}:a ? default app.task")
    assert lab.finish(outcome(job)) == [FinishCode.ACCEPTED]
    invariants(lab)


@pytest.mark.parametrize("order", ["bac", "cab", "c", "ca", "aab", "abcc"])
def test_outcomes_may_come_in_any_order(lab: Lab, order: str) -> None:
    lab.add("a", "b", "c")
    jobs = {job.id: job for job in lab.claim(jobs=3).jobs}
    codes = lab.finish(*(outcome(jobs[name]) for name in order))
    firsts = [name not in order[:at] for at, name in enumerate(order)]
    assert codes == [FinishCode.ACCEPTED if first else FinishCode.REPEATED for first in firsts]
    assert [name.partition(":")[2] for name in lab.held()] == sorted({*"abc"} - {*order})
    invariants(lab)


@pytest.mark.parametrize("at", range(4))
def test_another_outcome_may_come_between(lab: Lab, at: int) -> None:
    lab.add(*"abcd")
    jobs = lab.claim(jobs=4).jobs
    verdicts = ["retrying" if at == place else "completed" for place in range(4)]
    assert lab.finish(*map(outcome, jobs, verdicts)) == [FinishCode.ACCEPTED] * 4
    assert [lab.status(job.id) for job in jobs] == verdicts
    invariants(lab)


def test_the_first_of_two_outcomes_counts(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    assert lab.finish(outcome(job), outcome(job, "failed")) == [1, FinishCode.REPEATED]
    assert lab.status("a") == "completed"
    invariants(lab)


def test_an_entry_of_an_earlier_job_with_the_same_id_is_not_used(lab: Lab) -> None:
    lab.add("a")
    stale = lab.take()
    lab.finish(outcome(stale))
    lab.advance(20_000)
    assert lab.store.delete(["a"]) == [1]
    lab.add("a")
    job = lab.take()
    assert job.lease == stale.lease
    assert lab.finish(Outcome("a", 1, stale.call, "completed", "1")) == [FinishCode.ACCEPTED]
    assert lab.held() == []  # its list is right in any case
    invariants(lab)


def test_its_bytes_are_what_retention_counts(lab: Lab) -> None:
    lab.add("a", payload=json.dumps([["x" * 1000], {}]))
    lab.finish(outcome(lab.take(), body='"' + "y" * 500 + '"'))
    assert lab.meta()["finished_bytes"] == int(lab.job("a")["bytes"]) > 1500
    invariants(lab)
