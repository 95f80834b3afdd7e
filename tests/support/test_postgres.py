"""The test suite's own PostgreSQL."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, connections, transaction

from tests.app.models import Counter

from .postgres import PostgresServer, as_database


def test_default_is_a_fresh_migrated_database(on_postgres: PostgresServer) -> None:
    assert connection.vendor == "postgresql"
    Counter.objects.create(name="a")
    with suppress(ZeroDivisionError), transaction.atomic():
        Counter.objects.create(name="b")
        raise ZeroDivisionError
    assert [counter.name for counter in Counter.objects.all()] == ["a"]


def test_it_has_no_rows_of_the_previous_test(on_postgres: PostgresServer) -> None:
    assert Counter.objects.count() == 0


def test_threads_see_the_same_database(on_postgres: PostgresServer) -> None:
    Counter.objects.create(name="a")
    seen: list[int] = []

    def look() -> None:
        seen.append(Counter.objects.count())
        connections.close_all()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [1]


def test_an_alias_of_its_own(postgres: PostgresServer, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock(), as_database("extra", postgres.new_database()):
        Counter.objects.using("extra").create(name="a")
        assert Counter.objects.using("extra").count() == 1
    assert "extra" not in connections


@pytest.mark.django_db
def test_the_former_database_is_restored(postgres: PostgresServer) -> None:
    Counter.objects.create(name="in sqlite")
    with as_database("default", postgres.new_database()):
        assert Counter.objects.count() == 0
    assert connection.vendor == "sqlite"
    assert Counter.objects.count() == 1


def test_a_terminated_connection_is_gone(on_postgres: PostgresServer) -> None:
    Counter.objects.count()
    assert on_postgres.terminate(connection.settings_dict["NAME"]) == 1
    assert not connection.is_usable()
