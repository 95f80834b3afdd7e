"""A job that is deleted before the mirror has read its events still gets a complete record."""

from __future__ import annotations

import json

import pytest

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror.bridge import Bridge, StreamTrimmer
from tests.broker.lab import outcome

from .mirrored_shard import MirroredShard

LARGE = "x" * 2000  # too large for the stream


@pytest.mark.parametrize("verb", ["delete", "clear"])
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_job_deleted_too_soon(shard: MirroredShard, verb: str, status: str) -> None:
    lab = shard.lab
    arguments = json.dumps([[LARGE], {}])
    error = json.dumps({"type": "E", "message": LARGE, "traceback": ""})
    body = json.dumps(LARGE) if status == "completed" else error
    lab.store.now_ms = None
    lab.add("a", payload=arguments)
    lab.finish(outcome(lab.take(), status, body))
    if verb == "delete":
        assert lab.store.delete(["a"]) == [1]
    else:
        assert lab.store.clear("default", status).done == 1
    assert lab.ids(status) == []
    shard.bridge = Bridge(get_settings(), hooks=[StreamTrimmer(lab.store)])
    shard.mirror()
    record = shard.record("a")
    assert (record.status, record.payload) == (status, arguments)
    assert (record.result if status == "completed" else record.error) == body
    lab.redis.zadd(lab.keys.queue("default").deleted, {"a": 1})  # ages ago
    lab.store.prune("default", "completed", 100, 10**9)
    assert lab.ids("deleted") == []
