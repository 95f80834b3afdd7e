"""Which database connections an enqueue checks: those in Django's own list."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_redisqueue.client import enqueue
from django_redisqueue.client.enqueue import open_connections


def djangos() -> Sequence[BaseDatabaseWrapper]:
    return connections.all(initialized_only=True)


@pytest.mark.django_db(databases=["default", "other"])
def test_they_are_the_connections_of_django_in_a_thread() -> None:
    assert list(open_connections()) == djangos() != []

    def in_another() -> tuple[int, bool]:
        before = len(open_connections())
        mine = connections["other"]
        try:
            return before, list(open_connections()) == [mine] == djangos()
        finally:
            del connections["other"]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_another).result() == (0, True)
        assert pool.submit(open_connections).result() == []


@pytest.mark.django_db
def test_a_connection_that_replaces_another_is_found() -> None:
    mine = connections["default"]
    del connections["default"]
    try:
        assert mine not in open_connections()
    finally:
        connections["default"] = mine
    assert mine in open_connections()


@pytest.mark.django_db
def test_they_are_the_connections_of_django_where_asgiref_keeps_them_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(enqueue, "_thread_storage", lambda: None)
    assert list(open_connections()) == djangos() != []


@pytest.mark.django_db(transaction=True)
def test_a_thread_with_an_event_loop_has_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJANGO_ALLOW_ASYNC_UNSAFE", raising=False)

    async def run() -> None:
        with pytest.raises(SynchronousOnlyOperation), transaction.atomic():
            pass
        assert list(open_connections()) == []

    asyncio.run(run())


@pytest.mark.django_db(transaction=True)
def test_it_may_have_one_where_async_code_may_use_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

    async def run() -> None:
        with transaction.atomic():
            assert list(open_connections()) == djangos()
            assert [one.alias for one in open_connections() if one.in_atomic_block] == ["default"]
        connections["default"].close()

    asyncio.run(run())


@pytest.mark.django_db(transaction=True)
def test_sync_code_called_by_async_code_sees_its_transaction() -> None:
    def work() -> bool:
        with transaction.atomic():
            atomic = [one.alias for one in open_connections() if one.in_atomic_block]
            return atomic == ["default"] and list(open_connections()) == djangos()

    async def run() -> bool:
        return await sync_to_async(work)()

    assert asyncio.run(run())
