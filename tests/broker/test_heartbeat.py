"""heartbeat: renews leases, records outages, and reports what is lost or flagged."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import RoleTerm
from django_redisqueue.exceptions import WrongKeyType

from .lab import T0, Lab, invariants, outcome


def test_leases_are_renewed(lab: Lab) -> None:
    lab.store.heartbeat(["c1", "c2"])
    lab.advance(4000)
    lab.store.heartbeat(["c1"])
    assert dict(lab.queries.workers()) == {"c1": T0 + 19_000, "c2": T0 + 15_000}


def test_the_first_beat_counts_as_after_an_outage(lab: Lab) -> None:
    assert lab.store.heartbeat([]).interrupted is True
    assert lab.store.heartbeat([]).interrupted is False
    meta = lab.redis.hgetall(lab.keys.meta)
    assert meta["steady_ms"] == meta["beat_ms"] == str(T0)
    assert meta["run_id"] == lab.redis.info("server")["run_id"]


@pytest.mark.parametrize(("gap", "interrupted"), [(7500, False), (7501, True)])
def test_a_gap_of_more_than_half_a_lease_is_an_outage(
    lab: Lab, gap: int, interrupted: bool
) -> None:
    lab.store.heartbeat([])
    lab.advance(gap)
    assert lab.store.heartbeat([]).interrupted is interrupted
    steady = int(lab.redis.hget(lab.keys.meta, "steady_ms") or 0)
    assert steady == (T0 + gap if interrupted else T0)


def test_a_clock_that_goes_back_is_an_outage_and_extends_no_lease(lab: Lab) -> None:
    lab.add("a")
    lab.store.heartbeat(["dead", "alive"])
    lab.taken("dead")
    lab.advance(-3_600_000)
    assert lab.store.heartbeat(["alive"]).interrupted is True
    assert dict(lab.queries.workers()) == dict.fromkeys(["dead", "alive"], lab.now + 15_000)
    for _ in range(5):
        lab.advance(4000)
        assert lab.store.heartbeat(["alive"]).interrupted is False
    assert lab.store.reap().child == "dead"
    invariants(lab)


def test_another_redis_process_is_an_outage(lab: Lab) -> None:
    lab.store.heartbeat([])
    lab.redis.hset(lab.keys.meta, "run_id", "another")
    lab.advance(1000)
    assert lab.store.heartbeat([]).interrupted is True
    assert lab.store.heartbeat([]).interrupted is False


@pytest.mark.parametrize("field", ["run_id", "beat_ms", "steady_ms", "reached_ms"])
def test_a_field_deleted_by_hand_is_an_outage(lab: Lab, field: str) -> None:
    lab.store.heartbeat([])
    lab.redis.hdel(lab.keys.meta, field)
    assert lab.store.heartbeat([]).interrupted is True


def test_all_expired_leases_are_counted(lab: Lab) -> None:
    lab.store.heartbeat(["theirs1", "theirs2", "mine"])
    lab.advance(15_000)
    assert lab.store.heartbeat([]).lapsed == 0  # to the millisecond
    lab.advance(1)
    assert lab.store.heartbeat(["mine"]).lapsed == 2


def test_lost_jobs_and_pending_cancels_are_reported(lab: Lab) -> None:
    lab.add(*"abcdef")
    jobs = {job.id: job for job in lab.claim("c1", 6).jobs}
    running = [(job.id, "c1", job.lease) for job in jobs.values()]
    assert (lab.store.heartbeat(["c1"], running).lost) == []
    lab.store.cancel(["b", "c"])
    lab.store.reap("c1", list("abcdef"))  # a, d, e, f are released; b and c end
    lab.taken("c2")
    beat = lab.store.heartbeat(["c1"], running)
    assert sorted(beat.lost) == list("abcdef")
    assert beat.flagged == []
    invariants(lab)


def test_a_cancel_is_reported_until_the_job_has_ended(lab: Lab) -> None:
    lab.add("a", "b")
    running = [(job.id, "c1", job.lease) for job in lab.claim("c1", 2).jobs]
    lab.store.cancel(["b"])
    for _ in range(2):
        beat = lab.store.heartbeat(["c1"], running)
        assert (beat.lost, beat.flagged) == ([], ["b"])


def test_jobs_without_a_hash_or_with_a_foreign_key_are_lost(lab: Lab) -> None:
    lab.redis.set(lab.keys.job("theirs"), "x")
    beat = lab.store.heartbeat(["c1"], [("never", "c1", 1), ("theirs", "c1", 1)])
    assert beat.lost == ["never", "theirs"]


@pytest.mark.parametrize("name", ["workers", "meta"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    lab.redis.set(getattr(lab.keys, name), "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match="holds a string"):
        lab.store.heartbeat(["c1"])
    assert lab.dump() == before


def test_queues_are_served_until_their_lease_ends(lab: Lab) -> None:
    lab.store.heartbeat(["c1"], (), ["default", "low"])
    lab.advance(4000)
    lab.store.heartbeat(["c2"], [("a", "c2", 1)], ["low"])
    served = lab.redis.zrange(lab.keys.serving, 0, -1, withscores=True)
    assert served == [("default", T0 + 15_000), ("low", T0 + 19_000)]


def test_a_wrong_key_of_the_served_queues_stops_no_heartbeat(lab: Lab) -> None:
    lab.redis.set(lab.keys.serving, "theirs")
    assert lab.store.heartbeat(["c1"], [("never", "c1", 1)], ["default"]).lost == ["never"]
    assert dict(lab.queries.workers()) == {"c1": T0 + 15_000}


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    with lab.full():
        lab.store.heartbeat(["c1"])
    assert [child for child, _ in lab.queries.workers()] == ["c1"]


def role(child: str, *, sleeps: bool = False) -> list[RoleTerm]:
    return [RoleTerm("leader", child, 1000, sleeps)]


def test_the_term_of_a_sleeping_leader_is_renewed(lab: Lab) -> None:
    lab.store.lead("a", 1000)
    for _ in range(5):
        lab.advance(900)
        assert lab.store.heartbeat([], roles=role("a", sleeps=True)).to_ask == []
        assert lab.store.lead("b", 1000) == 0
    lab.advance(1001)  # a heartbeat was late, and no one has taken the role
    assert lab.store.heartbeat([], roles=role("a", sleeps=True)).to_ask == []
    assert lab.store.lead("b", 1000) == 0


def test_a_leader_that_does_not_sleep_must_renew_its_own_term(lab: Lab) -> None:
    lab.store.lead("a", 1000)
    lab.advance(900)
    assert lab.store.heartbeat([], roles=role("a")).to_ask == []
    lab.advance(101)
    assert lab.store.heartbeat([], roles=role("a")).to_ask == ["leader"]
    assert lab.store.lead("b", 1000) == 1


def test_a_sleeping_leader_is_told_that_it_no_longer_leads(lab: Lab) -> None:
    lab.store.lead("b", 1000)
    assert lab.store.heartbeat([], roles=role("a", sleeps=True)).to_ask == ["leader"]
    assert lab.redis.hget(lab.keys.meta, "leader") == "b"
    lab.store.lead("b", 0)
    assert lab.store.heartbeat([], roles=role("a", sleeps=True)).to_ask == ["leader"]


def test_a_child_that_does_not_lead_is_told_of_a_vacant_role(lab: Lab) -> None:
    assert lab.store.heartbeat([], roles=role("b")).to_ask == ["leader"]
    lab.store.lead("a", 1000)
    assert lab.store.heartbeat([], roles=role("b")).to_ask == []
    lab.advance(1001)
    assert lab.store.heartbeat([], roles=role("b")).to_ask == ["leader"]


def test_a_term_from_before_the_clock_went_back_counts_as_vacant(lab: Lab) -> None:
    lab.store.lead("dead", 1000)
    lab.advance(-3_600_000)
    assert lab.store.heartbeat([], roles=role("b")).to_ask == ["leader"]


def test_roles_come_between_queues_and_jobs_in_the_arguments(lab: Lab) -> None:
    lab.store.lead("a", 1000)
    terms = [*role("a", sleeps=True), RoleTerm("bridge", "c", 1000, False)]
    beat = lab.store.heartbeat(["c1"], [("never", "c1", 1)], ["default"], roles=terms)
    assert beat.to_ask == ["bridge"]
    assert beat.lost == ["never"]


@pytest.mark.parametrize("audit", ["", "final", "failed", "none"])
def test_every_transition_changes_the_activity(lab: Lab, audit: str) -> None:
    seen = [lab.store.heartbeat(["c1"]).activity]

    def is_new() -> bool:
        seen.append(lab.store.heartbeat(["c1"]).activity)
        return seen[-1] not in seen[:-1]

    assert not is_new()
    lab.add("a", audit=audit)
    assert is_new()
    (job,) = lab.claim("c1", 1).jobs
    assert is_new()
    lab.finish(outcome(job))
    assert is_new()
    assert not is_new()


def test_a_continuation_changes_the_activity(lab: Lab) -> None:
    before = lab.store.heartbeat([]).activity
    lab.redis.hset(lab.keys.continuations, "t", "clear default queued 50 1")
    assert lab.store.heartbeat([]).activity != before


def test_a_wake_up_that_was_lost_is_repeated(lab: Lab) -> None:
    """Redis gave it to the last pop of a machine that has vanished."""
    wake = lab.keys.queue("default").wake
    lab.add("a")
    lab.redis.delete(wake)
    lab.store.heartbeat(["c1"], (), ["default", "low"])
    lab.store.heartbeat(["c2"], (), ["default", "low"])
    assert lab.redis.llen(wake) == 1
    assert not lab.redis.exists(lab.keys.queue("low").wake)
    lab.taken("c1")
    lab.redis.delete(wake)
    lab.store.heartbeat(["c1"], (), ["default"])
    assert not lab.redis.exists(wake)  # nothing is left


def test_a_paused_queue_wakes_no_one(lab: Lab) -> None:
    lab.add("a")
    lab.store.pause("default", True)
    lab.redis.delete(lab.keys.queue("default").wake)
    lab.store.heartbeat(["c1"], (), ["default"])
    assert not lab.redis.exists(lab.keys.queue("default").wake)


@pytest.mark.parametrize("wrong", ["wake", "meta", "queued"])
def test_a_wrong_key_of_a_queue_with_jobs_stops_no_heartbeat(lab: Lab, wrong: str) -> None:
    lab.add("a")
    lab.redis.delete(lab.keys.queue("default").wake)
    lab.redis.set(getattr(lab.keys.queue("default"), wrong), "theirs")
    assert lab.store.heartbeat(["c1"], [("never", "c1", 1)], ["default"]).lost == ["never"]
