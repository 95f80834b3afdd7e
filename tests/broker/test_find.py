"""Index sets: maintained by the verbs that move jobs (lab.py checks them everywhere), and read."""

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

from .lab import ERROR, Lab, invariants, outcome
from .workflows import LabWorkflow

UNFINISHED = frozenset(Status) - FINAL


def options(job_id: str = "", **tags: str) -> str:
    """The options of a job when its task and these tags are indexed."""
    names = ["task", *(f"tags.{name}" for name in tags)]
    return dumps({"index": index_of(names, "app.task", job_id, tags), "tags": flatten_tags(tags)})


def found(lab: Lab, limit: int = 100, statuses: Any = UNFINISHED, **tags: str) -> list[str]:
    entries = [index_entry("task", "app.task")]
    entries += [index_entry(f"tags.{name}", text) for name, text in tags.items()]
    query = JobQuery(task="app.task", statuses=statuses, tags=tags, limit=limit)
    return [job.id for job in lab.queries.find(entries, query)]


def made(n: int) -> str:
    """An id as the library generates it, in the n-th millisecond."""
    return f"job_{1_700_000_000_000 + n}_abcdefghij_0"


def test_jobs_are_found_by_all_their_properties_newest_first(lab: Lab) -> None:
    for n in range(6):
        lab.add(made(n), options=options(tenant=str(n % 2), zone="eu"))
    lab.add("other", options=options(tenant="0"))
    assert found(lab, tenant="0", zone="eu") == [made(4), made(2), made(0)]
    assert found(lab, limit=1, tenant="1") == [made(5)]
    assert found(lab, tenant="2") == []
    invariants(lab)


@pytest.mark.parametrize("text", ["a b", 'say "hi"', "\\", "é", "%41", "index:", "x" * 100])
def test_values_of_any_kind(lab: Lab, text: str) -> None:
    lab.add("a", options=options(name=text))
    lab.add("b", options=options(name="A"))
    assert found(lab, name=text) == ["a"]
    invariants(lab)


@pytest.mark.parametrize("value", ['"index":"task:forged"', '","index":"x'])
@pytest.mark.parametrize("name", ["index", "redact", "tags"])
def test_tags_cannot_look_like_options(lab: Lab, name: str, value: str) -> None:
    lab.add("a", options=dumps({"tags": flatten_tags({name: value})}))
    assert lab.queries.job("a").tags == {name: value}
    assert lab.events("a")[0]["args"] == "[[],{}]"
    assert "watched" not in lab.job("a")
    invariants(lab)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({}, "queued"), ({"priority": 3}, "queued"), ({"when": "+900"}, "scheduled"),
        ({"after": "wait parent"}, "waiting"),
    ],
)  # fmt: skip
def test_an_unfinished_job_is_found_wherever_it_is(
    lab: Lab, how: dict[str, Any], status: str
) -> None:
    lab.add("parent")
    assert lab.add("a", options=options(), **how) == [True]
    assert found(lab) == ["a"]
    assert found(lab, statuses={Status(status)}) == ["a"]
    assert found(lab, statuses={Status.PROCESSING}) == []
    assert lab.store.cancel(["a"]) == [1]
    assert found(lab) == []
    assert lab.store.requeue(["a"]) == [1]
    assert found(lab) == ["a"]
    invariants(lab)


@pytest.mark.parametrize("verdict", ["completed", "failed", "cancelled", "retrying", "queued"])
def test_a_finished_job_is_not_found(lab: Lab, verdict: str) -> None:
    lab.add("a", options=options())
    job = lab.take()
    assert found(lab, statuses={Status.PROCESSING}) == ["a"]
    lab.finish(outcome(job, verdict, "" if verdict in ("cancelled", "queued") else ERROR))
    assert found(lab) == (["a"] if verdict in ("retrying", "queued") else [])
    invariants(lab)


def test_a_poisoned_job_and_a_cleared_job_are_not_found(lab: Lab) -> None:
    lab.add("poison", options=options())
    for _ in range(3):
        lab.take("dead")
        lab.store.reap("dead", ["poison"])
    assert lab.status("poison") == "failed"
    invariants(lab)
    lab.add("b", options=options())
    lab.store.clear("default", "queued")
    invariants(lab)
    assert found(lab) == []


def test_jobs_of_a_workflow_and_its_callback_are_found(lab: Lab) -> None:
    workflow = LabWorkflow(
        lab, {0: [], 1: [0], 2: [0]}, options=options(), complete_task="app.task",
        complete_payload="[[],{}]", complete_options=options(),
    )  # fmt: skip
    workflow.push()
    assert found(lab) == [workflow.job(2), workflow.job(1), workflow.job(0)]
    assert workflow.run_all() == [0, 1, 2]
    assert found(lab) == [f"{workflow.id}.complete0"]
    invariants(lab)


def test_a_job_whose_hash_is_gone_is_left_out(lab: Lab) -> None:
    lab.add("a", "b", options=options())
    lab.redis.delete(lab.keys.job("a"))
    assert found(lab) == ["b"]


def test_large_sets_are_read_in_steps_up_to_a_limit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, 1200, 100):
        lab.add(*[made(n) for n in range(start, start + 100)], options=options(tenant="1"))
    assert found(lab, limit=150, tenant="1") == [made(n) for n in range(1199, 1049, -1)]
    monkeypatch.setattr(queries, "LOOK", 1000)
    assert len(found(lab, limit=1000, tenant="1")) == 1000


def test_a_set_of_another_type_is_named_and_nothing_is_written(lab: Lab) -> None:
    key = lab.keys.index("task:app.task")
    lab.redis.set(key, "theirs")
    before = lab.dump()
    for how in ({}, {"after": "go_on x"}):
        with pytest.raises(WrongKeyType, match=re.escape(key)):
            lab.add("a", options=options(), **how)
    with pytest.raises(WrongKeyType, match=re.escape(key)):
        LabWorkflow(lab, {0: []}, options=options()).push()
    assert lab.dump() == before


def test_a_set_that_was_replaced_does_not_stop_the_end_of_a_job(lab: Lab) -> None:
    lab.add("a", options=options())
    lab.redis.set(lab.keys.index("task:app.task"), "theirs")
    assert lab.finish(outcome(lab.take())) == [1]
    assert lab.status("a") == "completed"


def test_the_first_event_tells_of_tags(lab: Lab) -> None:
    lab.add("plain", options='{"timeout_ms":5}')
    lab.add("a", options=options(tenant="42"))
    lab.take(), lab.take()
    assert "options" not in lab.events("plain")[0]
    first, second = lab.events("a")
    assert first["options"]["tags"] == ["tenant", "42"]
    assert "options" not in second
