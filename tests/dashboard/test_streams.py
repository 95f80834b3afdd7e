"""Open streams of the dashboard: they share one reader, hold no connection, and are bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection

from django_redisqueue.api import hub as limits
from django_redisqueue.api.hub import stream_limiter
from django_redisqueue.dashboard import overview
from tests.app import tasks
from tests.support.asgi_server import OpenStream, page_stream, serving
from tests.support.postgres import PostgresServer
from tests.worker.processes import eventually

from .site import Site, address


@pytest.fixture
def port(on_postgres: PostgresServer, queue_settings: dict[str, Any]) -> Iterator[int]:
    """A server on PostgreSQL."""
    with serving() as port:
        yield port


@contextmanager
def opened(port: int, *users: User) -> Iterator[list[OpenStream]]:
    """A stream of the overview for each of these users."""
    with ExitStack() as stack:
        streams = [page_stream(port, user, address("overview_stream")) for user in users]
        for stream in streams:
            stack.callback(stream.close)
        yield streams


def sessions() -> int:
    """The number of other connections to this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        (count,) = cursor.fetchone()
    return int(count)


def _user(name: str) -> User:
    return User.objects.create_superuser(name, password="secret")


def test_open_streams_hold_no_connection(port: int) -> None:
    users = [_user(name) for name in ("ada", "bob")]
    with opened(port, *users * limits.STREAMS_A_USER) as streams:
        for stream in streams:
            assert "drq-queues" in stream.data()["fragments"]
        assert stream_limiter.open_streams == len(streams) == 20
        for _ in range(3):
            eventually(lambda: sessions() <= 1)  # of the stream that is reading just now
            for stream in streams:
                stream.data()


def test_streams_that_read_at_the_same_time_share_an_overview(redisqueue: None, db: None) -> None:
    shared = overview.SharedOverview()
    first = shared.get(max_age=60)
    assert shared.get(max_age=60) is first
    assert first.queues[0].rates is None
    tasks.noop.enqueue()
    later = shared.get(max_age=0)
    assert later.queues[0].rates is not None  # since the first reading


def test_a_user_has_a_limited_number_of_streams_then_the_page_polls(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAMS_A_USER", 2)
    monkeypatch.setattr(limits, "STREAMS", 3)
    ada, bob = _user("ada"), _user("bob")
    with opened(port, ada, ada, ada, bob, bob) as streams:
        assert [stream.answer.status for stream in streams] == [200, 200, 429, 200, 503]
        refused = streams[2].answer
        assert refused.headers["Retry-After"] == "30"
        assert json.load(refused)["error"] == "your user already has 2 open streams; close one"
    eventually(lambda: stream_limiter.open_streams == 0)
    with opened(port, ada) as streams:
        assert streams[0].answer.status == 200


# -- a database that does not answer


@pytest.fixture
def no_figures() -> Iterator[None]:
    """Make every query on the charts' table fail."""

    def fail(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if "django_redisqueue_rollup" in sql:
            raise OperationalError("too many clients already")
        return execute(sql, *rest)

    with connection.execute_wrapper(fail):
        yield


def test_a_page_whose_charts_cannot_be_read_shows_the_queues(site: Site, no_figures: None) -> None:
    words = site.text("overview")
    assert "The charts cannot be read (OperationalError: too many clients already)." in words
    assert "default" in words
    assert "low" in words
    parts = site.json("overview_live")["fragments"]
    assert "last hour&#x27;s figures cannot be read" in parts["drq-notices"]
    assert "default" in parts["drq-queues"]
    assert "The charts cannot be read" in site.get("overview_charts", code=503)


def test_a_stream_ends_when_the_database_does_not_answer(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page reconnects, and reports that the server does not answer."""
    with opened(port, _user("ada")) as (stream,):
        stream.data()

        def fail(*args: Any) -> Any:
            raise OperationalError("too many clients already")

        monkeypatch.setattr(overview, "_parts", fail)
        assert not any(line for line in stream.rest() if not line.startswith("data: "))
        eventually(lambda: stream_limiter.open_streams == 0)
