"""Unique keys and schedules over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from redis import Redis

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedule_data import Source
from tests.broker.schedules import definition
from tests.support.hand import Hand

from .api import Api, error

KEY = "app.pay:a/b?%20é"


def own(hand: Hand, job_id: str, key: str, mode: str = "until_finished - -") -> None:
    hand.store.now_ms = 1_760_000_000_000
    hand.store.enqueue([NewJob(job_id, "default", "t", "[[],{}]", unique=f"{key} {mode}")])


def test_limits(api: Api, hand: Hand) -> None:
    assert api.get("/limits").json() == {"next": None, "limits": []}
    for name in ("job_1", "job_2"):
        lane = "|c:stripe:42|r:api: c:stripe=1 r:api=2/60000000/2"
        hand.store.enqueue([NewJob(name, "default", "t", "[[],{}]", lane=lane)])
    assert [job.id for _ in range(2) for job in hand.claim()] == ["job_1"]
    first = api.get("/limits?limit=1").json()
    (limit,) = first["limits"]
    assert 0 <= limit.pop("oldest_seconds") < 60
    assert limit == {
        "name": "stripe:42", "kind": "concurrency", "used": 1, "most": 1, "rate": None,
        "next_start_in": None, "holders": ["job_1"], "stuck": [], "parked_lanes": 1,
        "queues": ["default"],
    }  # fmt: skip
    assert first["next"] is None
    assert error(api.get("/limits?after="), 400)["field"] == "after"


def test_unique_keys(api: Api, hand: Hand) -> None:
    assert api.get("/unique-keys").json() == {"total": 0, "next": None, "keys": []}
    own(hand, "job_1", KEY)
    own(hand, "job_2", "z")
    first = api.get("/unique-keys?limit=1").json()
    assert first["keys"] == [
        {
            "key": KEY, "job": "job_1", "task": "t", "status": "queued",
            "taken_at": "2025-10-09T08:53:20.000Z", "until": None,
        }
    ]  # fmt: skip
    assert first["total"] == 2
    rest = api.get(f"/unique-keys?after={quote(first['next'])}").json()
    assert ([one["key"] for one in rest["keys"]], rest["next"]) == (["z"], None)
    assert error(api.get("/unique-keys?after=x"), 400)["field"] == "after"
    assert error(api.get("/unique-keys?after="), 400)["field"] == "after"


def test_a_key_is_released_and_logged(
    api: Api, hand: Hand, user: Any, caplog: pytest.LogCaptureFixture
) -> None:
    own(hand, "job_1", KEY)
    address = f"/unique-keys/release?key={quote(KEY)}"
    with caplog.at_level("INFO", "django_redisqueue.api"):
        assert api.post(address).json() == {"key": KEY, "job": "job_1"}
    (record,) = caplog.records
    assert record.getMessage() == f"POST /jobs{address} by user {user.pk}"
    assert error(api.post(address), 404)["message"] == f"no job has the unique key {KEY!r}"
    assert error(api.post("/unique-keys/release"), 400) == {
        "code": "missing_parameter", "message": "key is missing", "field": "key",
    }  # fmt: skip


def test_schedules(api: Api, hand: Hand, redis: Redis) -> None:
    hand.store.define_schedules(
        "",
        [
            (definition("a", source=Source.ADMIN), 1_760_000_000_000),
            (definition("b", source=Source.ADMIN, error="no such task"), None),
        ],
    )
    redis.hset(hand.store.keys.schedule("a"), mapping={"missed": 3, "last_ms": 1_759_999_999_000})
    first = api.get("/schedules?limit=1").json()
    assert first["schedules"] == [
        {
            "name": "a", "task": "app.task", "queue": "default", "source": "admin",
            "due": "every 1m", "error": None, "paused_at": None,
            "next_due_at": "2025-10-09T08:53:20.000Z", "last_due_at": None,
            "last_run_at": "2025-10-09T08:53:19.000Z", "last_job": None, "runs": 0, "missed": 3,
            "skipped": 0,
        }
    ]  # fmt: skip
    second = api.get(f"/schedules?after={quote(first['next'])}").json()
    assert (second["total"], second["next"]) == (2, None)
    assert second["schedules"][0]["error"] == "no such task"
    assert second["schedules"][0]["next_due_at"] is None
    redis.hset(hand.store.keys.schedule("a"), "missed", "many")
    broken = api.get("/schedules").json()["schedules"][0]
    assert broken["error"].startswith("the hash of schedule a cannot be read")
    assert broken["missed"] is None
