"""What the paths of workflows return."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_redisqueue import Workflow, get_workflow
from django_redisqueue.models import WorkflowRecord
from tests.app import tasks
from tests.support.manual_worker import ManualWorker

from .api import Api, error

GONE = "flow_1_gone_0"


@pytest.fixture
def workflow(queue_settings: dict[str, Any]) -> Workflow:
    with Workflow("nightly") as made:
        first = made.add(tasks.noop)
        made.add(tasks.noop, after=first)
        made.add(tasks.noop, after=first)
    return made


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_workflow_is_shown_with_its_counts(
    api: Api, manual_worker: ManualWorker, workflow: Workflow, slash: str
) -> None:
    manual_worker.complete_one()
    shown = api.get(f"/workflows/{workflow.id}{slash}").json()
    assert shown.pop("made_at").endswith("Z")
    assert shown == {
        "id": workflow.id, "name": "nightly", "status": "running", "paused": False, "lost": False,
        "generation": 0, "total": 3, "ended_at": None, "cleaned_at": None,
        "counts": {
            "waiting": 0, "queued": 2, "processing": 0, "completed": 1, "failed": 0, "cancelled": 0,
        },
    }  # fmt: skip


def test_it_is_paused_released_and_cancelled(api: Api, workflow: Workflow) -> None:
    path = f"/workflows/{workflow.id}"
    assert api.post(f"{path}/pause").json()["paused"] is True
    assert get_workflow(workflow.id).data.is_paused
    refused = error(api.post(f"{path}/pause"), 409)
    assert refused["code"] == "wrong_state"
    assert refused["message"].endswith("is running and paused: pause changes nothing")
    assert api.post(f"{path}/release").json()["paused"] is False
    cancelled = api.post(f"{path}/cancel").json()
    assert (cancelled["status"], cancelled["counts"]["cancelled"]) == ("cancelled", 3)
    assert cancelled["ended_at"] is not None
    assert error(api.post(f"{path}/cancel"), 409)["message"].endswith(
        "is cancelled: cancel changes nothing"
    )


@pytest.mark.django_db(transaction=True)
def test_a_workflow_in_the_outbox_is_shown_and_cancelled(
    api: Api, settings: Any, queue_settings: dict[str, Any]
) -> None:
    away = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}
    settings.REDISQUEUE = {**queue_settings, "OUTBOX": True, **away}
    with transaction.atomic(), Workflow("nightly") as flow:
        flow.add(tasks.noop)
    settings.REDISQUEUE = {**queue_settings, "OUTBOX": True}
    path = f"/workflows/{flow.id}"
    shown = api.get(path).json()
    assert (shown["status"], shown["total"], shown["counts"]["waiting"]) == ("building", 1, 1)
    assert error(api.post(f"{path}/pause"), 404)["code"] == "not_found"
    cancelled = api.post(f"{path}/cancel").json()
    assert (cancelled["status"], cancelled["counts"]["cancelled"]) == ("cancelled", 1)
    assert error(api.post(f"{path}/cancel"), 409)["code"] == "wrong_state"


def test_a_workflow_deleted_from_redis_is_read_from_its_record(
    api: Api, settings: Any, queue_settings: dict[str, Any]
) -> None:
    at = timezone.now()
    WorkflowRecord.objects.create(
        id=GONE, name="old", status="failed", reason="lost", total=4, completed=3, failed=1,
        made_at=at, ended_at=at,
    )  # fmt: skip
    assert error(api.get(f"/workflows/{GONE}"), 404)["code"] == "not_found"  # there is no mirror
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}
    shown = api.get(f"/workflows/{GONE}").json()
    assert (shown["status"], shown["lost"], shown["total"]) == ("failed", True, 4)
    assert shown["counts"] == {
        "waiting": None, "queued": None, "processing": None, "completed": 3, "failed": 1,
        "cancelled": 0,
    }  # fmt: skip
    assert "cleaned up" in error(api.post(f"/workflows/{GONE}/pause"), 404)["message"]


def test_an_unknown_workflow(api: Api) -> None:
    assert error(api.get(f"/workflows/{GONE}"), 404)["message"] == (
        f"workflow {GONE} is neither in Redis nor in the mirror"
    )
    assert "is not a valid workflow id" in error(api.get("/workflows/job_1"), 404)["message"]
    assert error(api.get("/workflows"), 404)["code"] == "not_found"
    assert error(api.get(f"/workflows/{GONE}/pause"), 405)["code"] == "method_not_allowed"
