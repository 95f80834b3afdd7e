"""Limits, unique keys, schedules and errors over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from redis import Redis

from django_redisqueue import Limit, Rate, Task, task
from django_redisqueue.client import registry
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedules import Source
from django_redisqueue.models import ApiToken, ErrorGroup
from tests.broker.schedules import definition
from tests.support.manual_worker import ManualWorker

from .api import Api, error

KEY = "app.pay:a/b?%20é"


def own(
    manual_worker: ManualWorker, job_id: str, key: str, mode: str = "until_finished - -"
) -> None:
    manual_worker.store.now_ms = 1_760_000_000_000
    manual_worker.store.enqueue([NewJob(job_id, "default", "t", "[[],{}]", unique=f"{key} {mode}")])


def test_limits(api: Api, manual_worker: ManualWorker) -> None:
    assert api.get("/limits").json() == {"next": None, "limits": []}
    for name in ("job_1", "job_2"):
        lane = "|c:stripe:42|r:api: c:stripe=1 r:api=2/60000000/2"
        manual_worker.store.enqueue([NewJob(name, "default", "t", "[[],{}]", lane=lane)])
    assert [job.id for _ in range(2) for job in manual_worker.claim()] == ["job_1"]
    first = api.get("/limits?limit=1").json()
    (limit,) = first["limits"]
    assert 0 <= limit.pop("oldest_seconds") < 60
    assert limit == {
        "name": "stripe:42", "kind": "concurrency", "used": 1, "most": 1, "rate": None,
        "next_start_in": None, "holders": ["job_1"], "stuck": [], "parked_lanes": 1,
        "queues": ["default"], "set_by_hand": False,
    }  # fmt: skip
    rest = api.get(f"/limits?after={quote(first['next'])}").json()
    assert ([one["name"] for one in rest["limits"]], rest["next"]) == (["api"], None)
    assert (rest["limits"][0]["rate"], rest["limits"][0]["parked_lanes"]) == ("2 in 1m", 0)
    assert error(api.get("/limits?after="), 400)["field"] == "after"


def test_unique_keys(api: Api, manual_worker: ManualWorker) -> None:
    assert api.get("/unique-keys").json() == {"total": 0, "next": None, "keys": []}
    own(manual_worker, "job_1", KEY)
    own(manual_worker, "job_2", "z")
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
    api: Api, manual_worker: ManualWorker, user: Any, caplog: pytest.LogCaptureFixture
) -> None:
    own(manual_worker, "job_1", KEY)
    address = f"/unique-keys/release?key={quote(KEY)}"
    with caplog.at_level("INFO", "django_redisqueue.api"):
        assert api.post(address).json() == {"key": KEY, "job": "job_1"}
    (record,) = caplog.records
    assert record.getMessage() == f"POST /jobs{address} by user {user.pk}"
    assert error(api.post(address), 404)["message"] == f"no job has the unique key {KEY!r}"
    assert error(api.post("/unique-keys/release"), 400) == {
        "code": "missing_parameter", "message": "key is missing", "field": "key",
    }  # fmt: skip


def test_schedules(api: Api, manual_worker: ManualWorker, redis: Redis) -> None:
    manual_worker.store.define_schedules(
        "",
        [
            (definition("a", source=Source.ADMIN), 1_760_000_000_000),
            (definition("b", source=Source.ADMIN, error="no such task"), None),
        ],
    )
    redis.hset(
        manual_worker.store.keys.schedule("a"), mapping={"missed": 3, "last_ms": 1_759_999_999_000}
    )
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
    redis.hset(manual_worker.store.keys.schedule("a"), "missed", "many")
    broken = api.get("/schedules").json()["schedules"][0]
    assert broken["error"].startswith("the hash of schedule a cannot be read")
    assert broken["missed"] is None


def test_waits(api: Api, manual_worker: ManualWorker) -> None:
    empty = {"totals": {"event": 0, "approval": 0, "sleep": 0}, "next": None, "waits": []}
    assert api.get("/waits").json() == empty
    manual_worker.store.now_ms = 1_760_000_000_000
    for job_id, event in (("job_1", "paid:42"), ("job_2", "approval:job_2:refund")):
        manual_worker.store.enqueue([NewJob(job_id, "default", "t", "[[],{}]")])
        manual_worker.settle(manual_worker.claim_one(), "parked", event)
    found = api.get("/waits").json()
    assert found["totals"] == {"event": 1, "approval": 1, "sleep": 0}
    assert found["waits"] == [
        {
            "job": "job_1", "task": "t", "queue": "default", "kind": "event", "name": "paid:42",
            "parked_at": "2025-10-09T08:53:20.000Z", "until": None,
        }
    ]  # fmt: skip
    (approval,) = api.get("/waits?kind=approval").json()["waits"]
    assert (approval["kind"], approval["name"]) == ("approval", "refund")
    assert error(api.get("/waits?kind=rest"), 400) == {
        "code": "invalid_option", "field": "kind",
        "message": "kind must be one of event, approval, sleep, not 'rest'",
    }  # fmt: skip
    assert error(api.get("/waits?after=x"), 400)["field"] == "after"


def by_shop(tenant: str, shop: int) -> None: ...


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task of only one test: with shards, the checks find that its limits have different keys."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    limit = Limit(5, key=("tenant", "shop"))
    return task(concurrency=limit, rate=Rate(9, "1m"), name="tests.api_limited")(by_shop)


@pytest.mark.one_shard("the limits of its task have different keys")
def test_limits_are_overridden_by_hand(
    api: Api, manual_worker: ManualWorker, limited: Task
) -> None:
    limited.enqueue("acme", 42)
    manual_worker.claim_one()
    name = "limit=tests.api_limited"
    key = quote('["acme", 42]')
    assert api.post(f"/limits/set?{name}&key={key}&number=7").json() == {"changed": True}
    assert api.post(f"/limits/set?{name}&key={key}&number=7").json() == {"changed": False}
    assert api.post(f"/limits/set?{name}&number=5%20in%201h%20burst%202").status_code == 200
    limits = {one["kind"]: one for one in api.get("/limits").json()["limits"]}
    assert (limits["concurrency"]["name"], limits["concurrency"]["most"]) == (
        "tests.api_limited:acme,42", 7,
    )  # fmt: skip
    assert limits["rate"]["rate"] == "5 in 1h"
    assert limits["rate"]["set_by_hand"] is True
    api.post(f"/limits/set?{name}&key={key}&number=none")
    limits = {one["kind"]: one for one in api.get("/limits").json()["limits"]}
    assert (limits["concurrency"]["most"], limits["concurrency"]["set_by_hand"]) == (5, False)
    assert api.post("/shares/set?share=acme&weight=3").json() == {"changed": True}
    assert api.post("/shares/set?share=acme&weight=none").json() == {"changed": True}
    for path, field, words in (
        (f"/limits/set?{name}&number=x", "number", "the number must be written as"),
        ("/limits/set?limit=nope&number=5", "limit", "no task has a Limit 'nope'"),
        (f"/limits/set?{name}&key=%5B&number=5", "limit", "a JSON array of values"),
        ("/shares/set?share=a&weight=x", "weight", "to remove what was set, not 'x'"),
        ("/shares/set?share=a&weight=101", "weight", "from 1 to 100"),
        ("/limits/set?number=5", "limit", "limit is missing"),
    ):
        found = error(api.post(path), 400)
        assert (found["field"], words in found["message"]) == (field, True), found


@pytest.mark.usefixtures("limited")
def test_pauses(api: Api, manual_worker: ManualWorker) -> None:
    assert api.get("/pauses").json() == {"pauses": []}
    part = "limit=tests.api_limited&key=" + quote('["acme", 42]')
    for query in ("", "?share=gold", f"?{part}"):
        assert api.post(f"/pauses/pause{query}").json() == {"changed": True}
        assert api.post(f"/pauses/pause{query}").json() == {"changed": False}
    rows = api.get("/pauses").json()["pauses"]
    assert [(row["queue"], row["part"], row["by"]) for row in rows] == [
        ("default", None, "ann (API token tests)"),
        ("default", "limit tests.api_limited:acme,42", "ann (API token tests)"),
        ("default", "share gold", "ann (API token tests)"),
    ]
    assert all(row["since"].endswith("Z") for row in rows)
    for query in ("", "?share=gold", f"?{part}"):
        assert api.post(f"/pauses/resume{query}").json() == {"changed": True}
    assert api.get("/pauses").json() == {"pauses": []}
    both = error(api.post(f"/pauses/pause?share=gold&{part}"), 400)
    assert both["message"] == "pause a share or a limit, not both at once"


@pytest.mark.parametrize("path", ["/limits/set?limit=a&number=5", "/pauses/pause"])
def test_control_needs_its_permission(make_user: Any, queue_settings: Any, path: str) -> None:
    token = str(ApiToken.create(make_user("reader", "view_jobrecord"), "tests")[1])
    assert error(Api(Client(), token).post(path), 403)["code"] == "permission_denied"


def test_errors_in_groups(api: Api, manual_worker: ManualWorker) -> None:
    now = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    for n in range(3):
        ErrorGroup.objects.create(
            id=f"g{n}", task="a.b", exception="KeyError", message="no", frame="a.py in b", count=5,
            failed=n, first_seen=now, last_seen=now + timedelta(hours=n), queues=" default low ",
            job_id="job_1", silenced_at=now if n else None,
        )  # fmt: skip
    first = api.get("/errors?limit=2").json()
    assert [group["id"] for group in first["errors"]] == ["g2", "g1"]
    assert first["next"] == 2
    last = api.get("/errors?limit=2&start=2").json()
    assert last == {
        "next": None,
        "errors": [
            {
                "id": "g0", "task": "a.b", "exception": "KeyError", "message": "no",
                "frame": "a.py in b", "queues": ["default", "low"], "failed": 0, "retried": 5,
                "first_seen": "2026-03-04T05:06:07.000Z", "last_seen": "2026-03-04T05:06:07.000Z",
                "last_job": "job_1", "silenced": False,
            }
        ],
    }  # fmt: skip
