"""Calls that arrive after they were sent again: the network delayed a copy, its child gave it up,
got an answer to the next copy and continued. No one would receive what such a call claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.replies import ClaimReply, FinishCode, Outcome

from .harness import ERROR, BrokerHarness, invariants, outcome
from .planted import plant_bug
from .test_single_run import AS_BATCH


class Ask(Protocol):
    """One call for jobs, with one of the two verbs."""

    def __call__(
        self, call: int, jobs: int = 1, child: str = "c1", *, resent: bool = False
    ) -> ClaimReply: ...


@pytest.fixture(params=["claim", "finish"])
def ask(broker: BrokerHarness, request: pytest.FixtureRequest) -> Ask:
    def by_claim(
        call: int, jobs: int = 1, child: str = "c1", *, resent: bool = False
    ) -> ClaimReply:
        return broker.claim(child, jobs, call=call, resent=resent)

    def by_finish(
        call: int, jobs: int = 1, child: str = "c1", *, resent: bool = False
    ) -> ClaimReply:
        return finish(broker, call, jobs=jobs, child=child, resent=resent)[1]

    return by_claim if request.param == "claim" else by_finish


def finish(
    broker: BrokerHarness,
    call: int,
    outcomes: Sequence[Outcome] = (),
    *,
    jobs: int = 1,
    child: str = "c1",
    resent: bool = False,
) -> tuple[list[int], ClaimReply]:
    claim_request = ClaimRequest(child, ("default",))
    return broker.store.finish(claim_request, call, outcomes, jobs, resent=resent)


def ids(claim: ClaimReply) -> list[str]:
    return [job.id for job in claim.jobs]


def calls_of_scripts(broker: BrokerHarness, ask: Ask, call: int) -> list[str]:
    """The commands that a script calls to claim one job."""
    found = []
    with broker.redis.monitor() as monitor:
        ask(call)
        broker.redis.ping()
        while (seen := monitor.next_command())["command"] != "PING":
            if seen["client_type"] == "lua":
                found.append(seen["command"])
    return found


@pytest.mark.parametrize("late", [1, 2])
def test_the_first_copy_claims_nothing_once_another_was_answered(
    broker: BrokerHarness, ask: Ask, late: int
) -> None:
    broker.add(*"abcd")
    [a] = ask(late, resent=True).jobs
    broker.store.release("c1", [(a.id, a.lease)])
    assert ids(ask(3)) == ["a"]
    with broker.unchanged():
        claim = ask(late)
        assert (claim.jobs, claim.lost, claim.leave_out, claim.must_be_alone) == ([], [], [], False)
    assert broker.held() == ["3:a"]
    invariants(broker)


def test_a_late_copy_claims_nothing_while_the_child_still_holds_its_jobs(
    broker: BrokerHarness, ask: Ask
) -> None:
    broker.add("a", "b")
    ask(1, resent=True)
    assert ask(1).jobs == []
    assert broker.held() == ["1:a"]


def test_the_verbs_share_their_numbers(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    assert broker.taken(call=4, resent=True) == ["a"]
    assert ids(finish(broker, 3)[1]) == []
    assert ids(finish(broker, 4)[1]) == []
    assert ids(finish(broker, 5, resent=True)[1]) == ["b"]
    assert broker.taken(call=5) == []
    assert broker.taken(call=6) == ["c"]


def test_numbers_are_not_compared_as_text(broker: BrokerHarness, ask: Ask) -> None:
    broker.add("a", "b", "c")
    assert ids(ask(9, resent=True)) == ["a"]
    assert ids(ask(10)) == ["b"]
    assert ids(ask(10, resent=True)) == ["b"]
    assert ask(9).jobs == []


def test_the_outcomes_of_a_late_call_are_still_accepted(broker: BrokerHarness) -> None:
    """Whether the child made the call again with other outcomes, or only the late call has them."""
    broker.add(*"abcde")
    a, b, c = broker.claim(jobs=3, call=1).jobs
    finish(broker, 2, [outcome(a)], resent=True)
    codes, claim = finish(broker, 2, [outcome(a), outcome(b), outcome(c, "retrying", ERROR)])
    assert codes == [FinishCode.REPEATED, FinishCode.ACCEPTED, FinishCode.ACCEPTED]
    assert claim.jobs == []
    assert [broker.status(name) for name in "abcde"] == [
        "completed", "completed", "retrying", "processing", "queued",
    ]  # fmt: skip
    assert broker.held() == ["2:d"]
    invariants(broker)


def test_the_jobs_that_a_late_call_releases_wake_another_child(broker: BrokerHarness) -> None:
    broker.add("a")
    a = broker.take(call=1)
    finish(broker, 2, resent=True)
    assert broker.tokens() == 0 or broker.pop_token()
    codes, claim = finish(broker, 2, [outcome(a, "queued")])
    assert (codes, claim.jobs) == ([FinishCode.ACCEPTED], [])
    assert broker.ids("queued") == ["a"]
    invariants(broker)


def test_a_resent_call_still_returns_the_same_jobs(broker: BrokerHarness, ask: Ask) -> None:
    broker.add(*"abcd")
    first = ask(5, 2)
    for _ in range(3):
        assert ask(5, 2, resent=True) == first
    assert ids(ask(6, 2)) == ["c", "d"]
    assert ask(5, 2, resent=True) == first


def test_one_of_two_resent_copies_may_be_late(broker: BrokerHarness) -> None:
    """The first and third copies arrived; the second arrives when everything that they returned has
    ended."""
    broker.add("a", "b")
    a = broker.take(call=1)
    assert broker.taken(call=1, resent=True) == ["a"]
    finish(broker, 2, [outcome(a)], jobs=0)
    assert broker.taken(call=1, resent=True) == []
    assert broker.taken(call=3) == ["b"]
    invariants(broker)


def test_an_empty_answer_leaves_a_token_when_jobs_have_arrived(
    broker: BrokerHarness, ask: Ask
) -> None:
    """The second copy found nothing, and its answer was lost: the child is woken."""
    assert ask(1, resent=True).jobs == []
    broker.add("a")
    assert broker.pop_token()
    assert ask(1, resent=True).jobs == []
    assert broker.tokens() == 1
    assert ids(ask(2)) == ["a"]


def test_every_child_has_its_own_numbers(broker: BrokerHarness, ask: Ask) -> None:
    broker.add("a", "b", "c")
    ask(8, resent=True)
    assert ids(ask(1, child="c2")) == ["b"]
    assert ids(ask(8, child="c11")) == ["c"]


def test_workflows_continue_although_a_child_has_resent_a_call(
    broker: BrokerHarness, ask: Ask
) -> None:
    """Deferred work is done by claims, except by late ones."""
    broker.redis.rpush(broker.keys.pending_writes, "held:flow_none_0")
    ask(1, resent=True)
    assert not broker.redis.exists(broker.keys.pending_writes)
    broker.redis.rpush(broker.keys.pending_writes, "held:flow_none_0")
    ask(1)
    assert broker.redis.exists(broker.keys.pending_writes)
    ask(2)
    assert not broker.redis.exists(broker.keys.pending_writes)
    broker.redis.rpush(broker.keys.pending_writes, "held:flow_none_0")
    ask(1, child="c2")
    assert not broker.redis.exists(broker.keys.pending_writes)


# -- the stored number of the call


def test_the_number_is_removed_with_the_child(broker: BrokerHarness, ask: Ask) -> None:
    broker.add("a", "b")
    ask(7, resent=True)
    assert broker.redis.exists(broker.keys.resent("c1"))
    broker.store.reap("c1", [])
    assert not broker.redis.exists(broker.keys.resent("c1"))
    assert ids(ask(1)) == ["a"]


def test_the_number_stays_until_everything_the_child_held_is_reaped(broker: BrokerHarness) -> None:
    broker.add(*[f"j{n}" for n in range(100)])
    broker.claim(jobs=100, call=1)
    broker.add("k0", "k1")
    broker.claim(jobs=2, call=2, resent=True)
    assert broker.store.reap("c1", []).more
    assert broker.redis.exists(broker.keys.resent("c1"))
    assert not broker.store.reap("c1", []).more
    assert not broker.redis.exists(broker.keys.resent("c1"))


def test_a_child_that_held_nothing_is_forgotten_with_its_lease(
    broker: BrokerHarness, ask: Ask
) -> None:
    """Otherwise a dead child's call, sent again, would leave its number forever."""
    ask(1, resent=True)
    broker.steady()
    assert broker.store.reap().child == "c1"
    assert not broker.redis.exists(broker.keys.resent("c1"), broker.keys.workers)


