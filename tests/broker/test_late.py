"""Calls that arrive after they were sent again: the network delayed a copy, its child gave it up,
got an answer to the next copy and continued. No one would receive what such a call claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.replies import ClaimReply, FinishCode, Outcome

from .lab import ERROR, Lab, invariants, outcome
from .planted import plant_bug
from .test_single_run import AS_BATCH


class Ask(Protocol):
    """One call for jobs, with one of the two verbs."""

    def __call__(
        self, call: int, jobs: int = 1, child: str = "c1", *, resent: bool = False
    ) -> ClaimReply: ...


@pytest.fixture(params=["claim", "finish"])
def ask(lab: Lab, request: pytest.FixtureRequest) -> Ask:
    def by_claim(
        call: int, jobs: int = 1, child: str = "c1", *, resent: bool = False
    ) -> ClaimReply:
        return lab.claim(child, jobs, call=call, resent=resent)

    def by_finish(
        call: int, jobs: int = 1, child: str = "c1", *, resent: bool = False
    ) -> ClaimReply:
        return finish(lab, call, jobs=jobs, child=child, resent=resent)[1]

    return by_claim if request.param == "claim" else by_finish


def finish(
    lab: Lab,
    call: int,
    outcomes: Sequence[Outcome] = (),
    *,
    jobs: int = 1,
    child: str = "c1",
    resent: bool = False,
) -> tuple[list[int], ClaimReply]:
    claim_request = ClaimRequest(child, ("default",))
    return lab.store.finish(claim_request, call, outcomes, jobs, resent=resent)


def ids(claim: ClaimReply) -> list[str]:
    return [job.id for job in claim.jobs]


def calls_of_scripts(lab: Lab, ask: Ask, call: int) -> list[str]:
    """The commands that a script calls to claim one job."""
    found = []
    with lab.redis.monitor() as monitor:
        ask(call)
        lab.redis.ping()
        while (seen := monitor.next_command())["command"] != "PING":
            if seen["client_type"] == "lua":
                found.append(seen["command"])
    return found


@pytest.mark.parametrize("late", [1, 2])
def test_the_first_copy_claims_nothing_once_another_was_answered(
    lab: Lab, ask: Ask, late: int
) -> None:
    lab.add(*"abcd")
    [a] = ask(late, resent=True).jobs
    lab.store.release("c1", [(a.id, a.lease)])
    assert ids(ask(3)) == ["a"]
    before = lab.dump()
    claim = ask(late)
    assert (claim.jobs, claim.lost, claim.leave_out, claim.must_be_alone) == ([], [], [], False)
    assert lab.dump() == before
    assert lab.held() == ["3:a"]
    invariants(lab)


def test_a_late_copy_claims_nothing_while_the_child_still_holds_its_jobs(
    lab: Lab, ask: Ask
) -> None:
    lab.add("a", "b")
    ask(1, resent=True)
    assert ask(1).jobs == []
    assert lab.held() == ["1:a"]


def test_the_verbs_share_their_numbers(lab: Lab) -> None:
    lab.add("a", "b", "c")
    assert lab.taken(call=4, resent=True) == ["a"]
    assert ids(finish(lab, 3)[1]) == []
    assert ids(finish(lab, 4)[1]) == []
    assert ids(finish(lab, 5, resent=True)[1]) == ["b"]
    assert lab.taken(call=5) == []
    assert lab.taken(call=6) == ["c"]


def test_numbers_are_not_compared_as_text(lab: Lab, ask: Ask) -> None:
    lab.add("a", "b", "c")
    assert ids(ask(9, resent=True)) == ["a"]
    assert ids(ask(10)) == ["b"]
    assert ids(ask(10, resent=True)) == ["b"]
    assert ask(9).jobs == []


def test_the_outcomes_of_a_late_call_are_still_accepted(lab: Lab) -> None:
    """Whether the child made the call again with other outcomes, or only the late call has them."""
    lab.add(*"abcde")
    a, b, c = lab.claim(jobs=3, call=1).jobs
    finish(lab, 2, [outcome(a)], resent=True)
    codes, claim = finish(lab, 2, [outcome(a), outcome(b), outcome(c, "retrying", ERROR)])
    assert codes == [FinishCode.REPEATED, FinishCode.ACCEPTED, FinishCode.ACCEPTED]
    assert claim.jobs == []
    assert [lab.status(name) for name in "abcde"] == [
        "completed", "completed", "retrying", "processing", "queued",
    ]  # fmt: skip
    assert lab.held() == ["2:d"]
    invariants(lab)


def test_the_jobs_that_a_late_call_releases_wake_another_child(lab: Lab) -> None:
    lab.add("a")
    a = lab.take(call=1)
    finish(lab, 2, resent=True)
    assert lab.tokens() == 0 or lab.pop_token()
    codes, claim = finish(lab, 2, [outcome(a, "queued")])
    assert (codes, claim.jobs) == ([FinishCode.ACCEPTED], [])
    assert lab.ids("queued") == ["a"]
    invariants(lab)


def test_a_resent_call_still_returns_the_same_jobs(lab: Lab, ask: Ask) -> None:
    lab.add(*"abcd")
    first = ask(5, 2)
    for _ in range(3):
        assert ask(5, 2, resent=True) == first
    assert ids(ask(6, 2)) == ["c", "d"]
    assert ask(5, 2, resent=True) == first


def test_one_of_two_resent_copies_may_be_late(lab: Lab) -> None:
    """The first and third copies arrived; the second arrives when everything that they returned has
    ended."""
    lab.add("a", "b")
    a = lab.take(call=1)
    assert lab.taken(call=1, resent=True) == ["a"]
    finish(lab, 2, [outcome(a)], jobs=0)
    assert lab.taken(call=1, resent=True) == []
    assert lab.taken(call=3) == ["b"]
    invariants(lab)


def test_an_empty_answer_leaves_a_token_when_jobs_have_arrived(lab: Lab, ask: Ask) -> None:
    """The second copy found nothing, and its answer was lost: the child is woken."""
    assert ask(1, resent=True).jobs == []
    lab.add("a")
    assert lab.pop_token()
    assert ask(1, resent=True).jobs == []
    assert lab.tokens() == 1
    assert ids(ask(2)) == ["a"]


def test_every_child_has_its_own_numbers(lab: Lab, ask: Ask) -> None:
    lab.add("a", "b", "c")
    ask(8, resent=True)
    assert ids(ask(1, child="c2")) == ["b"]
    assert ids(ask(8, child="c11")) == ["c"]


def test_workflows_continue_although_a_child_has_resent_a_call(lab: Lab, ask: Ask) -> None:
    """Deferred work is done by claims, except by late ones."""
    lab.redis.rpush(lab.keys.pending_writes, "held:flow_none_0")
    ask(1, resent=True)
    assert not lab.redis.exists(lab.keys.pending_writes)
    lab.redis.rpush(lab.keys.pending_writes, "held:flow_none_0")
    ask(1)
    assert lab.redis.exists(lab.keys.pending_writes)
    ask(2)
    assert not lab.redis.exists(lab.keys.pending_writes)
    lab.redis.rpush(lab.keys.pending_writes, "held:flow_none_0")
    ask(1, child="c2")
    assert not lab.redis.exists(lab.keys.pending_writes)


# -- the stored number of the call


def test_the_number_is_removed_with_the_child(lab: Lab, ask: Ask) -> None:
    lab.add("a", "b")
    ask(7, resent=True)
    assert lab.redis.exists(lab.keys.resent("c1"))
    lab.store.reap("c1", [])
    assert not lab.redis.exists(lab.keys.resent("c1"))
    assert ids(ask(1)) == ["a"]


def test_the_number_stays_until_everything_the_child_held_is_reaped(lab: Lab) -> None:
    lab.add(*[f"j{n}" for n in range(100)])
    lab.claim(jobs=100, call=1)
    lab.add("k0", "k1")
    lab.claim(jobs=2, call=2, resent=True)
    assert lab.store.reap("c1", []).more
    assert lab.redis.exists(lab.keys.resent("c1"))
    assert not lab.store.reap("c1", []).more
    assert not lab.redis.exists(lab.keys.resent("c1"))


def test_a_child_that_held_nothing_is_forgotten_with_its_lease(lab: Lab, ask: Ask) -> None:
    """Otherwise a dead child's call, sent again, would leave its number forever."""
    ask(1, resent=True)
    lab.steady()
    assert lab.store.reap().child == "c1"
    assert not lab.redis.exists(lab.keys.resent("c1"), lab.keys.workers)


