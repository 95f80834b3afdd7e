"""A real ASGI server that serves the test suite's site from a thread of this process, and its
clients."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from django.contrib.auth.models import User

from django_redisqueue.api import hub as hub_module
from django_redisqueue.api.hub import hub, stream_limiter
from django_redisqueue.dashboard import pages
from tests.app.asgi import application
from tests.support.logins import logged_in
from tests.worker.processes import eventually


@contextmanager
def serving() -> Iterator[int]:
    """The server's port on loopback. Its streams poll often, and end with the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "BLOCK", 0.1)
        patch.setattr(pages, "POLL", 100)
        _end_reader()
        with _server() as port:
            yield port
        eventually(lambda: not hub.readers and stream_limiter.open_streams == 0)
        _end_reader()


def _end_reader() -> None:
    """End the thread that reads for pages: it keeps the connections, and with them the databases,
    of the test in which it began."""
    pages._executor().shutdown()
    pages._executor.cache_clear()


@contextmanager
def _server() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        application, lifespan="off", ws="none", http="h11", loop="asyncio", log_level="critical",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        eventually(lambda: server.started)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
    assert not thread.is_alive()
    # Django does not close the (empty) body of a request whose task the server has cancelled.
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


class OpenStream:
    """One stream of server-sent events, read from a socket."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.connection.request("GET", path, headers=dict(headers))
        self.answer = self.connection.getresponse()
        self.read_at = time.monotonic()  # when the last line arrived

    def line(self, start: str) -> str:
        """The rest of the next line that starts with this."""
        while True:
            line = self.answer.readline().decode()
            assert line, "the stream has ended"
            if line.startswith(start):
                return line.removeprefix(start).strip("\r\n")

    def data(self) -> Any:
        """The next data; must be strict JSON, as a browser parses it."""
        found = json.loads(self.line("data: "), parse_constant=pytest.fail)
        self.read_at = time.monotonic()
        return found

    def rest(self) -> list[str]:
        """All remaining lines, up to the end of the stream, which must be near."""
        return self.answer.read().decode().splitlines()

    def close(self) -> None:
        """Disconnect without notice."""
        sock = self.connection.sock
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
        self.answer.close()
        self.connection.close()


def event_stream(port: int, token: str, after: str = "") -> OpenStream:
    """The API's stream of events."""
    place = {"Last-Event-ID": after} if after else {}
    return OpenStream(port, "/jobs/events", {"Authorization": f"Bearer {token}", **place})


def page_stream(port: int, user: User, path: str) -> OpenStream:
    """The stream of a dashboard page, for a logged-in user."""
    client = logged_in(user)
    cookie = "; ".join(f"{key}={morsel.value}" for key, morsel in client.cookies.items())
    return OpenStream(port, path, {"Cookie": cookie})
