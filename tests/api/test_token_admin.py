"""Tokens in the admin: created, shown once, revoked."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from django_redisqueue.models import ApiToken
from tests.support.logins import logged_in

from .api import Api, error

ADD = "/admin/django_redisqueue/apitoken/add/"
LIST = "/admin/django_redisqueue/apitoken/"


@pytest.fixture
def root(db: None) -> Any:
    return get_user_model().objects.create_superuser("root")


@pytest.fixture
def staff(db: None) -> Any:
    """A user who may manage tokens, and has no other permission."""
    made = get_user_model().objects.create_user("staff", is_staff=True)
    made.user_permissions.set(Permission.objects.filter(content_type__model="apitoken"))
    return made


def add(client: Client, **fields: Any) -> str:
    """Create a token; returns its text, from the page that shows it."""
    answer = client.post(ADD, {"name": "ci", "expires_at_0": "", "expires_at_1": "", **fields})
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    found = re.search(r'<code id="token">(drq_[^<]{43})</code>', answer.content.decode())
    assert found, answer.content
    return found[1]


def test_a_token_is_created_shown_once_used_and_revoked(
    root: Any, user: Any, queue_settings: Any
) -> None:
    client = logged_in(root)
    text = add(client, user=user.pk)
    row = ApiToken.objects.get()
    assert (row.user, row.name) == (user, "ci")
    assert Api(Client(), text).get("/stats").status_code == 200
    for page in (LIST, f"{LIST}{row.pk}/change/"):
        seen = client.get(page).content.decode()
        assert row.hint in seen
        assert text not in seen
        assert row.digest not in seen
    assert text not in str(client.session.items())
    assert text not in str(client.cookies)
    assert client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    error(Api(Client(), text).get("/stats"), 401)
    assert [str(entry.object_repr) for entry in LogEntry.objects.all()] == [str(row)] * 2


def test_a_change_keeps_the_token_and_its_user(root: Any, user: Any) -> None:
    row, text = ApiToken.create(user, "t")
    fields = {"name": "new", "user": root.pk, "expires_at_0": "2020-01-01", "expires_at_1": "00:00"}
    assert logged_in(root).post(f"{LIST}{row.pk}/change/", fields).status_code == 302
    changed = ApiToken.objects.get()
    assert (changed.name, changed.user, changed.digest) == ("new", user, row.digest)
    assert ApiToken.find(text) is None, "it has expired"


def test_only_superusers_create_tokens_for_other_users(staff: Any, root: Any) -> None:
    client = logged_in(staff)
    add(client, user=root.pk)
    assert ApiToken.objects.get().user == staff
    row, _ = ApiToken.create(root, "secret of root")
    assert "secret of root" not in client.get(LIST).content.decode()
    client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"})
    assert ApiToken.objects.filter(pk=row.pk).exists()


def test_without_the_permission_there_are_no_tokens(db: None) -> None:
    nobody = get_user_model().objects.create_user("nobody", is_staff=True)
    assert logged_in(nobody).get(ADD).status_code == 403
    assert logged_in(nobody).get(LIST).status_code == 403


def test_a_name_with_markup_is_shown_as_text(root: Any) -> None:
    answer = logged_in(root).post(
        ADD, {"name": "<script>x</script>", "user": root.pk, "expires_at_0": "", "expires_at_1": ""}
    )
    assert "&lt;script&gt;x" in answer.content.decode()
    assert "<script>x" not in answer.content.decode()
