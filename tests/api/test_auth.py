"""Who may do what: by default no one, and each user only what their permissions name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_redisqueue import chain, get_job
from django_redisqueue.api.table import OPERATIONS
from django_redisqueue.core.statuses import Status
from django_redisqueue.models import ApiToken
from django_redisqueue.models.users import digest_of
from tests.app import tasks
from tests.support.logins import logged_in

from .api import Api, error
from .conftest import ALL
from .tasks import open_task

BODY = {"task": open_task.name}
# method, path, the permission it needs, what it returns to a user who has it
CALLS = [
    ("POST", "", "enqueue_job", 201),
    ("GET", "/stats", "view_jobrecord", 200),
    ("GET", "/health", "view_jobrecord", 200),
    ("GET", "/events", "view_jobrecord", 200),
    ("GET", "/errors", "view_jobrecord", 200),
    ("GET", "/openapi.json", "view_jobrecord", 200),
    ("GET", "/limits", "view_jobrecord", 200),
    ("GET", "/unique-keys", "view_jobrecord", 200),
    ("POST", "/unique-keys/release", "cancel_job", 400),
    ("GET", "/schedules", "view_jobrecord", 200),
    ("GET", "/waits", "view_jobrecord", 200),
    ("POST", "/limits/set", "pause_queue", 400),
    ("POST", "/shares/set", "pause_queue", 400),
    ("GET", "/pauses", "view_jobrecord", 200),
    ("POST", "/pauses/pause", "pause_queue", 200),
    ("POST", "/pauses/resume", "pause_queue", 200),
    ("GET", "/queued", "view_jobrecord", 200),
    ("DELETE", "/failed", "clear_queue", 200),
    ("GET", "/{id}", "view_jobrecord", 200),
    ("POST", "/{id}/retry", "retry_job", 409),
    ("POST", "/{id}/cancel", "cancel_job", 200),
    ("GET", "/workflows/{flow}", "view_jobrecord", 200),
    ("POST", "/workflows/{flow}/pause", "pause_queue", 200),
    ("POST", "/workflows/{flow}/release", "pause_queue", 409),
    ("POST", "/workflows/{flow}/cancel", "cancel_job", 200),
]
each_call = pytest.mark.parametrize(
    ("method", "path", "permission", "status"), CALLS, ids=[f"{m} {p}" for m, p, *_ in CALLS]
)


@pytest.fixture
def call(queue_settings: dict[str, Any]) -> Callable[..., Any]:
    """Make one of CALLS, with its own job."""

    def make(api: Api, method: str, path: str, **headers: str) -> Any:
        path = path.replace("{id}", tasks.noop.enqueue().id)
        path = path.replace("{flow}", chain(tasks.noop.s()).id)
        if (method, path) == ("POST", ""):
            return api.post("", BODY, **headers)
        return api.call(method, path, **headers)

    return make


def session(user: Any) -> Client:
    return logged_in(user, enforce_csrf_checks=True)


def test_the_calls_are_those_of_the_table() -> None:
    def plain(path: str) -> str:
        return "/<status>" if path[1:] in list(Status) else path

    known = {
        (method, plain(path), permission)
        for method, path, permission, _ in CALLS if path != "/openapi.json"
    }  # fmt: skip
    assert {(one.method, plain(one.path), one.permission) for one in OPERATIONS} == known


@each_call
def test_anonymous_requests_are_refused(
    db: None, call: Callable[..., Any], method: str, path: str, permission: str, status: int
) -> None:
    for client in (Client(), Client(enforce_csrf_checks=True)):
        answer = call(Api(client), method, path)
        assert error(answer, 401)["code"] == "not_authenticated"
        assert answer["WWW-Authenticate"].startswith("Bearer")


@each_call
def test_a_token_has_the_permissions_of_its_user(
    make_user: Any, call: Callable[..., Any], method: str, path: str, permission: str, status: int
) -> None:
    may = ApiToken.create(make_user("may", permission), "t")[1]
    assert call(Api(Client(enforce_csrf_checks=True), may), method, path).status_code == status
    others = [name for name in ALL if name != permission]
    may_not = ApiToken.create(make_user("may_not", *others), "t")[1]
    refused = error(call(Api(Client(), may_not), method, path), 403)
    assert refused["code"] == "permission_denied"
    assert refused["message"].endswith(f"django_redisqueue.{permission}")


@each_call
def test_a_session_needs_its_csrf_token_for_changes(
    make_user: Any, call: Callable[..., Any], method: str, path: str, permission: str, status: int
) -> None:
    client = session(make_user("may", permission))
    if method == "GET":
        assert call(Api(client), method, path).status_code == status
        return
    assert error(call(Api(client), method, path), 403)["code"] == "csrf"
    client.cookies["csrftoken"] = secret = "a" * 32
    assert error(call(Api(client), method, path, X_CSRFToken="b" * 32), 403)["code"] == "csrf"
    assert call(Api(client), method, path, X_CSRFToken=secret).status_code == status
    foreign = {"X_CSRFToken": secret, "Origin": "https://elsewhere.example"}
    assert error(call(Api(client), method, path, **foreign), 403)["code"] == "csrf"


@each_call
def test_a_session_without_the_permission(
    make_user: Any, call: Callable[..., Any], method: str, path: str, permission: str, status: int
) -> None:
    others = [name for name in ALL if name != permission]
    client = session(make_user("may_not", *others))
    client.cookies["csrftoken"] = secret = "a" * 32
    answer = call(Api(client), method, path, X_CSRFToken=secret)
    assert error(answer, 403)["code"] == "permission_denied"


def revoke(row: ApiToken) -> None:
    row.delete()


def expire(row: ApiToken) -> None:
    ApiToken.objects.filter(pk=row.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


def deactivate(row: ApiToken) -> None:
    row.user.is_active = False
    row.user.save()


def remove_user(row: ApiToken) -> None:
    row.user.delete()


@pytest.mark.parametrize("spoil", [revoke, expire, deactivate, remove_user])
@each_call
def test_a_token_that_is_no_longer_valid(
    user: Any, call: Callable[..., Any], spoil: Callable[[ApiToken], None],
    method: str, path: str, permission: str, status: int,
) -> None:  # fmt: skip
    row, text = ApiToken.create(user, "t")
    api = Api(Client(), text)
    assert api.get("/stats").status_code == 200
    spoil(row)
    assert error(call(api, method, path), 401)["code"] == "invalid_token"


@pytest.mark.parametrize("backend", ["ModelBackend", "AllowAllUsersModelBackend"])
def test_a_session_of_a_user_who_was_deactivated(
    user: Any, queue_settings: Any, settings: Any, backend: str
) -> None:
    settings.AUTHENTICATION_BACKENDS = [f"django.contrib.auth.backends.{backend}"]
    client = session(user)
    assert Api(client).get("/stats").status_code == 200
    user.is_active = False
    user.save()
    assert error(Api(client).get("/stats"), 401)["code"] == "not_authenticated"


def test_a_token_that_expires_later_is_valid(user: Any, queue_settings: Any) -> None:
    text = ApiToken.create(user, "t", timezone.now() + timedelta(hours=1))[1]
    assert Api(Client(), text).get("/stats").status_code == 200


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Bearer x", "Bearer \udcff\x00é", "bearer drq_" + "x" * 5000]
)
def test_a_bad_token_is_not_helped_by_a_session(
    user: Any, queue_settings: Any, header: str
) -> None:
    answer = Api(session(user)).get("/stats", Authorization=header)
    assert error(answer, 401)["code"] == "invalid_token"


def test_the_scheme_is_case_insensitive_and_others_are_not_a_login(
    user: Any, token: str, queue_settings: Any
) -> None:
    assert Api(Client()).get("/stats", Authorization=f"bearer {token}").status_code == 200
    for scheme in ("Token", "Basic"):
        answer = Api(Client()).get("/stats", Authorization=f"{scheme} {token}")
        assert "Authorization: Bearer <token>" in error(answer, 401)["message"]
    # A proxy's own login alongside a session does no harm.
    assert Api(session(user)).get("/stats", Authorization="Basic eDp5").status_code == 200


def test_a_token_in_the_url_is_ignored(token: str, queue_settings: Any) -> None:
    error(Api(Client()).get(f"/stats?token={token}"), 401)


def test_only_the_digest_of_a_token_is_stored(user: Any) -> None:
    row, text = ApiToken.create(user, "t")
    stored = ApiToken.objects.filter(pk=row.pk).values().get()
    assert stored["digest"] == digest_of(text)
    assert stored["hint"] == text[:8]
    assert not any(text[8:] in str(value) for value in stored.values())
    assert ApiToken.create(user, "t")[1] != text


def test_last_used_at_is_written_once_a_minute(
    user: Any, queue_settings: Any, django_assert_num_queries: Any
) -> None:
    row, text = ApiToken.create(user, "t")
    api = Api(Client(), text)
    user_queries = 3  # the token with its user, and two queries for permissions
    with django_assert_num_queries(user_queries + 1):
        api.get("/stats")
    row.refresh_from_db()
    first = row.last_used_at
    assert first is not None
    with django_assert_num_queries(user_queries):
        api.get("/stats")
    stale = first - timedelta(seconds=61)
    ApiToken.objects.filter(pk=row.pk).update(last_used_at=stale)
    api.get("/stats")
    row.refresh_from_db()
    assert row.last_used_at > stale


def test_two_simultaneous_requests_write_it_once(user: Any, django_assert_num_queries: Any) -> None:
    row, _ = ApiToken.create(user, "t")
    other = ApiToken.objects.get(pk=row.pk)
    row.mark_used()
    row.refresh_from_db()
    written = row.last_used_at
    other.mark_used()
    row.refresh_from_db()
    assert row.last_used_at == written


def test_a_site_that_requires_a_login_everywhere_lets_tokens_through(
    api: Api, settings: Any
) -> None:
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]  # fmt: skip
    assert api.get("/stats").status_code == 200
    error(Api(Client()).get("/stats"), 401)


def test_without_sessions_tokens_still_work(api: Api, settings: Any) -> None:
    settings.MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
    assert api.get("/stats").status_code == 200
    error(Api(Client()).get("/stats"), 401)


def test_a_user_who_may_see_jobs_sees_all_of_them(make_user: Any, api: Api) -> None:
    """Jobs have no owner: the permission to view applies to all jobs, as in the admin."""
    path = f"/{api.post('', BODY).json()['id']}"
    other = ApiToken.create(make_user("bob", "view_jobrecord"), "t")[1]
    seen = Api(Client(), other).get(path).json()
    assert seen == api.get(path).json()
    assert get_job(seen["id"]).id == seen["id"]


def test_methods_that_a_path_does_not_have(api: Api) -> None:
    for method, path, allow in [
        ("GET", "", "POST"),
        ("PUT", "/stats", "GET, HEAD"),
        ("DELETE", "/processing", "GET, HEAD"),
        ("PATCH", "/failed", "GET, HEAD, DELETE"),
        ("HEAD", "/events", "GET"),
        ("GET", "/job_1_x_0/retry", "POST"),
        ("OPTIONS", "/stats", "GET, HEAD"),
    ]:
        answer = api.call(method, path)
        assert answer.status_code == 405
        assert answer["Allow"] == allow
        if method != "HEAD":
            assert error(answer, 405)["code"] == "method_not_allowed"
