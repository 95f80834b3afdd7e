"""A job that somebody deletes before the mirror has read of it still has a whole record."""

from __future__ import annotations

import json

import pytest

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.trimming import Trimmer
from tests.store.lab import outcome

from .scene import Scene

LARGE = "x" * 2000  # too large for the stream


@pytest.mark.parametrize("verb", ["delete", "clear"])
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_job_deleted_too_soon(scene: Scene, verb: str, status: str) -> None:
    lab = scene.lab
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
    scene.bridge = Bridge(get_settings(), followers=[Trimmer(lab.store)])
    scene.mirror()
    record = scene.record("a")
    assert (record.status, record.payload) == (status, arguments)
    assert (record.result if status == "completed" else record.error) == body
    lab.redis.zadd(lab.keys.queue("default").deleted, {"a": 1})  # ages ago
    lab.store.prune("default", "completed", 100, 10**9)
    assert lab.ids("deleted") == []
