"""finish: every outcome, fencing, repeats, and what one call finishes and claims together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.replies import ClaimedJob, FinishCode, Outcome

from .harness import ERROR, T0, BrokerHarness, invariants, outcome

OUTCOME_KINDS = ["completed", "failed", "retrying", "delayed", "cancelled", "queued"]


def test_completed(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    broker.advance(7)
    assert broker.finish(outcome(job, body='{"x":[]}')) == [FinishCode.ACCEPTED]
    stored = broker.job("a")
    assert (stored["status"], stored["result"]) == ("completed", '{"x":[]}')
    assert stored["finished_ms"] == str(T0 + 7)
    assert broker.ids("completed") == ["a"]
    assert broker.held() == []
    assert broker.meta()["completed_total"] == 1
    event = broker.events("a")[-1]
    assert (event["status"], event["result"], event["workerId"]) == ("completed", '{"x":[]}', "c1")
    assert (event["attempt"], event["seq"]) == (1, 3)
    invariants(broker)


def test_failed(broker: BrokerHarness) -> None:
    broker.add("a")
    assert broker.finish(outcome(broker.take(), "failed", ERROR, "max_attempts")) == [1]
    stored = broker.job("a")
    assert (stored["error"], stored["reason"], stored["attempts"]) == (ERROR, "max_attempts", "1")
    assert broker.ids("failed") == ["a"]
    event = broker.events("a")[-1]
    assert (event["status"], event["reason"], event["error"]) == ("failed", "max_attempts", ERROR)
    invariants(broker)


def test_retrying_uses_an_attempt_and_waits(broker: BrokerHarness) -> None:
    broker.add("a")
    assert broker.finish(outcome(broker.take(), "retrying", ERROR, "2500")) == [1]
    stored = broker.job("a")
    assert (stored["attempts"], stored["due_ms"], stored["error"]) == ("1", str(T0 + 2500), ERROR)
    assert broker.redis.zscore(broker.keys.queue("default").retrying, "a") == T0 + 2500
    assert broker.redis.llen(broker.keys.timer) == 1
    assert broker.meta()["retried_total"] == 1
    event = broker.events("a")[-1]
    assert (event["status"], event["attempt"], event["dueMs"]) == ("retrying", 1, T0 + 2500)
    invariants(broker)
    broker.advance(2500)
    again = broker.take()
    assert (again.attempts, again.lease) == (1, 2)
    assert broker.events("a")[-1]["attempt"] == 2


def test_delayed_uses_no_attempt(broker: BrokerHarness) -> None:
    broker.add("a")
    for delays in ("1", "2"):
        assert broker.finish(outcome(broker.take(), "delayed", ERROR, "100")) == [1]
        stored = broker.job("a")
        assert (stored["status"], stored["delays"]) == ("retrying", delays)
        broker.advance(100)
    job = broker.take()
    assert job.attempts == 0
    broker.finish(outcome(job))
    assert "error" not in broker.job("a")
    invariants(broker)


def test_queued_releases_to_the_head_and_uses_no_attempt(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    first = broker.take()
    assert broker.pop_token()
    assert broker.finish(outcome(first, "queued")) == [1]
    assert broker.ids("queued") == ["a", "b"]
    assert broker.tokens() == 1
    assert broker.meta()["released_total"] == 1
    again = broker.take()
    assert (again.id, again.attempts, again.recoveries) == ("a", 0, 0)
    invariants(broker)


@pytest.mark.parametrize("priority", [5, -5])
def test_queued_goes_to_the_head_of_its_band(broker: BrokerHarness, priority: int) -> None:
    broker.add("a", "b", "c", priority=priority)
    jobs = broker.claim(jobs=2).jobs
    broker.finish(*[outcome(job, "queued") for job in reversed(jobs)])
    assert broker.taken(jobs=3) == ["a", "b", "c"]


def test_cancelled(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    a, b = broker.claim(jobs=2).jobs
    assert broker.finish(outcome(a, "cancelled", ""), outcome(b, "cancelled", ERROR)) == [1, 1]
    assert broker.ids("cancelled") == ["b", "a"]
    assert "error" not in broker.job("a")
    assert broker.job("b")["error"] == ERROR
    invariants(broker)


def test_the_error_of_an_earlier_attempt_is_removed_when_a_job_completes(
    broker: BrokerHarness,
) -> None:
    broker.add("a")
    broker.finish(outcome(broker.take(), "retrying", ERROR, "1"))
    broker.advance(1)
    broker.finish(outcome(broker.take()))
    assert "error" not in broker.job("a")
    invariants(broker)


# -- precedence


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("completed", "completed", FinishCode.ACCEPTED),
        ("failed", "failed", FinishCode.ACCEPTED),
        ("cancelled", "cancelled", FinishCode.ACCEPTED),
        ("retrying", "cancelled", FinishCode.ACCEPTED_AS_CANCELLED),
        ("delayed", "cancelled", FinishCode.ACCEPTED_AS_CANCELLED),
        ("queued", "cancelled", FinishCode.ACCEPTED_AS_CANCELLED),
    ],
)
def test_a_flagged_job_ends_but_never_runs_again(
    broker: BrokerHarness, kind: str, status: str, code: FinishCode
) -> None:
    broker.add("a")
    job = broker.take()
    assert broker.store.cancel(["a"]) == [2]
    assert broker.finish(outcome(job, kind)) == [code]
    assert broker.status("a") == status
    invariants(broker)


# -- fencing (law 2)


def _another_child(broker: BrokerHarness) -> tuple[ClaimedJob, str]:
    return broker.take("c1"), "c2"


def _wrong_lease(broker: BrokerHarness) -> tuple[ClaimedJob, str]:
    job = broker.take("c1")
    return job._replace(lease=job.lease + 1), "c1"


def _reaped(broker: BrokerHarness) -> tuple[ClaimedJob, str]:
    job = broker.take("c1")
    broker.store.reap("c1", [])
    return job, "c1"


def _reaped_and_taken_by_another(broker: BrokerHarness) -> tuple[ClaimedJob, str]:
    stale = _reaped(broker)
    broker.take("c2")
    return stale


def _finished_by_another(broker: BrokerHarness) -> tuple[ClaimedJob, str]:
    stale = _reaped(broker)
    broker.finish(outcome(broker.take("c2")), child="c2")
    return stale


def _released_and_claimed_again(broker: BrokerHarness) -> tuple[ClaimedJob, str]:
    job = broker.take("c1")
    broker.finish(outcome(job, "queued"))
    broker.take("c1")
    return job, "c1"


def _requeued_since(broker: BrokerHarness) -> tuple[ClaimedJob, str]:
    job = broker.take("c1")
    broker.finish(outcome(job, "failed", ERROR))
    broker.store.requeue(["a"])
    return job, "c1"


STALE = [
    _another_child, _wrong_lease, _reaped, _reaped_and_taken_by_another, _finished_by_another,
    _released_and_claimed_again, _requeued_since,
]  # fmt: skip


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
@pytest.mark.parametrize("make", STALE, ids=lambda make: make.__name__.strip("_"))
def test_a_stale_writer_is_refused_and_changes_nothing(
    broker: BrokerHarness, make: Callable[[BrokerHarness], tuple[ClaimedJob, str]], kind: str
) -> None:
    broker.add("a", "other")
    job, child = make(broker)
    with broker.unchanged():
        assert broker.finish(outcome(job, kind), child=child) == [FinishCode.LEASE_LOST]
        assert broker.store.progress(child, "a", job.lease, "{}") is False
        assert broker.store.release(child, [(job.id, job.lease)]) == [FinishCode.LEASE_LOST]
    invariants(broker)


def test_an_unknown_job_is_a_lost_lease(broker: BrokerHarness) -> None:
    assert broker.finish(Outcome("never", 1, 1, "completed", "1")) == [FinishCode.LEASE_LOST]
    assert broker.dump() == {}


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
def test_repeating_the_childs_own_write_succeeds_and_changes_nothing(
    broker: BrokerHarness, kind: str
) -> None:
    broker.add("a")
    job = broker.take()
    assert broker.finish(outcome(job, kind)) == [FinishCode.ACCEPTED]
    with broker.unchanged():
        assert broker.finish(outcome(job, kind)) == [FinishCode.REPEATED]


def test_the_same_outcome_twice_in_one_call_counts_once(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    assert broker.finish(outcome(job), outcome(job)) == [1, 2]
    assert broker.event_statuses("a") == ["queued", "processing", "completed"]
    invariants(broker)


def test_valid_and_stale_outcomes_of_a_batch_are_handled_separately(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    a, b, c = broker.claim(jobs=3).jobs
    stale = b._replace(lease=b.lease + 1)
    assert broker.finish(outcome(a), outcome(stale), outcome(c)) == [1, 0, 1]
    assert broker.ids("completed") == ["c", "a"]
    assert broker.held() == [f"{b.call}:b"]
    invariants(broker)


# -- the child's list


def test_only_finished_jobs_leave_the_childs_list(broker: BrokerHarness) -> None:
    broker.add(*"abcde")
    jobs = {job.id: job for job in broker.claim(jobs=5).jobs}
    broker.finish(*[outcome(jobs[name]) for name in "ab"])
    assert [entry[-1] for entry in broker.held()] == ["c", "d", "e"]
    broker.finish(*[outcome(jobs[name]) for name in "ec"])
    assert [entry[-1] for entry in broker.held()] == ["d"]
    invariants(broker)


def test_a_list_deleted_by_hand_costs_no_other_job_its_place(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    a = broker.take()
    broker.redis.delete(broker.keys.child_processing("c1"))
    b = broker.take()
    assert broker.finish(outcome(a)) == [1]
    assert broker.held() == [f"{b.call}:b"]
    invariants(broker)


def test_a_job_whose_hash_has_gone_leaves_the_childs_list(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    a, b = broker.claim(jobs=2).jobs
    broker.redis.delete(broker.keys.job("a"))
    assert broker.finish(outcome(a), outcome(b)) == [FinishCode.LEASE_LOST, FinishCode.ACCEPTED]
    assert broker.held() == []


# -- finishing and claiming at once


def test_finish_and_claim_in_one_call(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    claim_request = ClaimRequest("c1", ("default",))
    a = broker.take()
    codes, claim = broker.store.finish(claim_request, 9, [outcome(a)], 1)
    assert codes == [FinishCode.ACCEPTED]
    assert [(job.id, job.call) for job in claim.jobs] == [("b", 9)]
    assert broker.held() == ["9:b"]
    assert broker.tokens() == 1
    invariants(broker)


def test_a_resent_call_accepts_its_finishes_and_returns_the_same_jobs(
    broker: BrokerHarness,
) -> None:
    broker.add("a", "b", "c", "d")
    claim_request = ClaimRequest("c1", ("default",))
    a, b = broker.claim(jobs=2).jobs
    first = broker.store.finish(claim_request, 9, [outcome(a), outcome(b, "retrying", ERROR)], 2)
    before = broker.dump()
    for _ in range(2):
        codes, claim = broker.store.finish(
            claim_request, 9, [outcome(a), outcome(b, "retrying", ERROR)], 2, resent=True
        )
        assert codes == [FinishCode.REPEATED, FinishCode.REPEATED]
        assert claim == first[1]
    assert broker.dump() == before | {broker.keys.resent("c1"): ("string", "9")}
    invariants(broker)


def test_a_resent_call_that_wants_no_jobs_returns_those_that_it_claimed(
    broker: BrokerHarness,
) -> None:
    broker.add("a", "b")
    claim_request = ClaimRequest("c1", ("default",))
    _, first = broker.store.finish(claim_request, 9, [], 1)
    assert broker.store.finish(claim_request, 9, [], 0, resent=True) == ([], first)
    assert broker.store.finish(claim_request, 10, [], 0, resent=True)[1].jobs == []
    assert broker.store.finish(claim_request, 10, [], 1)[1].jobs == []  # it arrives late
    assert broker.held() == ["9:a"]
    invariants(broker)


def test_a_released_job_can_be_claimed_in_the_same_call(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    a = broker.take()
    _, claim = broker.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(a, "queued")], 2)
    assert [(job.id, job.lease) for job in claim.jobs] == [("a", 2), ("b", 1)]
    assert broker.held() == ["9:a", "9:b"]
    invariants(broker)


def test_a_recovered_job_is_claimed_once_the_last_other_is_finished(broker: BrokerHarness) -> None:
    broker.add("bad")
    broker.take("dead")
    broker.store.reap("dead", None)
    broker.add("a", priority=1)
    a = broker.take()
    _, claim = broker.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(a)], 5)
    assert [job.id for job in claim.jobs] == ["bad"]


def test_a_hundred_outcomes_of_several_queues_and_a_hundred_claims(broker: BrokerHarness) -> None:
    for n in range(100):
        broker.add(f"j{n}", queue=f"q{n % 3}")
    broker.add(*[f"n{n}" for n in range(100)], queue="q1")
    claim_request = ClaimRequest("c1", ("q0", "q1", "q2"))
    first = [broker.claim(jobs=34, queues=[queue]).jobs for queue in claim_request.queues]
    jobs = [job for part in first for job in part if job.id.startswith("j")]
    assert len(jobs) == 100
    codes, claim = broker.store.finish(claim_request, 999, [outcome(job) for job in jobs], 100)
    assert codes == [1] * 100
    assert len(claim.jobs) == 99  # one had come with the first claim
    invariants(broker)


# -- refusals


@pytest.mark.parametrize("name", ["completed", "failed", "cancelled", "retrying", "processing"])
@pytest.mark.parametrize("queues", [("sound", "default"), ()], ids=["its queues", "no queue"])
@pytest.mark.parametrize("kind", ["completed", "failed", "retrying", "queued"])
def test_outcomes_of_a_queue_with_a_key_of_another_type_are_to_be_sent_again(
    broker: BrokerHarness, name: str, queues: tuple[str, ...], kind: str
) -> None:
    broker.add("a1", "a2", queue="sound")
    broker.add("b1", "b2")
    a1, b1 = broker.take(queues=["sound"]), broker.take()
    a2, b2 = broker.take(queues=["sound"]), broker.take()
    outcomes = [outcome(job, kind) for job in (a1, b1, a2, b2)]
    broker.add("next", queue="sound", priority=1)
    with broker.broken(name) as words:
        codes, claim = broker.store.finish(ClaimRequest("c1", queues), 9, outcomes, 1)
        assert codes == [1, 4, 1, 4]
        assert [job.id for job in claim.jobs] == (["next"] if queues else [])
        assert all(words in problem for problem in claim.broken.values())
        assert [entry.partition(":")[2] for entry in broker.held()][:2] == ["b1", "b2"]
        assert broker.status("a1") == broker.status("a2")
        assert broker.status("b1") == broker.status("b2") == "processing"
        with broker.unchanged():
            assert broker.finish(outcomes[1], outcomes[3]) == [4, 4]
    assert broker.finish(outcomes[1], outcomes[3]) == [1, 1]
    assert broker.status("b1") == broker.status("a1")
    invariants(broker)


def test_an_outcome_that_cannot_be_reported_delays_no_suspect_of_another_queue(
    broker: BrokerHarness,
) -> None:
    broker.add("a", queue="broken")
    job = broker.take(queues=["broken"])
    broker.add("suspect")
    broker.take("dead")
    broker.store.reap("dead", None)
    with broker.broken("completed", "broken"):
        _, claim = broker.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(job)], 5)
    assert [job.id for job in claim.jobs] == ["suspect"]


def test_a_job_key_of_another_type_does_not_stop_other_outcomes(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    a, b = broker.claim(jobs=2).jobs
    broker.redis.set(broker.keys.job("a"), "theirs")
    assert broker.finish(outcome(a), outcome(b)) == [FinishCode.LEASE_LOST, FinishCode.ACCEPTED]
    assert broker.redis.get(broker.keys.job("a")) == "theirs"


@pytest.mark.parametrize("detail", ["", "soon"])
def test_an_invalid_delay_means_at_once(broker: BrokerHarness, detail: str) -> None:
    broker.add("a")
    job = broker.take()
    assert broker.finish(Outcome("a", job.lease, job.call, "retrying", ERROR, detail)) == [1]
    assert broker.job("a")["due_ms"] == str(T0)
    invariants(broker)


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
def test_finishes_work_on_a_full_redis(broker: BrokerHarness, kind: str) -> None:
    broker.add("a", "b")
    job = broker.take()
    with broker.full():
        codes, claim = broker.store.finish(
            ClaimRequest("c1", ("default",)), 9, [outcome(job, kind, "x" * 2000)], 1
        )
    assert codes == [FinishCode.ACCEPTED]
    assert len(claim.jobs) == 1
    invariants(broker)


@pytest.mark.parametrize(("size", "is_inline"), [(1024, True), (1025, False)])
@pytest.mark.parametrize(("kind", "field"), [("completed", "result"), ("failed", "error")])
def test_only_small_bodies_travel_inline(
    broker: BrokerHarness, size: int, is_inline: bool, kind: str, field: str
) -> None:
    broker.end("a", kind=kind, body="x" * size)
    assert (field in broker.events("a")[-1]) is is_inline
    assert len(broker.job("a")[field]) == size


def test_seq_rises_by_one_per_transition(broker: BrokerHarness) -> None:
    broker.add("a", when="+10")
    broker.advance(10)
    broker.finish(outcome(broker.take(), "retrying", ERROR, "10"))
    broker.advance(10)
    broker.finish(outcome(broker.take(), "queued"))
    job = broker.take()
    broker.store.progress("c1", "a", job.lease, '{"done":1,"total":2}')
    broker.finish(outcome(job, "failed", ERROR))
    broker.store.requeue(["a"])
    broker.finish(outcome(broker.take()))
    events = broker.events("a")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert broker.job("a")["seq"] == str(len(events))
    assert broker.event_statuses("a") == [
        "scheduled", "queued", "processing", "retrying", "queued", "processing", "queued",
        "processing", "processing", "failed", "queued", "processing", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("priority", [0, 3])
@pytest.mark.parametrize(("detail", "order"), [("head", "aab"), ("tail", "aba"), ("", "aab")])
def test_a_released_job_uses_no_attempt(
    broker: BrokerHarness, priority: int, detail: str, order: str
) -> None:
    """``head`` and ``tail``: it has run for a while, which its history records."""
    broker.add("a", "b", priority=priority)
    job = broker.take()
    assert broker.finish(outcome(job, "queued", "", detail)) == [1]
    assert broker.job("a").get("ran") == ("c1" if detail else None)
    assert (broker.meta()["released_total"], broker.tokens()) == (1, 1)
    invariants(broker)
    assert [job.id, *broker.taken("c2", 2)] == list(order)
    assert "attempts" not in broker.job("a")
