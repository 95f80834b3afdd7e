from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from pytest_django.live_server_helper import LiveServer

from django_redisqueue.dashboard import pages
from tests.mirror.mirror_processes import sqlite_entry
from tests.support.logins import logged_in
from tests.support.postgres import as_database
from tests.support.servers import RedisServer
from tests.worker.processes import WorkerProcess, eventually

from .visitor import Visitor

try:
    from playwright import sync_api
except ImportError:
    sync_api = None  # type: ignore[assignment]

SESSION = django_settings.SESSION_COOKIE_NAME
# The first is Chromium's headless shell, which needs two thirds of the CPU.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def unavailable() -> str:
    """Why there is no browser here, or ''."""
    if sync_api is None:
        return "playwright is not installed"
    if not any(map(shutil.which, PROGRAMS)):
        return f"none of {', '.join(PROGRAMS)} is on PATH"
    return ""


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of this folder. It is required if CI is set."""
    why = unavailable()
    if why and os.environ.get("CI"):
        pytest.fail(f"CI wants the browser tests, but {why}")
    if why:
        pytest.skip(why)
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with pytest.MonkeyPatch.context() as patch:
        # Playwright runs a loop in this thread, in which no test code runs.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with sync_api.sync_playwright() as playwright:
            started = playwright.chromium.launch(executable_path=program, args=options)
            yield started
            started.close()


@pytest.fixture
def redisqueue(queue_settings: dict[str, Any], settings: Any) -> dict[str, Any]:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}, "MIRROR": True}
    found: dict[str, Any] = settings.REDISQUEUE
    return found


@pytest.fixture
def open_requests() -> Iterator[list[object]]:
    """Contains a mark for each request that the site is processing."""
    marks: list[object] = []

    def begins(**_: Any) -> None:
        marks.append(object())

    def ends(**_: Any) -> None:
        marks.pop()

    request_started.connect(begins)
    request_finished.connect(ends)
    yield marks
    request_started.disconnect(begins)
    request_finished.disconnect(ends)


@pytest.fixture(scope="package")
def databases(
    migrated: Path, tmp_path_factory: pytest.TempPathFactory, django_db_setup: None
) -> Iterator[None]:
    """Both aliases are files, so that each thread of the server has its own connections. With a
    database in memory it would share that of the test, and with it transactions and locks."""
    folder = tmp_path_factory.mktemp("databases")
    with ExitStack() as stack:
        for alias in ("default", "other"):
            file = shutil.copy(migrated / "default.sqlite3", folder / f"{alias}.sqlite3")
            stack.enter_context(as_database(alias, sqlite_entry(file)))
        yield


@pytest.fixture(scope="package")
def live_server(databases: None) -> Iterator[LiveServer]:
    server = LiveServer("localhost")
    yield server
    server.stop()


@pytest.fixture(scope="package")
def page(browser: Any) -> Iterator[Any]:
    """One page for all tests of this folder: the first load of a new page costs a second of CPU."""
    context = browser.new_context()
    context.set_default_timeout(10_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def visitor(
    page: Any,
    redisqueue: None,
    live_server: LiveServer,
    open_requests: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Visitor]:
    """A logged-in user who may do everything. The test fails if a page shows a dialog, has an error
    in a script, or violates the content security policy."""
    monkeypatch.setattr(pages, "POLL", 250)
    client = logged_in(User.objects.create_superuser("ada", password="secret"))
    session = {"name": SESSION, "value": client.cookies[SESSION].value, "url": live_server.url}
    page.context.clear_cookies()
    page.context.add_cookies([session])
    page.set_viewport_size({"width": 1360, "height": 900})
    page.emulate_media(color_scheme="light", media="screen")
    made = Visitor(page, live_server.url)
    yield made
    made.leave()
    eventually(lambda: not open_requests)  # a poll would lock tables that are about to be emptied
    assert made.complaints == []


@pytest.fixture
def worker(
    redisqueue: dict[str, Any], redis_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[[], WorkerProcess]]:
    """Starts a real worker on the test's queues."""
    started: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        own = {name: value for name, value in redisqueue.items() if name != "CONNECTION"}
        process = WorkerProcess(
            "--processes", "1",
            folder=tmp_path,
            environment={"REDISQUEUE_TEST_URL": redis_server.url},
            settings={**own, "MIRROR": False},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()
