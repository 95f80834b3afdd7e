"""watch: a caller that waits for a job is told of its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .harness import ERROR, BrokerHarness, invariants, outcome


def _messages(broker: BrokerHarness, job_id: str, act: Callable[[], object]) -> list[str]:
    with broker.redis.pubsub() as pubsub:
        pubsub.subscribe(broker.keys.done(job_id))
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        act()
        broker.redis.publish(broker.keys.done(job_id), "the test's end")
        found = []
        while (data := pubsub.get_message(timeout=5)["data"]) != "the test's end":
            found.append(data)
        return found


def test_the_current_status_is_returned(broker: BrokerHarness) -> None:
    broker.add("a")
    assert broker.store.watch("a") == "queued"
    broker.finish(outcome(broker.take()))
    assert broker.store.watch("a") == "completed"
    invariants(broker)


def test_an_unknown_job_is_not_created(broker: BrokerHarness) -> None:
    assert broker.store.watch("never") == ""
    assert broker.dump() == {}


@pytest.mark.parametrize("kind", ["completed", "failed", "cancelled"])
def test_the_end_of_a_watched_job_is_published_once(broker: BrokerHarness, kind: str) -> None:
    broker.add("a")
    broker.store.watch("a")

    def run() -> None:
        broker.finish(outcome(broker.take(), "retrying", ERROR, "0"))
        job = broker.take()
        broker.finish(outcome(job, kind))
        broker.finish(outcome(job, kind))

    assert _messages(broker, "a", run) == [kind]


def test_an_unwatched_job_publishes_nothing(broker: BrokerHarness) -> None:
    assert _messages(broker, "a", lambda: broker.end("a")) == []


def _cancel(broker: BrokerHarness) -> None:
    broker.store.cancel(["a"])


def _clear(broker: BrokerHarness) -> None:
    broker.store.clear("default", "queued")


def _poison(broker: BrokerHarness) -> None:
    for _ in range(3):
        broker.take()
        broker.store.reap("c1", ["a"])


@pytest.mark.parametrize(
    ("end", "status"), [(_cancel, "cancelled"), (_clear, "cancelled"), (_poison, "failed")]
)
def test_every_verb_that_ends_a_job_publishes_it(
    broker: BrokerHarness, end: Callable[[BrokerHarness], None], status: str
) -> None:
    broker.add("a")
    broker.store.watch("a")
    assert _messages(broker, "a", lambda: end(broker)) == [status]


def test_a_key_of_another_type_counts_as_unknown(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.job("a"), "theirs")
    assert broker.store.watch("a") == ""


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a")
    with broker.full():
        assert broker.store.watch("a") == "queued"
