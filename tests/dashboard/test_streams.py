"""Open streams of the dashboard: they share one reader, hold no connection, and are bounded."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test import Client

from django_redisqueue import streams as limits
from django_redisqueue.connection import producer_link
from django_redisqueue.dashboard import board, overview, pages
from django_redisqueue.store.reads import Reads
from django_redisqueue.streams import places
from tests.app import tasks
from tests.asgi_server import serving
from tests.postgres import PostgresServer
from tests.worker.processes import eventually

from .site import Site, address


class Stream:
    """One open stream of the overview, of a user who is logged in."""

    def __init__(self, port: int, user: User, name: str = "overview_stream") -> None:
        client = Client()
        client.force_login(user)
        cookie = "; ".join(f"{key}={morsel.value}" for key, morsel in client.cookies.items())
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.connection.request("GET", address(name), headers={"Cookie": cookie})
        self.answer = self.connection.getresponse()

    def look(self) -> Any:
        """What it says next."""
        while True:
            line = self.answer.readline().decode()
            assert line, "the stream has ended"
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))

    def rest(self) -> str:
        """Looks that were under way, and then the end."""
        lines = self.answer.read().decode().splitlines()
        return "".join(line for line in lines if not line.startswith("data: "))

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


@pytest.fixture
def port(
    on_postgres: PostgresServer, queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """A server on PostgreSQL."""
    monkeypatch.setattr(pages, "POLL", 100)
    with serving() as port:
        yield port
    eventually(lambda: places.taken == 0)


@contextmanager
def opened(port: int, *users: User) -> Iterator[list[Stream]]:
    with ExitStack() as stack:
        streams = [Stream(port, user) for user in users]
        for stream in streams:
            stack.callback(stream.close)
        yield streams


def sessions() -> int:
    """Connections to this database besides this one."""
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
            assert "drq-queues" in stream.look()["fragments"]
        assert places.taken == len(streams) == 20
        for _ in range(3):
            eventually(lambda: sessions() <= 1)  # of the one that looks just now
            for stream in streams:
                stream.look()


def test_streams_that_look_at_about_the_same_time_share_a_look(redisqueue: None, db: None) -> None:
    shared, reads = board.SharedBoard(), Reads(producer_link())
    first = shared.get(reads, 1, fresh=60)
    assert shared.get(reads, 1, fresh=60) is first
    assert shared.get(reads, 2, fresh=60) is not first
    assert first.queues[0].rates is None
    tasks.noop.enqueue()
    later = shared.get(reads, 1, fresh=0)
    assert later.queues[0].rates is not None  # since the first look


def test_a_user_has_so_many_streams_and_the_page_polls_then(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAMS_A_USER", 2)
    monkeypatch.setattr(limits, "STREAMS", 3)
    ada, bob = _user("ada"), _user("bob")
    with opened(port, ada, ada, ada, bob, bob) as streams:
        assert [stream.answer.status for stream in streams] == [200, 200, 429, 200, 503]
        refused = streams[2].answer
        assert refused.headers["Retry-After"] == "30"
        assert json.load(refused)["error"] == "this user has 2 streams open already; close one"
    eventually(lambda: places.taken == 0)
    with opened(port, ada) as streams:
        assert streams[0].answer.status == 200


# -- a database that does not answer


@pytest.fixture
def no_figures() -> Iterator[None]:
    """Every query of the charts' table fails."""

    def fail(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if "django_redisqueue_rollup" in sql:
            raise OperationalError("too many clients already")
        return execute(sql, *rest)

    with connection.execute_wrapper(fail):
        yield


def test_a_page_whose_charts_cannot_be_read_shows_the_queues(site: Site, no_figures: None) -> None:
    words = site.words("overview")
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
    """Its page comes back, and tells that the server does not answer."""
    with opened(port, _user("ada")) as (stream,):
        stream.look()

        def fail(*args: Any) -> Any:
            raise OperationalError("too many clients already")

        monkeypatch.setattr(overview, "_parts", fail)
        assert stream.rest() == ""
        eventually(lambda: places.taken == 0)
