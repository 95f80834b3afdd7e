"""What each path returns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connections
from redis import Redis

from django_redisqueue import Job, get_job
from django_redisqueue.api import views
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.models import OutboxJob
from tests.app import tasks
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_of
from tests.support.stopwatch import Stopwatch

from .api import Api, error
from .tasks import open_task, secret_task, urgent_task

OPEN = open_task.name


@pytest.mark.parametrize("slash", ["", "/"])
def test_every_path_answers_with_and_without_a_slash(
    api: Api, manual_worker: ManualWorker, slash: str
) -> None:
    failed = tasks.noop.enqueue()
    manual_worker.fail_one()
    waiting = tasks.noop.enqueue()
    answers = [
        api.post(slash, {"task": OPEN}),
        api.get(f"/stats{slash}"),
        api.get(f"/events{slash}"),
        api.get(f"/openapi.json{slash}"),
        *(api.get(f"/{status}{slash}") for status in Status),
        api.get(f"/{waiting.id}{slash}"),
        api.post(f"/{failed.id}/retry{slash}"),
        api.post(f"/{waiting.id}/cancel{slash}"),
        api.delete(f"/cancelled{slash}"),
    ]
    assert [answer.status_code for answer in answers] == [201] + [200] * (len(answers) - 1)
    assert {answer["Cache-Control"] for answer in answers} == {"no-store"}


def test_an_unknown_path_is_answered_in_json(api: Api) -> None:
    assert error(api.get("/a/b/c"), 404)["code"] == "not_found"
    assert error(api.get("/%20"), 404)["message"].startswith("the path does not exist: ' '")
    assert error(api.get("//"), 404)["code"] == "not_found"


# -- enqueue


def test_enqueue_creates_a_job_and_shows_it(api: Api) -> None:
    answer = api.post("", {"task": OPEN, "args": [1, "é"], "kwargs": {"a": None}})
    shown = answer.json()
    job = get_job(shown["id"])
    assert (job.task_name, job.args, job.kwargs) == (OPEN, (1, "é"), {"a": None})
    assert answer["Location"] == f"/jobs/{job.id}"
    assert api.get(f"/{job.id}").json() == {**shown, "why_not_running": "No worker is alive."}
    assert shown["status"] == "queued"
    assert shown["enqueued_at"].endswith("Z")


def test_enqueue_keeps_the_options_of_the_task_unless_told_otherwise(
    api: Api, queue_settings: dict[str, Any], settings: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}
    own = api.post("", {"task": urgent_task.name}).json()
    assert (own["queue"], own["priority"]) == ("default", 7)
    told = api.post("", {"task": urgent_task.name, "queue": "low", "priority": -3}).json()
    assert (told["queue"], told["priority"]) == ("low", -3)


def test_run_after_accepts_durations_and_times(api: Api) -> None:
    instant = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for run_after in (3600, 3600.5, "1h", "59m60s", instant):
        shown = api.post("", {"task": OPEN, "run_after": run_after}).json()
        assert shown["status"] == "scheduled"
        due = datetime.fromisoformat(shown["due_at"])
        assert abs((due - datetime.now(UTC)).total_seconds() - 3600) < 5
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert api.post("", {"task": OPEN, "run_after": past}).json()["status"] == "queued"


def test_expires_accepts_durations_and_times(api: Api) -> None:
    instant = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for expires in (3600, 3600.5, "1h", "59m60s", instant):
        made = api.post("", {"task": OPEN, "expires": expires}).json()
        assert "expires" in get_job(made["id"]).data.options
    for wrong in (0, "0s", "10 m", "2026-01-31T12:00:00"):
        assert error(api.post("", {"task": OPEN, "expires": wrong}), 400)["field"] == "expires"
    early = {"task": OPEN, "expires": 60, "run_after": 60}
    assert "before they are due" in error(api.post("", early), 400)["message"]


def test_an_enqueued_job_is_never_answered_with_an_error(api: Api) -> None:
    with patch.object(Job, "refresh", side_effect=RedisUnavailable("gone")):
        answer = api.post("", {"task": OPEN, "args": [5], "run_after": 60})
    assert answer.status_code == 201
    shown = answer.json()
    assert (shown["status"], shown["args"], shown["enqueued_at"]) == ("scheduled", [5], None)
    assert get_job(shown["id"]).args == (5,)


def test_redacted_arguments_are_shown_nowhere(api: Api) -> None:
    body = {"task": secret_task.name, "args": ["4111-CARD"], "kwargs": {"amount": 5}}
    made = api.post("", body)
    with patch.object(Job, "refresh", side_effect=RedisUnavailable("gone")):
        answers = [made, api.post("", body)]
    answers += [api.get(f"/{made.json()['id']}"), api.get("/queued")]
    answers += [api.get("/events?last_event_id=0-0"), api.post(f"/{made.json()['id']}/cancel")]
    for answer in answers:
        assert b"4111-CARD" not in answer.content
    assert made.json()["args"] == answers[1].json()["args"] == ["[redacted]"]
    assert made.json()["kwargs"] == {"amount": 5}


def test_with_the_outbox_a_job_is_accepted_while_redis_is_down(
    api: Api, fresh_server: Any, queue_settings: dict[str, Any], settings: Any
) -> None:
    server = fresh_server()
    settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}, "OUTBOX": True}
    server.stop()
    answer = api.post("", {"task": OPEN, "args": [1]})
    assert answer.status_code == 201
    assert OutboxJob.objects.get().id == answer.json()["id"]


def test_enqueue_inside_the_transactions_of_requests(api: Api, settings: Any) -> None:
    with patch.dict(connections["default"].settings_dict, {"ATOMIC_REQUESTS": True}):
        shown = api.post("", {"task": OPEN}).json()
    assert shown["enqueued_at"], "Redis has it, so no transaction holds it back"


# -- reading


def test_stats_contain_each_queue_and_the_total(
    api: Api, manual_worker: ManualWorker, queue_settings: dict[str, Any], settings: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}
    tasks.noop.enqueue()
    manual_worker.complete_one()
    tasks.noop.enqueue()
    tasks.noop.using(queue_name="low").enqueue()
    found = api.get("/stats").json()
    assert found["total"]["queued"] == 2
    assert found["queues"]["default"]["counts"]["completed"] == 1
    assert found["queues"]["low"]["counts"]["queued"] == 1
    assert found["queues"]["low"]["paused"] is False
    assert found["queues"]["low"]["oldest_seconds"] >= 0
    assert found["queues"]["low"]["counts"].keys() == set(Status)


def test_pages_follow_each_other(api: Api) -> None:
    ids = [job.id for job in tasks.noop.enqueue_many([(n,) for n in range(5)])]
    first = api.get("/queued?limit=3").json()
    assert [job["id"] for job in first["jobs"]] == ids[:3]
    assert first["next"] == 3
    second = api.get(f"/queued?limit=3&start={first['next']}").json()
    assert [job["id"] for job in second["jobs"]] == ids[3:]
    assert second["next"] is None


def test_a_page_omits_fields_that_may_be_large(api: Api, manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    manual_worker.complete_one('"result"')
    (row,) = api.get("/completed").json()["jobs"]
    assert "result" not in row
    assert api.get(f"/{job.id}").json()["result"] == "result"
    failed = tasks.noop.enqueue()
    manual_worker.fail_one("boom")
    (row,) = api.get("/failed").json()["jobs"]
    assert row["error"] == {"type": "ValueError", "message": "boom", "reason": ""}
    assert api.get(f"/{failed.id}").json()["error"]["traceback"] == "Traceback ..."


def test_a_job_shows_why_it_does_not_run(api: Api, manual_worker: ManualWorker) -> None:
    manual_worker.store.heartbeat([manual_worker.claim_request.child], (), ["default"])
    job = tasks.noop.enqueue()
    assert api.get(f"/{job.id}").json()["why_not_running"] == "It waits for a free worker."
    manual_worker.claim_one()
    assert api.get(f"/{job.id}").json()["why_not_running"] is None


def test_an_unreadable_job_has_a_row_that_says_so(
    api: Api, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    fine, broken, nan = (job.id for job in tasks.noop.enqueue_many([()] * 3))
    keys = keys_of()
    redis.hset(keys.job(broken), "payload", "{")
    redis.hset(keys.job(nan), "payload", "[[NaN],{}]")
    rows = {row["id"]: row for row in api.get("/queued").json()["jobs"]}
    assert rows[fine]["task"] == tasks.noop.name
    assert "cannot be read" in rows[broken]["problem"]
    assert rows[broken].keys() == {"id", "problem"}
    assert "NaN is not JSON" in rows[nan]["problem"]
    assert api.get(f"/{broken}").json() == rows[broken]
    assert api.post(f"/{broken}/cancel").json()["id"] == broken


def test_head_is_get_without_a_body(api: Api) -> None:
    answer = api.call("HEAD", "/stats")
    assert (answer.status_code, answer.content) == (200, b"")


# -- control


def test_retry_requeues_a_failed_job(api: Api, manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    manual_worker.fail_one()
    shown = api.post(f"/{job.id}/retry").json()
    assert (shown["status"], shown["requeues"]) == ("queued", 1)
    again = error(api.post(f"/{job.id}/retry"), 409)
    assert again["code"] == "wrong_state"
    assert "only failed or cancelled jobs can be requeued" in again["message"]


def test_cancel_ends_waiting_jobs_and_asks_running_jobs_to_stop(
    api: Api, manual_worker: ManualWorker
) -> None:
    waits = tasks.noop.enqueue()
    assert api.post(f"/{waits.id}/cancel").json()["status"] == "cancelled"
    runs = tasks.noop.enqueue()
    manual_worker.claim_one()
    shown = api.post(f"/{runs.id}/cancel").json()
    assert (shown["status"], shown["cancel_requested"]) == ("processing", True)
    assert error(api.post(f"/{waits.id}/cancel"), 409)["code"] == "wrong_state"


@pytest.mark.parametrize("path", ["/job_1_x_0", "/job_1_x_0/retry", "/job_1_x_0/cancel"])
def test_a_missing_job(api: Api, path: str) -> None:
    answer = api.post(path) if path.count("/") > 1 else api.get(path)
    assert error(answer, 404)["message"].startswith("no job job_1_x_0 in Redis")


def test_clear_empties_one_list_of_one_queue(
    api: Api, queue_settings: dict[str, Any], settings: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}
    tasks.noop.enqueue_many([()] * 3)
    tasks.noop.using(queue_name="low").enqueue()
    assert api.delete("/queued").json() == {
        "queue": "default", "status": "queued", "cleared": 3, "left": 0,
    }  # fmt: skip
    found = api.get("/stats").json()["queues"]
    assert found["default"]["counts"]["cancelled"] == 3
    assert found["low"]["counts"]["queued"] == 1


def test_changes_are_logged_with_their_user(
    api: Api, user: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = tasks.noop.enqueue()
    with caplog.at_level("INFO", "django_redisqueue.api"):
        api.get(f"/{job.id}")
        api.post(f"/{job.id}/cancel")
        api.post(f"/{job.id}/cancel")  # refused
    assert [
        record.getMessage() for record in caplog.records if record.name.startswith("django_r")
    ] == [f"POST /jobs/{job.id}/cancel by user {user.pk}"]


def test_clear_deletes_a_bounded_number(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "CLEARED", 4)
    tasks.noop.enqueue_many([()] * 6)
    assert api.delete("/queued?queue=default").json()["left"] == 2
    assert api.delete("/queued?queue=default").json()["cleared"] == 2


def test_ten_thousand_jobs_are_cleared_in_about_a_second(api: Api) -> None:
    tasks.noop.enqueue_many([()] * views.CLEARED)
    watch = Stopwatch()
    assert api.delete("/queued").json()["cleared"] == views.CLEARED
    assert watch.seconds < 10
