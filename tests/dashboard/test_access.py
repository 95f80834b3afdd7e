"""Who may see and do what: the admin's login, a permission for each action, CSRF."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_redisqueue import JobQueue, get_job
from tests.app import tasks
from tests.support.logins import logged_in
from tests.support.manual_worker import ManualWorker

from .site import address, logged

LIST = ("act_on_list", "default", "failed")
PAGES = [
    ("overview",), ("overview_live",), ("overview_stream",), ("overview_charts",),
    ("queue", "default", "failed"), ("job", "job_1"), ("jobrecord_changelist",),
    ("errors",), ("error", "0"), ("limits",), ("unique_keys",), ("schedules",), ("workflows",),
    ("search",), ("export_queue", "default", "failed"), ("export_records",),
    ("workflow", "flow_1_0"), ("workflow_stream", "flow_1_0"),
]  # fmt: skip


@pytest.fixture
def failed(manual_worker: ManualWorker) -> str:
    """The id of a failed job."""
    tasks.noop.enqueue()
    return manual_worker.fail_one()


def assert_names(response: Any, permission: str) -> None:
    """The reply is a page that names the missing permission."""
    assert response.status_code == 403
    text = response.content.decode()
    assert f"the permission django_redisqueue.{permission}" in text.replace("<code>", "")
    assert "bob" in text


@pytest.mark.parametrize("model", ["jobrecord", "workflowrecord", "dashboard"])
def test_pages_of_records_name_the_missing_permission(
    staff: Callable[..., User], redisqueue: None, model: str
) -> None:
    client = logged_in(staff("retry_job", name="bob"))
    url = f"/admin/django_redisqueue/{model}/"
    assert_names(client.get(url, follow=True), "view_jobrecord")
    if model != "dashboard":
        assert_names(client.get(f"{url}job_1/change/"), "view_jobrecord")


def test_a_refused_request_reads_nothing_from_redis(
    staff: Callable[..., User], settings: Any
) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "redis://localhost:1/0"}}
    client = logged_in(staff("retry_job", name="bob"))
    assert_names(client.get(address("overview")), "view_jobrecord")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page[0])
def test_pages_are_only_for_staff_who_may_view_jobs(
    staff: Callable[..., User], redisqueue: None, page: tuple[str, ...]
) -> None:
    url = address(*page)
    anonymous = Client().get(url)
    assert anonymous.status_code == 302
    assert anonymous["Location"].startswith("/admin/login/")
    refused = logged_in(staff("retry_job", name="bob")).get(url)
    assert_names(refused, "view_jobrecord")
    customer = User.objects.create_user("eve", password="x")
    assert logged_in(customer).get(url).status_code == 302
    expected = {
        "job": 404, "error": 404, "workflow": 404, "overview_stream": 501, "workflow_stream": 501,
        "workers_stream": 501,
    }  # fmt: skip
    expected |= {"export_queue": 400, "export_records": 400}  # without a format
    code = expected.get(page[0], 200)
    assert logged_in(staff("view_jobrecord")).get(url).status_code == code


def everything(failed: str) -> list[tuple[str, tuple[str, ...], dict[str, str]]]:
    """(permission, address, form)"""
    return [
        ("retry_job", ("act_on_job", failed), {"verb": "retry"}),
        ("clear_queue", ("act_on_job", failed), {"verb": "delete", "confirmed": "yes"}),
        ("enqueue_job", ("act_on_job", failed), {"verb": "copy"}),
        ("retry_job", LIST, {"verb": "retry", "id": failed}),
        ("retry_job", LIST, {"verb": "retry", "scope": "all"}),
        ("clear_queue", LIST, {"verb": "delete", "id": failed, "confirmed": "yes"}),
        ("pause_queue", ("pause", "default"), {"verb": "pause"}),
        ("control_worker", ("order_worker",), {"worker": "w.aaaaaaaa.1.1", "order": "stop"}),
    ]


ALL = {
    "view_jobrecord", "retry_job", "cancel_job", "pause_queue", "clear_queue", "enqueue_job",
    "control_worker",
}  # fmt: skip


@pytest.mark.parametrize("number", range(8))
def test_each_action_needs_its_own_permission(
    staff: Callable[..., User], failed: str, number: int
) -> None:
    permission, page, form = everything(failed)[number]
    client = logged_in(staff(*(ALL - {permission}), name="bob"))
    assert_names(client.post(address(*page), form), permission)
    assert get_job(failed).status == "failed"
    assert not JobQueue().is_paused
    assert logged() == []
    allowed = logged_in(staff("view_jobrecord", permission))
    assert allowed.post(address(*page), form).status_code in (200, 302)


def test_cancelling_needs_its_permission(staff: Callable[..., User], redisqueue: None) -> None:
    job = tasks.noop.enqueue()
    url = address("act_on_job", job.id)
    client = logged_in(staff(*(ALL - {"cancel_job"}), name="bob"))
    assert client.post(url, {"verb": "cancel"}).status_code == 403
    assert job.status == "queued"
    client = logged_in(staff("view_jobrecord", "cancel_job"))
    assert client.post(url, {"verb": "cancel", "confirmed": "yes"}).status_code == 302
    job.refresh()
    assert job.status == "cancelled"


def test_actions_also_need_the_permission_to_view_jobs(
    staff: Callable[..., User], failed: str
) -> None:
    client = logged_in(staff(*(ALL - {"view_jobrecord"})))
    assert client.post(address("act_on_job", failed), {"verb": "retry"}).status_code == 403
    assert get_job(failed).status == "failed"


@pytest.mark.parametrize("number", range(8))
def test_every_post_needs_a_csrf_token(
    staff: Callable[..., User], failed: str, number: int
) -> None:
    _, page, form = everything(failed)[number]
    client = logged_in(staff(*ALL), enforce_csrf_checks=True)
    assert client.post(address(*page), form).status_code == 403
    assert get_job(failed).status == "failed"
    assert not JobQueue().is_paused


def origin_of(page: str) -> str:
    (url,) = re.findall(r'<a href="(\S*)">go back</a>', page)
    return html.unescape(url)


@pytest.mark.parametrize("number", range(8))
def test_get_requests_change_nothing(staff: Callable[..., User], failed: str, number: int) -> None:
    _, page, form = everything(failed)[number]
    client = logged_in(staff(*ALL))
    response = client.get(address(*page), form)
    assert response.status_code == 405
    assert response["Allow"] == "POST"
    assert "If you had to log in again" in response.content.decode()
    assert client.get(origin_of(response.content.decode())).status_code == 200
    assert get_job(failed).status == "failed"


def test_buttons_are_only_shown_to_users_who_may_press_them(
    staff: Callable[..., User], failed: str
) -> None:
    pages = [address("overview"), address("queue", "default", "failed"), address("job", failed)]
    some = logged_in(staff("view_jobrecord", name="bob"))
    for page in pages:
        text = some.get(page).content.decode()
        assert 'name="verb"' not in text, page
    everybody = logged_in(staff(*ALL))
    for page in pages:
        assert 'name="verb"' in everybody.get(page).content.decode()


def test_records_are_read_only(staff: Callable[..., User], redisqueue: None) -> None:
    User.objects.create_superuser("root", password="x")
    client = logged_in(User.objects.get(username="root"))
    base = address("jobrecord_changelist")
    assert client.get(f"{base}add/").status_code == 403
    assert client.post(f"{base}add/", {"id": "x"}).status_code == 403
    for model in ("outboxjob", "mirrorstate"):
        assert client.get(f"/admin/django_redisqueue/{model}/").status_code == 200
        assert client.get(f"/admin/django_redisqueue/{model}/add/").status_code == 403
