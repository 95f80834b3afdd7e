"""The pages while the mirror's database does not answer, though Redis and the site's own do."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError, InternalError, OperationalError, connections
from django.db.models import Model
from django.utils import timezone

from django_redisqueue import JobQueue
from django_redisqueue.dashboard.admin_log import UNLOGGED
from django_redisqueue.models import ErrorGroup, SavedFilter, mirror
from tests.app import tasks

from .site import Site, logged, plain

GONE = "job_20260101_0000000000000000000000"
TOLD = "The database cannot be read (OperationalError: no route to 10.0.0.1)."
PAGES = {
    "jobrecord_changelist": "",
    "errors": "",
    "error": "a1",
    "workflows": "",
    "workflow": "flow_20260101_0000000000000000000000",
    "search": "",
    "job": GONE,
}


class MirrorElsewhere:
    """A router that has the mirror's tables in a database of their own."""

    def db_for_read(self, model: type[Model], **_: Any) -> str | None:
        return "other" if model.__module__ == mirror.__name__ else None

    db_for_write = db_for_read


@pytest.fixture
def away(site: Site, settings: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    settings.DATABASE_ROUTERS = [MirrorElsewhere()]
    kind = getattr(request, "param", OperationalError)

    def fail(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if "SAVEPOINT" in sql:  # in the transaction of the test only
            return execute(sql, *rest)
        raise kind("no route to 10.0.0.1")

    with connections["other"].execute_wrapper(fail):
        yield


pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.mark.parametrize("away", [OperationalError, InterfaceError], indirect=True)
@pytest.mark.parametrize(("name", "argument"), PAGES.items())
def test_a_page_says_so(site: Site, away: None, name: str, argument: str) -> None:
    query = {"q": "noop"} if name == "search" else {}
    arguments = [argument] if argument else []
    page = " ".join(plain(site.get(name, *arguments, code=503, **query)).split())
    assert "The database does not answer | Django site admin" in page
    assert "Error: no route to 10.0.0.1). Start the database, or run manage.py migrate" in page
    assert "Log out" in page


def test_so_does_the_page_of_a_job_that_redis_has(site: Site, away: None) -> None:
    assert "does not answer" in site.get("job", tasks.noop.enqueue().id, code=503)


@pytest.mark.parametrize(("name", "argument"), [("job", GONE), ("errors", ""), ("workflows", "")])
def test_the_script_of_a_page_gets_json(site: Site, away: None, name: str, argument: str) -> None:
    answer = site.get(name, *([argument] if argument else []), code=503, live=1)
    assert json.loads(answer) == {"error": TOLD}


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_file_is_a_line_of_text(site: Site, away: None, kind: str) -> None:
    assert site.get("export_records", code=503, format=kind) == f"{TOLD}\n"


def test_what_needs_no_mirror_is_shown(site: Site, away: None) -> None:
    job = tasks.noop.enqueue()
    assert job.id in site.get("queue", "default", "queued")
    assert "The charts cannot be read" in site.text("overview")


@contextmanager
def locked_log() -> Iterator[None]:
    """A database that can be read, but does not accept entries of the admin's log."""

    def refuse(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith("INSERT") and "django_admin_log" in sql:
            raise OperationalError("database is locked")
        return execute(sql, *rest)

    with connections["default"].execute_wrapper(refuse):
        yield


def test_an_action_that_is_done_is_no_error_page(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A user who saw one enqueued a second copy."""
    caplog.set_level(logging.ERROR)
    job = tasks.noop.enqueue()
    with locked_log():
        told = site.post("act_on_job", job.id, verb="copy")
        assert JobQueue().get_stats()["queued"] == 2
        assert "This copy was enqueued." in told
        assert UNLOGGED in told
        assert UNLOGGED in site.post("pause", "default", verb="pause")
        assert JobQueue().is_paused
        ids = [one.id for one in JobQueue().get_jobs("queued")]
        fields = {"verb": "cancel", "confirmed": "yes", "id": ids}
        told = site.post("act_on_list", "default", "queued", **fields)
        assert "2 jobs cancelled, or asked to stop." in told
        assert f"{', '.join(ids)}: Cancel (queue default, queued), by ada: " in caplog.text


@contextmanager
def read_only(kind: type[Exception]) -> Iterator[None]:
    """As a replica of the site's database, or a file on a full disk."""

    def refuse(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith(("INSERT", "UPDATE", "DELETE")) and "django_redisqueue_" in sql:
            raise kind("cannot execute this in a read-only transaction\nUPDATE ...")
        return execute(sql, *rest)

    with connections["default"].execute_wrapper(refuse):
        yield


# PostgreSQL has an InternalError for it, SQLite and MariaDB an OperationalError.
@pytest.mark.parametrize("kind", [InternalError, OperationalError])
def test_what_a_read_only_database_refuses_is_a_message(site: Site, kind: type[Exception]) -> None:
    now = timezone.now()
    group = ErrorGroup.objects.create(id="a1", task="a", first_seen=now, last_seen=now)
    saved = SavedFilter.objects.create(user=User.objects.get(), name="mine", query="text=x")
    refused = (
        "the database does not accept this, so nothing was done: "
        f"{kind.__name__}: cannot execute this in a read-only transaction"
    )
    with read_only(kind):
        assert site.post("act_on_error", "a1", verb="silence") == refused
        assert site.post("filters", verb="save", name="other", text="y") == refused
        assert site.post("filters", verb="delete", filter=saved.pk) == refused
    group.refresh_from_db()
    assert group.silenced_at is None
    assert [one.name for one in SavedFilter.objects.all()] == ["mine"]
    assert logged() == []
