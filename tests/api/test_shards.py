"""Lists and counts are those of all shards, and name those that are missing."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from tests.support.servers import RedisServer

from .api import Api

NOBODY = "unix:///nonexistent/redis.sock"
LISTS = ("stats", "queued", "limits", "unique-keys", "schedules", "waits?kind=event", "pauses")


def enqueue(shard: int) -> str:
    job = NewJob(new_job_id(shard), "default", "app.task", "[[],{}]")
    Commands(producer_connection(shard)).enqueue([job])
    return job.id


@pytest.mark.parametrize("path", LISTS)
def test_missing_shards_are_named(
    api: Api, settings: Any, redis_server: RedisServer, path: str
) -> None:
    connection = {"URL": [redis_server.url, NOBODY]}
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 4, "CONNECTION": connection}
    document = api.get(f"/{path}").json()
    assert document["missing_shards"] == [
        {"shard": 1, "error": "redis_unavailable"}, {"shard": 3, "error": "redis_unavailable"},
    ]  # fmt: skip


def test_counts_lists_and_health_are_those_of_all_shards(
    api: Api, settings: Any, redis_server: RedisServer
) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 4}
    ids = [enqueue(shard) for shard in range(4)]
    stats = api.get("/stats").json()
    assert stats["total"]["queued"] == 4
    assert "missing_shards" not in stats
    assert {job["id"] for job in api.get("/queued").json()["jobs"]} == set(ids)
    connection = {"URL": [redis_server.url, NOBODY]}
    settings.REDISQUEUE = {**settings.REDISQUEUE, "CONNECTION": connection}
    assert api.get("/stats").json()["total"]["queued"] == 2
    found = api.get("/health").json()["findings"]
    away = [one["message"] for one in found if one["id"] == "shard_away"]
    assert away[0].startswith("Shards 1, 3 do not answer, so what is shown is without their jobs")
