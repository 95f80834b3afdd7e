"""Jobs of gathers and schedules, and jobs with unique keys, are ordinary records; so are jobs that
are deleted before the mirror has read their events."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import get_job
from django_redisqueue.client.large_results import write_result
from django_redisqueue.core.codec import encode_stored
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.dashboard.periodic import history
from django_redisqueue.mirror.bridge import Bridge, trim_stream
from django_redisqueue.models import JobRecord
from tests.broker.gathers import Query
from tests.broker.harness import outcome
from tests.broker.schedules import FIRST, MINUTE, define, definition, fire, job_id

from .mirrored_shard import MirroredShard

LONG = "x" * 2000  # too large for the stream
REPLACE = "k replace 10000 60000"


def test_a_result_in_a_file_is_read_after_redis_has_deleted_its_job(
    shard: MirroredShard, settings: Any, tmp_path: Path
) -> None:
    settings.MEDIA_ROOT = str(tmp_path)
    query = Query(shard.broker, "ab", threshold=1)
    query.start()
    job = query.take()
    name = write_result("redisqueue/result.json", '["large"]')
    query.finish(job, body=encode_stored(name))
    query.run_one("failed")
    query.run_one()
    shard.mirror()
    shard.assert_complete()
    assert shard.record(job.id).result_value == {"file": name}
    assert shard.statuses(query.job("then")) == ["queued", "processing", "completed"]
    assert shard.record(query.job("then")).kwargs == {"x": 1}
    assert shard.broker.store.delete([job.id]) == [1]
    assert get_job(job.id).result == ["large"]


def test_runs_have_their_arguments_and_are_found_by_their_schedule(shard: MirroredShard) -> None:
    broker = shard.broker
    define(broker, definition(payload='[["EU"],{}]', options='{"tags":["region","eu"]}'))
    for due_ms in (FIRST, FIRST + MINUTE):
        assert fire(broker, due_ms) == 1
        broker.finish(outcome(broker.take()))
    broker.add("other")
    shard.mirror()
    shard.assert_complete()
    record = shard.record(job_id(FIRST))
    assert (record.args, record.tags) == (("EU",), '{"region":"eu"}')
    assert shard.statuses(record.id) == ["queued", "processing", "completed"]
    assert [run["id"] for run in history("report")] == [job_id(FIRST + MINUTE), job_id(FIRST)]
    assert broker.queries.job(job_id(FIRST + MINUTE)).previous_due_ms == FIRST


def put(shard: MirroredShard, name: str, text: str, options: str = "") -> None:
    payload = f'[["{text}"],{{}}]'
    new = NewJob(
        name, "default", "app.task", payload, options, when="+10000", unique="k replace 10000 60000"
    )
    shard.broker.store.enqueue([new])


@pytest.mark.parametrize("text", ["short", LONG])
@pytest.mark.parametrize("between", [True, False])
def test_newer_arguments(shard: MirroredShard, text: str, between: bool) -> None:
    """Including those that are too large for the event."""
    put(shard, "a", "first", '{"tags":["n","1"]}')
    if between:
        shard.mirror()
    shard.broker.advance(1000)
    put(shard, "b", text, '{"tags":["n","2"]}')
    shard.mirror()
    record = shard.record("a")
    assert record.payload == f'[["{text}"],{{}}]'
    assert record.tags == '{"n":"2"}'
    assert record.status == "scheduled"
    assert record.due_at is not None
    assert record.due_at.timestamp() * 1000 == shard.broker.now + 10_000
    assert not JobRecord.objects.filter(pk="b").exists()
    assert shard.statuses("a") == ["scheduled", "scheduled"]


def test_newer_arguments_of_a_job_whose_first_event_is_gone(shard: MirroredShard) -> None:
    begun_ms = shard.broker.now
    put(shard, "a", "first")
    shard.broker.advance(1000)
    put(shard, "b", "second")
    shard.broker.redis.xtrim(shard.broker.keys.events, maxlen=1, approximate=False)
    shard.mirror()
    assert shard.record("a").payload == '[["second"],{}]'
    assert shard.record("a").enqueued_at.timestamp() * 1000 == begun_ms


@pytest.mark.parametrize("verb", ["delete", "clear"])
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_job_deleted_too_soon(shard: MirroredShard, verb: str, status: str) -> None:
    broker = shard.broker
    arguments = json.dumps([[LONG], {}])
    error = json.dumps({"type": "E", "message": LONG, "traceback": ""})
    body = json.dumps(LONG) if status == "completed" else error
    broker.store.now_ms = None
    broker.add("a", payload=arguments)
    broker.finish(outcome(broker.take(), status, body))
    if verb == "delete":
        assert broker.store.delete(["a"]) == [1]
    else:
        assert broker.store.clear("default", status).done == 1
    assert broker.ids(status) == []
    shard.bridge = Bridge(hooks=[partial(trim_stream, broker.store)])
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.payload) == (status, arguments)
    assert (record.result if status == "completed" else record.error) == body
    broker.redis.zadd(broker.keys.queue("default").deleted, {"a": 1})  # ages ago
    broker.store.prune("default", "completed", 100, 10**9)
    assert broker.ids("deleted") == []
