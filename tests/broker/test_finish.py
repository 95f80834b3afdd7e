"""finish: every outcome, fencing, repeats, and what one call finishes and claims together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.replies import ClaimedJob, FinishCode, Outcome

from .lab import ERROR, T0, Lab, invariants, outcome

VERDICTS = ["completed", "failed", "retrying", "delayed", "cancelled", "queued"]


def test_completed(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.advance(7)
    assert lab.finish(outcome(job, body='{"x":[]}')) == [FinishCode.ACCEPTED]
    stored = lab.job("a")
    assert (stored["status"], stored["result"]) == ("completed", '{"x":[]}')
    assert stored["finished_ms"] == str(T0 + 7)
    assert lab.ids("completed") == ["a"]
    assert lab.held() == []
    assert lab.meta()["completed_total"] == 1
    event = lab.events("a")[-1]
    assert (event["status"], event["result"], event["workerId"]) == ("completed", '{"x":[]}', "c1")
    assert (event["attempt"], event["seq"]) == (1, 3)
    invariants(lab)


def test_failed(lab: Lab) -> None:
    lab.add("a")
    assert lab.finish(outcome(lab.take(), "failed", ERROR, "max_attempts")) == [1]
    stored = lab.job("a")
    assert (stored["error"], stored["reason"], stored["attempts"]) == (ERROR, "max_attempts", "1")
    assert lab.ids("failed") == ["a"]
    event = lab.events("a")[-1]
    assert (event["status"], event["reason"], event["error"]) == ("failed", "max_attempts", ERROR)
    invariants(lab)


def test_retrying_uses_an_attempt_and_waits(lab: Lab) -> None:
    lab.add("a")
    assert lab.finish(outcome(lab.take(), "retrying", ERROR, "2500")) == [1]
    stored = lab.job("a")
    assert (stored["attempts"], stored["due_ms"], stored["error"]) == ("1", str(T0 + 2500), ERROR)
    assert lab.redis.zscore(lab.keys.queue("default").retrying, "a") == T0 + 2500
    assert lab.redis.llen(lab.keys.timer) == 1
    assert lab.meta()["retried_total"] == 1
    event = lab.events("a")[-1]
    assert (event["status"], event["attempt"], event["dueMs"]) == ("retrying", 1, T0 + 2500)
    invariants(lab)
    lab.advance(2500)
    again = lab.take()
    assert (again.attempts, again.lease) == (1, 2)
    assert lab.events("a")[-1]["attempt"] == 2


def test_delayed_uses_no_attempt(lab: Lab) -> None:
    lab.add("a")
    for delays in ("1", "2"):
        assert lab.finish(outcome(lab.take(), "delayed", ERROR, "100")) == [1]
        stored = lab.job("a")
        assert (stored["status"], stored["delays"]) == ("retrying", delays)
        lab.advance(100)
    job = lab.take()
    assert job.attempts == 0
    lab.finish(outcome(job))
    assert "error" not in lab.job("a")
    invariants(lab)


def test_queued_releases_to_the_head_and_uses_no_attempt(lab: Lab) -> None:
    lab.add("a", "b")
    first = lab.take()
    assert lab.pop_token()
    assert lab.finish(outcome(first, "queued")) == [1]
    assert lab.ids("queued") == ["a", "b"]
    assert lab.tokens() == 1
    assert lab.meta()["released_total"] == 1
    again = lab.take()
    assert (again.id, again.attempts, again.recoveries) == ("a", 0, 0)
    invariants(lab)


@pytest.mark.parametrize("priority", [5, -5])
def test_queued_goes_to_the_head_of_its_band(lab: Lab, priority: int) -> None:
    lab.add("a", "b", "c", priority=priority)
    jobs = lab.claim(jobs=2).jobs
    lab.finish(*[outcome(job, "queued") for job in reversed(jobs)])
    assert lab.taken(jobs=3) == ["a", "b", "c"]


def test_cancelled(lab: Lab) -> None:
    lab.add("a", "b")
    a, b = lab.claim(jobs=2).jobs
    assert lab.finish(outcome(a, "cancelled", ""), outcome(b, "cancelled", ERROR)) == [1, 1]
    assert lab.ids("cancelled") == ["b", "a"]
    assert "error" not in lab.job("a")
    assert lab.job("b")["error"] == ERROR
    invariants(lab)


def test_the_error_of_an_earlier_attempt_is_removed_when_a_job_completes(lab: Lab) -> None:
    lab.add("a")
    lab.finish(outcome(lab.take(), "retrying", ERROR, "1"))
    lab.advance(1)
    lab.finish(outcome(lab.take()))
    assert "error" not in lab.job("a")
    invariants(lab)


# -- precedence


@pytest.mark.parametrize(
    ("verdict", "status", "code"),
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
    lab: Lab, verdict: str, status: str, code: FinishCode
) -> None:
    lab.add("a")
    job = lab.take()
    assert lab.store.cancel(["a"]) == [2]
    assert lab.finish(outcome(job, verdict)) == [code]
    assert lab.status("a") == status
    invariants(lab)


# -- fencing (law 2)


def _another_child(lab: Lab) -> tuple[ClaimedJob, str]:
    return lab.take("c1"), "c2"


def _wrong_lease(lab: Lab) -> tuple[ClaimedJob, str]:
    job = lab.take("c1")
    return job._replace(lease=job.lease + 1), "c1"


def _reaped(lab: Lab) -> tuple[ClaimedJob, str]:
    job = lab.take("c1")
    lab.store.reap("c1", [])
    return job, "c1"


def _reaped_and_taken_by_another(lab: Lab) -> tuple[ClaimedJob, str]:
    stale = _reaped(lab)
    lab.take("c2")
    return stale


def _finished_by_another(lab: Lab) -> tuple[ClaimedJob, str]:
    stale = _reaped(lab)
    lab.finish(outcome(lab.take("c2")), child="c2")
    return stale


def _released_and_claimed_again(lab: Lab) -> tuple[ClaimedJob, str]:
    job = lab.take("c1")
    lab.finish(outcome(job, "queued"))
    lab.take("c1")
    return job, "c1"


def _requeued_since(lab: Lab) -> tuple[ClaimedJob, str]:
    job = lab.take("c1")
    lab.finish(outcome(job, "failed", ERROR))
    lab.store.requeue(["a"])
    return job, "c1"


STALE = [
    _another_child, _wrong_lease, _reaped, _reaped_and_taken_by_another, _finished_by_another,
    _released_and_claimed_again, _requeued_since,
]  # fmt: skip


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("make", STALE, ids=lambda make: make.__name__.strip("_"))
def test_a_stale_writer_is_refused_and_changes_nothing(
    lab: Lab, make: Callable[[Lab], tuple[ClaimedJob, str]], verdict: str
) -> None:
    lab.add("a", "other")
    job, child = make(lab)
    before = lab.dump()
    assert lab.finish(outcome(job, verdict), child=child) == [FinishCode.LEASE_LOST]
    assert lab.store.progress(child, "a", job.lease, "{}") is False
    assert lab.store.release(child, [(job.id, job.lease)]) == [FinishCode.LEASE_LOST]
    assert lab.dump() == before
    invariants(lab)


def test_an_unknown_job_is_a_lost_lease(lab: Lab) -> None:
    assert lab.finish(Outcome("never", 1, 1, "completed", "1")) == [FinishCode.LEASE_LOST]
    assert lab.dump() == {}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_repeating_the_childs_own_write_succeeds_and_changes_nothing(
    lab: Lab, verdict: str
) -> None:
    lab.add("a")
    job = lab.take()
    assert lab.finish(outcome(job, verdict)) == [FinishCode.ACCEPTED]
    before = lab.dump()
    assert lab.finish(outcome(job, verdict)) == [FinishCode.REPEATED]
    assert lab.dump() == before


def test_the_same_outcome_twice_in_one_call_counts_once(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    assert lab.finish(outcome(job), outcome(job)) == [1, 2]
    assert lab.story("a") == ["queued", "processing", "completed"]
    invariants(lab)


def test_valid_and_stale_outcomes_of_a_batch_are_handled_separately(lab: Lab) -> None:
    lab.add("a", "b", "c")
    a, b, c = lab.claim(jobs=3).jobs
    stale = b._replace(lease=b.lease + 1)
    assert lab.finish(outcome(a), outcome(stale), outcome(c)) == [1, 0, 1]
    assert lab.ids("completed") == ["c", "a"]
    assert lab.held() == [f"{b.call}:b"]
    invariants(lab)


# -- the child's list


def test_only_finished_jobs_leave_the_childs_list(lab: Lab) -> None:
    lab.add(*"abcde")
    jobs = {job.id: job for job in lab.claim(jobs=5).jobs}
    lab.finish(*[outcome(jobs[name]) for name in "ab"])
    assert [entry[-1] for entry in lab.held()] == ["c", "d", "e"]
    lab.finish(*[outcome(jobs[name]) for name in "ec"])
    assert [entry[-1] for entry in lab.held()] == ["d"]
    invariants(lab)


def test_a_list_deleted_by_hand_costs_no_other_job_its_place(lab: Lab) -> None:
    lab.add("a", "b")
    a = lab.take()
    lab.redis.delete(lab.keys.child_processing("c1"))
    b = lab.take()
    assert lab.finish(outcome(a)) == [1]
    assert lab.held() == [f"{b.call}:b"]
    invariants(lab)


def test_a_job_whose_hash_has_gone_leaves_the_childs_list(lab: Lab) -> None:
    lab.add("a", "b")
    a, b = lab.claim(jobs=2).jobs
    lab.redis.delete(lab.keys.job("a"))
    assert lab.finish(outcome(a), outcome(b)) == [FinishCode.LEASE_LOST, FinishCode.ACCEPTED]
    assert lab.held() == []


# -- finishing and claiming at once


def test_finish_and_claim_in_one_call(lab: Lab) -> None:
    lab.add("a", "b", "c")
    claim_request = ClaimRequest("c1", ("default",))
    a = lab.take()
    codes, claim = lab.store.finish(claim_request, 9, [outcome(a)], 1)
    assert codes == [FinishCode.ACCEPTED]
    assert [(job.id, job.call) for job in claim.jobs] == [("b", 9)]
    assert lab.held() == ["9:b"]
    assert lab.tokens() == 1
    invariants(lab)


def test_a_resent_call_accepts_its_finishes_and_returns_the_same_jobs(lab: Lab) -> None:
    lab.add("a", "b", "c", "d")
    claim_request = ClaimRequest("c1", ("default",))
    a, b = lab.claim(jobs=2).jobs
    first = lab.store.finish(claim_request, 9, [outcome(a), outcome(b, "retrying", ERROR)], 2)
    before = lab.dump()
    for _ in range(2):
        codes, claim = lab.store.finish(
            claim_request, 9, [outcome(a), outcome(b, "retrying", ERROR)], 2, resent=True
        )
        assert codes == [FinishCode.REPEATED, FinishCode.REPEATED]
        assert claim == first[1]
    assert lab.dump() == before | {lab.keys.resent("c1"): ("string", "9")}
    invariants(lab)


def test_a_resent_call_that_wants_no_jobs_returns_those_that_it_claimed(lab: Lab) -> None:
    lab.add("a", "b")
    claim_request = ClaimRequest("c1", ("default",))
    _, first = lab.store.finish(claim_request, 9, [], 1)
    assert lab.store.finish(claim_request, 9, [], 0, resent=True) == ([], first)
    assert lab.store.finish(claim_request, 10, [], 0, resent=True)[1].jobs == []
    assert lab.store.finish(claim_request, 10, [], 1)[1].jobs == []  # it arrives late
    assert lab.held() == ["9:a"]
    invariants(lab)


def test_a_released_job_can_be_claimed_in_the_same_call(lab: Lab) -> None:
    lab.add("a", "b")
    a = lab.take()
    _, claim = lab.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(a, "queued")], 2)
    assert [(job.id, job.lease) for job in claim.jobs] == [("a", 2), ("b", 1)]
    assert lab.held() == ["9:a", "9:b"]
    invariants(lab)


def test_a_recovered_job_is_claimed_once_the_last_other_is_finished(lab: Lab) -> None:
    lab.add("bad")
    lab.take("dead")
    lab.store.reap("dead", None)
    lab.add("a", priority=1)
    a = lab.take()
    _, claim = lab.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(a)], 5)
    assert [job.id for job in claim.jobs] == ["bad"]


def test_a_hundred_outcomes_of_several_queues_and_a_hundred_claims(lab: Lab) -> None:
    for n in range(100):
        lab.add(f"j{n}", queue=f"q{n % 3}")
    lab.add(*[f"n{n}" for n in range(100)], queue="q1")
    claim_request = ClaimRequest("c1", ("q0", "q1", "q2"))
    first = [lab.claim(jobs=34, queues=[queue]).jobs for queue in claim_request.queues]
    jobs = [job for part in first for job in part if job.id.startswith("j")]
    assert len(jobs) == 100
    codes, claim = lab.store.finish(claim_request, 999, [outcome(job) for job in jobs], 100)
    assert codes == [1] * 100
    assert len(claim.jobs) == 99  # one had come with the first claim
    invariants(lab)


# -- refusals


@pytest.mark.parametrize("name", ["completed", "failed", "cancelled", "retrying", "processing"])
@pytest.mark.parametrize("queues", [("sound", "default"), ()], ids=["its queues", "no queue"])
@pytest.mark.parametrize("verdict", ["completed", "failed", "retrying", "queued"])
def test_outcomes_of_a_queue_with_a_key_of_another_type_are_to_be_sent_again(
    lab: Lab, name: str, queues: tuple[str, ...], verdict: str
) -> None:
    lab.add("a1", "a2", queue="sound")
    lab.add("b1", "b2")
    a1, b1 = lab.take(queues=["sound"]), lab.take()
    a2, b2 = lab.take(queues=["sound"]), lab.take()
    outcomes = [outcome(job, verdict) for job in (a1, b1, a2, b2)]
    lab.add("next", queue="sound", priority=1)
    with lab.broken(name) as words:
        codes, claim = lab.store.finish(ClaimRequest("c1", queues), 9, outcomes, 1)
        assert codes == [1, 4, 1, 4]
        assert [job.id for job in claim.jobs] == (["next"] if queues else [])
        assert all(words in problem for problem in claim.broken.values())
        assert [entry.partition(":")[2] for entry in lab.held()][:2] == ["b1", "b2"]
        assert lab.status("a1") == lab.status("a2")
        assert lab.status("b1") == lab.status("b2") == "processing"
        before = lab.dump()
        assert lab.finish(outcomes[1], outcomes[3]) == [4, 4]
        assert lab.dump() == before
    assert lab.finish(outcomes[1], outcomes[3]) == [1, 1]
    assert lab.status("b1") == lab.status("a1")
    invariants(lab)


def test_an_outcome_that_cannot_be_reported_delays_no_suspect_of_another_queue(lab: Lab) -> None:
    lab.add("a", queue="broken")
    job = lab.take(queues=["broken"])
    lab.add("suspect")
    lab.take("dead")
    lab.store.reap("dead", None)
    with lab.broken("completed", "broken"):
        _, claim = lab.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(job)], 5)
    assert [job.id for job in claim.jobs] == ["suspect"]


def test_a_job_key_of_another_type_does_not_stop_other_outcomes(lab: Lab) -> None:
    lab.add("a", "b")
    a, b = lab.claim(jobs=2).jobs
    lab.redis.delete(lab.keys.job("a"))
    lab.redis.set(lab.keys.job("a"), "theirs")
    assert lab.finish(outcome(a), outcome(b)) == [FinishCode.LEASE_LOST, FinishCode.ACCEPTED]
    assert lab.redis.get(lab.keys.job("a")) == "theirs"


@pytest.mark.parametrize("detail", ["", "soon"])
def test_an_invalid_delay_means_at_once(lab: Lab, detail: str) -> None:
    lab.add("a")
    job = lab.take()
    assert lab.finish(Outcome("a", job.lease, job.call, "retrying", ERROR, detail)) == [1]
    assert lab.job("a")["due_ms"] == str(T0)
    invariants(lab)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_finishes_work_on_a_full_redis(lab: Lab, verdict: str) -> None:
    lab.add("a", "b")
    job = lab.take()
    with lab.full():
        codes, claim = lab.store.finish(
            ClaimRequest("c1", ("default",)), 9, [outcome(job, verdict, "x" * 2000)], 1
        )
    assert codes == [FinishCode.ACCEPTED]
    assert len(claim.jobs) == 1
    invariants(lab)


@pytest.mark.parametrize(("size", "is_inline"), [(1024, True), (1025, False)])
@pytest.mark.parametrize(("verdict", "field"), [("completed", "result"), ("failed", "error")])
def test_only_small_bodies_travel_inline(
    lab: Lab, size: int, is_inline: bool, verdict: str, field: str
) -> None:
    lab.end("a", verdict=verdict, body="x" * size)
    assert (field in lab.events("a")[-1]) is is_inline
    assert len(lab.job("a")[field]) == size


def test_seq_rises_by_one_per_transition(lab: Lab) -> None:
    lab.add("a", when="+10")
    lab.advance(10)
    lab.finish(outcome(lab.take(), "retrying", ERROR, "10"))
    lab.advance(10)
    lab.finish(outcome(lab.take(), "queued"))
    job = lab.take()
    lab.store.progress("c1", "a", job.lease, '{"done":1,"total":2}')
    lab.finish(outcome(job, "failed", ERROR))
    lab.store.requeue(["a"])
    lab.finish(outcome(lab.take()))
    events = lab.events("a")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert lab.job("a")["seq"] == str(len(events))
    assert lab.story("a") == [
        "scheduled", "queued", "processing", "retrying", "queued", "processing", "queued",
        "processing", "processing", "failed", "queued", "processing", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("priority", [0, 3])
@pytest.mark.parametrize(("detail", "order"), [("head", "aab"), ("tail", "aba"), ("", "aab")])
def test_a_released_job_uses_no_attempt(lab: Lab, priority: int, detail: str, order: str) -> None:
    """``head`` and ``tail``: it has run for a while, which its history records."""
    lab.add("a", "b", priority=priority)
    job = lab.take()
    assert lab.finish(outcome(job, "queued", "", detail)) == [1]
    assert lab.job("a").get("ran") == ("c1" if detail else None)
    assert (lab.meta()["released_total"], lab.tokens()) == (1, 1)
    invariants(lab)
    assert [job.id, *lab.taken("c2", 2)] == list(order)
    assert "attempts" not in lab.job("a")