def test_storing_the_number_does_not_shorten_a_lease(broker: BrokerHarness, ask: Ask) -> None:
    broker.store.heartbeat(["c1"])
    broker.redis.zadd(broker.keys.workers, {"c1": broker.now + 99_000})
    ask(1, resent=True)
    assert broker.redis.zscore(broker.keys.workers, "c1") == broker.now + 99_000


def test_it_works_on_a_full_redis(broker: BrokerHarness, ask: Ask) -> None:
    broker.add("a", "b")
    with broker.full():
        assert ids(ask(1, resent=True)) == ["a"]
        assert ask(1).jobs == []


def test_a_key_of_another_type_in_its_place_is_ignored(broker: BrokerHarness, ask: Ask) -> None:
    broker.add("a", "b")
    broker.redis.rpush(broker.keys.resent("c1"), "theirs")
    assert ids(ask(1)) == ["a"]
    assert ids(ask(2, resent=True)) == ["b"]
    assert ask(2).jobs == []


def test_the_number_costs_nothing_as_long_as_the_child_has_resent_no_call(
    broker: BrokerHarness, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.add("a", "b", "c", "d")
    first = calls_of_scripts(broker, ask, 1)
    asked = [call.split(" ") for call in first if broker.keys.resent("c1") in call.split(" ")]
    assert [words[0] for words in asked] == ["EXISTS"]
    assert broker.keys.pending_writes in asked[0]  # one command asks for both
    plant_bug(monkeypatch, *AS_BATCH)  # as it is after that
    usual = calls_of_scripts(broker, ask, 2)
    ask(3, resent=True)
    assert len(calls_of_scripts(broker, ask, 4)) <= len(usual) + 4
