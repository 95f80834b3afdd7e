"""The overview under ASGI: server-sent events to a real browser, from a real server."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app import tasks
from tests.docs.pages import blocks
from tests.support.commands import environment, manage, migrate
from tests.support.imports import ROOT
from tests.support.servers import RedisServer, free_port
from tests.support.warm import WarmProcess
from tests.worker.processes import eventually

from .visitor import Visitor

pytestmark = pytest.mark.slow


@pytest.fixture
def site(redisqueue: dict[str, Any], redis_server: RedisServer, tmp_path: Path) -> Iterator[str]:
    """Uvicorn with its own database; yields the address."""
    pytest.importorskip("uvicorn")
    own = {name: value for name, value in redisqueue.items() if name != "CONNECTION"}
    variables = {
        "REDISQUEUE_TEST_URL": redis_server.url,
        "REDISQUEUE_TEST_FOLDER": str(tmp_path),
        "REDISQUEUE_TEST_SETTINGS": json.dumps(own),
        "DJANGO_SUPERUSER_PASSWORD": "secret",
    }
    migrate(**variables)
    who = ("--username", "ada", "--email", "a@b.org")
    manage("createsuperuser", "--noinput", *who, **variables)
    port = free_port()
    with open(os.devnull, "w") as nowhere:
        process = WarmProcess(
            "-m", "uvicorn", "tests.browser.asgi:application", "--port", str(port),
            env=environment(**variables), stdout=nowhere.fileno(),
        )  # fmt: skip
    try:
        eventually(lambda: _answers(port), 20)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_count_changes_by_events_without_a_poll(browser: Any, site: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(10_000)
    visitor = Visitor(context.new_page(), site)
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    visitor.log_in()
    visitor.sees("Live", "#drq-state")
    cell = visitor.count("default", "queued")
    assert cell.inner_text() == "0"
    tasks.noop.enqueue()
    cell.filter(has_text="1").wait_for()
    assert [url for url in asked if "/dashboard/stream/" in url]
    assert not [url for url in asked if "/dashboard/live/" in url]
    context.close()
    assert visitor.complaints == []


def test_a_stream_that_ends_again_and_again_is_not_live(browser: Any, site: str) -> None:
    """As when a mirror in a database of its own does not answer: without an event."""
    context = browser.new_context()
    context.set_default_timeout(10_000)
    visitor = Visitor(context.new_page(), site)
    visitor.log_in()
    visitor.sees("Live", "#drq-state")
    bodies = ['retry: 100\ndata: {"fragments": {}}\n\n']

    def end(route: Any) -> None:
        body = bodies.pop() if bodies else ""
        route.fulfill(content_type="text/event-stream", body=body)

    visitor.page.route("**/dashboard/stream/", end)
    visitor.page.route("**/dashboard/live/**", lambda route: route.fulfill(status=503, json={}))
    visitor.page.reload()
    visitor.sees("The server does not answer; retrying", "#drq-state")
    assert bodies == []
    context.close()


KEEP_SOURCES = """
const Real = EventSource;
window.sources = [];
window.EventSource = class extends Real { constructor(url) { super(url); sources.push(this); } };
"""


def test_a_stream_that_falls_silent_is_opened_again(browser: Any, site: str) -> None:
    """As when a computer wakes up whose connection died without a word while it slept."""
    context = browser.new_context()
    context.set_default_timeout(10_000)
    visitor = Visitor(context.new_page(), site)
    visitor.page.add_init_script(KEEP_SOURCES)
    visitor.page.clock.install()
    visitor.log_in()
    visitor.sees("Live", "#drq-state")
    visitor.page.evaluate("sources[0].onmessage = null")
    tasks.noop.enqueue()
    visitor.page.clock.fast_forward(30_000)
    visitor.count("default", "queued").filter(has_text="1").wait_for()
    assert visitor.page.evaluate("sources.map((each) => each.readyState)") == [2, 1]
    context.close()
    assert visitor.complaints == []


def test_a_page_polls_while_a_proxy_holds_its_stream_back(browser: Any, site: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(10_000)
    visitor = Visitor(context.new_page(), site)
    visitor.page.clock.install()
    visitor.log_in()
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    visitor.page.route("**/dashboard/stream/", hold)
    visitor.page.reload()
    visitor.page.clock.fast_forward(30_000)
    visitor.sees("Live", "#drq-state")
    assert len(held) == 1
    visitor.page.unroute_all(behavior="ignoreErrors")
    context.close()
    assert visitor.complaints == []


def test_the_documented_script_shows_events(browser: Any, site: str) -> None:
    (block,) = blocks("js", ROOT / "docs" / "http-api.md")
    context = browser.new_context()
    context.set_default_timeout(10_000)
    visitor = Visitor(context.new_page(), site)
    visitor.log_in()
    visitor.page.evaluate(
        "const shown = window.shown = [], show = (told) => shown.push(told);"
        f"const readTheJobsAgain = () => shown.push('gap');{block.text}"
        "window.events = events; new Promise((opened) => { events.onopen = opened; })"
    )
    job = tasks.noop.enqueue()
    visitor.page.wait_for_function("id => shown.some((told) => told.jobId === id)", arg=job.id)
    told = visitor.page.evaluate("id => shown.find((told) => told.jobId === id)", job.id)
    assert set(re.findall(r'"(\w+)"', block.text)) & {"queue", "task"} <= set(told)
    visitor.page.evaluate("events.dispatchEvent(new MessageEvent('gap'))")
    assert visitor.page.evaluate("shown.at(-1)") == "gap"
    context.close()
    assert visitor.complaints == []
