"""enqueue_with_conditions: jobs whose parents already exist, whether or not these have ended."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from django_redisqueue import JobQueue
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import ParentNotFound, RedisFull, RedisQueueError, WrongKeyType

from .harness import ERROR, PAYLOAD, T0, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow


def run(broker: BrokerHarness, job_id: str, kind: str = "completed", body: str = '"ok"') -> None:
    """Claim the next job, which must be this one, and finish it."""
    job = broker.take("runner")
    assert job.id == job_id
    settled = outcome(job, kind, ERROR if kind == "failed" else body)
    assert broker.finish(settled, child="runner") == [1]


def test_it_waits_for_the_last_of_its_parents(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    assert broker.add("c", after="wait a b") == [True]
    assert (broker.status("c"), broker.job("c")["waits"]) == ("waiting", "2")
    assert broker.ids("waiting") == ["c"]
    invariants(broker)
    run(broker, "a")
    assert broker.status("c") == "waiting"
    invariants(broker)
    run(broker, "b")
    assert broker.ids("queued") == ["c"]
    assert broker.ids("waiting") == []
    invariants(broker)
    run(broker, "c")
    assert broker.event_statuses("c") == ["waiting", "queued", "processing", "completed"]
    invariants(broker)


def test_a_parent_that_has_completed_counts_as_done(broker: BrokerHarness) -> None:
    broker.end("a", body='{"rows":3}')
    assert broker.add("c", after="wait a") == [True]
    assert broker.ids("queued") == ["c"]
    assert broker.workflows.parent_results("c") == {"a": {"rows": 3}}
    assert broker.event_statuses("c") == ["queued"]
    assert broker.tokens() == 1
    invariants(broker)


def test_results_reach_the_child_in_the_order_given(broker: BrokerHarness) -> None:
    broker.end("b", body='"from b"')
    broker.add("a", "n")
    broker.add("c", after="wait a b n")
    run(broker, "a", body='"from a"')
    run(broker, "n", body="null")
    assert broker.workflows.parent_results("c") == {"a": "from a", "b": "from b", "n": None}
    run(broker, "c")
    assert not any(field.startswith("from:") for field in broker.job("c"))
    invariants(broker)


def test_results_stay_readable_for_the_retry_of_a_child_that_failed(broker: BrokerHarness) -> None:
    broker.end("a", body='"x"')
    broker.add("c", after="wait a")
    run(broker, "c", "failed")
    assert broker.workflows.parent_results("c") == {"a": "x"}
    invariants(broker)  # one of which is the byte count
    assert broker.store.requeue(["c"]) == [1]
    assert broker.meta()["finished_bytes"] == int(broker.job("a")["bytes"])


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("policy", "status", "reason"),
    [("wait", "waiting", None), ("skip", "cancelled", "skipped"), ("go_on", "queued", None)],
)
def test_a_parent_that_fails_before_or_after(
    broker: BrokerHarness,
    kind: str,
    is_first: bool,
    policy: str,
    status: str,
    reason: str | None,
) -> None:
    broker.add("a")
    if is_first:
        run(broker, "a", kind)
    assert broker.add("c", after=f"{policy} a") == [True]
    if not is_first:
        run(broker, "a", kind)
    assert (broker.status("c"), broker.job("c").get("reason")) == (status, reason)
    if status != "waiting":
        assert broker.workflows.parent_results("c") == {"a": None}
    invariants(broker)


def test_a_retry_of_the_parent_revives_waiting_jobs(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("c", after="wait a")
    run(broker, "a", "failed")
    assert broker.store.requeue(["a"]) == [1]
    run(broker, "a")
    run(broker, "c")
    invariants(broker)


def test_followers_notified_of_a_failure_are_not_notified_again(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("skips", after="skip a")
    broker.add("goes", after="go_on a")
    run(broker, "a", "failed")
    run(broker, "goes")
    broker.store.requeue(["a"])
    run(broker, "a")
    assert broker.event_statuses("goes") == ["waiting", "queued", "processing", "completed"]
    assert broker.event_statuses("skips") == ["waiting", "cancelled"]
    assert broker.store.requeue(["skips"]) == [1]  # on its own, without the result
    run(broker, "skips")
    invariants(broker)


def test_a_redelivered_report_notifies_once(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.add("c", after="wait a b")
    job = broker.take()
    assert broker.finish(outcome(job)) == [1]
    assert broker.finish(outcome(job)) == [2]
    assert broker.job("c")["waits"] == "1"


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_repeat_changes_nothing(broker: BrokerHarness, has_ended: bool) -> None:
    broker.add("a")
    if has_ended:
        run(broker, "a")
    assert broker.add("c", after="wait a") == [True]
    with broker.unchanged():
        assert broker.add("c", after="wait a") == [False]


def test_an_unknown_parent_is_named_and_nothing_is_created(broker: BrokerHarness) -> None:
    broker.add("a")
    problem = r"app\.task was to wait for job gone, which is"
    with broker.unchanged(), pytest.raises(ParentNotFound, match=problem):
        broker.add("c", after="wait a gone")


@pytest.mark.parametrize(
    ("policy", "status"), [("wait", "cancelled"), ("skip", "cancelled"), ("go_on", "queued")]
)
def test_a_job_enqueued_with_a_missing_parent_does_not_wait(
    broker: BrokerHarness, policy: str, status: str
) -> None:
    new = NewJob("c", "default", "app.task", PAYLOAD, after=f"{policy} gone")
    assert broker.store.enqueue([new], allow_missing_parents=True) == [True]
    assert broker.status("c") == status
    if status == "cancelled":
        assert broker.job("c")["reason"] == "parent_gone"
        assert broker.store.requeue(["c"]) == [1]
    run(broker, "c")
    invariants(broker)


@pytest.mark.parametrize("verb", ["delete", "clear", "prune"])
@pytest.mark.parametrize("kind", ["failed", "cancelled"])
@pytest.mark.parametrize(
    ("policy", "status"), [("wait", "cancelled"), ("skip", "cancelled"), ("go_on", "queued")]
)
def test_jobs_that_wait_for_a_deleted_job_end(
    broker: BrokerHarness, verb: str, kind: str, policy: str, status: str
) -> None:
    broker.end("a", kind=kind)
    broker.redis.hset(broker.keys.job("a"), "status", "queued")  # so that c follows it
    broker.add("c", after=f"{policy} a")
    broker.redis.hset(broker.keys.job("a"), "status", kind)
    broker.advance(20_000)
    remove_job(broker, verb, "a", kind)
    assert broker.job("a") == {}
    assert broker.store.advance() is False
    assert broker.status("c") == status
    if status == "cancelled":
        assert broker.job("c")["reason"] == "parent_gone"
    assert not broker.redis.exists(broker.keys.followers("a"))
    invariants(broker)


def remove_job(broker: BrokerHarness, verb: str, job_id: str, status: str) -> None:
    if verb == "delete":
        assert broker.store.delete([job_id]) == [1]
    elif verb == "clear":
        assert broker.store.clear("default", status).done == 1
    else:
        broker.store.settings = replace(broker.store.settings, finished_max_bytes=0)
        assert broker.store.prune("default", status, 0, 0)[0] == 1


def test_retention_keeps_a_job_with_waiting_followers(broker: BrokerHarness) -> None:
    broker.end("a", "b", kind="failed")
    broker.add("c", after="wait a")
    broker.advance(20_000)
    assert broker.store.prune("default", "failed", 0, 0) == (1, 0, False)
    assert broker.ids("failed") == ["a"]
    assert broker.status("c") == "waiting"
    broker.store.requeue(["a"])
    run(broker, "a")
    run(broker, "c")
    broker.advance(20_000)
    assert broker.store.prune("default", "completed", 0, 0) == (2, 0, False)
    invariants(broker)


def test_a_job_with_many_followers_notifies_them_in_steps_and_stays_until_then(
    broker: BrokerHarness,
) -> None:
    broker.add("a")
    for start in (0, 90, 180):
        broker.add(*[f"c{n}" for n in range(start, start + 90)], after="wait a")
    run(broker, "a", body="7")
    assert len(broker.ids("waiting")) == 170
    assert broker.store.delete(["a"]) == [0]
    assert broker.store.clear("default", "completed").done == 0
    broker.advance(20_000)
    assert broker.store.prune("default", "completed", 0, 0)[0] == 0
    for _ in broker.advancing():
        invariants(broker)
    assert broker.ids("waiting") == []
    assert len(broker.ids("queued")) == 270
    assert broker.workflows.parent_results("c269") == {"a": 7}
    assert broker.store.delete(["a"]) == [0]  # they may read its result
    while jobs := broker.claim(jobs=100).jobs:
        broker.finish(*[outcome(job) for job in jobs])
    while broker.store.delete(["a"]) == [0]:  # a few of them are checked each time
        assert broker.redis.exists(broker.keys.followers("a"))
    assert broker.redis.llen(broker.keys.pending_writes) == 0
    invariants(broker)


def test_a_list_is_cleared_completely_while_followers_are_still_being_notified(
    broker: BrokerHarness,
) -> None:
    broker.add(*[f"p{n}" for n in range(100)])
    broker.add(*[f"q{n}" for n in range(60)])
    broker.add(*[f"c{n}" for n in range(99)], after="go_on p0")
    broker.add("d", after=" ".join(["wait", *[f"p{n}" for n in range(1, 99)]]))
    first, second = broker.claim("a", 100).jobs, broker.claim("b", 60).jobs
    broker.finish(
        *[outcome(job, body="null") for job in first], child="a"
    )  # notifies the followers of p0 and p1; more would be too much for one call
    broker.finish(*[outcome(job) for job in second], child="b")
    queue = JobQueue()
    # with p99 and q0 to q59, which have no followers to notify
    assert queue.clear("completed") == 63
    assert queue.get_stats()["completed"] == 97
    assert list(broker.advancing())
    assert queue.clear("completed") == 97
    invariants(broker, tokens=False)


def test_many_followers_of_a_deleted_job_are_notified_in_steps(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed")
    for start in (0, 90, 180):
        broker.add(*[f"c{n}" for n in range(start, start + 90)], after="wait a")
    broker.store.delete(["a"])
    steps = [len(broker.ids("cancelled"))]
    for _ in broker.advancing():
        steps.append(len(broker.ids("cancelled")))
    steps.append(len(broker.ids("cancelled")))
    assert steps[-1] == 270
    assert all(b - a <= 100 for a, b in pairwise(steps))
    invariants(broker)


def test_a_waiting_job_can_be_cancelled_and_requeued(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("c", after="wait a")
    assert broker.store.cancel(["c"]) == [1]
    invariants(broker)
    assert broker.store.requeue(["c"]) == [1]
    assert (broker.status("c"), broker.ids("waiting")) == ("waiting", ["c"])
    invariants(broker)
    broker.store.cancel(["c"])
    run(broker, "a", body="1")  # c is notified all the same
    assert broker.store.requeue(["c"]) == [1]
    assert broker.workflows.parent_results("c") == {"a": 1}
    run(broker, "c")


def test_followers_of_followers(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("b", after="skip a")
    broker.add("c", after="skip b")
    broker.add("d", after="wait c")
    run(broker, "a", "failed")
    assert [broker.status(name) for name in "bcd"] == ["cancelled", "cancelled", "waiting"]
    invariants(broker)


def test_a_batch_may_contain_parents_and_their_children(broker: BrokerHarness) -> None:
    jobs = [
        NewJob("a", "default", "app.task", PAYLOAD),
        NewJob("b", "other", "app.task", PAYLOAD, priority=3, when="+500", audit="final"),
        NewJob("c", "default", "app.task", PAYLOAD, after="wait a b", when="+2000"),
    ]
    assert broker.store.enqueue(jobs) == [True] * 3
    assert [broker.status(name) for name in "abc"] == ["queued", "scheduled", "waiting"]
    assert broker.job("b")["due_ms"] == str(T0 + 500)
    assert broker.meta("other")["enqueued_total"] == 1
    broker.advance(500)
    broker.store.promote(["other"])
    run(broker, "a")
    job = broker.take(queues=["other"])
    broker.finish(outcome(job))
    assert broker.job("c")["due_ms"] == str(T0 + 2500)  # the delay starts when its parents are done
    assert broker.ids("scheduled") == ["c"]
    invariants(broker)


def test_a_job_waits_for_a_job_of_a_workflow(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.push()
    broker.add("c", after=f"wait {workflow.job(0)}")
    broker.add("d", after=f"wait {workflow.job(1)}")
    workflow.run_one(body="5")
    assert broker.status("c") == "queued"
    assert broker.workflows.parent_results("c") == {workflow.job(0): 5}
    workflow.run_one()
    assert workflow.data().status == "completed"
    assert broker.status("d") == "queued"
    assert broker.workflows.relatives("d") == ([workflow.job(1)], [])
    invariants(broker)


def test_a_cancelled_workflow_notifies_the_followers_of_its_jobs(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.push()
    broker.add("c", after=f"skip {workflow.job(0)}")
    broker.store.control_workflow(workflow.id, "cancel")
    assert broker.taken() == []
    workflow.advance()
    assert (workflow.statuses(), broker.status("c")) == (["cancelled"] * 2, "cancelled")
    invariants(broker)


@pytest.mark.parametrize("order", ["cancel", "clean"])
def test_no_job_waits_for_a_retry_that_would_be_refused(broker: BrokerHarness, order: str) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [], 2: []})
    workflow.push()
    broker.add("w0", "s0", after=f"wait {workflow.job(0)}")
    broker.add("w1", after=f"wait {workflow.job(1)}")
    broker.add("g1", after=f"go_on {workflow.job(1)}")
    first, second = broker.claim("runner", 2).jobs
    broker.finish(outcome(first, "failed", ERROR), child="runner")
    assert [broker.status(name) for name in ("w0", "w1", "g1")] == ["waiting"] * 3
    assert broker.store.control_workflow(workflow.id, order) == 1
    workflow.advance()
    broker.finish(outcome(second, "failed", ERROR), child="runner")
    assert broker.store.requeue([first.id, second.id]) == [{"cancel": -3, "clean": -2}[order]] * 2
    assert [broker.job(name)["reason"] for name in ("w0", "s0", "w1")] == ["parent_gone"] * 3
    assert broker.taken(jobs=5) == ["g1"]
    broker.add("late", after=f"wait {workflow.job(0)}")
    broker.add("anyway", after=f"go_on {workflow.job(0)}")
    assert (broker.job("late")["reason"], broker.status("anyway")) == ("parent_gone", "queued")
    assert broker.store.delete([workflow.job(0)]) == [1]
    workflow.advance()
    invariants(broker, tokens=False)


def test_parents_and_followers_of_a_job(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("c", after="wait a")
    assert broker.workflows.relatives("a") == ([], ["c"])
    assert broker.workflows.relatives("c") == (["a"], [])


def test_watching_a_job_keeps_its_other_marks(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("c", after="wait a")
    assert broker.store.watch("a") == "queued"
    assert sorted(broker.job("a")["watched"]) == ["1", "f"]
    with broker.unchanged():
        broker.store.watch("a")
    run(broker, "a")
    assert broker.status("c") == "queued"


@pytest.mark.parametrize("key", ["followers", "waiting", "events"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, key: str
) -> None:
    broker.add("a")
    named = {
        "followers": broker.keys.followers("a"),
        "waiting": broker.keys.queue("default").waiting,
        "events": broker.keys.events,
    }[key]
    with broker.refused_over(named):
        broker.add("c", after="wait a")


def test_a_job_key_of_another_type_is_left_alone(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.redis.set(broker.keys.job("c"), "theirs")
    with pytest.raises(WrongKeyType, match="does not hold a job"):
        broker.add("c", after="wait a")
    assert broker.redis.get(broker.keys.job("c")) == "theirs"


@pytest.mark.parametrize("bad", [{"after": "never a"}, {"when": "soon"}, {"priority": "much"}])
def test_a_malformed_call_is_refused_before_anything_is_written(
    broker: BrokerHarness, bad: dict[str, str]
) -> None:
    broker.add("a")
    with broker.unchanged(), pytest.raises(RedisQueueError):
        broker.add("c", **{"after": "wait a", **bad})


def test_a_full_redis_refuses(broker: BrokerHarness) -> None:
    broker.add("a")
    with broker.unchanged(), broker.full(), pytest.raises(RedisFull):
        broker.add("c", after="wait a")
    assert broker.add("c", after="wait a") == [True]


def test_a_follower_that_was_deleted_by_hand_does_not_return(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("b", after="wait a")
    broker.redis.delete(broker.keys.job("b"))
    run(broker, "a")
    assert not broker.redis.exists(broker.keys.job("b"), broker.keys.followers("a"))


def test_followers_that_a_requeue_overtakes_wait_for_the_next_end(broker: BrokerHarness) -> None:
    """100 followers are cancelled per call, and maintenance does the rest."""
    broker.add("a")
    for at in (0, 50, 100):
        broker.add(*[f"f{n}" for n in range(at, at + 50)], after="skip a")
    run(broker, "a", "failed")
    assert len(broker.ids("waiting")) == 50
    assert broker.store.requeue(["a"]) == [1]
    for _ in broker.advancing():
        pass
    assert len(broker.ids("waiting")) == 50
    run(broker, "a")
    for _ in broker.advancing():
        pass
    assert len(broker.ids("queued")) == 50
    invariants(broker)


def test_a_follower_whose_queue_is_broken_is_skipped_later(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.add("b", queue="other", after="skip a")
    with broker.broken("cancelled", "other"):
        run(broker, "a", "failed")
        assert broker.status("b") == "waiting"
    for _ in broker.advancing():
        pass
    assert broker.status("b") == "cancelled"
    invariants(broker)


# -- unique keys (test_unique.py)


@pytest.mark.parametrize("how", ["retrying", "crash"])
def test_a_job_that_starts_again_has_left_its_key(broker: BrokerHarness, how: str) -> None:
    broker.add("a", unique="k until_started - -")
    job = broker.take()
    if how == "retrying":
        broker.finish(outcome(job, how, ERROR))
    else:
        broker.store.reap("c1", ["a"])
    assert broker.add("b", unique="k until_started - -") == [True]
    assert broker.add("c", unique="k until_started - -") == [False]


def test_a_key_that_lasted_and_is_taken_for_a_job_belongs_to_that_job(
    broker: BrokerHarness,
) -> None:
    """More have expired than one script frees."""
    for n in range(6):
        broker.add(str(n), unique=f"k{n} for 1000 -")
        broker.advance(1)
    broker.advance(2000)
    assert broker.add("a", unique="k5 until_finished - -") == [True]
    assert broker.add("b", unique="k5 until_finished - -") == [False]


def test_the_key_does_not_return_to_a_job_that_has_ended(broker: BrokerHarness) -> None:
    broker.add("a", unique="k keep_last - -")
    job = broker.take()
    broker.add("b", unique="k keep_last - -")
    broker.finish(outcome(job))
    assert "from:a" not in broker.job("b")  # it only waited for the end
    broker.store.cancel(["b"])
    assert not broker.redis.exists(broker.keys.unique("k"))


def test_the_id_of_a_duplicate_is_forgotten(broker: BrokerHarness) -> None:
    broker.add("a", "b", unique="k until_finished - -")
    assert broker.redis.hget(broker.keys.job("b"), "alias") == "a"
    assert broker.redis.pttl(broker.keys.job("b")) > 0
