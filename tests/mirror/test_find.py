"""find_jobs from the mirror: finished jobs, and properties that are not indexed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_redisqueue import find_jobs
from django_redisqueue.core.clock import instant
from django_redisqueue.core.codec import dumps
from django_redisqueue.core.tags import flatten_tags
from django_redisqueue.models import JobRecord
from tests.broker.workflows import BrokerWorkflow

from ..support.postgres import multiply_by_sql, rows_read_in_vain
from .mirrored_shard import MirroredShard
from .rows import record


def options(**tags: str) -> str:
    return dumps({"tags": flatten_tags(tags)})


def found(**query: Any) -> list[str]:
    return [job.id for job in find_jobs(**query)]


def test_tags_are_stored_in_the_record_and_found_there(shard: MirroredShard) -> None:
    broker = shard.broker
    broker.end("a", options=options(tenant="42", zone="eu"))
    broker.add("b", options=options(tenant="42"))
    broker.add("big", options=options(tenant="7"), payload=f'[["{"x" * 2000}"],{{}}]')
    broker.add("quiet", options=options(tenant="9"), audit="final")
    broker.add("plain")
    broker.store.cancel(["quiet"])
    shard.mirror()
    assert JobRecord.objects.get(pk="a").tags == '{"tenant":"42","zone":"eu"}'
    assert JobRecord.objects.get(pk="plain").tags == ""
    assert sorted(found(tags={"tenant": "42"})) == ["a", "b"]
    assert found(tags={"tenant": "42", "zone": "eu"}, status="completed") == ["a"]
    assert found(tags={"tenant": "42"}, status="unfinished") == ["b"]
    assert found(tags={"tenant": "7"}) == ["big"]
    assert found(tags={"tenant": "9"}) == ["quiet"]
    assert found(tags={"tenant": "4"}) == []
    (job,) = find_jobs(tags={"tenant": "42"}, status="completed")
    assert (job.result, dict(job.tags)) == ("ok", {"tenant": "42", "zone": "eu"})


def test_correlation_ids_are_stored_in_the_record(shard: MirroredShard) -> None:
    broker = shard.broker
    for name, more in {
        "a": {}, "tagged": {"tags": ["correlation_id", "x"]}, "big": {"index": "y" * 2000},
    }.items():  # fmt: skip
        broker.add(name, options=dumps({**more, "headers": {"correlation_id": f"req:{name}"}}))
    quiet = dumps({"headers": {"correlation_id": "req:quiet", "traceparent": "00-1"}})
    broker.add("quiet", options=quiet, audit="final")
    broker.add("long", options=dumps({"headers": {"correlation_id": "x" * 200}}))
    broker.add("traced", options=dumps({"headers": {"traceparent": "00-1"}}))
    tag = dumps({"tags": ["name", '"correlation_id":"no"']})
    broker.add("plain"), broker.add("text", options=tag)
    broker.store.cancel(["quiet"])
    shard.mirror()
    stored = dict(JobRecord.objects.values_list("id", "correlation_id"))
    assert stored == {
        "a": "req:a", "tagged": "req:tagged", "big": "req:big", "quiet": "req:quiet",
        "long": "x" * 128, "traced": None, "plain": None, "text": None,
    }  # fmt: skip


def test_jobs_of_a_workflow(shard: MirroredShard) -> None:
    workflow, other = (
        BrokerWorkflow(shard.broker, {0: [], 1: [0]}),
        BrokerWorkflow(shard.broker, {0: []}, name="00"),
    )
    workflow.push(), other.push()
    shard.mirror()
    assert sorted(found(workflow=workflow.id)) == [workflow.job(0), workflow.job(1)]
    assert found(workflow=workflow.id, status="waiting") == [workflow.job(1)]


@pytest.mark.parametrize("text", ['say "hi"', "100%", "back\\slash", "it's", "é", "_"])
def test_values_are_taken_literally(shard: MirroredShard, text: str) -> None:
    record("this", tags=dumps({"name": text}))
    record("other", tags=dumps({"name": f"x{text}", "named": text, "text": f'"name":"{text}"'}))
    assert found(tags={"name": text}) == ["this"]


def test_searches_are_case_sensitive(shard: MirroredShard) -> None:
    record("large", tags='{"name":"A"}')
    record("small", tags='{"name":"a"}')
    assert found(tags={"name": "a"}) == ["small"]


def test_the_newest_come_first_and_no_more_than_asked_for(shard: MirroredShard) -> None:
    for n in range(5):
        made = record(f"job{n}", "failed", task="ab"[n % 2], queue="low")
        JobRecord.objects.filter(pk=made.pk).update(enqueued_at=f"2026-01-0{n + 1}T00:00:00Z")
    assert found(task="a", queue="low") == ["job4", "job2", "job0"]
    assert found(status=["failed", "queued"], limit=2) == ["job4", "job3"]
    assert found(queue="default") == []


def test_a_record_that_cannot_be_read_is_left_out(shard: MirroredShard) -> None:
    record("broken", payload="{")
    record("full_shard", payload="[[],{}]")
    assert found(task="app.task") == ["full_shard"]


def test_the_newest_of_several_statuses(shard: MirroredShard) -> None:
    record("old", status="failed", enqueued_at=instant(1))
    record("middle", status="cancelled", enqueued_at=instant(2))
    record("new", status="failed", enqueued_at=instant(3))
    record("other", status="completed", enqueued_at=instant(4))
    assert found(status=["failed", "cancelled"]) == ["new", "middle", "old"]
    assert found(status=["failed", "cancelled"], limit=2) == ["new", "middle"]
    assert found(limit=2) == ["other", "new"]


def test_jobs_that_do_not_exist_are_not_searched_for_in_all_records(
    on_postgres: object, settings: Any, queue_settings: dict[str, Any]
) -> None:
    """A few jobs are unfinished, and all failures are in one queue and of one task."""
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}
    record("first", status="completed")
    multiply_by_sql(
        JobRecord, 40_000, id="'job_' || n", enqueued_at="r.enqueued_at + n * interval '1 second'",
        status="CASE WHEN n < 9 THEN 'queued' WHEN n % 5 = 0 THEN 'failed' ELSE 'completed' END",
        queue="CASE WHEN n % 5 = 0 THEN 'low' ELSE 'default' END",
        task="CASE WHEN n % 5 = 0 THEN 'shop.pay' ELSE 'shop.mail' END",
    )  # fmt: skip
    assert len(found(status="unfinished")) == 8
    queries: list[dict[str, Any]] = [
        {"status": "unfinished"},
        {"status": "failed", "queue": "default"},
        {"status": "failed", "task": "shop.mail"},
    ]
    for query in queries:
        assert rows_read_in_vain(partial(found, **query)) < 2000, query
