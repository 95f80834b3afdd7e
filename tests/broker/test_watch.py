"""watch: a caller that waits for a job is told of its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .lab import ERROR, Lab, invariants, outcome


def _messages(lab: Lab, job_id: str, act: Callable[[], object]) -> list[str]:
    with lab.redis.pubsub() as pubsub:
        pubsub.subscribe(lab.keys.done(job_id))
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        act()
        lab.redis.publish(lab.keys.done(job_id), "the test's end")
        found = []
        while (data := pubsub.get_message(timeout=5)["data"]) != "the test's end":
            found.append(data)
        return found


def test_the_current_status_is_returned(lab: Lab) -> None:
    lab.add("a")
    assert lab.store.watch("a") == "queued"
    lab.finish(outcome(lab.take()))
    assert lab.store.watch("a") == "completed"
    invariants(lab)


def test_an_unknown_job_is_not_created(lab: Lab) -> None:
    assert lab.store.watch("never") == ""
    assert lab.dump() == {}


@pytest.mark.parametrize("verdict", ["completed", "failed", "cancelled"])
def test_the_end_of_a_watched_job_is_published_once(lab: Lab, verdict: str) -> None:
    lab.add("a")
    lab.store.watch("a")

    def run() -> None:
        lab.finish(outcome(lab.take(), "retrying", ERROR, "0"))
        job = lab.take()
        lab.finish(outcome(job, verdict))
        lab.finish(outcome(job, verdict))

    assert _messages(lab, "a", run) == [verdict]


def test_an_unwatched_job_publishes_nothing(lab: Lab) -> None:
    assert _messages(lab, "a", lambda: lab.end("a")) == []


def _cancel(lab: Lab) -> None:
    lab.store.cancel(["a"])


def _clear(lab: Lab) -> None:
    lab.store.clear("default", "queued")


def _poison(lab: Lab) -> None:
    for _ in range(3):
        lab.take()
        lab.store.reap("c1", ["a"])


@pytest.mark.parametrize(
    ("end", "status"), [(_cancel, "cancelled"), (_clear, "cancelled"), (_poison, "failed")]
)
def test_every_verb_that_ends_a_job_publishes_it(
    lab: Lab, end: Callable[[Lab], None], status: str
) -> None:
    lab.add("a")
    lab.store.watch("a")
    assert _messages(lab, "a", lambda: end(lab)) == [status]


def test_a_key_of_another_type_counts_as_unknown(lab: Lab) -> None:
    lab.redis.set(lab.keys.job("a"), "theirs")
    assert lab.store.watch("a") == ""


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a")
    with lab.full():
        assert lab.store.watch("a") == "queued"
