"""heartbeat: renews leases, records outages, and reports what is lost or flagged."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import RoleTerm

from .harness import T0, BrokerHarness, invariants, outcome


def test_leases_are_renewed(broker: BrokerHarness) -> None:
    broker.store.heartbeat(["c1", "c2"])
    broker.advance(4000)
    broker.store.heartbeat(["c1"])
    assert dict(broker.queries.workers()) == {"c1": T0 + 19_000, "c2": T0 + 15_000}


def test_the_first_beat_counts_as_after_an_outage(broker: BrokerHarness) -> None:
    assert broker.store.heartbeat([]).interrupted is True
    assert broker.store.heartbeat([]).interrupted is False
    meta = broker.redis.hgetall(broker.keys.meta)
    assert meta["steady_ms"] == meta["beat_ms"] == str(T0)
    assert meta["run_id"] == broker.redis.info("server")["run_id"]


@pytest.mark.parametrize(("gap", "interrupted"), [(7500, False), (7501, True)])
def test_a_gap_of_more_than_half_a_lease_is_an_outage(
    broker: BrokerHarness, gap: int, interrupted: bool
) -> None:
    broker.store.heartbeat([])
    broker.advance(gap)
    assert broker.store.heartbeat([]).interrupted is interrupted
    steady = int(broker.redis.hget(broker.keys.meta, "steady_ms") or 0)
    assert steady == (T0 + gap if interrupted else T0)


def test_a_clock_that_goes_back_is_an_outage_and_extends_no_lease(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.store.heartbeat(["dead", "alive"])
    broker.taken("dead")
    broker.advance(-3_600_000)
    assert broker.store.heartbeat(["alive"]).interrupted is True
    assert dict(broker.queries.workers()) == dict.fromkeys(["dead", "alive"], broker.now + 15_000)
    for _ in range(5):
        broker.advance(4000)
        assert broker.store.heartbeat(["alive"]).interrupted is False
    assert broker.store.reap().child == "dead"
    invariants(broker)


def test_another_redis_process_is_an_outage(broker: BrokerHarness) -> None:
    broker.store.heartbeat([])
    broker.redis.hset(broker.keys.meta, "run_id", "another")
    broker.advance(1000)
    assert broker.store.heartbeat([]).interrupted is True
    assert broker.store.heartbeat([]).interrupted is False


@pytest.mark.parametrize("field", ["run_id", "beat_ms", "steady_ms", "reached_ms"])
def test_a_field_deleted_by_hand_is_an_outage(broker: BrokerHarness, field: str) -> None:
    broker.store.heartbeat([])
    broker.redis.hdel(broker.keys.meta, field)
    assert broker.store.heartbeat([]).interrupted is True


def test_all_expired_leases_are_counted(broker: BrokerHarness) -> None:
    broker.store.heartbeat(["theirs1", "theirs2", "mine"])
    broker.advance(15_000)
    assert broker.store.heartbeat([]).lapsed == 0  # to the millisecond
    broker.advance(1)
    assert broker.store.heartbeat(["mine"]).lapsed == 2


def test_lost_jobs_and_pending_cancels_are_reported(broker: BrokerHarness) -> None:
    broker.add(*"abcdef")
    jobs = {job.id: job for job in broker.claim("c1", 6).jobs}
    running = [(job.id, "c1", job.lease) for job in jobs.values()]
    assert (broker.store.heartbeat(["c1"], running).lost) == []
    broker.store.cancel(["b", "c"])
    broker.store.reap("c1", list("abcdef"))  # a, d, e, f are released; b and c end
    broker.taken("c2")
    beat = broker.store.heartbeat(["c1"], running)
    assert sorted(beat.lost) == list("abcdef")
    assert beat.flagged == []
    invariants(broker)


def test_a_cancel_is_reported_until_the_job_has_ended(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    running = [(job.id, "c1", job.lease) for job in broker.claim("c1", 2).jobs]
    broker.store.cancel(["b"])
    for _ in range(2):
        beat = broker.store.heartbeat(["c1"], running)
        assert (beat.lost, beat.flagged) == ([], ["b"])


def test_jobs_without_a_hash_or_with_a_foreign_key_are_lost(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.job("theirs"), "x")
    beat = broker.store.heartbeat(["c1"], [("never", "c1", 1), ("theirs", "c1", 1)])
    assert beat.lost == ["never", "theirs"]


@pytest.mark.parametrize("name", ["workers", "meta"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str
) -> None:
    with broker.refused_over(getattr(broker.keys, name)):
        broker.store.heartbeat(["c1"])


def test_queues_are_served_until_their_lease_ends(broker: BrokerHarness) -> None:
    broker.store.heartbeat(["c1"], (), ["default", "low"])
    broker.advance(4000)
    broker.store.heartbeat(["c2"], [("a", "c2", 1)], ["low"])
    served = broker.redis.zrange(broker.keys.serving, 0, -1, withscores=True)
    assert served == [("default", T0 + 15_000), ("low", T0 + 19_000)]


def test_a_wrong_key_of_the_served_queues_stops_no_heartbeat(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.serving, "theirs")
    assert broker.store.heartbeat(["c1"], [("never", "c1", 1)], ["default"]).lost == ["never"]
    assert dict(broker.queries.workers()) == {"c1": T0 + 15_000}


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    with broker.full():
        broker.store.heartbeat(["c1"])
    assert [child for child, _ in broker.queries.workers()] == ["c1"]


def role(child: str, *, sleeps: bool = False) -> list[RoleTerm]:
    return [RoleTerm("leader", child, 1000, sleeps)]


def test_the_term_of_a_sleeping_leader_is_renewed(broker: BrokerHarness) -> None:
    broker.store.lead("a", 1000)
    for _ in range(5):
        broker.advance(900)
        assert broker.store.heartbeat([], roles=role("a", sleeps=True)).to_ask == []
        assert broker.store.lead("b", 1000) == 0
    broker.advance(1001)  # a heartbeat was late, and no one has taken the role
    assert broker.store.heartbeat([], roles=role("a", sleeps=True)).to_ask == []
    assert broker.store.lead("b", 1000) == 0


def test_a_leader_that_does_not_sleep_must_renew_its_own_term(broker: BrokerHarness) -> None:
    broker.store.lead("a", 1000)
    broker.advance(900)
    assert broker.store.heartbeat([], roles=role("a")).to_ask == []
    broker.advance(101)
    assert broker.store.heartbeat([], roles=role("a")).to_ask == ["leader"]
    assert broker.store.lead("b", 1000) == 1


def test_a_sleeping_leader_is_told_that_it_no_longer_leads(broker: BrokerHarness) -> None:
    broker.store.lead("b", 1000)
    assert broker.store.heartbeat([], roles=role("a", sleeps=True)).to_ask == ["leader"]
    assert broker.redis.hget(broker.keys.meta, "leader") == "b"
    broker.store.lead("b", 0)
    assert broker.store.heartbeat([], roles=role("a", sleeps=True)).to_ask == ["leader"]


def test_a_child_that_does_not_lead_is_told_of_a_vacant_role(broker: BrokerHarness) -> None:
    assert broker.store.heartbeat([], roles=role("b")).to_ask == ["leader"]
    broker.store.lead("a", 1000)
    assert broker.store.heartbeat([], roles=role("b")).to_ask == []
    broker.advance(1001)
    assert broker.store.heartbeat([], roles=role("b")).to_ask == ["leader"]


def test_a_term_from_before_the_clock_went_back_counts_as_vacant(broker: BrokerHarness) -> None:
    broker.store.lead("dead", 1000)
    broker.advance(-3_600_000)
    assert broker.store.heartbeat([], roles=role("b")).to_ask == ["leader"]


def test_roles_come_between_queues_and_jobs_in_the_arguments(broker: BrokerHarness) -> None:
    broker.store.lead("a", 1000)
    terms = [*role("a", sleeps=True), RoleTerm("bridge", "c", 1000, False)]
    beat = broker.store.heartbeat(["c1"], [("never", "c1", 1)], ["default"], roles=terms)
    assert beat.to_ask == ["bridge"]
    assert beat.lost == ["never"]


@pytest.mark.parametrize("audit", ["", "final", "failed", "none"])
def test_every_transition_changes_the_activity(broker: BrokerHarness, audit: str) -> None:
    seen = [broker.store.heartbeat(["c1"]).activity]

    def is_new() -> bool:
        seen.append(broker.store.heartbeat(["c1"]).activity)
        return seen[-1] not in seen[:-1]

    assert not is_new()
    broker.add("a", audit=audit)
    assert is_new()
    (job,) = broker.claim("c1", 1).jobs
    assert is_new()
    broker.finish(outcome(job))
    assert is_new()
    assert not is_new()


def test_a_continuation_changes_the_activity(broker: BrokerHarness) -> None:
    before = broker.store.heartbeat([]).activity
    broker.redis.hset(broker.keys.continuations, "t", "clear default queued 50 1")
    assert broker.store.heartbeat([]).activity != before


def test_a_wake_up_that_was_lost_is_repeated(broker: BrokerHarness) -> None:
    """Redis gave it to the last pop of a machine that has vanished."""
    wake = broker.keys.queue("default").wake
    broker.add("a")
    broker.redis.delete(wake)
    broker.store.heartbeat(["c1"], (), ["default", "low"])
    broker.store.heartbeat(["c2"], (), ["default", "low"])
    assert broker.redis.llen(wake) == 1
    assert not broker.redis.exists(broker.keys.queue("low").wake)
    broker.taken("c1")
    broker.redis.delete(wake)
    broker.store.heartbeat(["c1"], (), ["default"])
    assert not broker.redis.exists(wake)  # nothing is left


def test_a_paused_queue_wakes_no_one(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.store.pause("default", True)
    broker.redis.delete(broker.keys.queue("default").wake)
    broker.store.heartbeat(["c1"], (), ["default"])
    assert not broker.redis.exists(broker.keys.queue("default").wake)


@pytest.mark.parametrize("wrong", ["wake", "meta", "queued"])
def test_a_wrong_key_of_a_queue_with_jobs_stops_no_heartbeat(
    broker: BrokerHarness, wrong: str
) -> None:
    broker.add("a")
    broker.redis.delete(broker.keys.queue("default").wake)
    broker.redis.set(getattr(broker.keys.queue("default"), wrong), "theirs")
    assert broker.store.heartbeat(["c1"], [("never", "c1", 1)], ["default"]).lost == ["never"]
