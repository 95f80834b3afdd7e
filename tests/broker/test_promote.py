"""promote: due jobs move to the tail of their queue, and the timer learns when to run next."""

from __future__ import annotations

import pytest

from .lab import ERROR, Lab, invariants, outcome


def test_due_jobs_move_and_wake_a_worker(lab: Lab) -> None:
    lab.add("later", when="+2000")
    lab.add("due", when="+1000")
    lab.advance(1000)
    assert lab.store.promote(["default"])[:2] == (1, 1000)
    assert lab.ids("queued") == ["due"]
    assert lab.tokens() == 1
    assert "due_ms" not in lab.job("due")
    assert lab.story("due") == ["scheduled", "queued"]
    assert lab.events("due")[-1]["seq"] == 2
    invariants(lab)


def test_retries_move_too_with_their_attempts(lab: Lab) -> None:
    lab.add("a")
    lab.finish(outcome(lab.take(), "retrying", ERROR, "500"))
    lab.advance(500)
    assert lab.store.promote(["default"])[:2] == (1, -1)
    assert lab.events("a")[-1]["attempt"] == 1
    assert lab.job("a")["error"] == ERROR
    invariants(lab)


def test_not_a_millisecond_early(lab: Lab) -> None:
    lab.add("a", when="+1000")
    lab.advance(999)
    assert lab.store.promote(["default"])[:2] == (0, 1)
    lab.advance(1)
    assert lab.store.promote(["default"])[:2] == (1, -1)


def test_nothing_to_do(lab: Lab) -> None:
    assert lab.store.promote(["default", "other"])[:2] == (0, -1)
    assert list(lab.dump()) == [lab.keys.queues]


def test_due_jobs_move_in_the_order_of_their_time_and_keep_their_priority(lab: Lab) -> None:
    lab.add("b", when="+20")
    lab.add("a", when="+10")
    lab.add("p", when="+30", priority=4)
    lab.advance(30)
    lab.store.promote(["default"])
    assert lab.taken(jobs=3) == ["p", "a", "b"]


def test_at_most_a_hundred_per_call_over_all_queues(lab: Lab) -> None:
    lab.add(*[f"a{n}" for n in range(80)], queue="x", when="+5")
    lab.add(*[f"b{n}" for n in range(80)], queue="y", when="+5")
    lab.advance(5)
    assert lab.store.promote(["x", "y"])[:2] == (100, 0)
    invariants(lab)
    assert lab.store.promote(["x", "y"])[:2] == (60, -1)
    assert (len(lab.ids("queued", "x")), len(lab.ids("queued", "y"))) == (80, 80)
    invariants(lab)


def test_only_queues_with_new_work_get_a_token(lab: Lab) -> None:
    lab.add("a", queue="x", when="+5")
    lab.advance(5)
    lab.store.promote(["x", "y"])
    assert (lab.tokens("x"), lab.tokens("y")) == (1, 0)


def test_the_timers_token_is_taken(lab: Lab) -> None:
    lab.add("a", when="+1000")
    lab.store.promote(["default"])
    assert lab.redis.exists(lab.keys.timer) == 0


def test_a_second_call_changes_nothing(lab: Lab) -> None:
    lab.add("a", when="+5")
    lab.advance(5)
    lab.store.promote(["default"])
    before = lab.dump()
    assert lab.store.promote(["default"])[:2] == (0, -1)
    assert lab.dump() == before


def test_a_job_without_a_hash_moves_on_and_the_claim_reports_it(lab: Lab) -> None:
    lab.add("gone", "b", when="+5")
    lab.redis.delete(lab.keys.job("gone"))
    lab.advance(5)
    assert lab.store.promote(["default"])[:2] == (2, -1)
    claim = lab.claim(jobs=5)
    assert ([job.id for job in claim.jobs], claim.lost) == (["b"], ["gone"])


@pytest.mark.parametrize("name", ["scheduled", "retrying", "queued", "priority", "wake", "meta"])
def test_only_a_queue_with_a_key_of_another_type_is_blocked(lab: Lab, name: str) -> None:
    for queue in ("first", "default", "last"):
        lab.add(queue, queue=queue, when="+5")
    lab.advance(5)
    with lab.broken(name) as words:
        promoted = lab.store.promote(["first", "default", "last"])
        assert promoted[:2] == (2, -1)
        assert list(promoted.broken) == ["default"]
        assert words in promoted.broken["default"]
        assert [lab.status(queue) for queue in ("first", "default", "last")] == [
            "queued", "scheduled", "queued",
        ]  # fmt: skip
    assert lab.store.promote(["first", "default", "last"]) == (1, -1, {}, -1)
    invariants(lab)


def test_a_queue_that_is_not_named_is_served_too(lab: Lab) -> None:
    """It was removed from QUEUES, and still has jobs."""
    lab.add("a", queue="former", when="+5")
    lab.store.promote(["default"])
    lab.advance(5)
    assert lab.store.promote(["default"])[:2] == (1, -1)
    assert lab.ids("queued", "former") == ["a"]
    assert lab.redis.smembers(lab.keys.queues) == {"default", "former"}


def test_each_queue_gets_its_share_of_a_call(lab: Lab) -> None:
    for n in range(5):
        lab.add(*[f"a{n}.{m}" for m in range(100)], queue="a", when="+5")
    lab.add("b", queue="b", when="+6")
    lab.add(*[f"c{n}" for n in range(40)], queue="c", when="+7")
    lab.advance(7)
    assert lab.store.promote(["a", "b", "c"])[:2] == (33 + 1 + 40, 0)
    assert [len(lab.ids("queued", queue)) for queue in "abc"] == [33, 1, 40]
    moved = [lab.store.promote(["a", "b", "c"]).moved for _ in range(5)]
    assert moved == [100, 100, 100, 100, 67]
    invariants(lab)


def test_of_very_many_queues_those_due_first_are_promoted_first(lab: Lab) -> None:
    for n in range(150):
        lab.add(f"j{n}", f"k{n}", queue=f"q{n}", when=f"+{1 + n}")
    lab.advance(200)
    for _ in range(3):
        assert lab.store.promote([]).moved == 100
    assert all(len(lab.ids("queued", f"q{n}")) == 2 for n in range(150))


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a", when="+5")
    lab.advance(5)
    with lab.full():
        assert lab.store.promote(["default"])[:2] == (1, -1)
    invariants(lab)
