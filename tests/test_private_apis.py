"""What this package uses of Python, Django, asgiref and redis-py that they do not document.

Each has a test here that fails by its name when a new version drops or changes it.
"""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import threading
from asyncio import _get_running_loop
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, process
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.management.base import OutputWrapper
from django.db import DatabaseError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.test import RequestFactory
from django.utils.autoreload import StatReloader
from redis.exceptions import NoScriptError

from django_redisqueue.client import enqueue

from .support.servers import RedisServer


@pytest.mark.django_db(transaction=True)
def test_run_on_commit_lists_the_hooks_of_a_transaction() -> None:
    called: list[str] = []
    with transaction.atomic():
        transaction.on_commit(lambda: called.append("hook"))
        ((_, hook, *_),) = connection.run_on_commit
        hook()
        connection.run_on_commit[:] = []
    assert called == ["hook"]  # the list is the one that the commit processes


@pytest.mark.django_db
def test_atomic_blocks_of_a_test_case_are_marked() -> None:
    (block,) = connection.atomic_blocks
    assert block._from_testcase is True
    with transaction.atomic():
        assert connection.atomic_blocks[-1]._from_testcase is False


@pytest.mark.django_db
def test_in_atomic_block_follows_transactions() -> None:
    connection.in_atomic_block = False
    try:
        assert connection.close_if_unusable_or_obsolete() is None
        assert connection.is_usable()
    finally:
        connection.in_atomic_block = True


@pytest.mark.django_db(transaction=True)
def test_errors_occurred_is_true_from_an_error_until_the_connection_has_been_checked() -> None:
    with connection.cursor() as cursor, pytest.raises(DatabaseError):
        cursor.execute("SELECT nothing")
    assert connection.errors_occurred is True
    connection.close_if_unusable_or_obsolete()
    assert connection.errors_occurred is False


@pytest.mark.django_db(transaction=True)
def test_atomic_calls_these_methods_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def note(name: str) -> None:
        method = getattr(connection, name)

        def call(*args: Any, **kwargs: Any) -> None:
            calls.append((name, *args, *kwargs.items()))
            method(*args, **kwargs)

        monkeypatch.setattr(connections["default"], name, call)

    for name in ("commit", "rollback", "set_autocommit"):
        note(name)
    with transaction.atomic():
        transaction.on_commit(lambda: calls.append("hook"))
    with pytest.raises(KeyError), transaction.atomic():
        raise KeyError
    begun = ("set_autocommit", False, ("force_begin_transaction_with_broken_autocommit", True))
    ended = ("set_autocommit", True)
    assert calls == [begun, ("commit",), ended, "hook", begun, ("rollback",), ended]


@pytest.mark.django_db
def test_execute_wrappers_are_called_with_the_cursor() -> None:
    cursors: list[Any] = []

    def note(execute: Any, *args: Any) -> Any:
        cursors.append(args[-1]["cursor"])
        return execute(*args)

    connection.execute_wrappers.append(note)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        connection.execute_wrappers.remove(note)
    assert cursors == [cursor]


def test_the_csrf_middleware_refuses_by_reject() -> None:
    class Check(CsrfViewMiddleware):
        def _reject(self, request: HttpRequest, reason: str) -> HttpResponse:
            return HttpResponse(f"refused: {reason}")

    request = RequestFactory(enforce_csrf_checks=True).post("/")
    check = Check(lambda _: HttpResponse())
    check.process_request(request)
    answer = check.process_view(request, lambda _: HttpResponse(), (), {})
    assert answer is not None
    assert answer.content.startswith(b"refused: ")


def test_the_output_of_a_command_has_its_stream() -> None:
    stream = io.StringIO()
    assert OutputWrapper(stream)._out is stream


def test_the_stat_reloader_takes_snapshots_of_the_modules_files() -> None:
    times = dict(StatReloader().snapshot_files())
    path = Path(__file__)
    assert times[path] == path.stat().st_mtime


def test_asgiref_takes_the_thread_of_a_context_from_its_table() -> None:
    names: list[str] = []

    class Recording(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            names.append("submit")
            return super().submit(*args, **kwargs)

        def shutdown(self, wait: bool = True, **kwargs: Any) -> None:
            names.append("shutdown")
            super().shutdown(wait, **kwargs)

    async def run() -> None:
        context = ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(context)
        SyncToAsync.context_to_thread_executor[context] = Recording(1)
        await sync_to_async(int)()

    asyncio.run(run())
    assert names == ["submit"]


@pytest.mark.django_db
def test_asgiref_keeps_the_connections_of_a_thread_in_a_local_of_it() -> None:
    storage = enqueue._thread_storage()
    assert storage is not None
    assert storage.__dict__[connection.alias] is connections[connection.alias]


@pytest.mark.django_db
def test_asyncio_tells_whether_a_loop_runs_without_an_exception() -> None:
    async def run() -> bool:
        return _get_running_loop() is asyncio.get_running_loop()

    assert _get_running_loop() is None
    assert asyncio.run(run())


def test_a_connection_of_redis_py_translates_errors_by_its_parser(
    redis_server: RedisServer,
) -> None:
    client = redis_server.client()
    made: Any = client.connection_pool.get_connection()
    error = made._parser.parse_error("NOSCRIPT No matching script.")
    assert isinstance(error, NoScriptError)
    made.disconnect()
    client.close()


def test_a_connection_of_redis_py_has_its_socket(redis_server: RedisServer) -> None:
    client = redis_server.client()
    made = client.connection_pool.get_connection()
    assert made._sock is not None
    made.disconnect()
    assert made._sock is None
    client.close()


def test_asgiref_runs_calls_outside_a_context_in_one_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This also holds for calls under ``asyncio.run``."""
    executor = ThreadPoolExecutor(1, "ours")
    monkeypatch.setattr(SyncToAsync, "single_thread_executor", executor)
    name = asyncio.run(sync_to_async(lambda: threading.current_thread().name)())
    executor.shutdown()
    assert name.startswith("ours")


def test_executors_of_processes_end_by_python_exit() -> None:
    assert callable(process._python_exit)
    assert isinstance(process._threads_wakeups, Mapping)


def test_multiprocessing_deletes_its_folder_by_a_finalizer() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        folder = pool.apply(_folder_after_finalizers)
    assert not Path(folder).exists()


def _folder_after_finalizers() -> str:
    folder = util.get_temp_dir()
    util._run_finalizers()
    return folder
