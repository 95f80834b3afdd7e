"""``POST /jobs`` with the header Idempotency-Key, and jobs with unique keys of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from redis import Redis

from django_redisqueue import get_job, task
from django_redisqueue.client.jobs import Job
from django_redisqueue.models import ApiToken, OutboxJob

from ..support.manual_worker import ManualWorker
from .api import Api, error
from .tasks import open_task, secret_task

BODY = {"task": open_task.name, "args": [1], "kwargs": {"a": 1, "b": 2}}
KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"


@task(api=True, unique="until_finished")
def unique_task(x: int = 0) -> int:
    return x


@task(api=True, outbox=True)
def stored_task(x: int = 0) -> int:
    return x


def post(api: Api, body: Any, key: str = KEY) -> Any:
    return api.post("", body, Idempotency_Key=key)


def test_repeating_a_request_returns_the_same_job(api: Api, manual_worker: ManualWorker) -> None:
    first = post(api, BODY)
    again = post(api, {**BODY, "kwargs": {"b": 2, "a": 1}})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first["Location"] == again["Location"]
    manual_worker.complete_one()
    assert post(api, BODY).json()["status"] == "completed"
    assert manual_worker.claim() == []
    assert post(api, BODY, "another").status_code == 201
    assert api.post("", BODY).status_code == 201


def test_another_body_is_refused(api: Api, manual_worker: ManualWorker) -> None:
    first = post(api, BODY).json()["id"]
    found = error(post(api, {**BODY, "args": [2]}), 422)
    assert found == {
        "code": "idempotency_conflict",
        "field": "Idempotency-Key",
        "message": "the Idempotency-Key was sent before with another body, which created job "
        f"{first}; send the same body again, or use another key",
    }
    assert manual_worker.complete_one() == first
    assert manual_worker.claim() == []


def test_each_user_has_separate_keys(api: Api, make_user: Callable[..., Any]) -> None:
    other = make_user("eve", "enqueue_job", "view_jobrecord")
    theirs = Api(Client(), str(ApiToken.create(other, "tests")[1]))
    assert post(api, BODY).status_code == 201
    assert post(theirs, {**BODY, "args": [2]}).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 256, "caf\u00e9", "a\tb"])
def test_an_invalid_key(api: Api, key: str) -> None:
    found = error(post(api, BODY, key), 400)
    assert (found["code"], found["field"]) == ("invalid_option", "Idempotency-Key")
    assert found["message"] == "Idempotency-Key must be 1 to 255 printable ASCII characters"


def test_a_job_that_the_task_calls_a_duplicate(api: Api, manual_worker: ManualWorker) -> None:
    body = {"task": unique_task.name, "args": [1]}
    job = unique_task.enqueue(1)
    assert (api.post("", body).status_code, api.post("", body).json()["id"]) == (200, job.id)
    assert post(api, body).json()["id"] == job.id
    manual_worker.complete_one()
    assert post(api, body).json()["id"] == job.id
    assert api.post("", body).status_code == 201


def test_through_the_outbox(api: Api, manual_worker: ManualWorker) -> None:
    body = {"task": stored_task.name, "args": [1]}
    first, again = post(api, body), post(api, body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert error(post(api, {**body, "args": [2]}), 422)["code"] == "idempotency_conflict"
    assert OutboxJob.objects.count() == 3
    assert manual_worker.complete_one() == first.json()["id"]
    assert manual_worker.claim() == []


def test_no_secret_can_be_guessed_from_the_stored_data(
    api: Api, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    post(api, {"task": secret_task.name, "args": ["4711-CARD"]})
    (key,) = redis.keys("*:unique:*")
    assert b"4711-CARD" not in key
    assert b"4711-CARD" not in (redis.get(key) or b"")
    assert KEY.encode() not in key


def test_a_requeue_that_another_job_prevents(api: Api, manual_worker: ManualWorker) -> None:
    job: Job = unique_task.enqueue(1)
    job.cancel()
    other = unique_task.enqueue(1)
    found = error(api.post(f"/{job.id}/retry"), 409)
    assert found["code"] == "unique_conflict"
    assert f"job {other.id} has its unique key" in found["message"]
    assert get_job(job.id).status == "cancelled"


def test_the_document_names_the_header(api: Api) -> None:
    post_jobs = api.get("/openapi.json").json()["paths"]["/jobs"]["post"]
    (header,) = (one for one in post_jobs["parameters"] if one["in"] == "header")
    assert header["name"] == "Idempotency-Key"
    assert {"200", "201", "422"} <= post_jobs["responses"].keys()