def test_storing_the_number_does_not_shorten_a_lease(lab: Lab, ask: Ask) -> None:
    lab.store.heartbeat(["c1"])
    lab.redis.zadd(lab.keys.workers, {"c1": lab.now + 99_000})
    ask(1, resent=True)
    assert lab.redis.zscore(lab.keys.workers, "c1") == lab.now + 99_000


def test_it_works_on_a_full_redis(lab: Lab, ask: Ask) -> None:
    lab.add("a", "b")
    with lab.full():
        assert ids(ask(1, resent=True)) == ["a"]
        assert ask(1).jobs == []


def test_a_key_of_another_type_in_its_place_is_ignored(lab: Lab, ask: Ask) -> None:
    lab.add("a", "b")
    lab.redis.rpush(lab.keys.resent("c1"), "theirs")
    assert ids(ask(1)) == ["a"]
    assert ids(ask(2, resent=True)) == ["b"]
    assert ask(2).jobs == []


def test_the_number_costs_nothing_as_long_as_the_child_has_resent_no_call(
    lab: Lab, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add("a", "b", "c", "d")
    first = calls_of_scripts(lab, ask, 1)
    asked = [call.split(" ") for call in first if lab.keys.resent("c1") in call.split(" ")]
    assert [words[0] for words in asked] == ["EXISTS"]
    assert lab.keys.pending_writes in asked[0]  # one command asks for both
    plant_bug(monkeypatch, *AS_BATCH)  # as it is after that
    usual = calls_of_scripts(lab, ask, 2)
    ask(3, resent=True)
    assert len(calls_of_scripts(lab, ask, 4)) <= len(usual) + 4
