"""Index sets: maintained by the verbs that move jobs, and read. ``invariants`` checks them in every
test."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_redisqueue.broker import queries
from django_redisqueue.core.codec import dumps
from django_redisqueue.core.job_data import JobQuery
from django_redisqueue.core.statuses import FINAL, Status
from django_redisqueue.core.tags import flatten_tags, index_entry, index_of
from django_redisqueue.exceptions import WrongKeyType

from .harness import ERROR, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

UNFINISHED = frozenset(Status) - FINAL


def options(job_id: str = "", **tags: str) -> str:
    """The options of a job when its task and these tags are indexed."""
    names = ["task", *(f"tags.{name}" for name in tags)]
    return dumps({"index": index_of(names, "app.task", job_id, tags), "tags": flatten_tags(tags)})


def found(
    broker: BrokerHarness, limit: int = 100, statuses: Any = UNFINISHED, **tags: str
) -> list[str]:
    entries = [index_entry("task", "app.task")]
    entries += [index_entry(f"tags.{name}", text) for name, text in tags.items()]
    query = JobQuery(task="app.task", statuses=statuses, tags=tags, limit=limit)
    return [job.id for job in broker.queries.find(entries, query)]


def made(n: int) -> str:
    """An id as the library generates it, in the n-th millisecond."""
    return f"job_{1_700_000_000_000 + n}_abcdefghij_0"


def test_jobs_are_found_by_all_their_properties_newest_first(broker: BrokerHarness) -> None:
    for n in range(6):
        broker.add(made(n), options=options(tenant=str(n % 2), zone="eu"))
    broker.add("other", options=options(tenant="0"))
    assert found(broker, tenant="0", zone="eu") == [made(4), made(2), made(0)]
    assert found(broker, limit=1, tenant="1") == [made(5)]
    assert found(broker, tenant="2") == []
    invariants(broker)


@pytest.mark.parametrize("text", ["a b", 'say "hi"', "\\", "é", "%41", "index:", "x" * 100])
def test_values_of_any_kind(broker: BrokerHarness, text: str) -> None:
    broker.add("a", options=options(name=text))
    broker.add("b", options=options(name="A"))
    assert found(broker, name=text) == ["a"]
    invariants(broker)


@pytest.mark.parametrize("value", ['"index":"task:forged"', '","index":"x'])
@pytest.mark.parametrize("name", ["index", "redact", "tags"])
def test_tags_cannot_look_like_options(broker: BrokerHarness, name: str, value: str) -> None:
    broker.add("a", options=dumps({"tags": flatten_tags({name: value})}))
    assert broker.queries.job("a").tags == {name: value}
    assert broker.events("a")[0]["args"] == "[[],{}]"
    assert "watched" not in broker.job("a")
    invariants(broker)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({}, "queued"), ({"priority": 3}, "queued"), ({"when": "+900"}, "scheduled"),
        ({"after": "wait parent"}, "waiting"),
    ],
)  # fmt: skip
def test_an_unfinished_job_is_found_wherever_it_is(
    broker: BrokerHarness, how: dict[str, Any], status: str
) -> None:
    broker.add("parent")
    assert broker.add("a", options=options(), **how) == [True]
    assert found(broker) == ["a"]
    assert found(broker, statuses={Status(status)}) == ["a"]
    assert found(broker, statuses={Status.PROCESSING}) == []
    assert broker.store.cancel(["a"]) == [1]
    assert found(broker) == []
    assert broker.store.requeue(["a"]) == [1]
    assert found(broker) == ["a"]
    invariants(broker)


@pytest.mark.parametrize("kind", ["completed", "failed", "cancelled", "retrying", "queued"])
def test_a_finished_job_is_not_found(broker: BrokerHarness, kind: str) -> None:
    broker.add("a", options=options())
    job = broker.take()
    assert found(broker, statuses={Status.PROCESSING}) == ["a"]
    broker.finish(outcome(job, kind, "" if kind in ("cancelled", "queued") else ERROR))
    assert found(broker) == (["a"] if kind in ("retrying", "queued") else [])
    invariants(broker)


def test_a_poisoned_job_and_a_cleared_job_are_not_found(broker: BrokerHarness) -> None:
    broker.add("poison", options=options())
    for _ in range(3):
        broker.take("dead")
        broker.store.reap("dead", ["poison"])
    assert broker.status("poison") == "failed"
    invariants(broker)
    broker.add("b", options=options())
    broker.store.clear("default", "queued")
    invariants(broker)
    assert found(broker) == []


def test_jobs_of_a_workflow_and_its_callback_are_found(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(
        broker, {0: [], 1: [0], 2: [0]}, options=options(), complete_task="app.task",
        complete_payload="[[],{}]", complete_options=options(),
    )  # fmt: skip
    workflow.push()
    assert found(broker) == [workflow.job(2), workflow.job(1), workflow.job(0)]
    assert workflow.run_all() == [0, 1, 2]
    assert found(broker) == [f"{workflow.id}.complete0"]
    invariants(broker)


def test_a_job_whose_hash_is_gone_is_left_out(broker: BrokerHarness) -> None:
    broker.add("a", "b", options=options())
    broker.redis.delete(broker.keys.job("a"))
    assert found(broker) == ["b"]


def test_large_sets_are_read_in_steps_up_to_a_limit(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, 1200, 100):
        broker.add(*[made(n) for n in range(start, start + 100)], options=options(tenant="1"))
    assert found(broker, limit=150, tenant="1") == [made(n) for n in range(1199, 1049, -1)]
    monkeypatch.setattr(queries, "LOOK", 1000)
    assert len(found(broker, limit=1000, tenant="1")) == 1000


def test_a_set_of_another_type_is_named_and_nothing_is_written(broker: BrokerHarness) -> None:
    key = broker.keys.index("task:app.task")
    broker.redis.set(key, "theirs")
    with broker.unchanged():
        for how in ({}, {"after": "go_on x"}):
            with pytest.raises(WrongKeyType, match=re.escape(key)):
                broker.add("a", options=options(), **how)
        with pytest.raises(WrongKeyType, match=re.escape(key)):
            BrokerWorkflow(broker, {0: []}, options=options()).push()


def test_a_set_that_was_replaced_does_not_stop_the_end_of_a_job(broker: BrokerHarness) -> None:
    broker.add("a", options=options())
    broker.redis.set(broker.keys.index("task:app.task"), "theirs")
    assert broker.finish(outcome(broker.take())) == [1]
    assert broker.status("a") == "completed"


def test_the_first_event_tells_of_tags(broker: BrokerHarness) -> None:
    broker.add("plain", options='{"timeout_ms":5}')
    broker.add("a", options=options(tenant="42"))
    broker.take(), broker.take()
    assert "options" not in broker.events("plain")[0]
    first, second = broker.events("a")
    assert first["options"]["tags"] == ["tenant", "42"]
    assert "options" not in second
