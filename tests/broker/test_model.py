"""Random verbs against a plain Python model: laws 1 and 2 after every step.

The model gets the same calls and predicts every reply; afterwards every job's hash and the order of
every list must be what it says. A writer that the model calls stale must leave Redis untouched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.replies import ClaimedJob, ClaimReply, Outcome, id_in

from .harness import ERROR, FINISHED, BrokerHarness, invariants, with_implied_fields
from .model import LATER, Model
from .planted import plant_bug

QUEUES = ("x", "y")
CHILDREN = ("c1", "c2")
OUTCOME_KINDS = ("completed", "failed", "retrying", "delayed", "cancelled", "queued")
# In CI, use the same examples every time, and spend no minutes on shrinking one.
IN_CI = "CI" in os.environ
FINDING = [Phase.explicit, Phase.reuse, Phase.generate]
BUDGET: dict[str, Any] = {
    "derandomize": IN_CI,
    "phases": FINDING if IN_CI else list(Phase),
    "print_blob": True,
}

Item = TypeVar("Item")
children = st.sampled_from(CHILDREN)
queues = st.sampled_from(QUEUES)
orders = st.sampled_from([("x", "y"), ("x", "y"), ("y", "x"), ("x",)])
floors = st.sampled_from([-100, -100, -100, 0, 1])
picks = st.integers(0, 7)
kinds = st.sampled_from(OUTCOME_KINDS)


class Machine(RuleBasedStateMachine):
    """Each rule is one verb, or lets time pass."""

    broker: BrokerHarness

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(QUEUES)
        self.names: list[str] = []
        self.call = 0
        self.claimed: list[tuple[str, ClaimedJob]] = []  # every claim ever made, with its child
        # How to send a child's last call again; and a resent call, as it was first sent.
        self.last: dict[str, Callable[[bool], None]] = {}
        self.late: dict[str, Callable[[bool], None]] = {}

    @initialize()
    def begin(self) -> None:
        self.broker.redis.flushdb()
        self.broker.store.now_ms = self.model.now
        self.enqueue(2, "x", 0, 0, 0)

    # -- producers and operators

    @rule(
        count=st.integers(1, 4),
        queue=queues,
        priority=st.sampled_from([0, 0, 0, 2, -1]),
        delay=st.sampled_from([0, 0, 0, 5, 5000]),
        repeat=picks,
    )
    def enqueue(self, count: int, queue: str, priority: int, delay: int, repeat: int) -> None:
        new = [f"j{len(self.names) + n}" for n in range(count)]
        self.names += new
        new.insert(repeat % len(new), self._named(repeat * 3))
        expected = [self.model.enqueue(name, queue, priority, delay) for name in new]
        options = '{"index":"task:t tags.x:1"}' if queue == "x" else ""
        where = {"queue": queue, "priority": priority, "when": f"+{delay}", "options": options}
        assert self.broker.add(*new, **where) == expected

    @precondition(lambda self: self.names)
    @rule(some=st.lists(picks, min_size=1, max_size=3))
    def cancel(self, some: list[int]) -> None:
        self._cancel([self._named(at) for at in some])

    @precondition(lambda self: self._held())
    @rule(at=picks)
    def cancel_what_runs(self, at: int) -> None:
        self._cancel([_pick(self._held(), at)[1].id])

    @precondition(lambda self: self.names)
    @rule(some=st.lists(picks, min_size=1, max_size=3))
    def requeue(self, some: list[int]) -> None:
        names = [self._named(at) for at in some]
        expected = [self.model.requeue(name) for name in names]
        assert self.broker.store.requeue(names) == expected

    @precondition(lambda self: self.names)
    @rule(some=st.lists(picks, min_size=1, max_size=3))
    def run_now(self, some: list[int]) -> None:
        names = [self._named(at) for at in some]
        expected = [self.model.run_now(name) for name in names]
        assert self.broker.store.run_now(names) == expected

    @precondition(lambda self: self._ended())
    @rule(at=picks)
    def requeue_what_ended(self, at: int) -> None:
        name = _pick(self._ended(), at)
        assert self.broker.store.requeue([name]) == [self.model.requeue(name)]

    @rule(queue=queues, status=st.sampled_from(["failed", "cancelled"]), count=st.integers(1, 3))
    def requeue_oldest(self, queue: str, status: str, count: int) -> None:
        expected = self.model.requeue_oldest(queue, status, count)
        assert self.broker.store.requeue_oldest(queue, status, count).done == expected

    @rule(queue=queues, is_paused=st.sampled_from([True, False, False]))
    def pause(self, queue: str, is_paused: bool) -> None:
        found = self.model.queues[queue]
        assert self.broker.store.pause(queue, is_paused) is (found.is_paused != is_paused)
        found.is_paused = is_paused

    @rule(
        queue=queues,
        status=st.sampled_from([*FINISHED, *LATER, "queued"]),
        count=st.integers(1, 3),
    )
    def clear(self, queue: str, status: str, count: int) -> None:
        self.model.clear(queue, status, count)
        self.broker.store.clear(queue, status, count)

    @rule(queue=queues, status=st.sampled_from(FINISHED), keep=st.integers(0, 2))
    def prune(self, queue: str, status: str, keep: int) -> None:
        expected = self.model.prune(queue, status, keep, 30_000)
        assert self.broker.store.prune(queue, status, keep, 30_000) == (expected, 0, False)

    @rule(queue=queues, aging=st.sampled_from([None, 1, 500, 5000]))
    def set_aging(self, queue: str, aging: int | None) -> None:
        has_changed = self.model.queues[queue].aging != aging
        self.model.queues[queue].aging = aging
        assert self.broker.store.set_aging({queue: aging}) == has_changed

    # -- children

    @rule(child=children, wanted=st.integers(1, 4), order=orders, floor=floors)
    def claim(self, child: str, wanted: int, order: tuple[str, ...], floor: int) -> None:
        """As a worker does it: holding the wake token of a queue."""
        any(self.broker.pop_token(queue) for queue in order)
        claim_request, call = self._claim_request(child, order, floor)
        claim = self.broker.store.claim(claim_request, call, wanted)
        self._check_claim(claim_request, call, wanted, claim)
        if claim.jobs:
            self.last[child] = lambda resent: self._same(
                claim, self.broker.store.claim(claim_request, call, wanted, resent=resent), resent
            )

    @precondition(lambda self: self._held())
    @rule(some=st.lists(st.tuples(picks, kinds), min_size=1, max_size=3), delay=picks)
    def finish(self, some: list[tuple[int, str]], delay: int) -> None:
        """Report what children hold. The first job's child reports all of them; those of other
        children are refused."""
        held = self._held()
        child = _pick(held, some[0][0])[0]
        outcomes = [_outcome(_pick(held, at)[1], kind, delay) for at, kind in some]
        assert self.broker.finish(*outcomes, child=child) == self._expect(child, outcomes)

    @precondition(lambda self: self._held())
    @rule(at=picks, kind=kinds, wanted=st.integers(1, 4), order=orders)
    def finish_and_claim(self, at: int, kind: str, wanted: int, order: tuple[str, ...]) -> None:
        child, job = _pick(self._held(), at)
        outcomes = [_outcome(job, kind, 0)]
        claim_request, call = self._claim_request(child, order, -100)
        codes, claim = self.broker.store.finish(claim_request, call, outcomes, wanted)
        assert codes == self._expect(child, outcomes)
        self._check_claim(claim_request, call, wanted, claim)
        if claim.jobs:
            self.last[child] = lambda resent: self._same(
                claim,
                self.broker.store.finish(claim_request, call, outcomes, wanted, resent=resent)[1],
                resent,
            )

    @precondition(lambda self: self._stale())
    @rule(at=picks, kind=kinds, child=st.none() | children)
    def write_what_is_stale(self, at: int, kind: str, child: str | None) -> None:
        """Report claims that are over, by their own child or another: they are refused, and nothing
        changes."""
        holder, job = _pick(self._stale(), at)
        child = child or holder
        outcome, before = _outcome(job, kind, 5), self.broker.dump()
        expected = self._expect(child, [outcome])
        assert expected in ([0], [2])
        assert self.broker.finish(outcome, child=child) == expected
        assert self.broker.store.release(child, [(job.id, job.lease)]) == expected
        assert self.broker.store.progress(child, job.id, job.lease, "{}") is False
        assert self.broker.dump() == before

    @precondition(lambda self: self._held())
    @rule(at=picks, kind=kinds)
    def write_what_was_released(self, at: int, kind: str) -> None:
        """By a child that may hold the job again, under another lease."""
        child, job = _pick(self._held(), at)
        self.release(at)
        self.claim(child, 4, QUEUES, -100)
        stale = self._stale()
        self.write_what_is_stale(len(stale) - 1 - stale.index((child, job)), kind, None)

    @precondition(lambda self: self.last)
    @rule(at=picks)
    def send_the_last_call_again(self, at: int) -> None:
        """Its reply was lost: the resent call has no further effect, and returns the same."""
        child = sorted(self.last)[at % len(self.last)]
        before = self.broker.dump()
        self.late[child] = self.last.pop(child)
        self.late[child](True)
        note = self.broker.keys.resent(child)
        assert self.broker.dump() == before | {note: self.broker.dump()[note]}

    @precondition(lambda self: self.late)
    @rule(at=picks)
    def a_call_comes_after_it_was_sent_again(self, at: int) -> None:
        """A copy of it that the network delayed arrives: it claims nothing."""
        with self.broker.unchanged():
            child = sorted(self.late)[at % len(self.late)]
            self.late[child](False)

    @precondition(lambda self: self._held())
    @rule(at=picks)
    def release(self, at: int) -> None:
        child, job = _pick(self._held(), at)
        self._forget_last(child)
        expected = self.model.settle(child, job.id, job.lease, "queued", 0)
        assert self.broker.store.release(child, [(job.id, job.lease)]) == [expected]

    @precondition(lambda self: self._held())
    @rule(at=picks)
    def progress(self, at: int) -> None:
        child, job = _pick(self._held(), at)
        self.model.jobs[job.id].seq += 1
        assert self.broker.store.progress(child, job.id, job.lease, "{}") is True

    # -- time, supervisors and the dead

    @rule(ms=st.sampled_from([1, 5, 1000, 5000, 11_000]), promotes=st.booleans())
    def time_passes(self, ms: int, promotes: bool) -> None:
        self._advance(ms)
        if promotes:
            assert self.broker.store.promote(QUEUES)[0] == self.model.promote()

    @rule(alive=st.sets(children), beats=st.sampled_from([0, 1, 5, 5]))
    def lease_passes(self, alive: set[str], beats: int) -> None:
        """Just over a lease passes, with or without its heartbeats; then expired children are
        reaped."""
        for beat, ms in enumerate((4000, 4000, 4000, 3001, 0)):
            if beat < beats:
                self.model.heartbeat(sorted(alive))
                self.broker.store.heartbeat(sorted(alive))
            self._advance(ms)
        self._reap_the_lapsed()
        with self.broker.unchanged():
            for queue in QUEUES:  # nothing is ever wrong here, because no key is deleted by hand
                assert self.broker.store.recover_orphans(queue, 0) == (0, [])

    @rule(child=children, started=st.none() | st.integers(0, 3))
    def reap_the_dead(self, child: str, started: int | None) -> None:
        """``started``: how many of the held jobs had started; None if that is unknown."""
        held = self.model.held.get(child, [])
        blamed = None if started is None else held[:started]
        reaped = self.broker.store.reap(child, blamed)
        assert (reaped.child, reaped.more) == (child, False)
        assert dict(reaped.jobs) == self.model.reap(child, blamed)
        self._forget_the_dead(child)

    def _reap_the_lapsed(self) -> None:
        expected = self.model.lapsed()
        before = self.broker.dump()
        reaped = self.broker.store.reap()
        if not expected or not self.model.may_reap():
            assert reaped.child == ""
            assert (reaped.wait_ms > 0) is bool(expected)
            assert self.broker.dump() == before
            return
        assert reaped.child == expected
        assert dict(reaped.jobs) == self.model.reap(expected, None)
        self._forget_the_dead(expected)

    # -- sequences of steps that random verbs seldom produce

    @precondition(lambda self: self.last)
    @rule(at=picks, count=st.integers(1, 3))
    def jobs_wait_as_a_call_comes_twice_more(self, at: int, count: int) -> None:
        self.enqueue(count, "x", 0, 0, 0)
        self.send_the_last_call_again(at)
        self.a_call_comes_after_it_was_sent_again(at)

    @precondition(lambda self: self._held())
    @rule(at=picks, kind=kinds)
    def finish_what_is_to_be_cancelled(self, at: int, kind: str) -> None:
        self.cancel_what_runs(at)
        self.finish([(at, kind)], 0)

    @rule(queue=queues, child=children)
    def what_has_waited_goes_first(self, queue: str, child: str) -> None:
        """Unless something older waits, which depends on the option AGING."""
        self.set_aging(queue, 500)
        self.enqueue(1, queue, 0, 0, 0)
        self._advance(5000)
        self.enqueue(1, queue, 2, 0, 0)
        self.claim(child, 1, (queue,), -100)

    # Aliases of verbs that move jobs: a rule is chosen as often as it has names.
    enqueue_more, enqueue_yet_more = enqueue, enqueue
    claim_more, claim_yet_more = claim, claim
    set_aging_more = set_aging
    finish_more, finish_yet_more = finish, finish
    write_more_that_is_stale = write_what_is_stale
    cancel_more_that_runs = cancel_what_runs

    # -- laws

    @invariant()
    def every_job_is_in_one_place_and_redis_is_what_the_model_says(self) -> None:
        dump, keys, model = invariants(self.broker), self.broker.keys, self.model
        for tombstone in model.tombs:  # they would expire by the real clock
            assert keys.job(tombstone) in dump
            self.broker.redis.persist(keys.job(tombstone))
        for job in model.jobs.values():
            stored = with_implied_fields(dump[keys.job(job.id)][1])
            assert stored["status"] == job.status, job
            assert stored.get("child", "") == job.child, job
            for name in ("lease", "attempts", "recoveries", "generation"):
                assert int(stored.get(name, 0)) == getattr(job, name), (name, job)
            assert int(stored.get("seq", 1)) == job.seq, job
        for child in CHILDREN:
            entries = _ids(dump, keys.child_processing(child))
            assert [id_in(entry) for entry in entries] == model.held.get(child, [])
        for name, queue in model.queues.items():
            lists = keys.queue(name)
            assert _ids(dump, lists.queued)[::-1] == queue.line(0)
            assert [job_id for job_id, _ in _ids(dump, lists.priority)] == queue.ranked()
            for status in FINISHED:
                ended = dump.get(getattr(lists, status), ("zset", []))[1]
                assert [job_id for job_id, _ in ended[::-1]] == queue.finished[status]

    # -- parts of rules

    def _claim_request(
        self, child: str, order: tuple[str, ...], floor: int
    ) -> tuple[ClaimRequest, int]:
        self._forget_last(child)
        self.call += 1
        return ClaimRequest(child, order, floor), self.call

    def _check_claim(
        self, claim_request: ClaimRequest, call: int, wanted: int, claim: ClaimReply
    ) -> None:
        expected = self.model.claim(
            claim_request.child, call, wanted, claim_request.queues, claim_request.min_priority
        )
        assert ([(job.id, job.lease) for job in claim.jobs], claim.must_be_alone) == expected
        assert claim.lost == []
        for job in claim.jobs:
            assert job.attempts == self.model.jobs[job.id].attempts
        self.claimed += [(claim_request.child, job) for job in claim.jobs]

    def _held(self) -> list[tuple[str, ClaimedJob]]:
        return [claim for claim in self.claimed if self._is_held(*claim)]

    def _stale(self) -> list[tuple[str, ClaimedJob]]:
        return [claim for claim in self.claimed if not self._is_held(*claim)]

    def _is_held(self, child: str, job: ClaimedJob) -> bool:
        known = self.model.jobs.get(job.id)
        return known is not None and (known.status, known.child, known.lease) == (
            "processing", child, job.lease,
        )  # fmt: skip

    def _ended(self) -> list[str]:
        return [job.id for job in self.model.jobs.values() if job.status in ("failed", "cancelled")]

    def _named(self, at: int) -> str:
        return _pick(self.names, at)

    def _cancel(self, names: list[str]) -> None:
        expected = [self.model.cancel(name) for name in names]
        assert self.broker.store.cancel(names) == expected

    def _expect(self, child: str, outcomes: Sequence[Outcome]) -> list[int]:
        self._forget_last(child)
        return [
            self.model.settle(child, o.id, o.lease, o.kind, int(o.detail or 0)) for o in outcomes
        ]

    def _same(self, first: ClaimReply, again: ClaimReply, resent: bool) -> None:
        assert again.jobs == (first.jobs if resent else [])

    def _forget_last(self, child: str) -> None:
        self.last.pop(child, None)

    def _forget_the_dead(self, child: str) -> None:
        self._forget_last(child)
        self.late.pop(child, None)

    def _advance(self, ms: int) -> None:
        self.model.now += ms
        self.broker.advance(ms)


def _ids(dump: dict[str, Any], key: str) -> list[str]:
    found: list[str] = dump.get(key, ("list", []))[1]
    return found


def _pick(found: Sequence[Item], at: int) -> Item:
    """One of those, counted from the latest."""
    return found[max(-1 - at, -len(found))]


def _outcome(job: ClaimedJob, kind: str, delay: int) -> Outcome:
    again = kind in ("retrying", "delayed")
    body = ERROR if again or kind == "failed" else ""
    body = '"ok"' if kind == "completed" else body
    return Outcome(job.id, job.lease, job.call, kind, body, str(delay) if again else "")


def _machine(broker: BrokerHarness) -> type[Machine]:
    return type("Machine", (Machine,), {"broker": broker})


@pytest.mark.slow
def test_any_order_of_verbs_keeps_the_laws(broker: BrokerHarness) -> None:
    limits = settings(max_examples=60, stateful_step_count=50, **BUDGET)
    run_state_machine_as_test(_machine(broker), settings=limits)


BUGS = {
    "the lease is not looked at": ("or claim.lease ~= lease then return 0", "then return 0"),
    "the child is not looked at": ("if claim.child ~= child or claim", "if claim"),
    "the child's list keeps what was settled": (
        "redis.call('LTRIM', key, #settled_ids, -1)", "redis.call('EXISTS', key)",
    ),
    "the lease does not rise": (
        "lease, seq = (integer(lease) or 0) + 1, seq", "lease, seq = 1, seq",
    ),
    "a repeat is settled again": ("if claim.status ~= 'processing' then return 2 end", ""),
    "a reaped job keeps its child": ("'child', '', 'recoveries'", "'recoveries'"),
    "a resent claim claims anew": (
        "request.resent and slow_path().claimed_before(request)", "false",
    ),
    "a late call claims": (
        "not request.resent and tonumber(request.call) <= (tonumber(noted) or -1) then",
        "false then",
    ),
    "aging is not looked at": (
        "if aging then slow_path().claim_by_age(request, queue, aging, has_lanes, claimed) end", "",
    ),
    "no token is restored": ("if not paused then wake(queue) end", ""),
    "a requeued job stays in its list": ("redis.call('ZREM', queue_key(queue, status), id)", ""),
    "reaped jobs go to the tail": (
        "line_up(queue, id, tonumber(priority) or 0, true, lane)",
        "line_up(queue, id, tonumber(priority) or 0, false, lane)",
    ),
    "an outage is not noticed": ("gap <= lease_ms / 2 and", ""),
    "a flag is forgotten": (
        "kind == 'cancelled' or claim.cancel_ms then", "kind == 'cancelled' then",
    ),
    "a flag is not looked for": (" or has(watched, 'c')", ""),
    "a job stays in its index sets": ("if has(job.watched, 'i') then", "if false then"),
    "a requeued job is not indexed": ("if has(watched, 'i') then", "if false then"),
    "a completed run stays in the processing list": (
        "redis.call('LTRIM', processing_key(child), ARGV[first], '-1')",
        "redis.call('EXISTS', processing_key(child))",
    ),
    "bytes are not counted down": ("writes.bytes = writes.bytes - ", "local _ = "),
}  # fmt: skip


SEEDS = {"an outage is not noticed": 3}  # where 7 takes long to find anything


@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_finds_planted_bugs(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """Without this test, a model that checks nothing would pass. The seeds find each bug
    quickly."""
    plant_bug(monkeypatch, *BUGS[bug])
    limits = settings(
        max_examples=1000, stateful_step_count=50,
        **{**BUDGET, "database": None, "derandomize": True, "phases": [Phase.generate]},
    )  # fmt: skip
    with pytest.raises(AssertionError):
        run_state_machine_as_test(seed(SEEDS.get(bug, 7))(_machine(broker)), settings=limits)
