"""enqueue_with_conditions: jobs whose parents already exist, whether or not these have ended."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from django_redisqueue import JobQueue
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import ParentNotFound, RedisFull, RedisQueueError, WrongKeyType

from .lab import ERROR, PAYLOAD, T0, Lab, invariants, outcome
from .workflows import LabWorkflow


def run(lab: Lab, job_id: str, verdict: str = "completed", body: str = '"ok"') -> None:
    """Claim the next job, which must be this one, and finish it."""
    job = lab.take("runner")
    assert job.id == job_id
    settled = outcome(job, verdict, ERROR if verdict == "failed" else body)
    assert lab.finish(settled, child="runner") == [1]


def test_it_waits_for_the_last_of_its_parents(lab: Lab) -> None:
    lab.add("a", "b")
    assert lab.add("c", after="wait a b") == [True]
    assert (lab.status("c"), lab.job("c")["waits"]) == ("waiting", "2")
    assert lab.ids("waiting") == ["c"]
    invariants(lab)
    run(lab, "a")
    assert lab.status("c") == "waiting"
    invariants(lab)
    run(lab, "b")
    assert lab.ids("queued") == ["c"]
    assert lab.ids("waiting") == []
    invariants(lab)
    run(lab, "c")
    assert lab.story("c") == ["waiting", "queued", "processing", "completed"]
    invariants(lab)


def test_a_parent_that_has_completed_counts_as_done(lab: Lab) -> None:
    lab.end("a", body='{"rows":3}')
    assert lab.add("c", after="wait a") == [True]
    assert lab.ids("queued") == ["c"]
    assert lab.workflows.parent_results("c") == {"a": {"rows": 3}}
    assert lab.story("c") == ["queued"]
    assert lab.tokens() == 1
    invariants(lab)


def test_results_reach_the_child_in_the_order_given(lab: Lab) -> None:
    lab.end("b", body='"from b"')
    lab.add("a", "n")
    lab.add("c", after="wait a b n")
    run(lab, "a", body='"from a"')
    run(lab, "n", body="null")
    assert lab.workflows.parent_results("c") == {"a": "from a", "b": "from b", "n": None}
    run(lab, "c")
    assert not any(field.startswith("from:") for field in lab.job("c"))
    invariants(lab)


def test_results_stay_readable_for_the_retry_of_a_child_that_failed(lab: Lab) -> None:
    lab.end("a", body='"x"')
    lab.add("c", after="wait a")
    run(lab, "c", "failed")
    assert lab.workflows.parent_results("c") == {"a": "x"}
    invariants(lab)  # one of which is the byte count
    assert lab.store.requeue(["c"]) == [1]
    assert lab.meta()["finished_bytes"] == int(lab.job("a")["bytes"])


@pytest.mark.parametrize("verdict", ["failed", "cancelled"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("policy", "status", "reason"),
    [("wait", "waiting", None), ("skip", "cancelled", "skipped"), ("go_on", "queued", None)],
)
def test_a_parent_that_fails_before_or_after(
    lab: Lab, verdict: str, is_first: bool, policy: str, status: str, reason: str | None
) -> None:
    lab.add("a")
    if is_first:
        run(lab, "a", verdict)
    assert lab.add("c", after=f"{policy} a") == [True]
    if not is_first:
        run(lab, "a", verdict)
    assert (lab.status("c"), lab.job("c").get("reason")) == (status, reason)
    if status != "waiting":
        assert lab.workflows.parent_results("c") == {"a": None}
    invariants(lab)


def test_a_retry_of_the_parent_revives_waiting_jobs(lab: Lab) -> None:
    lab.add("a")
    lab.add("c", after="wait a")
    run(lab, "a", "failed")
    assert lab.store.requeue(["a"]) == [1]
    run(lab, "a")
    run(lab, "c")
    invariants(lab)


def test_followers_notified_of_a_failure_are_not_notified_again(lab: Lab) -> None:
    lab.add("a")
    lab.add("skips", after="skip a")
    lab.add("goes", after="go_on a")
    run(lab, "a", "failed")
    run(lab, "goes")
    lab.store.requeue(["a"])
    run(lab, "a")
    assert lab.story("goes") == ["waiting", "queued", "processing", "completed"]
    assert lab.story("skips") == ["waiting", "cancelled"]
    assert lab.store.requeue(["skips"]) == [1]  # on its own, without the result
    run(lab, "skips")
    invariants(lab)


def test_a_redelivered_report_notifies_once(lab: Lab) -> None:
    lab.add("a", "b")
    lab.add("c", after="wait a b")
    job = lab.take()
    assert lab.finish(outcome(job)) == [1]
    assert lab.finish(outcome(job)) == [2]
    assert lab.job("c")["waits"] == "1"


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_repeat_changes_nothing(lab: Lab, has_ended: bool) -> None:
    lab.add("a")
    if has_ended:
        run(lab, "a")
    assert lab.add("c", after="wait a") == [True]
    before = lab.dump()
    assert lab.add("c", after="wait a") == [False]
    assert lab.dump() == before


def test_an_unknown_parent_is_named_and_nothing_is_created(lab: Lab) -> None:
    lab.add("a")
    before = lab.dump()
    with pytest.raises(ParentNotFound, match=r"app\.task was to wait for job gone, which is"):
        lab.add("c", after="wait a gone")
    assert lab.dump() == before


@pytest.mark.parametrize(
    ("policy", "status"), [("wait", "cancelled"), ("skip", "cancelled"), ("go_on", "queued")]
)
def test_a_job_enqueued_with_a_missing_parent_does_not_wait(
    lab: Lab, policy: str, status: str
) -> None:
    new = NewJob("c", "default", "app.task", PAYLOAD, after=f"{policy} gone")
    assert lab.store.enqueue([new], allow_missing_parents=True) == [True]
    assert lab.status("c") == status
    if status == "cancelled":
        assert lab.job("c")["reason"] == "parent_gone"
        assert lab.store.requeue(["c"]) == [1]
    run(lab, "c")
    invariants(lab)


@pytest.mark.parametrize("verb", ["delete", "clear", "prune"])
@pytest.mark.parametrize("verdict", ["failed", "cancelled"])
@pytest.mark.parametrize(
    ("policy", "status"), [("wait", "cancelled"), ("skip", "cancelled"), ("go_on", "queued")]
)
def test_jobs_that_wait_for_a_deleted_job_end(
    lab: Lab, verb: str, verdict: str, policy: str, status: str
) -> None:
    lab.end("a", verdict=verdict)
    lab.redis.hset(lab.keys.job("a"), "status", "queued")  # so that c follows it
    lab.add("c", after=f"{policy} a")
    lab.redis.hset(lab.keys.job("a"), "status", verdict)
    lab.advance(20_000)
    remove_job(lab, verb, "a", verdict)
    assert lab.job("a") == {}
    assert lab.store.advance() is False
    assert lab.status("c") == status
    if status == "cancelled":
        assert lab.job("c")["reason"] == "parent_gone"
    assert not lab.redis.exists(lab.keys.followers("a"))
    invariants(lab)


def remove_job(lab: Lab, verb: str, job_id: str, status: str) -> None:
    if verb == "delete":
        assert lab.store.delete([job_id]) == [1]
    elif verb == "clear":
        assert lab.store.clear("default", status).done == 1
    else:
        lab.store.settings = replace(lab.store.settings, finished_max_bytes=0)
        assert lab.store.prune("default", status, 0, 0)[0] == 1


def test_retention_keeps_a_job_with_waiting_followers(lab: Lab) -> None:
    lab.end("a", "b", verdict="failed")
    lab.add("c", after="wait a")
    lab.advance(20_000)
    assert lab.store.prune("default", "failed", 0, 0) == (1, 0, False)
    assert lab.ids("failed") == ["a"]
    assert lab.status("c") == "waiting"
    lab.store.requeue(["a"])
    run(lab, "a")
    run(lab, "c")
    lab.advance(20_000)
    assert lab.store.prune("default", "completed", 0, 0) == (2, 0, False)
    invariants(lab)


def test_a_job_with_many_followers_notifies_them_in_steps_and_stays_until_then(lab: Lab) -> None:
    lab.add("a")
    for start in (0, 90, 180):
        lab.add(*[f"c{n}" for n in range(start, start + 90)], after="wait a")
    run(lab, "a", body="7")
    assert len(lab.ids("waiting")) == 170
    assert lab.store.delete(["a"]) == [0]
    assert lab.store.clear("default", "completed").done == 0
    lab.advance(20_000)
    assert lab.store.prune("default", "completed", 0, 0)[0] == 0
    for _ in lab.advancing():
        invariants(lab)
    assert lab.ids("waiting") == []
    assert len(lab.ids("queued")) == 270
    assert lab.workflows.parent_results("c269") == {"a": 7}
    assert lab.store.delete(["a"]) == [0]  # they may read its result
    while jobs := lab.claim(jobs=100).jobs:
        lab.finish(*[outcome(job) for job in jobs])
    while lab.store.delete(["a"]) == [0]:  # a few of them are checked each time
        assert lab.redis.exists(lab.keys.followers("a"))
    assert lab.redis.llen(lab.keys.pending_writes) == 0
    invariants(lab)


def test_a_list_is_cleared_completely_while_followers_are_still_being_notified(lab: Lab) -> None:
    lab.add(*[f"p{n}" for n in range(100)])
    lab.add(*[f"q{n}" for n in range(60)])
    lab.add(*[f"c{n}" for n in range(99)], after="go_on p0")
    lab.add("d", after=" ".join(["wait", *[f"p{n}" for n in range(1, 99)]]))
    first, second = lab.claim("a", 100).jobs, lab.claim("b", 60).jobs
    lab.finish(
        *[outcome(job, body="null") for job in first], child="a"
    )  # notifies the followers of p0 and p1; more would be too much for one call
    lab.finish(*[outcome(job) for job in second], child="b")
    queue = JobQueue()
    # with p99 and q0 to q59, which have no followers to notify
    assert queue.clear("completed") == 63
    assert queue.get_stats()["completed"] == 97
    assert list(lab.advancing())
    assert queue.clear("completed") == 97
    invariants(lab, tokens=False)


def test_many_followers_of_a_deleted_job_are_notified_in_steps(lab: Lab) -> None:
    lab.end("a", verdict="failed")
    for start in (0, 90, 180):
        lab.add(*[f"c{n}" for n in range(start, start + 90)], after="wait a")
    lab.store.delete(["a"])
    steps = [len(lab.ids("cancelled"))]
    for _ in lab.advancing():
        steps.append(len(lab.ids("cancelled")))
    steps.append(len(lab.ids("cancelled")))
    assert steps[-1] == 270
    assert all(b - a <= 100 for a, b in pairwise(steps))
    invariants(lab)


def test_a_waiting_job_can_be_cancelled_and_requeued(lab: Lab) -> None:
    lab.add("a")
    lab.add("c", after="wait a")
    assert lab.store.cancel(["c"]) == [1]
    invariants(lab)
    assert lab.store.requeue(["c"]) == [1]
    assert (lab.status("c"), lab.ids("waiting")) == ("waiting", ["c"])
    invariants(lab)
    lab.store.cancel(["c"])
    run(lab, "a", body="1")  # c is notified all the same
    assert lab.store.requeue(["c"]) == [1]
    assert lab.workflows.parent_results("c") == {"a": 1}
    run(lab, "c")


def test_followers_of_followers(lab: Lab) -> None:
    lab.add("a")
    lab.add("b", after="skip a")
    lab.add("c", after="skip b")
    lab.add("d", after="wait c")
    run(lab, "a", "failed")
    assert [lab.status(name) for name in "bcd"] == ["cancelled", "cancelled", "waiting"]
    invariants(lab)


def test_a_batch_may_contain_parents_and_their_children(lab: Lab) -> None:
    jobs = [
        NewJob("a", "default", "app.task", PAYLOAD),
        NewJob("b", "other", "app.task", PAYLOAD, priority=3, when="+500", audit="final"),
        NewJob("c", "default", "app.task", PAYLOAD, after="wait a b", when="+2000"),
    ]
    assert lab.store.enqueue(jobs) == [True] * 3
    assert [lab.status(name) for name in "abc"] == ["queued", "scheduled", "waiting"]
    assert lab.job("b")["due_ms"] == str(T0 + 500)
    assert lab.meta("other")["enqueued_total"] == 1
    lab.advance(500)
    lab.store.promote(["other"])
    run(lab, "a")
    job = lab.take(queues=["other"])
    lab.finish(outcome(job))
    assert lab.job("c")["due_ms"] == str(T0 + 2500)  # the delay starts when its parents are done
    assert lab.ids("scheduled") == ["c"]
    invariants(lab)


def test_a_job_waits_for_a_job_of_a_workflow(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0]})
    workflow.push()
    lab.add("c", after=f"wait {workflow.job(0)}")
    lab.add("d", after=f"wait {workflow.job(1)}")
    workflow.run_one(body="5")
    assert lab.status("c") == "queued"
    assert lab.workflows.parent_results("c") == {workflow.job(0): 5}
    workflow.run_one()
    assert workflow.data().status == "completed"
    assert lab.status("d") == "queued"
    assert lab.workflows.relatives("d") == ([workflow.job(1)], [])
    invariants(lab)


def test_a_cancelled_workflow_notifies_the_followers_of_its_jobs(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0]})
    workflow.push()
    lab.add("c", after=f"skip {workflow.job(0)}")
    lab.store.control_workflow(workflow.id, "cancel")
    assert lab.taken() == []
    workflow.advance()
    assert (workflow.statuses(), lab.status("c")) == (["cancelled"] * 2, "cancelled")
    invariants(lab)


@pytest.mark.parametrize("order", ["cancel", "clean"])
def test_no_job_waits_for_a_retry_that_would_be_refused(lab: Lab, order: str) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [], 2: []})
    workflow.push()
    lab.add("w0", "s0", after=f"wait {workflow.job(0)}")
    lab.add("w1", after=f"wait {workflow.job(1)}")
    lab.add("g1", after=f"go_on {workflow.job(1)}")
    first, second = lab.claim("runner", 2).jobs
    lab.finish(outcome(first, "failed", ERROR), child="runner")
    assert [lab.status(name) for name in ("w0", "w1", "g1")] == ["waiting"] * 3
    assert lab.store.control_workflow(workflow.id, order) == 1
    workflow.advance()
    lab.finish(outcome(second, "failed", ERROR), child="runner")
    assert lab.store.requeue([first.id, second.id]) == [{"cancel": -3, "clean": -2}[order]] * 2
    assert [lab.job(name)["reason"] for name in ("w0", "s0", "w1")] == ["parent_gone"] * 3
    assert lab.taken(jobs=5) == ["g1"]
    lab.add("late", after=f"wait {workflow.job(0)}")
    lab.add("anyway", after=f"go_on {workflow.job(0)}")
    assert (lab.job("late")["reason"], lab.status("anyway")) == ("parent_gone", "queued")
    assert lab.store.delete([workflow.job(0)]) == [1]
    workflow.advance()
    invariants(lab, tokens=False)


def test_parents_and_followers_of_a_job(lab: Lab) -> None:
    lab.add("a")
    lab.add("c", after="wait a")
    assert lab.workflows.relatives("a") == ([], ["c"])
    assert lab.workflows.relatives("c") == (["a"], [])


def test_watching_a_job_keeps_its_other_marks(lab: Lab) -> None:
    lab.add("a")
    lab.add("c", after="wait a")
    assert lab.store.watch("a") == "queued"
    assert sorted(lab.job("a")["watched"]) == ["1", "f"]
    before = lab.dump()
    lab.store.watch("a")
    assert lab.dump() == before
    run(lab, "a")
    assert lab.status("c") == "queued"


@pytest.mark.parametrize("key", ["followers", "waiting", "events"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, key: str) -> None:
    lab.add("a")
    named = {
        "followers": lab.keys.followers("a"),
        "waiting": lab.keys.queue("default").waiting,
        "events": lab.keys.events,
    }[key]
    lab.redis.delete(named)
    lab.redis.set(named, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(named)):
        lab.add("c", after="wait a")
    assert lab.dump() == before


def test_a_job_key_of_another_type_is_left_alone(lab: Lab) -> None:
    lab.add("a")
    lab.redis.set(lab.keys.job("c"), "theirs")
    with pytest.raises(WrongKeyType, match="does not hold a job"):
        lab.add("c", after="wait a")
    assert lab.redis.get(lab.keys.job("c")) == "theirs"


@pytest.mark.parametrize("bad", [{"after": "never a"}, {"when": "soon"}, {"priority": "much"}])
def test_a_malformed_call_is_refused_before_anything_is_written(
    lab: Lab, bad: dict[str, str]
) -> None:
    lab.add("a")
    before = lab.dump()
    with pytest.raises(RedisQueueError):
        lab.add("c", **{"after": "wait a", **bad})
    assert lab.dump() == before


def test_a_full_redis_refuses(lab: Lab) -> None:
    lab.add("a")
    before = lab.dump()
    with lab.full(), pytest.raises(RedisFull):
        lab.add("c", after="wait a")
    assert lab.dump() == before
    assert lab.add("c", after="wait a") == [True]
