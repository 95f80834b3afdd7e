"""A real ASGI server with the site of the test suite, in a thread of this process."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tests.app.asgi import application
from tests.worker.processes import eventually


@contextmanager
def serving() -> Iterator[int]:
    """The server's port on loopback."""
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
